"""A short soak on a control plane of its own: some sets, one round of trouble."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hack.soak import __main__ as soak
from hack.soak.plan import make_plan

ROOT = Path(__file__).parents[2]


@pytest.mark.plane
async def test_a_short_soak_breaks_no_rule(control_plane, tmp_path, capsys):  # the plane: so that programs are built
    outcome = await soak.soak(make_plan(4, seconds=18, sets=4), tmp_path)
    shown = capsys.readouterr().out
    assert not outcome.broken, f"{shown}\n{(tmp_path / 'manager.log').read_text()[-3000:]}"
    assert {"node", "manager"} <= outcome.done.keys()
    assert "round 1 of 1: right after" in shown


def test_the_plan_can_be_read(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["hack.soak", "--plan", "--seed", "2", "--minutes", "0.5", "--sets", "3"])
    assert soak.main() == 0
    shown = capsys.readouterr().out
    assert shown.splitlines() == list(make_plan(2, seconds=30, sets=3).lines())


@pytest.mark.plane
def test_a_soak_that_is_ended_leaves_no_process(control_plane, tmp_path):
    command = [sys.executable, "-m", "hack.soak", "--minutes", "1", "--sets", "1", "--folder", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert "1 sets, 1 rounds" in process.stdout.readline()
        assert "start: right after" in process.stdout.readline()
        process.terminate()
        assert process.wait(100) == 1
        assert "BROKEN" not in process.stdout.read()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
