"""Every state of up to six groups against models of the rolling update that were written apart from it (LWS §6.3).

Three models: the cut, found by trying every one; the table of the specification, row by row; and a whole update, with
every order in which groups can get ready. For the first two there is a shorter list of states where groups are many:
what is not ready counts the same in the cut, whatever its revision.
"""

import itertools
from dataclasses import replace

import pytest

from pyreconcile_controllers.leaderworkerset.rollout import (
    GroupState,
    Observed,
    Strategy,
    needs_states,
    plan,
    roll,
)

HEALTHY_OLD = GroupState(ready=True, old=True)
BROKEN_OLD = GroupState(old=True)
DONE = GroupState(ready=True, updated=True)
STARTING = GroupState(updated=True)
KINDS = (HEALTHY_OLD, BROKEN_OLD, DONE, STARTING)


def every_state(total, *, all_kinds):
    """All groups in all states; else the broken ones of a sequence are all old, or all starting."""
    if all_kinds:
        yield from itertools.product(KINDS, repeat=total)
        return
    for broken in (BROKEN_OLD, STARTING):
        yield from itertools.product((HEALTHY_OLD, DONE, broken), repeat=total)


def model_cut(states, step, partition, *, as_upstream=False):
    """The lowest cut from which on no more than ``step`` groups beyond the updated tail are taken, where groups that
    are broken below it count as taken, and with which all but ``step`` groups are ready; and from there down over
    whatever is no loss. As upstream, the last condition is left out."""
    total = len(states)
    done = [state.ready and state.updated for state in states]
    tail = max(t for t in range(total + 1) if all(done[total - t :]))
    base = max(total - tail - step, 0)
    top = base + sum(not state.ready for state in states[:base])
    if not as_upstream:
        lost = [[i for i in range(cut, total) if states[i] == HEALTHY_OLD] for cut in range(total + 1)]
        ready = sum(state.ready for state in states)
        top = next((cut for cut in range(top, total) if ready - len(lost[cut]) >= total - step), max(top, total))

    def costs_nothing(cut):
        return all(states[i] != HEALTHY_OLD for i in range(cut, min(top + 1, total)))

    return min(min(filter(costs_nothing, range(base, top)), default=top), partition)


def test_lws_6_3_the_cut_over_every_state_of_up_to_six_groups():
    count = 0
    for total in range(7):
        for states in every_state(total, all_kinds=True):
            for step in range(total + 2):
                for as_upstream in (False, True):
                    cut = model_cut(states, step, total, as_upstream=as_upstream)
                    for partition in range(total + 1):
                        assert roll(states, step, partition, as_upstream=as_upstream) == min(cut, partition)
                        count += 1
    assert count == 2 * 281_562


def test_lws_6_3_the_cut_over_every_state_of_up_to_nine_groups_with_surge():
    count = 0
    for total in (7, 8, 9):
        for states in itertools.product((HEALTHY_OLD, DONE, BROKEN_OLD), repeat=total):
            for step in range(total + 1):
                for as_upstream in (False, True):
                    cut = model_cut(states, step, total, as_upstream=as_upstream)
                    assert roll(states, step, total, as_upstream=as_upstream) == cut
                    count += 1
    assert count == 2 * 273_375


def model_groups(wish, observed, states, cut):
    """How many groups there shall be while these states last, with a partition."""
    held = 0 if wish.upstream_surge else min(wish.floor, wish.replicas)
    moving = [i for i in range(held, wish.replicas) if not (i < len(states) and states[i].ready and states[i].updated)]
    missing = len(moving) + sum(not states[i].ready for i in range(held))
    if not wish.upstream_surge:
        surging = observed.replicas > wish.replicas and observed.replicas > (observed.set_replicas or 0)
        if not moving or not (surging or any(state.old for state in states)):
            return wish.replicas
    fewest = wish.replicas + (max(missing - wish.max_unavailable, 0) if missing <= wish.max_surge else wish.max_surge)
    if wish.upstream_surge or observed.set_replicas != wish.replicas:
        return fewest
    most = min(observed.replicas, wish.replicas + wish.max_surge)
    stay = [state == DONE or (state.ready and i < max(cut, wish.floor)) for i, state in enumerate(states)]
    enough = [n for n in range(fewest, most) if sum(stay[:n]) >= wish.replicas - wish.max_unavailable]
    return min(enough, default=max(fewest, most))


def model_plan(wish, observed, states, *, changed):
    """The table of LWS §6.3, row by row: partition and replicas."""
    wanted, now, cut = wish.replicas, observed.replicas, observed.partition
    if changed and now < wanted:
        row = now, wanted
    elif changed:
        row = wanted, model_groups(wish, observed, [HEALTHY_OLD] * now, wanted)
    elif (cut == 0 and now == wanted) or now < wanted:
        row = cut, wanted
    elif observed.set_replicas != wanted:
        row = min(cut, wanted + wish.max_surge), model_groups(wish, observed, states, cut)
    else:
        cut = model_cut(states, wish.max_unavailable + now - wanted, cut, as_upstream=wish.upstream_surge)
        row = cut, model_groups(wish, observed, states, cut)
    return max(row[0], wish.floor), row[1]


