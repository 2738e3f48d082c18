"""What the queues take from outside: clock, metrics, rate limiter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Protocol


class ShutDown(Exception):
    """The queue was shut down and has nothing more to hand out."""


class TimerHandle(Protocol):
    """A timer that can be called off."""

    def cancel(self) -> None:
        """Call the timer off; no effect when it has fired."""


class Clock(Protocol):
    """The monotonic clock of a queue. An asyncio event loop is one."""

    def time(self) -> float:
        """Return the time in seconds."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> TimerHandle:
        """Run ``callback`` once, ``delay`` seconds from now."""


class RateLimiter(Protocol):
    """Says how long a key waits before its next try. Keys are hashable values."""

    def when(self, key: Hashable, /) -> float:
        """Count one try of ``key`` and return its delay in seconds."""

    def forget(self, key: Hashable, /) -> None:
        """Drop what is known of ``key``: it works again, or will not be tried again."""

    def num_requeues(self, key: Hashable, /) -> int:
        """Return how many tries of ``key`` count at present."""


class QueueMetrics(Protocol):
    """Receives the counts of one queue (names in runtime.md section 16)."""

    def added(self, priority: int, /) -> None:
        """Count one key that became ready."""

    def retried(self) -> None:
        """Count one delayed add."""

    def depth(self, priority: int, delta: int, /) -> None:
        """Change the number of ready keys of one priority."""

    def got(self, wait_s: float, /) -> None:
        """Observe the seconds a key was ready before a worker took it."""

    def done(self, work_s: float, /) -> None:
        """Observe the seconds a worker held a key."""

    def watch(self, unfinished: Callable[[], tuple[float, float]], /) -> None:
        """Receive a function giving (sum, longest) of seconds held so far by keys in work; called when scraped."""


def running_clock(owner: str) -> Clock:
    """Return the running event loop as clock.

    Raises:
        RuntimeError: no loop runs; the message says what to do.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(f"create {owner} inside a running event loop, or pass clock=") from None


def current_time() -> float:
    """Return the running loop's time, so that virtual time holds; outside of a loop the monotonic clock."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()
