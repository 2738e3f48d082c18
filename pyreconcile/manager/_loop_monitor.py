"""How late the event loop is: what blocks it shows here, whoever does it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import anyio
from anyio.abc import TaskStatus

INTERVAL: Final = 1.0
"""Seconds between two looks."""


class LoopMonitor:
    """Sets a timer again and again, and tells by how much each one was late.

    Args:
        observe: told the seconds.
        interval: seconds between two timers.
        clock: monotonic seconds.
    """

    name = "event-loop monitor"
    needs_leader_election = False

    def __init__(
        self,
        observe: Callable[[float], None],
        *,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observe = observe
        self._interval = interval
        self._clock = clock

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Measure until ``stop`` is set."""
        task_status.started()
        while not stop.is_set():
            due = self._clock() + self._interval
            with anyio.move_on_after(self._interval):
                await stop.wait()
                return
            self._observe(max(0.0, self._clock() - due))
