"""Notices a coroutine that keeps the event loop from everything else."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

STALL = 0.5
"""Seconds without an ``await`` that gives way after which a reconcile is said to block the event loop."""


@types.coroutine
def watched(
    coroutine: Coroutine[Any, Any, T], *, limit: float, time: Callable[[], float], stalled: Callable[[float], None]
) -> Generator[Any, Any, T]:
    """Await a coroutine, and report each of its steps that took longer than ``limit`` seconds.

    A step goes from one point where the coroutine waits to the next. What it raises, returns and is sent passes
    through, cancellation too. Tasks that it starts are not watched.

    Args:
        coroutine: what to run.
        limit: longest step in seconds.
        time: monotonic clock in seconds.
        stalled: told the seconds of a longer step, when it is over.
    """
    thrown: BaseException | None = None
    while True:
        started = time()
        try:
            waited_for = coroutine.send(None) if thrown is None else coroutine.throw(thrown)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            took = time() - started
            if took > limit:
                stalled(took)
        thrown = None
        try:
            yield waited_for
        except BaseException as error:  # handed on to the coroutine, which ends with it or handles it
            thrown = error
