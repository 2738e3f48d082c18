"""The project in docs/testing.md works as printed, in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def blocks():
    return dict(re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL))


@pytest.mark.rules("TE-5")
def test_te_6_the_guide_works_in_a_foreign_project(own_plane, tmp_path):
    files = blocks()
    (tmp_path / "config").mkdir()
    tests = ("test_mirror.py", "test_webhook.py", "test_faults.py")
    for name in ("mirror.py", "conftest.py", "config/webhook.yaml", *tests):
        (tmp_path / name).write_text(files[name])
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\npythonpath = .\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--control-plane-kubeconfig={own_plane.kubeconfig}"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.parametrize(
    ("file", "function", "uses_plane"),
    [
        ("test_rights.py", "test_a_stranger_may_not_read", True),
        ("test_outage.py", "test_the_api_server_comes_back", False),
    ],
)
async def test_te_4_the_other_examples_work(own_plane, file, function, uses_plane):
    names = {}
    exec(compile(blocks()[file], file, "exec"), names)
    await names[function](*((own_plane, "default") if uses_plane else ()))


def test_te_6_the_plugin_imports_nothing_heavy():
    code = "import sys, pyreconcile.testing.pytest_plugin; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"aiohttp", "kubernetes_asyncio", "cryptography", "pydantic", "yaml", "pyreconcile.client"}
    assert heavy.isdisjoint(loaded)
