"""The front door `pyreconcile`: every public name is there, and importing it is cheap."""

import subprocess
import sys

import pytest

import pyreconcile


@pytest.mark.parametrize("name", pyreconcile.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(pyreconcile, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        _ = pyreconcile.Nope


def test_importing_the_package_loads_neither_models_nor_the_http_client():
    heavy = ("aiohttp", "pydantic", "kubernetes_asyncio")
    code = f"import sys, pyreconcile; print(*[name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
