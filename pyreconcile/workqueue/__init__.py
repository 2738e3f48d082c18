"""Work queues that hand a key to one worker at a time: priorities, delays, rate limits, metrics.

Nothing here knows of Kubernetes: keys are any hashable value. `PriorityQueue` is what controllers use; `Queue` is the
classic first-in-first-out queue. Both belong to one event loop; see ``docs/workqueue.md``.
"""

from pyreconcile.workqueue._limiters import (
    BucketRateLimiter,
    FastSlowRateLimiter,
    ItemExponentialRateLimiter,
    MaxOfRateLimiter,
    WindowedExponentialRateLimiter,
    WithMaxWaitRateLimiter,
    default_item_rate_limiter,
    default_rate_limiter,
)
from pyreconcile.workqueue._priority import DEFAULT_AGEING, LOW_PRIORITY, PriorityQueue
from pyreconcile.workqueue._queue import Queue
from pyreconcile.workqueue._types import Clock, QueueMetrics, RateLimiter, ShutDown, TimerHandle

__all__ = [
    "DEFAULT_AGEING",
    "LOW_PRIORITY",
    "BucketRateLimiter",
    "Clock",
    "FastSlowRateLimiter",
    "ItemExponentialRateLimiter",
    "MaxOfRateLimiter",
    "PriorityQueue",
    "Queue",
    "QueueMetrics",
    "RateLimiter",
    "ShutDown",
    "TimerHandle",
    "WindowedExponentialRateLimiter",
    "WithMaxWaitRateLimiter",
    "default_item_rate_limiter",
    "default_rate_limiter",
]
