"""Partition and replicas of the leader StatefulSet (LWS §6.3): worked examples and properties."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile_controllers.leaderworkerset.rollout import (
    GroupState,
    Observed,
    Plan,
    Strategy,
    needs_states,
    plan,
    roll,
    scaled_value,
    want,
)

READY_OLD = GroupState(ready=True, old=True)
BROKEN_OLD = GroupState(old=True)
READY_NEW = GroupState(ready=True, updated=True)
STARTING = GroupState(updated=True)
ABSENT = GroupState()


class Sim:
    """Groups under a StatefulSet controller that replaces at once every group from the partition on."""

    def __init__(self, strategy, *, broken=()):
        self.strategy = strategy
        self.groups = [BROKEN_OLD if i in broken else READY_OLD for i in range(strategy.replicas)]
        self.observed = Observed(strategy.replicas, 0, strategy.replicas)
        self.least_ready = len(self.groups)

    def apply(self, result):
        before = sum(group.ready for group in self.groups)
        del self.groups[result.replicas :]
        self.groups += [STARTING] * (result.replicas - len(self.groups))
        for i in range(result.partition, len(self.groups)):
            if self.groups[i].old:
                self.groups[i] = STARTING
        self.observed = Observed(result.replicas, result.partition, self.strategy.replicas)
        ready = sum(group.ready for group in self.groups)
        self.least_ready = min(self.least_ready, ready)
        wish = self.strategy
        assert wish.upstream_surge or ready >= min(before, wish.replicas - wish.max_unavailable)
        return result.partition, result.replicas

    def change(self):
        return self.apply(plan(self.strategy, self.observed, changed=True))

    def settle(self):
        """Plan until nothing moves; return the last (partition, replicas)."""
        for _ in range(50):
            before = self.observed
            now = self.apply(plan(self.strategy, self.observed, self.groups))
            if self.observed == before:
                return now
        raise AssertionError("the plan does not settle")

    def ready(self, *indexes):
        for i in indexes:
            self.groups[i] = READY_NEW
        return self.settle()


def strategy(replicas=4, unavailable=1, surge=0, floor=0):
    return Strategy.resolve(replicas, unavailable, surge, floor)


def started(*args, broken=(), **kwargs):
    sim = Sim(strategy(*args, **kwargs), broken=broken)
    sim.change()
    return sim


def test_lws_6_3_one_unavailable_goes_one_by_one():
    sim = started()
    assert sim.settle() == (3, 4)
    assert [sim.ready(i) for i in (3, 2, 1, 0)] == [(2, 4), (1, 4), (0, 4), (0, 4)]


def test_lws_6_3_two_unavailable():
    sim = started(unavailable=2)
    assert sim.settle() == (2, 4)
    assert [sim.ready(i) for i in (3, 2)] == [(1, 4), (0, 4)]


def test_lws_6_3_an_out_of_order_group_does_not_move_the_cut():
    sim = started(unavailable=2)
    sim.settle()
    assert sim.ready(2) == (2, 4)
    assert sim.ready(3) == (0, 4)


def test_lws_6_3_more_unavailable_than_replicas_updates_all_at_once():
    assert started(unavailable=10).settle() == (0, 4)


def test_lws_6_3_surge_of_one_and_none_unavailable():
    sim = Sim(strategy(unavailable=0, surge=1))
    assert sim.change() == (4, 5)
    assert sim.settle() == (4, 5)
    assert [sim.ready(i) for i in (4, 3, 2, 1)] == [(3, 5), (2, 5), (1, 5), (0, 5)]
    assert sim.ready(0) == (0, 4)


def test_lws_6_3_surge_of_one_and_one_unavailable():
    sim = started(surge=1)
    assert sim.settle() == (3, 5)
    sim.ready(4)
    assert sim.ready(3) == (1, 5)
    sim.ready(2)
    assert sim.observed.partition == 0
    assert sim.ready(1) == (0, 4)


def test_lws_6_3_surge_goes_as_soon_as_unavailable_covers_it():
    sim = started(unavailable=2, surge=2)
    assert sim.settle() == (2, 6)
    sim.groups[3] = sim.groups[2] = READY_NEW
    result = plan(sim.strategy, sim.observed, sim.groups)
    assert result.replicas == 4
    assert result.reclaimed


def test_lws_6_3_surge_is_capped_by_replicas():
    assert Sim(strategy(unavailable=1, surge=4)).change() == (4, 7)
    assert Sim(strategy(replicas=2, unavailable=1, surge=4)).change() == (2, 3)


def test_lws_6_3_a_broken_group_below_the_cut_holds_it_up():
    assert started(unavailable=2, broken=(1,)).settle() == (3, 4)


def test_lws_6_3_broken_groups_do_not_stop_the_update():
    sim = started(replicas=2, broken=(0, 1))
    assert sim.settle() == (1, 2)
    assert sim.ready(1) == (0, 2)


def test_o_12_all_groups_broken_with_surge_and_none_unavailable_ends():
    sim = started(unavailable=0, surge=1, broken=(0, 1, 2, 3))
    sim.settle()
    assert sim.ready(4) == (3, 5)
    assert [sim.ready(i) for i in (3, 2, 1, 0)] == [(2, 5), (1, 5), (0, 5), (0, 4)]


def test_o_12_two_broken_groups_never_cost_a_ready_one():
    sim = started(unavailable=0, surge=1, broken=(2, 3))
    sim.settle()
    while not all(group == READY_NEW for group in sim.groups[:4]):
        starting = [i for i, group in enumerate(sim.groups) if group == STARTING]
        sim.ready(starting[-1])
    assert sim.least_ready >= 2
    assert sim.settle() == (0, 4)


def test_lws_6_3_partition_is_a_floor():
    assert plan(strategy(replicas=6, floor=4), None) == Plan(4, 6)
    sim = Sim(strategy(replicas=6, floor=4))
    sim.observed = Observed(6, 4, 6)
    sim.change()
    assert sim.settle() == (5, 6)
    assert [sim.ready(i) for i in (5, 4)] == [(4, 6), (4, 6)]
    sim.strategy = strategy(replicas=6, floor=2)
    assert sim.settle() == (3, 6)
    assert sim.ready(3) == (2, 6)


def test_lws_6_3_surge_group_is_kept_until_the_partition_is_reset_if_asked_for():
    held = replace(strategy(replicas=3, surge=1, floor=2), upstream_surge=True)
    sim = Sim(held)
    assert sim.change() == (3, 4)
    sim.settle()
    assert sim.ready(3, 2) == (2, 4)
    sim.strategy = replace(held, floor=0)
    assert sim.settle() == (0, 4)
    assert sim.ready(1, 0) == (0, 3)


def test_o_15_surge_groups_go_when_the_groups_above_the_partition_are_updated():
    sim = Sim(strategy(replicas=3, unavailable=0, surge=1, floor=2))
    assert sim.change() == (3, 4)
    assert sim.ready(3) == (2, 4)
    assert sim.ready(2) == (2, 3)
    sim.strategy = strategy(replicas=3, unavailable=0, surge=1)
    assert sim.settle() == (2, 4)
    assert [sim.ready(i) for i in (3, 1, 0)] == [(1, 4), (0, 4), (0, 3)]


def test_o_15_groups_that_may_be_unavailable_need_no_stand_in():
    sim = Sim(strategy(replicas=6, unavailable=2, surge=3, floor=4))
    assert sim.change() == (6, 6)
    assert sim.settle() == (4, 6)
    assert sim.ready(5, 4) == (4, 6)


def test_o_15_a_broken_group_that_is_held_back_does_not_stop_the_update():
    sim = Sim(strategy(replicas=3, unavailable=1, surge=1, floor=2), broken=(0,))
    sim.change()
    sim.settle()
    assert sim.ready(3)[0] == 2
    assert sim.ready(2) == (2, 3)


def test_lws_16_5_broken_groups_at_rest_bring_no_surge_when_scaling_down():
    assert plan(strategy(replicas=3, surge=1), Observed(4, 0, 4), [STARTING] * 4).replicas == 3
    as_upstream = replace(strategy(replicas=3, surge=1), upstream_surge=True)
    assert plan(as_upstream, Observed(4, 0, 4), [STARTING] * 4).replicas == 4


def test_lws_6_3_scaling_up_with_a_change_grows_first():
    sim = Sim(strategy(replicas=2, unavailable=1, surge=2))
    sim.strategy = strategy(replicas=4, unavailable=1, surge=2)
    assert sim.change() == (2, 4)
    assert sim.apply(plan(sim.strategy, sim.observed, sim.groups)) == (2, 6)


def test_lws_6_3_scaling_up_during_an_update_keeps_the_partition():
    observed = Observed(4, 2, 4)
    assert plan(strategy(replicas=6), observed) == Plan(2, 6)


def test_lws_6_3_scaling_down_during_an_update():
    states = [READY_OLD, READY_OLD, READY_NEW, READY_NEW, READY_NEW, READY_NEW]
    assert plan(strategy(replicas=3), Observed(6, 2, 6), states) == Plan(2, 3, reclaimed=True)
    assert plan(strategy(replicas=1), Observed(6, 2, 6), states).partition == 1


def test_o_15_creation_with_partition_and_surge_makes_no_surge_groups():
    wish = strategy(replicas=6, unavailable=2, surge=3, floor=9)
    first = plan(wish, None)
    assert first == Plan(9, 6)
    for states in ([ABSENT] * 6, [STARTING] * 6, [STARTING] * 3 + [ABSENT] * 3):
        assert plan(wish, Observed(6, 9, 6), states).replicas == 6
    lower = strategy(replicas=6, unavailable=2, surge=3, floor=4)
    assert plan(lower, Observed(6, 4, 6), [STARTING] * 6) == Plan(4, 6)


def test_o_15_a_partition_above_replicas_moves_and_adds_nothing():
    wish = strategy(replicas=6, unavailable=2, surge=3, floor=9)
    sim = Sim(wish)
    sim.observed = Observed(6, 9, 6)
    assert sim.change() == (9, 6)
    assert sim.settle() == (9, 6)
    assert all(group == READY_OLD for group in sim.groups)


def test_lws_6_3_replicas_of_the_last_apply_must_be_known_when_needed():
    with pytest.raises(ValueError, match="annotation"):
        plan(strategy(), Observed(4, 2, None), [READY_OLD] * 4)
    assert plan(strategy(), Observed(4, 0, None)) == Plan(0, 4)


@pytest.mark.parametrize(
    ("value", "total", "down", "up"),
    [(3, 10, 3, 3), ("25%", 2, 0, 1), ("25%", 4, 1, 1), ("30%", 10, 3, 3), ("100%", 7, 7, 7), ("1%", 100, 1, 1)],
)
def test_lws_2_2_percentages_round_down_and_up(value, total, down, up):
    assert scaled_value(value, total, round_up=False) == down
    assert scaled_value(value, total, round_up=True) == up


@pytest.mark.parametrize("text", ["", "10", "%", "-1%", "1.5%", "a%"])
def test_lws_2_2_text_that_is_no_percentage_is_named(text):
    with pytest.raises(ValueError, match="percentage"):
        scaled_value(text, 4, round_up=True)


STATES = st.sampled_from([READY_OLD, BROKEN_OLD, READY_NEW, STARTING, ABSENT])


@given(st.lists(STATES, max_size=8), st.integers(0, 10), st.integers(0, 10))
def test_lws_6_3_partition_never_rises_by_itself(states, step, partition):
    assert 0 <= roll(states, step, partition) <= partition


@given(st.data(), st.integers(0, 6), st.integers(0, 3), st.integers(0, 8), st.integers(0, 8), st.booleans())
def test_lws_6_3_replicas_stay_between_wish_and_burst(data, replicas, surge, floor, current, changed):
    wish = strategy(replicas, 1, surge, floor)
    observed = Observed(current, data.draw(st.integers(0, 8)), data.draw(st.sampled_from([replicas, replicas + 1])))
    states = data.draw(st.lists(STATES, min_size=current, max_size=current))
    result = plan(wish, observed, states, changed=changed)
    assert replicas <= result.replicas <= wish.burst
    assert result.partition >= floor
    if not needs_states(wish, observed, changed=changed):
        assert plan(wish, observed, [], changed=changed) == result


@given(st.integers(0, 10), st.integers(0, 10), st.integers(0, 10), st.integers(0, 20))
def test_lws_6_3_want_gives_surge_back_as_groups_come_in(replicas, unavailable, surge, unready):
    wish = strategy(replicas, unavailable, surge)
    assert want(wish, unready) <= want(wish, unready + 1)
    assert want(wish, 0) == replicas


class Interrupted:
    """Every state in which an update can be when yet another revision comes."""

    def __init__(self, wish):
        self.wish = wish

    def states(self):
        first = Sim(self.wish)
        first.change()
        first.settle()
        seen, todo = set(), [first]
        while todo:
            sim = todo.pop()
            if (sim.observed, tuple(sim.groups)) in seen:
                continue
            seen.add((sim.observed, tuple(sim.groups)))
            yield sim
            todo += [self.copy(sim).and_ready(i) for i, group in enumerate(sim.groups) if group == STARTING]

    def copy(self, sim):
        copy = Interrupted.Sim(self.wish)
        copy.groups, copy.observed = list(sim.groups), sim.observed
        return copy

    def with_all_old(self, sim):
        copy = self.copy(sim)
        copy.groups = [GroupState(ready=group.ready, old=True) for group in sim.groups]
        return copy

    class Sim(Sim):
        def and_ready(self, index):
            self.ready(index)
            return self


WISHES = [
    (replicas, unavailable, surge)
    for replicas in range(1, 6)
    for unavailable in range(3)
    for surge in range(min(replicas, 3) + 1)
    if unavailable or surge
]


@pytest.mark.parametrize("wish", WISHES, ids=lambda wish: "{}-{}-{}".format(*wish))
def test_lws_6_3_stand_ins_stay_when_another_revision_comes(wish):
    interrupted = Interrupted(strategy(*wish))
    for sim in interrupted.states():
        again = interrupted.with_all_old(sim)
        ready = sum(group.ready for group in again.groups)
        again.apply(plan(again.strategy, again.observed, again.groups, changed=True))
        assert sum(group.ready for group in again.groups) >= min(ready, wish[0] - wish[1])
        # What the update before had begun gets ready in time, or is replaced: the new one comes to its end.
        again.settle()
        while any(not group.ready for group in again.groups):
            index = next(i for i, group in enumerate(again.groups) if not group.ready)
            again.groups[index] = READY_NEW if again.groups[index].updated else READY_OLD
            again.settle()
        assert set(again.groups) == {READY_NEW}
        assert len(again.groups) == wish[0]


@pytest.mark.parametrize("wish", WISHES, ids=lambda wish: "{}-{}-{}".format(*wish))
def test_lws_6_3_a_revision_that_never_gets_ready_is_replaced_by_the_next(wish):
    interrupted = Interrupted(strategy(*wish))
    again = interrupted.with_all_old(next(interrupted.states()))
    again.apply(plan(again.strategy, again.observed, again.groups, changed=True))
    again.settle()
    while STARTING in again.groups:
        again.ready(again.groups.index(STARTING))
    assert set(again.groups) == {READY_NEW}


def test_lws_6_3_the_old_way_gives_all_surge_groups_free_when_another_revision_comes():
    wish = replace(strategy(4, 0, 1), upstream_surge=True)
    observed = Observed(5, 3, 4)
    states = [READY_OLD, READY_OLD, READY_OLD, BROKEN_OLD, READY_OLD]
    assert plan(wish, observed, states, changed=True) == Plan(4, 5)
    assert plan(strategy(4, 0, 1), observed, states, changed=True) == Plan(5, 5)
    assert not needs_states(wish, observed, changed=True)
