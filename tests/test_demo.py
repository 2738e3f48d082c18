"""``make demo`` shows what it says, also without a terminal."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.plane
def test_the_demo_passes_all_its_checks(control_plane):  # the plane: so that the programs are built by now
    done = subprocess.run(
        [sys.executable, "-m", "hack.demo"], cwd=ROOT, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All that was shown is so." in done.stdout
    assert "✗" not in done.stdout
    for act in (
        "Groups form",
        "A worker is lost",
        "Rolling update",
        "Coordinated rollout",
        "Canary",
        "A broken version",
    ):
        assert act in done.stdout
