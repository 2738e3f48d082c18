"""The priority queue: one entry per key, high priority first, delays, one worker per key."""

from __future__ import annotations

import heapq
from typing import Final, Generic

from pyreconcile.workqueue._base import BaseQueue, K
from pyreconcile.workqueue._delays import DelayHeap
from pyreconcile.workqueue._limiters import WindowedExponentialRateLimiter
from pyreconcile.workqueue._types import Clock, QueueMetrics, RateLimiter, running_clock

LOW_PRIORITY: Final = -100
"""Priority of work that can wait: the initial list and resyncs (PQ-13)."""

DEFAULT_AGEING: Final = 0.1
"""Priority points a ready key gains per second: work at −100 yields to new work at 0 for 1000 s at most (PQ-15)."""

_READY: Final = -1.0  # an entry's ready_at once it is ready; the clock never shows it


class _Entry(Generic[K]):
    """A key that waits for its time or for a worker. It goes from waiting to ready to gone, never back."""

    __slots__ = ("counter", "key", "priority", "rank", "ready_at", "since")

    def __init__(self, key: K, priority: int) -> None:
        self.key = key
        self.priority = priority
        self.ready_at = _READY
        self.counter = 0  # place among equals; other numbers in the ready heap are out of date
        self.since = 0.0  # when it became ready
        self.rank = 0.0  # place among the ready


