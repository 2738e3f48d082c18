"""What both queues are made of: keys in the hands of workers, waiting getters, backoff, the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Generic, TypeVar

from pyreconcile.workqueue._getters import Getters
from pyreconcile.workqueue._types import Clock, QueueMetrics, RateLimiter, ShutDown

K = TypeVar("K", bound=Hashable)


_WORK_OVER = -1.0  # in place of the time of a key that is held, but not worked on; no clock shows it


class BaseQueue(ABC, Generic[K]):
    """The half of a queue that does not depend on the order of its keys."""

    def __init__(self, *, clock: Clock, rate_limiter: RateLimiter, metrics: QueueMetrics | None, name: str) -> None:
        self.name = name
        self._clock = clock
        self._time = clock.time
        self._limiter = rate_limiter
        self._metrics = metrics
        self._held: dict[K, float] = {}  # key → when it was handed out
        self._getters = Getters()
        self._idle = Getters()
        self._closed = False  # adds are ignored
        if metrics is not None:
            metrics.watch(self._unfinished)

    # -- adding ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def add(self, key: K, *, priority: int = 0) -> None:
        """Add ``key`` now."""

    @abstractmethod
    def add_after(self, key: K, delay: float, *, priority: int = 0) -> None:
        """Add ``key`` in ``delay`` seconds."""

    def add_rate_limited(self, key: K, *, priority: int = 0) -> None:
        """Add ``key`` after the delay that the rate limiter gives it. Ignored after shutdown."""
        if not self._closed:
            self.add_after(key, self._limiter.when(key), priority=priority)

    def add_with(self, *keys: K, after: float = 0.0, rate_limited: bool = False, priority: int | None = None) -> None:
        """Add several keys, each with its own delay (PQ-3). Ignored after shutdown.

        Args:
            keys: what to add.
            after: delay in seconds; 0 is none.
            rate_limited: ask the rate limiter, once per key. With ``after`` too, the smaller delay holds.
            priority: by default 0; the classic queue knows none.
        """
        if self._closed:
            return
        for key in keys:
            delay = after
            if rate_limited:
                limited = self._limiter.when(key)
                delay = min(after, limited) if after > 0 else limited
            if delay > 0 or rate_limited:
                self.add_after(key, delay, priority=priority or 0)
            else:
                self.add(key, priority=priority or 0)

    # -- handing out -----------------------------------------------------------------------------------------------

    @abstractmethod
    def take(self) -> tuple[K, int] | None:
        """Hand out the next key and its priority without waiting; None when there is none to be had."""

    @abstractmethod
    def _is_over(self) -> bool:
        """Tell whether nothing will be handed out any more."""

    async def get(self) -> K:
        """Wait for a key; no other worker gets it until `done`. See `get_with_priority`."""
        return (await self.get_with_priority())[0]

    async def get_with_priority(self) -> tuple[K, int]:
        """Wait for a key and return it with its priority; no other worker gets it until `done`.

        Nothing is taken from the queue when the call is cancelled.

        Raises:
            ShutDown: the queue was shut down and has nothing more to hand out.
        """
        while True:
            taken = self.take()
            if taken is not None:
                return taken
            if self._is_over():
                raise ShutDown(self.name)
            await self._getters.wait()

    @abstractmethod
    def done(self, key: K) -> None:
        """Say that the worker has finished with ``key``."""

    def work_ended(self, key: K) -> None:
        """Say that the work on ``key`` is over, though it is not to be handed out again before `done`."""
        started = self._held.get(key, _WORK_OVER)
        if started != _WORK_OVER:
            self._held[key] = _WORK_OVER
            if self._metrics is not None:
                self._metrics.done(self._time() - started)

    # -- backoff ---------------------------------------------------------------------------------------------------

    def forget(self, key: K) -> None:
        """Clear the failures of ``key`` in the rate limiter; it does not end the work on it (WQ-17)."""
        self._limiter.forget(key)

    def num_requeues(self, key: K) -> int:
        """Return the failures of ``key`` that the rate limiter counts."""
        return self._limiter.num_requeues(key)

    # -- ending ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def shutdown(self) -> None:
        """Ignore adds and drop delayed keys."""

    @abstractmethod
    async def shutdown_with_drain(self) -> None:
        """Ignore adds, and wait for the workers."""

    def _unfinished(self) -> tuple[float, float]:
        if not self._held:
            return 0.0, 0.0
        now = self._time()
        # Scraped from any thread, so the values are copied first.
        held = [now - started for started in list(self._held.values()) if started != _WORK_OVER]
        return sum(held), max(held, default=0.0)
