"""What is wrong with an informer, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyreconcile.cache._errors import CacheUnhealthyError
from pyreconcile.cache._informer import Informer

DOWN_LIMIT = 30.0
"""Seconds without an open watch that are too many."""


def check(informer: Informer[Any]) -> None:
    """Raise CacheUnhealthyError when the informer is not synced, has no watch, or a handler of it raises (IN-12)."""
    kind = informer.kind.resource.group_kind
    if not informer.has_synced:
        raise CacheUnhealthyError(f"{kind}: no first list yet ({informer.last_error or 'no error'})")
    for reflector in informer.reflectors:
        if reflector.down_for > DOWN_LIMIT:
            down = f"{reflector.down_for:.0f} s ({reflector.last_error or 'no error'})"
            raise CacheUnhealthyError(f"{kind}: no watch for {down}")
    for registration in informer.registrations:
        if registration.failing:
            raise CacheUnhealthyError(f"{kind}: handler {registration.name} raises, see the log")


def late(informers: Sequence[Informer[Any]], seconds: float) -> str:
    """Return why waiting for these informers took too long."""
    if not informers:
        return f"the cache did not start within {seconds:g} s"
    kinds = "; ".join(f"{each.kind.resource.group_kind} ({each.last_error or 'no error'})" for each in informers)
    return f"no first list within {seconds:g} s of {kinds}"
