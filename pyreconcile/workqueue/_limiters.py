"""Rate limiters: how long a key waits before it is tried again."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from pyreconcile.workqueue._types import RateLimiter, current_time

_MAX_EXPONENT = 1000  # 2.0 ** 1024 overflows a double; every sane cap is reached long before
_ROUNDING = 1e-6  # a timer may fire a hair before its time; that still ends the window


class ItemExponentialRateLimiter:
    """Delays each key by ``base * 2**n`` seconds, n being its failures so far, up to ``cap`` (WQ-12).

    The defaults give 5, 10, 20 ms … 655.36 s and then 1000 s (WQ-13).

    Args:
        base: first delay in seconds.
        cap: longest delay in seconds.
    """

    def __init__(self, base: float = 0.005, cap: float = 1000.0) -> None:
        if base <= 0 or cap < base:
            raise ValueError(f"base={base}, cap={cap}: give seconds with 0 < base <= cap")
        self._base = base
        self._cap = cap
        self._failures: dict[Hashable, int] = {}

    def _delay(self, failures: int) -> float:
        return self._cap if failures > _MAX_EXPONENT else min(self._cap, self._base * 2.0**failures)

    def when(self, key: Hashable) -> float:
        """Count one failure of ``key`` and return its delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        return self._delay(failures)

    def forget(self, key: Hashable) -> None:
        """Start ``key`` again at ``base``."""
        self._failures.pop(key, None)

    def num_requeues(self, key: Hashable) -> int:
        """Return the failures of ``key`` since it was last forgotten."""
        return self._failures.get(key, 0)


class WindowedExponentialRateLimiter(ItemExponentialRateLimiter):
    """Exponential backoff that counts at most one failure per backoff window (WQ-18).

    Events that arrive for a failing key run it before its delay is over. Counting each of those runs makes the delay
    explode; here a failure inside the window changes nothing, and the key waits for the rest of the window. So the
    retry that was promised comes at the time it was promised for, however many events arrive meanwhile.

    Args:
        base: first delay in seconds.
        cap: longest delay in seconds.
        time: monotonic clock in seconds; by default the running loop's.
    """

    def __init__(self, base: float = 0.005, cap: float = 1000.0, *, time: Callable[[], float] = current_time) -> None:
        super().__init__(base, cap)
        self._time = time
        self._window_ends: dict[Hashable, float] = {}

    def when(self, key: Hashable) -> float:
        """Return the rest of the current window, or count a failure and open the next one; in seconds."""
        now = self._time()
        end = self._window_ends.get(key)
        if end is not None and now < end - _ROUNDING:
            return end - now
        delay = super().when(key)
        self._window_ends[key] = now + delay
        return delay

    def forget(self, key: Hashable) -> None:
        """Start ``key`` again at ``base``."""
        super().forget(key)
        self._window_ends.pop(key, None)


class BucketRateLimiter:
    """One token bucket over all keys (WQ-14): a try takes a token and waits until the bucket has it.

    Args:
        rate: tokens gained per second.
        burst: tokens the bucket holds, and starts with.
        time: monotonic clock in seconds; by default the running loop's.
    """

    def __init__(self, rate: float = 10.0, burst: int = 100, *, time: Callable[[], float] = current_time) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"rate={rate}, burst={burst}: give rate > 0 and burst >= 1")
        self._rate = rate
        self._burst = float(burst)
        self._time = time
        self._tokens = float(burst)
        self._at: float | None = None

    def when(self, key: Hashable) -> float:
        """Take a token and return the seconds until it is there."""
        now = self._time()
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        self._tokens -= 1.0
        return 0.0 if self._tokens >= 0 else -self._tokens / self._rate

    def forget(self, key: Hashable) -> None:
        """Do nothing: a token that was taken stays taken."""

    def num_requeues(self, key: Hashable) -> int:
        """Return 0: the bucket does not know keys."""
        return 0


class MaxOfRateLimiter:
    """Asks every limiter, so that all of them count, and takes the longest delay (WQ-15)."""

    def __init__(self, *limiters: RateLimiter) -> None:
        if not limiters:
            raise ValueError("give at least one rate limiter")
        self._limiters = limiters

    def when(self, key: Hashable) -> float:
        """Count one try of ``key`` with every limiter and return the longest delay in seconds."""
        return max([limiter.when(key) for limiter in self._limiters])

    def forget(self, key: Hashable) -> None:
        """Forget ``key`` in every limiter."""
        for limiter in self._limiters:
            limiter.forget(key)

    def num_requeues(self, key: Hashable) -> int:
        """Return the largest count of any limiter."""
        return max(limiter.num_requeues(key) for limiter in self._limiters)


class FastSlowRateLimiter:
    """Delays by ``fast`` seconds for a key's first ``max_fast_tries`` tries, then by ``slow`` (WQ-15)."""

    def __init__(self, fast: float, slow: float, max_fast_tries: int) -> None:
        self._fast = fast
        self._slow = slow
        self._max_fast_tries = max_fast_tries
        self._tries: dict[Hashable, int] = {}

    def when(self, key: Hashable) -> float:
        """Count one try of ``key`` and return its delay in seconds."""
        tries = self._tries.get(key, 0) + 1
        self._tries[key] = tries
        return self._fast if tries <= self._max_fast_tries else self._slow

    def forget(self, key: Hashable) -> None:
        """Start ``key`` again with fast tries."""
        self._tries.pop(key, None)

    def num_requeues(self, key: Hashable) -> int:
        """Return the tries of ``key`` since it was last forgotten."""
        return self._tries.get(key, 0)


class WithMaxWaitRateLimiter:
    """Cuts the delays of another limiter at ``max_wait`` seconds (WQ-15)."""

    def __init__(self, limiter: RateLimiter, max_wait: float) -> None:
        self._limiter = limiter
        self._max_wait = max_wait

    def when(self, key: Hashable) -> float:
        """Count one try of ``key`` and return its delay in seconds."""
        return min(self._limiter.when(key), self._max_wait)

    def forget(self, key: Hashable) -> None:
        """Forget ``key`` in the inner limiter."""
        self._limiter.forget(key)

    def num_requeues(self, key: Hashable) -> int:
        """Return the inner limiter's count."""
        return self._limiter.num_requeues(key)


def default_rate_limiter(*, time: Callable[[], float] = current_time) -> RateLimiter:
    """Return client-go's controller default: per key 5 ms to 1000 s, and over all keys 10 a second, burst 100 (WQ-16).

    The classic `Queue` uses it; the `PriorityQueue` limits per key only. As there, at most one failure counts in a
    backoff window (WQ-18).

    Args:
        time: monotonic clock in seconds; by default the running loop's.
    """
    return MaxOfRateLimiter(WindowedExponentialRateLimiter(time=time), BucketRateLimiter(time=time))


def default_item_rate_limiter() -> RateLimiter:
    """Return client-go's item-based default: per key 1 ms to 1000 s, counting every try (WQ-16)."""
    return ItemExponentialRateLimiter(0.001, 1000.0)
