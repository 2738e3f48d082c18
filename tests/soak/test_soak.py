"""A short soak on a control plane of its own: some sets, one round of trouble."""

import pytest

from hack.soak import __main__ as soak
from hack.soak.plan import make_plan


@pytest.mark.plane
async def test_a_short_soak_breaks_no_rule(control_plane, tmp_path, capsys):  # the plane: so that programs are built
    outcome = await soak.soak(make_plan(4, seconds=25, sets=4), tmp_path)
    shown = capsys.readouterr().out
    assert not outcome.broken, f"{shown}\n{(tmp_path / 'manager.log').read_text()[-3000:]}"
    assert {"node", "manager"} <= outcome.done.keys()
    assert "round 1 of 1: right after" in shown


def test_the_plan_can_be_read(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["hack.soak", "--plan", "--seed", "2", "--minutes", "0.5", "--sets", "3"])
    assert soak.main() == 0
    shown = capsys.readouterr().out
    assert shown.splitlines() == list(make_plan(2, seconds=30, sets=3).lines())
