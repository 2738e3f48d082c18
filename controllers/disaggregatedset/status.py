"""Counters and conditions of a set, from its LeaderWorkerSets (DS §10). No I/O."""

from __future__ import annotations

from datetime import datetime

from pyreconcile.api import Condition
from pyreconcile.controller import find_condition
from pyreconcile_controllers.disaggregatedset.children import Family
from pyreconcile_controllers.disaggregatedset.types import DisaggregatedSet, DisaggregatedSetStatus, RoleStatus

AVAILABLE = "Available"
PROGRESSING = "Progressing"


def next_status(owner: DisaggregatedSet, family: Family, now: datetime) -> DisaggregatedSetStatus:
    """Return the status that follows from the LeaderWorkerSets of all revisions.

    A role that is no longer in the spec has no entry, although it may still be there.
    """
    status = owner.status.deep_copy() if owner.status else DisaggregatedSetStatus()
    status.observed_generation = owner.metadata.generation
    status.role_statuses = [_role_status(role.name, family) for role in owner.spec.roles]
    available = all(
        entry.replicas == entry.ready_replicas == entry.updated_replicas == role.spec.replicas
        for entry, role in zip(status.role_statuses, owner.spec.roles, strict=True)
    )
    _set_true(status.conditions, _condition(owner, now, available=available))
    return status


def _role_status(role: str, family: Family) -> RoleStatus:
    present = [child for child in family.all if child.role == role]
    updated = family.target.get(role)
    return RoleStatus(
        name=role,
        replicas=sum(child.present for child in present),
        ready_replicas=sum(child.ready for child in present),
        updated_replicas=updated.updated if updated is not None else 0,
    )


def _condition(owner: DisaggregatedSet, now: datetime, *, available: bool) -> Condition:
    return Condition(
        type=AVAILABLE if available else PROGRESSING,
        status="True",
        reason="AllRolesReady" if available else "RolloutInProgress",
        message="Every role has its replicas, ready and of the current revision"
        if available
        else "Not every role has its replicas, ready and of the current revision",
        last_transition_time=now,
        observed_generation=owner.metadata.generation,
    )


def _set_true(conditions: list[Condition], wanted: Condition) -> None:
    """Set one of the two conditions True, and the other one, if it is there, False for the same reason."""
    other = find_condition(conditions, PROGRESSING if wanted.type == AVAILABLE else AVAILABLE)
    if other is not None:
        if other.status == "True":
            other.status = "False"
            other.reason, other.message = wanted.reason, wanted.message
            other.last_transition_time = wanted.last_transition_time
        other.observed_generation = wanted.observed_generation
    present = find_condition(conditions, wanted.type)
    if present is None:
        conditions.append(wanted)
        return
    if present.status == "True":
        wanted.last_transition_time = present.last_transition_time
    conditions[conditions.index(present)] = wanted
