"""A clock that moves by hand, and metrics that only remember."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

import pytest


class Handle:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """Time moves only in `advance`, which fires the timers on the way in order."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._timers: list[tuple[float, int, Handle]] = []
        self._count = 0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Handle:
        handle = Handle(callback)
        self._count += 1
        heapq.heappush(self._timers, (self.now + delay, self._count, handle))
        return handle

    @property
    def armed(self) -> int:
        return sum(handle.callback is not None for _, _, handle in self._timers)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            at, _, handle = heapq.heappop(self._timers)
            self.now = max(self.now, at)
            if handle.callback is not None:
                callback, handle.callback = handle.callback, None
                callback()
        self.now = end


class RecordedMetrics:
    def __init__(self) -> None:
        self.adds = 0
        self.retries = 0
        self.depths: Counter[int] = Counter()
        self.waits: list[float] = []
        self.works: list[float] = []
        self.unfinished: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)

    def added(self, priority: int) -> None:
        self.adds += 1

    def retried(self) -> None:
        self.retries += 1

    def depth(self, priority: int, delta: int) -> None:
        self.depths[priority] += delta
        assert self.depths[priority] >= 0

    def got(self, wait_s: float) -> None:
        self.waits.append(wait_s)

    def done(self, work_s: float) -> None:
        self.works.append(work_s)

    def watch(self, unfinished: Callable[[], tuple[float, float]]) -> None:
        self.unfinished = unfinished


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metrics() -> RecordedMetrics:
    return RecordedMetrics()


@pytest.fixture(scope="session")
def manual_clock_type() -> type[ManualClock]:
    return ManualClock


@pytest.fixture(scope="session")
def recorded_metrics_type() -> type[RecordedMetrics]:
    return RecordedMetrics
