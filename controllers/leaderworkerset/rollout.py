"""How many groups the leader StatefulSet has, and from which ordinal on it updates (LWS §6.3). Pure arithmetic.

The symbols of the specification, by name here: R ``replicas``, U ``max_unavailable``, S ``max_surge``, F ``floor``
(the spec's partition), N and p the StatefulSet's replicas and partition.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

_PERCENT = re.compile(r"([0-9]+)%", re.ASCII)


@dataclass(frozen=True, slots=True)
class GroupState:
    """What is known of one group, by its ordinal in a sequence.

    Attributes:
        ready: the leader runs and is ready, and so is the worker StatefulSet.
        updated: leader and worker StatefulSet carry the current revision key.
        old: a leader exists and carries another key.
    """

    ready: bool = False
    updated: bool = False
    old: bool = False


@dataclass(frozen=True, slots=True)
class Strategy:
    """What the spec asks for, percentages resolved."""

    replicas: int
    max_unavailable: int = 1
    max_surge: int = 0
    floor: int = 0
    upstream_surge: bool = False
    """Treat surge groups, and groups that are not ready, as the Go controller does; see `roll` and `_groups_needed`."""

    @classmethod
    def resolve(cls, replicas: int, max_unavailable: int | str, max_surge: int | str, floor: int) -> Strategy:
        """Resolve percentages of ``replicas``: unavailable groups round down, surge groups up and at most ``replicas``.

        Raises:
            ValueError: a text is no percentage.
        """
        unavailable = scaled_value(max_unavailable, replicas, round_up=False)
        surge = min(scaled_value(max_surge, replicas, round_up=True), replicas)
        return cls(replicas, unavailable, surge, floor)

    @property
    def burst(self) -> int:
        """The most groups there may be during an update (B)."""
        return self.replicas + self.max_surge

    @property
    def leader_max_unavailable(self) -> int:
        """``maxUnavailable`` of the leader StatefulSet, which refuses 0 (LWS §6.2)."""
        return max(1, self.max_unavailable + self.max_surge)


@dataclass(frozen=True, slots=True)
class Observed:
    """The leader StatefulSet as it is: N, p, and the replicas of the set when it was last applied."""

    replicas: int
    partition: int
    set_replicas: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the leader StatefulSet shall be.

    ``reclaimed`` is true when a calculation of surge groups asks for fewer groups than there are.
    """

    partition: int
    replicas: int
    reclaimed: bool = False


def scaled_value(value: int | str, total: int, *, round_up: bool) -> int:
    """Resolve an int-or-percentage against ``total``.

    Raises:
        ValueError: the text is not of the form ``25%``.
    """
    if isinstance(value, int):
        return value
    match = _PERCENT.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is no percentage: write a whole number, or a percentage such as 25%")
    share = int(match[1]) * total
    return math.ceil(share / 100) if round_up else share // 100


def needs_states(strategy: Strategy, observed: Observed | None, *, changed: bool) -> bool:
    """Tell whether `plan` will look at the groups' states: in cases 4 and 5, and in a change with surge groups."""
    if observed is None or observed.replicas < strategy.replicas:
        return False
    if changed:
        return observed.replicas > strategy.replicas and not strategy.upstream_surge
    return observed.partition != 0 or observed.replicas != strategy.replicas


def want(strategy: Strategy, unready: int) -> int:
    """Return how many groups to have while ``unready`` of the wanted ones are not ready and updated.

    Surge groups go one by one as soon as the groups they stand for are covered by ``max_unavailable``.
    """
    if unready <= strategy.max_surge:
        return strategy.replicas + max(0, unready - strategy.max_unavailable)
    return strategy.burst


def roll(states: Sequence[GroupState], step: int, partition: int, *, as_upstream: bool = False) -> int:
    """Return the next partition: the updated tail plus ``step`` groups, and whatever is broken next to it.

    Groups below the cut that are not ready hold it up: ready groups are taken only while all but ``step`` of the groups
    stay ready. Groups at the cut that are not ready anyway are updated for free. The partition never rises.

    The Go controller counts the groups that are not ready below its first cut, but not those above which counting them
    leaves out, and so takes a ready one too many; ``as_upstream`` does the same.
    """
    total = len(states)
    tail = 0
    for state in reversed(states):
        if not (state.ready and state.updated):
            break
        tail += 1
    base = max(0, total - tail - step)
    cut = base + sum(not state.ready for state in states[:base])
    staying = _staying(states, cut)
    while not as_upstream and cut < total - tail and staying < total - step:
        staying += states[cut].ready and not states[cut].updated
        cut += 1
    for index in range(min(cut, total - 1), base - 1, -1):
        if states[index].ready and not states[index].updated:
            break
        cut = index
    return min(cut, partition)


