"""The heap of delayed items behind both queues, with one timer for all of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

from pyreconcile.workqueue._types import Clock, TimerHandle

T = TypeVar("T")

_MAX_SLEEP = 10.0  # look again at least this often, in seconds, whatever the clock does (WQ-11)
_COMPACT_ABOVE = 64


class DelayHeap(Generic[T]):
    """Items ordered by time, then by order of entry.

    Items are never taken out of the middle: one that was moved to an earlier time, or is not wanted any more, stays
    until its tuple comes up and ``live(item, at)`` says no. Dead tuples are swept out when they outnumber live ones.

    Args:
        clock: where time and the timer come from.
        live: whether an item still waits for that very time.
        on_due: called by the timer when the first item is due; it is expected to call `pop_due`.
    """

    __slots__ = ("_clock", "_heap", "_live", "_on_due", "_sequence", "_timer", "_timer_at")

    def __init__(self, clock: Clock, *, live: Callable[[T, float], bool], on_due: Callable[[], None]) -> None:
        self._clock = clock
        self._live = live
        self._on_due = on_due
        self._heap: list[tuple[float, int, T]] = []
        self._sequence = 0
        self._timer: TimerHandle | None = None
        self._timer_at = 0.0

    def push(self, item: T, at: float, *, now: float, live_count: int) -> None:
        """Add an item that is due at ``at``; ``live_count`` is the number of items that truly wait."""
        heap = self._heap
        if len(heap) > 2 * live_count + _COMPACT_ABOVE:
            live = self._live
            heap[:] = [entry for entry in heap if live(entry[2], entry[0])]
            heapq.heapify(heap)
        self._sequence += 1
        heapq.heappush(heap, (at, self._sequence, item))
        if self._timer is None or at < self._timer_at:
            self._arm(now)

    def pop_due(self, now: float) -> list[T]:
        """Take out the live items that are due, in order, and set the timer for the next one."""
        heap, live = self._heap, self._live
        due: list[T] = []
        while heap:
            at, _, item = heap[0]
            if live(item, at):
                if at > now:
                    break
                due.append(item)
            heapq.heappop(heap)
        self._arm(now)
        return due

    def is_due(self, now: float) -> bool:
        """Tell whether `pop_due` is worth a call."""
        return bool(self._heap) and self._heap[0][0] <= now

    def close(self) -> None:
        """Drop all items and stop the timer."""
        self._heap.clear()
        self._disarm()

    def __len__(self) -> int:
        """Count the tuples held, dead ones too."""
        return len(self._heap)

    def _arm(self, now: float) -> None:
        if not self._heap:
            self._disarm()
            return
        at = min(self._heap[0][0], now + _MAX_SLEEP)
        if self._timer is not None:
            if self._timer_at == at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._clock.call_later(max(0.0, at - now), self._fire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._on_due()
