"""The examples in docs/crd.md run."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from pyreconcile.client import Client
from pyreconcile.crd import install_crds

GUIDE = Path(__file__).parents[2] / "docs" / "crd.md"


def run_guide() -> dict[str, Any]:
    names = vars(sys.modules.setdefault("crd_guide", types.ModuleType("crd_guide")))
    for block in re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(block, str(GUIDE), "exec"), names)
    return names


def test_the_guides_examples_run(capsys: pytest.CaptureFixture[str]):
    names = run_guide()
    assert names["crd"]["metadata"]["name"] == "servers.docs.example.dev"
    assert "shortNames:\n      - srv" in capsys.readouterr().out


@pytest.mark.plane
async def test_the_server_takes_the_guides_kind(client: Client):
    from pyreconcile.api.apiextensions_v1 import CustomResourceDefinition

    names = run_guide()
    await install_crds(client, [names["Server"], names["ServerV1Beta1"]])
    await client.delete(CustomResourceDefinition, "servers.docs.example.dev")