def _staying(states: Sequence[GroupState], cut: int) -> int:
    """Return how many groups are ready and would stay so with a partition."""
    return sum(state.ready and (index < cut or state.updated) for index, state in enumerate(states))


def plan(
    strategy: Strategy, observed: Observed | None, states: Sequence[GroupState] = (), *, changed: bool = False
) -> Plan:
    """Return the leader StatefulSet's partition and replicas.

    Args:
        strategy: what the spec asks for.
        observed: the StatefulSet, or None when there is none yet.
        states: the groups 0 to N-1; read only where `needs_states` says so.
        changed: the revision changed just now, and the StatefulSet does not know it yet.

    Raises:
        ValueError: the set's replicas at the last apply are unknown where they are needed.
    """
    result = _plan(strategy, observed, states, changed=changed)
    return Plan(max(result.partition, strategy.floor), result.replicas, result.reclaimed)


def _plan(strategy: Strategy, observed: Observed | None, states: Sequence[GroupState], *, changed: bool) -> Plan:
    replicas = strategy.replicas
    if observed is None:
        return Plan(0, replicas)
    if changed:
        partition = min(replicas, observed.replicas)
        if observed.replicas < replicas:
            return Plan(partition, replicas)
        if needs_states(strategy, observed, changed=True):
            partition = _stand_ins_kept(strategy, states)
        return _with_surge(strategy, observed, partition, [GroupState(ready=True, old=True)] * observed.replicas)
    if observed.partition == 0 and observed.replicas == replicas:
        return Plan(0, replicas)
    if observed.replicas < replicas:
        return Plan(observed.partition, replicas)
    if observed.set_replicas is None:
        raise ValueError("the leader StatefulSet's annotation leaderworkerset.sigs.k8s.io/replicas is no number")
    if observed.set_replicas != replicas:
        partition = min(observed.partition, strategy.burst)
    else:
        step = strategy.max_unavailable + observed.replicas - replicas
        partition = roll(states, step, observed.partition, as_upstream=strategy.upstream_surge)
    return _with_surge(strategy, observed, partition, states)


def _stand_ins_kept(strategy: Strategy, states: Sequence[GroupState]) -> int:
    """Return the partition for yet another revision in the middle of an update: surge groups that stand in stay.

    The Go controller gives all surge groups free at once, also those that stand in for groups which the update so far
    took down, so that fewer than replicas - max_unavailable are left.
    """
    needed = strategy.replicas - strategy.max_unavailable
    cut = strategy.replicas
    while cut < len(states) and sum(state.ready for state in states[:cut]) < needed:
        cut += 1
    return cut


def _with_surge(strategy: Strategy, observed: Observed, partition: int, states: Sequence[GroupState]) -> Plan:
    if strategy.upstream_surge:
        unready = strategy.replicas - sum(state.ready and state.updated for state in states[: strategy.replicas])
        wanted = want(strategy, unready)
    else:
        wanted = _groups_needed(strategy, observed, max(partition, strategy.floor), states)
    return Plan(partition, wanted, reclaimed=wanted < observed.replicas)


def _groups_needed(strategy: Strategy, observed: Observed, partition: int, states: Sequence[GroupState]) -> int:
    """Return how many groups to have: surge groups stand in for groups that move, and for nothing else (O-15).

    The Go controller counts every group that is not ready and updated: so groups which a partition holds back, or which
    merely start or are broken at rest, bring surge groups too. And it takes away ready ones while others start.
    """
    replicas = strategy.replicas
    done = [state.ready and state.updated for state in states[:replicas]]
    first = min(strategy.floor, replicas)
    moving = replicas - first - sum(done[first:])
    surging = observed.replicas > max(replicas, observed.set_replicas or 0)
    if moving == 0 or not (surging or any(state.old for state in states)):
        return replicas
    # A group that is held back and broken is unavailable all the same.
    wanted = want(strategy, moving + sum(not state.ready for state in states[:first]))
    if observed.set_replicas == replicas:
        # What is ready stays until the groups that it stands for are, those that the partition is to take included.
        needed = replicas - strategy.max_unavailable
        while wanted < min(observed.replicas, strategy.burst) and _staying(states[:wanted], partition) < needed:
            wanted += 1
    return wanted
