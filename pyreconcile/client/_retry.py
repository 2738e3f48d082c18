"""Trying a read-modify-write again after a conflict (rule ER-4)."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from pyreconcile.client._errors import ConflictError

R = TypeVar("R")


async def retry_on_conflict(
    fn: Callable[[], Awaitable[R]],
    *,
    tries: int = 5,
    delay: float = 0.01,
    factor: float = 1.0,
    jitter: float = 0.1,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    rand: Callable[[], float] = random.random,
) -> R:
    """Call ``fn`` until it ends without a ConflictError, and return its result.

    ``fn`` must read the object anew each time. The defaults are those of client-go (``util/retry/util.go``); its
    second setting, for other active writers, is ``tries=4, factor=5.0``.

    Args:
        fn: reads, changes and writes.
        tries: calls at most.
        delay: seconds before the second call.
        factor: multiplies the delay after each call.
        jitter: adds up to this share of the delay at random.
        sleep, rand: time and chance, for tests.

    Raises:
        ConflictError: the last one, after ``tries`` calls.
        Exception: anything else that ``fn`` raises, at once.
    """
    if tries < 1:
        raise ValueError(f"tries is {tries}: give at least 1")
    while True:
        try:
            return await fn()
        except ConflictError:
            tries -= 1
            if tries == 0:
                raise
        await sleep(delay * (1 + jitter * rand()))
        delay *= factor
