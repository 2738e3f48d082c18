"""The classic work queue: first in, first out, no key twice, one worker per key, delayed adds."""

from __future__ import annotations

from collections import deque

from pyreconcile.workqueue._base import BaseQueue, K
from pyreconcile.workqueue._delays import DelayHeap
from pyreconcile.workqueue._limiters import default_rate_limiter
from pyreconcile.workqueue._types import Clock, QueueMetrics, RateLimiter, running_clock


class Queue(BaseQueue[K]):
    """A first-in-first-out queue of keys; each key is listed once and in the hands of one worker at a time.

    It has the interface of `PriorityQueue`; priorities are accepted and have no effect. A plain add does not call off
    a delayed add of the same key: the key comes now and once more later (WQ-10).

    All methods are to be called from one event loop. `add` and its relatives never wait.

    Args:
        rate_limiter: delays of `add_rate_limited`; by default `default_rate_limiter`.
        metrics: receives the counts; by default nothing is counted (WQ-7).
        clock: monotonic clock and timer; by default the running loop.
        name: for ``repr`` and messages.

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
    ) -> None:
        clock = clock or running_clock("the Queue")
        super().__init__(
            clock=clock,
            rate_limiter=rate_limiter or default_rate_limiter(time=clock.time),
            metrics=metrics,
            name=name,
        )
        self._listed: deque[K] = deque()
        self._dirty: dict[K, float] = {}  # key → when it was added
        self._waiting: dict[K, float] = {}  # key → when its delay ends
        self._delays: DelayHeap[K] = DelayHeap(
            clock, live=lambda key, at: self._waiting.get(key) == at, on_due=self._promote
        )
        self._draining = False

    def __repr__(self) -> str:
        return (
            f"<Queue {self.name!r} listed={len(self._listed)} waiting={len(self._waiting)} "
            f"processing={len(self._held)}>"
        )

    def __len__(self) -> int:
        """Count the listed keys, never those in work or delayed (WQ-6)."""
        if self._delays.is_due(self._time()):
            self._promote()
        return len(self._listed)

    # -- adding ----------------------------------------------------------------------------------------------------

    def add(self, key: K, *, priority: int = 0) -> None:
        """List ``key`` unless it is listed; one that is in work is listed when it is done. Ignored after shutdown."""
        if self._closed or key in self._dirty:
            return
        self._dirty[key] = self._time()
        if self._metrics is not None:
            self._metrics.added(0)
        if key not in self._held:
            self._list(key)

    def add_after(self, key: K, delay: float, *, priority: int = 0) -> None:
        """Add ``key`` in ``delay`` seconds; of several delays of one key the earliest holds (WQ-8, WQ-9)."""
        if self._closed:
            return
        if self._metrics is not None:
            self._metrics.retried()
        if delay <= 0:
            self.add(key)
            return
        now = self._time()
        at = now + delay
        known = self._waiting.get(key)
        if known is None or at < known:
            self._waiting[key] = at
            self._delays.push(key, at, now=now, live_count=len(self._waiting))

    def _list(self, key: K) -> None:
        self._listed.append(key)
        if self._metrics is not None:
            self._metrics.depth(0, 1)
        if self._getters:
            self._getters.wake()

    def _promote(self) -> None:
        for key in self._delays.pop_due(self._time()):
            self._waiting.pop(key, None)
            self.add(key)

    # -- handing out -----------------------------------------------------------------------------------------------

    def take(self) -> tuple[K, int] | None:
        """Hand out the first listed key without waiting; None when there is none. The priority is always 0."""
        now = self._time()
        if self._delays.is_due(now):
            self._promote()
        if not self._listed:
            return None
        key = self._listed.popleft()
        since = self._dirty.pop(key)
        self._held[key] = now
        if self._metrics is not None:
            self._metrics.depth(0, -1)
            self._metrics.got(now - since)
        return key, 0

    def _is_over(self) -> bool:
        # A drain hands out what is in work and was added again, though whoever has it may call `done` and not `get`.
        return self._closed and not (self._draining and self._dirty)

    def done(self, key: K) -> None:
        """Say that the worker has finished with ``key``; belongs in a ``finally``. Unknown keys are ignored."""
        if key not in self._held:
            return
        self.work_ended(key)
        del self._held[key]
        if key in self._dirty:
            self._list(key)
        elif self._closed and not self._dirty:
            self._getters.wake_all()
        if not self._held:
            self._idle.wake_all()

    # -- ending ----------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Ignore adds and drop delayed keys; getters still receive what is listed, then `ShutDown` (WQ-5)."""
        self._close()
        self._draining = False
        self._idle.wake_all()

    async def shutdown_with_drain(self) -> None:
        """Shut down and wait until no key is in work.

        The wait is bounded only by the workers: put it under a time limit, or call `shutdown` to end it. Cancellation
        ends the wait; the queue stays shut down.
        """
        self._close()
        self._draining = True
        while self._draining and self._held:
            await self._idle.wait()

    def _close(self) -> None:
        self._closed = True
        self._delays.close()
        self._waiting.clear()
        self._getters.wake_all()
