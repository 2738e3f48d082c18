"""Handles: what counts for one queue, controller, webhook or client; its series are bound when it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyreconcile.metrics._families import Families, RequestFamilies
from pyreconcile.metrics._fast import Number

_RESULTS: Final = ("success", "error", "requeue", "requeue_after")

# Rule PQ-12: a label value is a time series; priorities are the user's, so their number is bounded.
_PRIORITIES_MAX: Final = 25
_PRIORITY_OVERFLOW: Final = "overflow"


class QueueMetrics:
    """The series of one work queue; `pyreconcile.workqueue` calls it."""

    def __init__(self, families: Families, name: str) -> None:
        self._families = families
        self._name = name
        self._added = families.queue_adds.labels(name, name)
        self._retried = families.queue_retries.labels(name, name)
        self._wait = families.queue_wait.labels(name, name)
        self._work = families.queue_work.labels(name, name)
        self._reaction = families.reaction.labels(name)
        self._unfinished = families.queue_unfinished.labels(name, name)
        self._longest = families.queue_longest.labels(name, name)
        self._depths: dict[int, Number] = {}

    def added(self, priority: int) -> None:
        """Count one key that entered the queue."""
        self._added.inc()

    def retried(self) -> None:
        """Count one key that was added with a delay."""
        self._retried.inc()

    def depth(self, priority: int, delta: int) -> None:
        """Change the number of keys that are ready at ``priority``.

        The first 25 distinct priorities have a label value each, all later ones share ``overflow`` (rule PQ-12).
        """
        gauge = self._depths.get(priority)
        if gauge is None:
            label = str(priority) if len(self._depths) < _PRIORITIES_MAX else _PRIORITY_OVERFLOW
            gauge = self._families.queue_depth.labels(self._name, self._name, label)
            if label is _PRIORITY_OVERFLOW:
                # Not remembered: a queue that sees ever new priorities must not grow a table of them.
                gauge.inc(delta)
                return
            self._depths[priority] = gauge
        gauge.inc(delta)

    def got(self, wait_s: float) -> None:
        """Observe how many seconds a key was ready before a worker took it."""
        self._wait.observe(wait_s)
        self._reaction.observe(wait_s)

    def done(self, work_s: float) -> None:
        """Observe how many seconds a worker had a key."""
        self._work.observe(work_s)

    def watch(self, unfinished: Callable[[], tuple[float, float]]) -> None:
        """Read the keys being worked on at every scrape.

        ``unfinished`` returns the sum and the longest of their ages in seconds. It is called by whoever renders the
        metrics, on that thread.
        """
        self._unfinished.set_function(lambda: unfinished()[0])
        self._longest.set_function(lambda: unfinished()[1])


class ControllerMetrics:
    """The series of one controller; all but the histogram exist with 0 from the start."""

    def __init__(self, families: Families, name: str) -> None:
        self._results = {result: families.reconciles.labels(name, result) for result in _RESULTS}
        self._seconds = families.reconcile_seconds.labels(name)
        self._errors = families.reconcile_errors.labels(name)
        self._terminal_errors = families.terminal_errors.labels(name)
        self._panics = families.reconcile_panics.labels(name)
        self._timeouts = families.reconcile_timeouts.labels(name)
        self._stalls = families.reconcile_stalls.labels(name)
        self._max_concurrent = families.max_concurrent.labels(name)
        self._active = families.active_workers.labels(name)

    def reconciled(self, result: str, seconds: float) -> None:
        """Count one finished reconcile and observe its duration.

        ``result`` is ``success``, ``error``, ``requeue`` or ``requeue_after``.

        Raises:
            KeyError: another result.
        """
        self._results[result].inc()
        self._seconds.observe(seconds)

    def error(self) -> None:
        """Count one reconcile that ended with an error, terminal ones included."""
        self._errors.inc()

    def terminal_error(self) -> None:
        """Count one reconcile that ended with a terminal error."""
        self._terminal_errors.inc()

    def panic(self) -> None:
        """Count one unexpected exception of a reconciler."""
        self._panics.inc()

    def timeout(self) -> None:
        """Count one reconcile that ran into the reconciliation timeout."""
        self._timeouts.inc()

    def stalled(self, seconds: float) -> None:
        """Add the seconds for which one reconcile kept the event loop from everything else."""
        self._stalls.inc(seconds)

    def max_concurrent(self, n: int) -> None:
        """Say how many reconciles may run at once."""
        self._max_concurrent.set(n)

    def worker_busy(self, delta: int) -> None:
        """Change the number of reconciles that run now."""
        self._active.inc(delta)


class WebhookMetrics:
    """The series of one webhook path."""

    def __init__(self, families: Families, path: str) -> None:
        self._families = families
        self._path = path
        self._seconds = families.webhook_seconds.labels(path)
        self._in_flight = families.webhook_in_flight.labels(path)
        self._panics = families.webhook_panics
        self._codes = {code: families.webhook_requests.labels(path, str(code)) for code in (200, 500)}

    def served(self, code: int, seconds: float) -> None:
        """Count one answered request by HTTP status and observe its duration."""
        counter = self._codes.get(code)
        if counter is None:
            counter = self._codes[code] = self._families.webhook_requests.labels(self._path, str(code))
        counter.inc()
        self._seconds.observe(seconds)

    def in_flight(self, delta: int) -> None:
        """Change the number of requests being served."""
        self._in_flight.inc(delta)

    def panic(self) -> None:
        """Count one unexpected exception of an admission handler."""
        self._panics.inc()


class RequestDetails:
    """Times and sizes of requests, from `Metrics.observe_requests`. Safe from any thread.

    ``verb`` is the HTTP method in capitals, ``host`` the server's host and port.
    """

    def __init__(self, families: RequestFamilies) -> None:
        self._families = families

    def waited(self, verb: str, host: str, seconds: float) -> None:
        """Observe how long a request waited for its turn on this side."""
        self._families.limiter.labels(verb, host).observe(seconds)

    def resolved(self, host: str, seconds: float) -> None:
        """Observe how long looking a host's name up took."""
        self._families.resolution.labels(host).observe(seconds)

    def exchanged(self, verb: str, host: str, *, seconds: float, sent: int, received: int | None) -> None:
        """Observe one try of a request: its time, and the bytes of both bodies; None when no answer came."""
        families = self._families
        families.duration.labels(verb, host).observe(seconds)
        families.request_size.labels(verb, host).observe(sent)
        if received is not None:
            families.response_size.labels(verb, host).observe(received)

    def retried(self, code: str, verb: str, host: str) -> None:
        """Count a request that is sent again; ``code`` is ``<error>`` when no answer came."""
        self._families.retries.labels(code, verb, host).inc()
