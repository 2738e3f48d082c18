"""The plan of a soak: it comes from the seed alone, and asks only for what the webhooks let through."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.soak.facts import resolve
from hack.soak.plan import make_plan
from pyreconcile_controllers.leaderworkerset.webhook import validate_set


def test_the_same_seed_gives_the_same_plan():
    assert make_plan(5, seconds=300, sets=10) == make_plan(5, seconds=300, sets=10)
    assert make_plan(5, seconds=300, sets=10) != make_plan(6, seconds=300, sets=10)


def test_a_long_plan_has_all_kinds_of_trouble_and_a_calm_every_minute():
    plan = make_plan(1, seconds=1200, sets=30)
    assert (len(plan.rounds), plan.round_seconds) == (20, 60)
    done = Counter(action.kind for actions in plan.rounds for action in actions)
    assert done.keys() == {
        "scale",
        "template",
        "resize",
        "network",
        "limits",
        "partition",
        "kill",
        "restart",
        "replace",
        "node",
        "manager",
    }
    assert done["node"] == done["manager"] == 20
    for actions in plan.rounds:
        times = [action.at for action in actions]
        assert times == sorted(times)
        assert 0 <= times[0] <= times[-1] <= 45
    text = "\n".join(plan.lines())
    assert text.count("round ") == 20
    assert " manager signal=SIG" in text


@given(seed=st.integers(), sets=st.integers(1, 12))
def test_the_webhook_takes_every_set_of_a_plan(seed, sets):
    plan = make_plan(seed, seconds=60, sets=sets)
    wanted = [*plan.sets, *(action.detail["set"] for action in plan.rounds[0] if action.kind == "replace")]
    assert all(validate_set(wire) == [] for wire in wanted)


@given(seed=st.integers())
def test_limits_never_forbid_every_update(seed):
    plan = make_plan(seed, seconds=60, sets=8)
    limits = [wire["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"] for wire in plan.sets]
    limits += [action.detail["limits"] for action in plan.rounds[0] if "limits" in action.detail]
    for limit in limits:
        for replicas in range(1, 6):
            unavailable = resolve(limit["maxUnavailable"], replicas, up=False)
            assert unavailable + resolve(limit["maxSurge"], replicas, up=True) > 0


@pytest.mark.parametrize(("seconds", "sets"), [(0, 1), (60, 0)])
def test_a_plan_without_sets_or_time_is_refused(seconds, sets):
    with pytest.raises(ValueError, match="one set and some time"):
        make_plan(1, seconds=seconds, sets=sets)
