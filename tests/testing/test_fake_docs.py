"""The examples of docs/testing.md that need no control plane of their own work as printed."""

import re
import sys
import types
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


@pytest.fixture
def example(monkeypatch):
    """The names that a file of the page defines."""
    files = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL))

    def load(file):
        module = types.ModuleType(file.removesuffix(".py"))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(files[file], file, "exec"), module.__dict__)
        return module

    load("mirror.py")
    return load


@pytest.mark.rules("TE-10")
async def test_te_10_a_reconciler_is_tested_without_a_control_plane(example):
    await example("test_unit.py").test_a_copy_is_made()


@pytest.mark.rules("TE-11")
async def test_te_11_a_verb_is_made_to_fail(example):
    await example("test_failures.py").test_an_apply_that_fails_ends_the_reconcile()


@pytest.mark.plane
async def test_te_7_waiting_and_comparing(example, client, namespace):
    await example("test_waiting.py").test_a_colour_is_changed(client, namespace)