@pytest.mark.parametrize("as_upstream", [False, True])
def test_lws_6_3_the_plan_wherever_the_states_of_groups_do_not_matter(as_upstream):
    count = 0
    for wanted, unavailable, surge, floor in itertools.product(range(7), (0, 1, 3), (0, 1, 2, 6), range(8)):
        wish = replace(Strategy.resolve(wanted, unavailable, surge, floor), upstream_surge=as_upstream)
        for now, partition, scaled, changed in itertools.product(range(9), range(9), (0, 1), (False, True)):
            observed = Observed(now, partition, wanted + scaled)
            if not needs_states(wish, observed, changed=changed):
                result = plan(wish, observed, changed=changed)
                assert (result.partition, result.replicas) == model_plan(wish, observed, (), changed=changed)
                count += 1
    assert count > 80_000


@pytest.mark.parametrize("as_upstream", [False, True])
def test_lws_6_3_the_plan_over_every_state_of_up_to_six_groups(as_upstream):
    count = 0
    for wanted in range(7):
        for unavailable, surge, floor in itertools.product((0, 1, 2), range(min(wanted, 2) + 1), {0, wanted // 2}):
            wish = replace(Strategy.resolve(wanted, unavailable, surge, floor), upstream_surge=as_upstream)
            for now in range(wanted, wanted + surge + 1):
                observed = Observed(now, now, wanted)
                for states in every_state(now, all_kinds=now < 5):
                    result = plan(wish, observed, states)
                    assert (result.partition, result.replicas) == model_plan(wish, observed, states, changed=False)
                    count += 1
    assert count > 90_000


@pytest.mark.parametrize("as_upstream", [False, True])
def test_lws_6_3_the_plan_after_scaling_down_from_every_state_of_up_to_six_groups(as_upstream):
    for now in range(7):
        for wanted, surge, floor in itertools.product(range(now + 1), (0, 1, 2), (0, 1, 3)):
            wish = replace(Strategy.resolve(wanted, 1, surge, floor), upstream_surge=as_upstream)
            for partition, before in itertools.product((0, 1, now), {now, now - 1, wanted + 1} - {wanted}):
                observed = Observed(now, partition, before)
                for states in every_state(now, all_kinds=now < 4):
                    result = plan(wish, observed, states)
                    assert (result.partition, result.replicas) == model_plan(wish, observed, states, changed=False)


class Update:
    """A whole update, driven to its end in every order in which its groups can get ready.

    The leader StatefulSet replaces every group from the partition on at once. A group that was replaced starts, and
    gets ready whenever it likes; one that was broken before stays so until it is replaced. With ``relapse`` a group
    that got ready may also lose that again at any time.
    """

    def __init__(self, wish, *, relapse=False):
        self.wish = wish
        self.relapse = relapse
        self.seen = set()
        self.ends = set()
        self.waiting = set()

    def from_every_start(self):
        """Begin with each pattern of healthy and broken groups, and follow all ways."""
        todo = []
        for states in itertools.product((HEALTHY_OLD, BROKEN_OLD), repeat=self.wish.replicas):
            observed = Observed(len(states), 0, len(states))
            todo.append(self._settle(*self._apply(states, plan(self.wish, observed, changed=True), rise=True)))
        while todo:
            state = todo.pop()
            if state in self.seen:
                continue
            self.seen.add(state)
            partition, states = state
            starting = [i for i, group in enumerate(states) if group == STARTING]
            if not starting:
                (self.ends if set(states[self.wish.floor :]) == {DONE} else self.waiting).add(state)
            todo += [self._settle(partition, (*states[:i], DONE, *states[i + 1 :])) for i in starting]
            if self.relapse:
                done = [i for i, group in enumerate(states) if group == DONE]
                todo += [self._settle(partition, (*states[:i], STARTING, *states[i + 1 :])) for i in done]

    def _settle(self, partition, states):
        for _ in range(20):
            observed = Observed(len(states), partition, self.wish.replicas)
            result = self._apply(states, plan(self.wish, observed, states), before=partition)
            if result == (partition, states):
                return result
            partition, states = result
        raise AssertionError("the plan does not settle")

    def _apply(self, states, result, *, before=0, rise=False):
        assert self.wish.replicas <= result.replicas <= self.wish.burst
        assert rise or result.partition <= before
        kept = states[: result.replicas]
        kept += (STARTING,) * (result.replicas - len(kept))
        after = tuple(STARTING if group.old and i >= result.partition else group for i, group in enumerate(kept))
        # Nothing that is ready goes when that leaves more than max_unavailable groups missing, for whatever reason.
        # Only broken groups that are held back do not keep the surge groups at the end.
        ready_before, ready_after = (sum(group.ready for group in groups) for groups in (states, after))
        held_back = states[: self.wish.floor].count(BROKEN_OLD)
        enough = self.wish.replicas - self.wish.max_unavailable - held_back
        assert ready_after >= min(ready_before, enough), (states, after)
        return result.partition, after


def strategies():
    for replicas in range(1, 7):
        limits = range(replicas + 1)
        for unavailable, surge, floor in itertools.product(limits, limits, sorted({0, replicas // 2})):
            if unavailable + surge:
                yield Strategy.resolve(replicas, unavailable, surge, floor)


def test_lws_6_3_every_update_of_up_to_six_groups_keeps_its_limits_and_ends():
    looked_at = 0
    for wish in strategies():
        update = Update(wish, relapse=wish.replicas < 5)
        update.from_every_start()
        assert {(cut, len(states)) for cut, states in update.ends} == {(wish.floor, wish.replicas)}
        for cut, states in update.waiting:
            # It waits only for broken groups that have used up the whole budget, below a healthy one.
            broken = states[:cut].count(BROKEN_OLD)
            assert broken >= wish.max_unavailable + len(states) - wish.replicas, (wish, cut, states)
        looked_at += len(update.seen)
    assert looked_at > 40_000
