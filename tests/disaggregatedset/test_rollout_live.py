"""Rollouts on the real control plane, each state recorded by a watch of the LeaderWorkerSets (DS §7)."""

import math
from itertools import pairwise

import pytest

from pyreconcile_controllers.disaggregatedset import Limits, Rollout, State, states

pytestmark = pytest.mark.plane

ROLES = ("prefill", "decode")


def as_state(recorded, old, new, roles):
    """One recorded state as the planner writes it."""
    before, after = (tuple(recorded.get((rev, role), (0, 0))[0] for role in roles) for rev in (old, new))
    return State(before, after)


def serving(recorded, role):
    """Replicas of a role that are ready and stay so."""
    return sum(min(pair) for (_, name), pair in recorded.items() if name == role)


def written_out(table):
    """The planner's table with what is between two rows: one write at a time, what grows first."""
    seen = [table[0]]
    for before, after in pairwise(table):
        current = before
        for side in ("new", "old"):
            for index, replicas in enumerate(getattr(after, side)):
                values = list(getattr(current, side))
                if values[index] != replicas:
                    values[index] = replicas
                    sides = {"old": current.old, "new": current.new, side: tuple(values)}
                    current = State(sides["old"], sides["new"])
                    seen.append(current)
    return seen


def rollout_states(watcher, old, new):
    """The different states that a watcher saw of a rollout."""
    found = [as_state(snapshot, old, new, ROLES) for snapshot in watcher.states]
    return [state for before, state in pairwise([None, *found]) if state != before]


async def finished(sets, watcher):
    """Wait until a rollout is over and the watcher has seen that; return the revision that is left."""
    await sets.available()
    (new,) = await sets.revisions()
    await sets.until(lambda: {revision for revision, _ in watcher.replicas} == {new})
    return new


async def test_ds_7_rollout_of_prefill_6_and_decode_2_follows_the_table_and_keeps_the_ratio(sets, role):
    await sets.create(role("prefill", 6), role("decode", 2))
    await sets.available()
    (old,) = await sets.revisions()
    async with sets.watching() as watcher:
        await sets.set_roles(role("prefill", 6, image="busybox:2"), role("decode", 2, image="busybox:2"))
        new = await finished(sets, watcher)
    recorded = rollout_states(watcher, old, new)

    table = states(Rollout.of((6, 2), (6, 2)))
    assert [str(state) for state in recorded] == [str(state) for state in written_out(table)]
    for state in recorded:
        prefill, decode = (before + after for before, after in zip(state.old, state.new, strict=True))
        assert 6 <= prefill <= 7, state
        assert 2 <= decode <= 3, state
    for state in filter(table.__contains__, recorded):
        assert state.new[1] == math.ceil(state.new[0] * 2 / 6), state
    assert min(serving(snapshot, "prefill") for snapshot in watcher.states) >= 6
    assert min(serving(snapshot, "decode") for snapshot in watcher.states) >= 2
    for reason in ("RollingUpdateStarted", "ScalingUp", "ScalingDown", "LWSDeleted", "RollingUpdateCompleted"):
        await sets.happened(reason)


async def test_ds_7_limits_of_each_role_are_kept(sets, role):
    def limited(surge, unavailable):
        rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
        return {"rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": rolling}}

    spec = limited("50%", 0)
    await sets.create(role("prefill", 4, spec=spec), role("decode", 4, spec=spec))
    await sets.available()
    (old,) = await sets.revisions()
    async with sets.watching() as watcher:
        await sets.set_roles(*(role(name, 4, image="busybox:2", spec=spec) for name in ROLES))
        new = await finished(sets, watcher)
    table = states(Rollout.of((4, 4), (4, 4), [Limits(2, 0)] * 2))
    assert [str(state) for state in rollout_states(watcher, old, new)] == [str(state) for state in written_out(table)]


async def test_ds_1_a_restart_in_the_middle_changes_nothing(work, role):
    async with work() as sets:
        await sets.create(role("prefill", 4), role("decode", 2))
        await sets.available()
        (old,) = await sets.revisions()
        await sets.set_roles(role("prefill", 4, image="busybox:2"), role("decode", 2))

        async def half():
            return sum(lws.spec.replicas for (revision, _), lws in (await sets.lws()).items() if revision != old) >= 2

        await sets.until(half)
    async with work() as sets, sets.watching() as watcher:
        new = await finished(sets, watcher)
    rows = [str(state) for state in written_out(states(Rollout.of((4, 2), (4, 2))))]
    seen = [str(state) for state in rollout_states(watcher, old, new)]
    assert seen == rows[-len(seen) :]