class PriorityQueue(BaseQueue[K]):
    """A queue of keys with priorities, delays and backoff; each key is in the hands of one worker at a time.

    A key has one entry however often it is added: its priority is the highest given, its time the earliest (PQ-4).
    Keys of equal priority come in the order in which they became ready, or rose to it (PQ-5). A key that is added while
    a worker holds it comes again after `done`, so no event is lost.

    All methods are to be called from one event loop. `add` and its relatives never wait.

    Args:
        rate_limiter: delays of `add_rate_limited`; by default per key, 5 ms to 1000 s, one failure per window (WQ-18).
        metrics: receives the counts; by default nothing is counted (WQ-7).
        clock: monotonic clock and timer; by default the running loop.
        name: for ``repr`` and messages.
        ageing: priority points that a ready key gains per second, so that low work always ends (PQ-15). A key of
            priority p therefore overtakes one of lower priority q only if that one became ready less than
            ``(p - q) / ageing`` seconds earlier. 0 turns it off: strictly by priority.

    Raises:
        RuntimeError: no event loop runs and no clock was given.
    """

    def __init__(
        self,
        *,
        rate_limiter: RateLimiter | None = None,
        metrics: QueueMetrics | None = None,
        clock: Clock | None = None,
        name: str = "",
        ageing: float = DEFAULT_AGEING,
    ) -> None:
        if ageing < 0:
            raise ValueError(f"ageing={ageing}: give priority points per second, 0 or more")
        clock = clock or running_clock("the PriorityQueue")
        super().__init__(
            clock=clock,
            rate_limiter=rate_limiter or WindowedExponentialRateLimiter(time=clock.time),
            metrics=metrics,
            name=name,
        )
        self._ageing = ageing
        self._entries: dict[K, _Entry[K]] = {}
        self._heap: list[tuple[float, int, _Entry[K]]] = []  # (rank, counter, entry): ready and not locked
        self._delays: DelayHeap[_Entry[K]] = DelayHeap(
            clock, live=lambda entry, at: entry.ready_at == at, on_due=self._promote
        )
        self._counter = 0
        self._ready = 0
        self._stopped = False  # gets end at once

    def __repr__(self) -> str:
        waiting = len(self._entries) - self._ready
        return f"<PriorityQueue {self.name!r} ready={self._ready} waiting={waiting} locked={len(self._held)}>"

    def __len__(self) -> int:
        """Count the ready keys, those that a worker holds and were added again too; never the delayed ones (PQ-10)."""
        if self._delays.is_due(self._time()):
            self._promote()
        return self._ready

    # -- adding ----------------------------------------------------------------------------------------------------

    def add(self, key: K, *, priority: int = 0) -> None:
        """Make ``key`` ready now; a delay it had is over (PQ-6). Ignored after shutdown."""
        if self._closed:
            return
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key, priority)
            self._make_ready(entry, self._time())
        elif entry.ready_at != _READY:
            if priority > entry.priority:
                entry.priority = priority
            entry.ready_at = _READY
            self._make_ready(entry, self._time())
        elif priority > entry.priority:
            self._raise(entry, priority)

    def add_after(self, key: K, delay: float, *, priority: int = 0) -> None:
        """Make ``key`` ready in ``delay`` seconds, or earlier if it is to come earlier. Ignored after shutdown."""
        if delay <= 0:
            self.add(key, priority=priority)
        elif not self._closed:
            self._add_delayed(key, delay, priority)

    def _add_delayed(self, key: K, delay: float, priority: int) -> None:
        if self._metrics is not None:
            self._metrics.retried()
        now = self._time()
        at = now + delay
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key, priority)
            entry.counter = self._next()
        else:
            if priority > entry.priority:
                if entry.ready_at == _READY:
                    self._raise(entry, priority)
                else:
                    entry.priority = priority
                    entry.counter = self._next()
            if entry.ready_at <= at:  # ready, or waiting for an earlier time
                return
        entry.ready_at = at
        self._delays.push(entry, at, now=now, live_count=len(self._entries) - self._ready)

    def _make_ready(self, entry: _Entry[K], now: float) -> None:
        entry.since = now
        # Ageing is linear and the same for all, so the order of two entries never changes: the rank is fixed.
        entry.rank = now * self._ageing - entry.priority
        self._ready += 1
        if self._metrics is not None:
            self._metrics.added(entry.priority)
            self._metrics.depth(entry.priority, 1)
        self._enter(entry)

    def _raise(self, entry: _Entry[K], priority: int) -> None:
        """Move a ready entry up, behind its new peers (PQ-5), but never below where its age has brought it."""
        if self._metrics is not None:
            self._metrics.depth(entry.priority, -1)
            self._metrics.depth(priority, 1)
        entry.priority = priority
        entry.rank = min(entry.rank, self._time() * self._ageing - priority)
        if len(self._heap) > 2 * self._ready + 64:
            self._heap = [item for item in self._heap if item[2].counter == item[1]]
            heapq.heapify(self._heap)
        self._enter(entry)

    def _enter(self, entry: _Entry[K]) -> None:
        self._counter = counter = self._counter + 1
        entry.counter = counter
        if entry.key not in self._held:
            self._offer(entry)

    def _next(self) -> int:
        self._counter += 1
        return self._counter

    def _offer(self, entry: _Entry[K]) -> None:
        heapq.heappush(self._heap, (entry.rank, entry.counter, entry))
        if self._getters:
            self._getters.wake()

    def _promote(self) -> None:
        now = self._time()
        due = self._delays.pop_due(now)
        if len(due) > 1:  # of those due at one time, the one that came first goes first (PQ-2)
            due.sort(key=lambda entry: (entry.ready_at, entry.counter))
        for entry in due:
            entry.ready_at = _READY
            self._make_ready(entry, now)

    # -- handing out -----------------------------------------------------------------------------------------------

    def take(self) -> tuple[K, int] | None:
        """Hand out the first ready key and its priority without waiting; None when there is none to be had."""
        if self._stopped:
            return None
        now = self._time()
        if self._delays.is_due(now):
            self._promote()
        heap = self._heap
        while heap:
            _, counter, entry = heapq.heappop(heap)
            if entry.counter == counter:
                key = entry.key
                entry.counter = -1
                del self._entries[key]
                self._ready -= 1
                self._held[key] = now
                if self._metrics is not None:
                    self._metrics.depth(entry.priority, -1)
                    self._metrics.got(now - entry.since)
                return key, entry.priority
        return None

    def _is_over(self) -> bool:
        return self._stopped or (self._closed and self._ready == 0)

    def done(self, key: K) -> None:
        """Say that the worker has finished with ``key``; belongs in a ``finally``. Unknown keys are ignored."""
        if key not in self._held:
            return
        self.work_ended(key)
        del self._held[key]
        entry = self._entries.get(key)
        if entry is not None and entry.ready_at == _READY:
            self._offer(entry)
        if self._closed and self._ready == 0:
            self._getters.wake_all()
            if not self._held:
                self._idle.wake_all()

    # -- ending ----------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Ignore adds and end every get, at once; what is ready is not handed out any more (PQ-11)."""
        self._stopped = True
        self._close()
        self._getters.wake_all()
        self._idle.wake_all()

    async def shutdown_with_drain(self) -> None:
        """Ignore adds, drop delayed keys, and wait until workers have taken and finished every ready key.

        Getters receive `ShutDown` when nothing is ready any more. The wait is bounded only by the workers: put it
        under a time limit, or call `shutdown` to end it. Cancellation ends the wait and leaves the queue draining.
        """
        self._close()
        if self._ready == 0:
            self._getters.wake_all()
        while not self._stopped and (self._ready or self._held):
            await self._idle.wait()

    def _close(self) -> None:
        self._closed = True
        self._delays.close()
        self._entries = {key: entry for key, entry in self._entries.items() if entry.ready_at == _READY}
