"""The rollout planner: from where a rollout is to its next state (DS §7.2). Pure integer arithmetic.

A state is written ``old|new``, one number of replicas for each role: ``4,2|2,1``. The symbols of the specification, by
name here: I ``initial``, O ``old``, N ``new``, T ``target``, s ``surge``, u ``unavailable``, K the number of steps in
which the largest role gets done. Every role is kept at about the same fraction of its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap

Vector = tuple[int, ...]
"""Replicas, one number for each role."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one role's rollout may do beyond its target.

    Attributes:
        surge: replicas there may be above the target.
        unavailable: replicas that may be missing below it.
    """

    surge: int = 1
    unavailable: int = 0

    @property
    def batch(self) -> int:
        """Replicas that one step moves."""
        return self.surge if self.surge > 0 else max(1, self.unavailable)


@dataclass(frozen=True, slots=True)
class State:
    """Replicas of all old revisions together, and of the new one."""

    old: Vector
    new: Vector

    def __str__(self) -> str:
        return "|".join(",".join(map(str, side)) for side in (self.old, self.new))


@dataclass(frozen=True, slots=True)
class Rollout:
    """What stays the same from step to step.

    Attributes:
        initial: replicas of the old revisions when the rollout began.
        target: replicas that the new revision is to have.
        limits: of each role.
    """

    initial: Vector
    target: Vector
    limits: tuple[Limits, ...]

    def __post_init__(self) -> None:
        if not len(self.initial) == len(self.target) == len(self.limits):
            raise ValueError("initial, target and limits need one entry for each role")

    @classmethod
    def of(cls, initial: Sequence[int], target: Sequence[int], limits: Sequence[Limits] | None = None) -> Rollout:
        """Make a rollout; without ``limits`` every role has the default, a surge of 1."""
        return cls(tuple(initial), tuple(target), tuple(limits or [Limits()] * len(target)))

    @property
    def start(self) -> State:
        """The state before the first step."""
        return State(self.initial, (0,) * len(self.target))

    @property
    def steps(self) -> int:
        """Number of steps that the role with the longest way needs (K)."""
        ways = zip(self.initial, self.target, self.limits, strict=True)
        return max((_ceil(max(before, after, 0), role.batch) for before, after, role in ways), default=0)


def next_state(rollout: Rollout, state: State) -> State | None:
    """Return the state to bring the roles to, or None when there is nothing to do.

    Nothing to do does not always mean done: see `unstick`.
    """
    old, new = state.old, state.new
    steps = rollout.steps
    arrived = all(have >= want for have, want in zip(new, rollout.target, strict=True))
    if steps == 0 or (arrived and not any(old)):
        return None
    if any(have > before for have, before in zip(old, rollout.initial, strict=True)):
        return State(tuple(map(min, old, rollout.initial)), new)
    if arrived:
        return State((0,) * len(old), new)
    grown = _grown(rollout, new, steps)
    if grown != new and _fits(rollout, old, grown):
        return State(old, grown)
    drained = _with_orphans(rollout, _drained_in_proportion(rollout, state, steps), new)
    if _shrinks(old, drained):
        return State(tuple(map(min, old, drained)), new)
    forced = _drained_by_force(rollout, old, grown)
    if not _shrinks(old, forced):
        return None
    return State(tuple(map(min, old, _with_orphans(rollout, forced, grown))), grown)


def unstick(rollout: Rollout, state: State) -> State | None:
    """Return the next state where `next_state` knows none but old replicas are left; None when there are none.

    That is a rollout whose target was lowered below what the new revision has already (DS §13.2). A role above its
    target blocks the growth of the others, and the new revision does not shrink before the old ones
    are gone. So the role counts as wanted as it is. Old replicas that nobody planned for, when nothing is wanted, go.
    """
    if rollout.steps == 0:
        return State((0,) * len(state.old), state.new) if any(state.old) else None
    wanted = tuple(map(max, rollout.target, state.new))
    return next_state(Rollout(rollout.initial, wanted, rollout.limits), state)


def states(rollout: Rollout) -> list[State]:
    """Return every state of a rollout from its start to its end, as long as nothing interferes."""
    found = [rollout.start]
    # Each step moves something; twice the longest way is more than any rollout needs (DS §7.2).
    for _ in range(2 * max((*rollout.initial, *rollout.target), default=0) + 10):
        following = next_state(rollout, found[-1])
        if following is None:
            break
        found.append(following)
    return found


def _grown(rollout: Rollout, new: Vector, steps: int) -> Vector:
    """One step further for the new revision, from the role that is furthest behind."""
    shares = (have * steps // want if want > 0 else steps for have, want in zip(new, rollout.target, strict=True))
    step = 1 + min(shares)
    return tuple(
        max(have, min(want, _ceil(step * want, steps))) for have, want in zip(new, rollout.target, strict=True)
    )


def _fits(rollout: Rollout, old: Vector, grown: Vector) -> bool:
    roles = zip(old, grown, rollout.target, rollout.limits, strict=True)
    return all(want == 0 or before + after <= want + role.surge for before, after, want, role in roles)


def _floor(initial: int, want: int, role: Limits, new: int) -> int:
    """The least that the old revisions must keep of a role; nothing of one that grows beyond what it was."""
    return max(0, want - role.unavailable - new) if initial >= want else 0


def _drained_in_proportion(rollout: Rollout, state: State, steps: int) -> Vector:
    shares = (
        (before - have) * steps // before for before, have in zip(rollout.initial, state.old, strict=True) if before > 0
    )
    step = 1 + max(shares, default=0)

    def drained(before: int, have: int, new: int, want: int, role: Limits) -> int:
        wanted = max(0, before - step * before // steps)
        return max(_floor(before, want, role, new), min(have, wanted))

    roles = zip(rollout.initial, state.old, state.new, rollout.target, rollout.limits, strict=True)
    return tuple(starmap(drained, roles))


def _drained_by_force(rollout: Rollout, old: Vector, grown: Vector) -> Vector:
    """Make room for the growth, at the risk of fewer ready replicas until it has come."""

    def drained(before: int, have: int, new: int, want: int, role: Limits) -> int:
        room = min(have, max(0, want + role.surge - new))
        return min(have, max(room, _floor(before, want, role, new)))

    roles = zip(rollout.initial, old, grown, rollout.target, rollout.limits, strict=True)
    return tuple(starmap(drained, roles))


def _with_orphans(rollout: Rollout, old: Vector, new: Vector) -> Vector:
    """See that no role of the old revisions ends before the others: a prefill without decode serves nobody."""
    present = [index for index, before in enumerate(rollout.initial) if before > 0]
    ended = [index for index in present if old[index] == 0]
    if not ended or len(ended) == len(present):
        return old
    covered = all(
        new[index] >= rollout.target[index] - rollout.limits[index].unavailable
        for index in present
        if rollout.initial[index] >= rollout.target[index]
    )
    if covered:
        return tuple(0 if index in present else have for index, have in enumerate(old))
    return tuple(1 if index in ended else have for index, have in enumerate(old))


def _shrinks(old: Vector, wanted: Vector) -> bool:
    """Tell whether some role gets fewer. One may be below what it should keep: then ``wanted`` has more for it."""
    return any(want < have for have, want in zip(old, wanted, strict=True))


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
