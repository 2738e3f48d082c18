"""The wait between two tries of a reflector."""

from __future__ import annotations

import random as _random
import time
from collections.abc import Callable


class Backoff:
    """Waits that double from ``start`` up to ``cap`` seconds, each stretched by up to ``jitter`` of itself.

    The wait is back at ``start`` when ``calm`` seconds have passed since the last one was asked for. Defaults are
    client-go's (``tools/cache/reflector.go``; runtime contract, section 5.1).

    Args:
        start: first wait, seconds.
        cap: longest wait before jitter, seconds.
        factor: growth from one wait to the next.
        jitter: 1.0 gives a wait between d and 2d.
        calm: seconds without a call after which the wait starts anew.
        clock: monotonic seconds.
        random: a number in [0, 1).
    """

    def __init__(
        self,
        *,
        start: float = 0.8,
        cap: float = 30.0,
        factor: float = 2.0,
        jitter: float = 1.0,
        calm: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self._start = start
        self._cap = cap
        self._factor = factor
        self._jitter = jitter
        self._calm = calm
        self._clock = clock
        self._random = random
        self._delay = start
        self._asked: float | None = None

    def next(self) -> float:
        """Return the next wait in seconds."""
        now = self._clock()
        if self._asked is not None and now - self._asked > self._calm:
            self._delay = self._start
        self._asked = now
        delay = self._delay
        self._delay = min(delay * self._factor, self._cap)
        return delay * (1.0 + self._jitter * self._random())
