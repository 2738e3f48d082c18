"""Waiting for something that can only be looked at."""

from __future__ import annotations

from collections.abc import Callable

import anyio

__all__ = ["until"]


async def until(condition: Callable[[], bool], *, period: float) -> None:
    """Look every ``period`` seconds until the condition holds. Unbounded: run it under a time limit."""
    while True:
        if condition():
            return
        await anyio.sleep(period)
