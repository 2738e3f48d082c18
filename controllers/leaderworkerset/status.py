"""Counters and conditions of a set, from what its groups are (LWS §6.6). No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyreconcile.api import Condition
from pyreconcile_controllers.leaderworkerset import names
from pyreconcile_controllers.leaderworkerset.rollout import Strategy
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet, LeaderWorkerSetStatus

AVAILABLE = "Available"
PROGRESSING = "Progressing"
UPDATE_IN_PROGRESS = "UpdateInProgress"

_TEXTS = {
    AVAILABLE: ("AllGroupsReady", "All replicas are ready"),
    PROGRESSING: ("GroupsProgressing", "Replicas are progressing"),
    UPDATE_IN_PROGRESS: ("GroupsUpdating", "Rolling Upgrade is in progress"),
}
_EXCLUSIVE = {AVAILABLE: (PROGRESSING, UPDATE_IN_PROGRESS), PROGRESSING: (AVAILABLE,), UPDATE_IN_PROGRESS: (AVAILABLE,)}


@dataclass(frozen=True, slots=True)
class Group:
    """A group that counts: its leader exists and, above size 1, its worker StatefulSet does."""

    index: int
    ready: bool
    updated: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The new status of a set.

    Attributes:
        status: what to write.
        news: reason and note of the event to emit, when a condition changed.
        complete: every group is ready and of the current revision, and nothing is held back by a partition.
    """

    status: LeaderWorkerSetStatus
    news: tuple[str, str] | None
    complete: bool


def next_status(
    lws: LeaderWorkerSet, strategy: Strategy, groups: Sequence[Group], replicas: int, now: datetime
) -> Outcome:
    """Return the status that follows from the groups; ``replicas`` are those the leader StatefulSet reports."""
    status = lws.status.deep_copy() if lws.status else LeaderWorkerSetStatus()
    generation = lws.metadata.generation
    wanted = strategy.replicas
    counted = [group for group in groups if strategy.floor <= group.index < wanted]
    done = sum(group.ready and group.updated for group in counted)
    ready = sum(group.ready for group in groups)

    new = lws.status is None
    status.replicas = _count(replicas, status.replicas, new=new)
    status.ready_replicas = _count(ready, status.ready_replicas, new=new)
    status.updated_replicas = _count(sum(group.updated for group in groups), status.updated_replicas, new=new)
    status.observed_generation = generation
    if not status.hpa_pod_selector:
        status.hpa_pod_selector = names.hpa_selector(lws.metadata.name)

    if sum(group.updated for group in counted) < len(counted):
        types = [UPDATE_IN_PROGRESS, PROGRESSING]
    elif sum(group.ready for group in groups if group.index < wanted) == wanted and done == len(counted):
        types = [AVAILABLE]
    else:
        types = [PROGRESSING]
    news = None
    if _set_true(status.conditions, types, generation, now):
        reason, message = _TEXTS[types[0]]
        news = (reason, f"{message}, with {ready} groups ready of total {wanted} groups")
    return Outcome(status, news, complete=strategy.floor == 0 and done == wanted)


def _count(value: int, stored: int | None, *, new: bool) -> int | None:
    """Return the value of a counter; a 0 that the Go controller left out stays out, so taking over writes nothing."""
    return None if value == 0 and stored is None and not new else value


def _set_true(conditions: list[Condition], types: Iterable[str], generation: int | None, now: datetime) -> bool:
    """Set conditions True in order until one changes anything; the rest waits for the next pass, as in the Go code."""
    changed = any(_set_one(conditions, type_name, generation, now) for type_name in types)
    for condition in conditions:
        if condition.observed_generation != generation:
            condition.observed_generation = generation
            changed = True
    return changed


def _set_one(conditions: list[Condition], type_name: str, generation: int | None, now: datetime) -> bool:
    reason, message = _TEXTS[type_name]
    wanted = Condition(
        type=type_name,
        status="True",
        reason=reason,
        message=message,
        last_transition_time=now,
        observed_generation=generation,
    )
    changed = found = False
    for index, condition in enumerate(conditions):
        if condition.type == type_name:
            found = True
            if condition.status != "True" or condition.observed_generation != generation:
                conditions[index] = wanted
                changed = True
        elif condition.type in _EXCLUSIVE[type_name] and condition.status == "True":
            # It keeps its reason and message; tests of the Go code match on them (LWS §15.14).
            condition.status = "False"
            condition.last_transition_time = now
            condition.observed_generation = generation
            changed = True
    if not found:
        conditions.append(wanted)
    return changed or not found
