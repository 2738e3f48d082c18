"""Conditions of a status (HE-7): finding, setting and removing them in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from pyreconcile.api import Condition


def _now() -> datetime:
    # Kubernetes writes whole seconds; with more, what was written would differ from what is read back.
    return datetime.now(UTC).replace(microsecond=0)


def find_condition(conditions: Iterable[Condition] | None, type: str) -> Condition | None:  # noqa: A002 - the API's own word
    """Return the condition of a type, or None."""
    for condition in conditions or ():
        if condition.type == type:
            return condition
    return None


def set_condition(conditions: list[Condition], condition: Condition, *, now: Callable[[], datetime] = _now) -> bool:
    """Add a condition, or bring the one of its type up to date, in place.

    ``last_transition_time`` moves only when the status changes: to the one given, or to now. Reason, message and
    observed generation are always taken over.

    Args:
        conditions: the list in the status.
        condition: what it shall say; it is copied.
        now: tells the time.

    Returns:
        Whether anything changed.
    """
    present = find_condition(conditions, condition.type)
    if present is None:
        added = condition.model_copy()
        if added.last_transition_time is None:
            added.last_transition_time = now()
        conditions.append(added)
        return True
    changed = False
    if present.status != condition.status:
        present.status = condition.status
        present.last_transition_time = condition.last_transition_time or now()
        changed = True
    for field in ("reason", "message", "observed_generation"):
        value = getattr(condition, field)
        if getattr(present, field) != value:
            setattr(present, field, value)
            changed = True
    return changed


def remove_condition(conditions: list[Condition], type: str) -> bool:  # noqa: A002 - the API's own word
    """Remove the conditions of a type, in place; return whether there was one."""
    kept = [condition for condition in conditions if condition.type != type]
    removed = len(kept) != len(conditions)
    conditions[:] = kept
    return removed


def is_condition_true(conditions: Iterable[Condition] | None, type: str) -> bool:  # noqa: A002 - the API's own word
    """Tell whether there is a condition of this type with status True."""
    condition = find_condition(conditions, type)
    return condition is not None and condition.status == "True"


def is_condition_false(conditions: Iterable[Condition] | None, type: str) -> bool:  # noqa: A002 - the API's own word
    """Tell whether there is a condition of this type with status False; a missing one is not."""
    condition = find_condition(conditions, type)
    return condition is not None and condition.status == "False"
