"""How long a machine with too much to do held this process up: time that no limit of a case may count."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

TICK = 0.02
"""Seconds between two looks; a stall is told that much later at most."""


@dataclass(frozen=True)
class Stall:
    """A time in which this process was ready to run and did not.

    Attributes:
        since: when it began, in the seconds of ``time.monotonic``.
        until: when it was over.
        seconds: what of it the process did not use itself.
    """

    since: float
    until: float
    seconds: float

    def within(self, start: float, end: float) -> float:
        """Return the seconds of it between two times, at most."""
        return min(self.seconds, max(0.0, min(self.until, end) - max(self.since, start)))


async def note_stalls(note: Callable[[Stall], None]) -> None:
    """Have ``note`` called with each stall, as soon as it is over, until cancelled."""
    while True:
        due, used = time.monotonic() + TICK, time.process_time()
        await anyio.sleep(TICK)
        now = time.monotonic()
        held = now - due - (time.process_time() - used)
        if held > TICK:
            note(Stall(due, now, held))


@asynccontextmanager
async def stalls() -> AsyncIterator[Callable[[float, float], Awaitable[float]]]:
    """Give a function that returns the seconds that this process was held up between two times of the block."""
    noted: list[Stall] = []

    async def between(start: float, end: float) -> float:
        await anyio.sleep(2 * TICK)  # one that has just ended may not be noted yet
        return sum(stall.within(start, end) for stall in noted)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(note_stalls, noted.append)
        yield between
        tasks.cancel_scope.cancel()
