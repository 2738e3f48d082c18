"""Prometheus metrics of a manager, under the names that controller-runtime's dashboards and alerts use.

Every `Metrics` has a registry of its own, so several managers (and tests) in one process do not clash. Parts of the
framework ask once for the handle of their controller, queue or webhook; a handle's series are bound then, and counting
costs one call. Counting is safe from any thread.

Names, labels and buckets: runtime contract §16 (controller-runtime ``pkg/internal/controller/metrics``,
``pkg/internal/metrics/workqueue.go``, ``pkg/webhook/internal/metrics``; client-go ``rest_client_*``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import Metric

__all__ = ["CONTENT_TYPE", "ControllerMetrics", "Metrics", "QueueMetrics", "WebhookMetrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of `Metrics.render`."""

_RESULTS: Final = ("success", "error", "requeue", "requeue_after")

# Buckets (A) of §16: seconds of a reconcile or of an admission request.
_DURATION_BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0),
    *(15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0),
)

# Buckets (B) of §16: twelve decades from 10 ns.
_QUEUE_BUCKETS: Final = tuple(float(f"1e{exponent}") for exponent in range(-8, 4))

# Rule PQ-12: a label value is a time series; priorities are the user's, so their number is bounded.
_PRIORITIES_MAX: Final = 25
_PRIORITY_OVERFLOW: Final = "overflow"


class QueueMetrics:
    """The series of one work queue; `pyreconcile.workqueue` calls it."""

    def __init__(self, families: _Families, name: str) -> None:
        self._families = families
        self._name = name
        self._added = families.queue_adds.labels(name, name)
        self._retried = families.queue_retries.labels(name, name)
        self._wait = families.queue_wait.labels(name, name)
        self._work = families.queue_work.labels(name, name)
        self._unfinished = families.queue_unfinished.labels(name, name)
        self._longest = families.queue_longest.labels(name, name)
        self._depths: dict[int, Gauge] = {}

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

    def __init__(self, families: _Families, name: str) -> None:
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

    def __init__(self, families: _Families, path: str) -> None:
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


class Metrics:
    """All metrics of one manager.

    Args:
        registry: where the series live. By default a new registry that also has the ``process_*``, ``python_gc_*``
            and ``python_info`` collectors; give your own to add series beside ours, once per `Metrics`.

    Raises:
        ValueError: the registry already holds the series of another `Metrics`.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
            PlatformCollector(registry=registry)
            GCCollector(registry=registry)
        self.registry: CollectorRegistry = registry
        self._families = _Families(registry)
        self._queues: dict[str, QueueMetrics] = {}
        self._controllers: dict[str, ControllerMetrics] = {}
        self._webhooks: dict[str, WebhookMetrics] = {}
        self._requests: dict[tuple[str, str, str], Counter] = {}

    def queue(self, name: str) -> QueueMetrics:
        """Return the handle of a work queue; queue and controller share the name."""
        handle = self._queues.get(name)
        if handle is None:
            handle = self._queues[name] = QueueMetrics(self._families, name)
        return handle

    def controller(self, name: str) -> ControllerMetrics:
        """Return the handle of a controller."""
        handle = self._controllers.get(name)
        if handle is None:
            handle = self._controllers[name] = ControllerMetrics(self._families, name)
        return handle

    def webhook(self, path: str) -> WebhookMetrics:
        """Return the handle of a webhook, by its URL path."""
        handle = self._webhooks.get(path)
        if handle is None:
            handle = self._webhooks[path] = WebhookMetrics(self._families, path)
        return handle

    def request(self, *, code: str, method: str, host: str) -> None:
        """Count one request to the API server; ``code`` is ``<error>`` when no answer came."""
        labels = (code, method, host)
        counter = self._requests.get(labels)
        if counter is None:
            counter = self._requests[labels] = self._families.requests.labels(code, method, host)
        counter.inc()

    def leader(self, name: str, leading: bool) -> None:
        """Say whether this process leads under the Lease ``name``."""
        self._families.leader.labels(name).set(1 if leading else 0)

    def conversion_panic(self) -> None:
        """Count one unexpected exception of a conversion webhook."""
        self._families.conversion_panics.inc()

    def certificate_read(self, *, ok: bool) -> None:
        """Count one attempt to load the serving certificate."""
        self._families.certificate_reads.inc()
        if not ok:
            self._families.certificate_errors.inc()

    def render(self) -> bytes:
        """Return all series in Prometheus's text format (`CONTENT_TYPE`)."""
        return generate_latest(_WithoutCreated(self.registry))


class _WithoutCreated(CollectorRegistry):
    """A view of a registry without the ``*_created`` series.

    They double the number of series of every counter, and the library turns them off only for a whole process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class _Families:
    """The metric families of §16, created once per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        prefix = "controller_runtime_"
        self.reconciles = counter(f"{prefix}reconcile_total", "Reconciles by result.", "controller", "result")
        self.reconcile_errors = counter(f"{prefix}reconcile_errors_total", "Reconciles that failed.", "controller")
        self.terminal_errors = counter(
            f"{prefix}terminal_reconcile_errors_total", "Reconciles that failed and are not retried.", "controller"
        )
        self.reconcile_panics = counter(
            f"{prefix}reconcile_panics_total", "Unexpected exceptions of reconcilers.", "controller"
        )
        self.reconcile_timeouts = counter(
            f"{prefix}reconcile_timeouts_total", "Reconciles ended by the reconciliation timeout.", "controller"
        )
        self.reconcile_seconds = histogram(
            f"{prefix}reconcile_time_seconds", "Seconds of a reconcile.", _DURATION_BUCKETS, "controller"
        )
        self.reconcile_stalls = counter(
            "pyreconcile_reconcile_blocked_loop_seconds_total",
            "Seconds for which reconciles kept the event loop from everything else.",
            "controller",
        )
        self.max_concurrent = gauge(
            f"{prefix}max_concurrent_reconciles", "Reconciles that may run at once.", "controller"
        )
        self.active_workers = gauge(f"{prefix}active_workers", "Reconciles that run now.", "controller")

        queue = ("name", "controller")
        self.queue_depth = gauge("workqueue_depth", "Keys that are ready.", *queue, "priority")
        self.queue_adds = counter("workqueue_adds_total", "Keys added.", *queue)
        self.queue_retries = counter("workqueue_retries_total", "Keys added with a delay.", *queue)
        self.queue_wait = histogram(
            "workqueue_queue_duration_seconds", "Seconds a key is ready before it is taken.", _QUEUE_BUCKETS, *queue
        )
        self.queue_work = histogram(
            "workqueue_work_duration_seconds", "Seconds a worker has a key.", _QUEUE_BUCKETS, *queue
        )
        self.queue_unfinished = gauge(
            "workqueue_unfinished_work_seconds", "Sum of the ages of the keys being worked on.", *queue
        )
        self.queue_longest = gauge(
            "workqueue_longest_running_processor_seconds", "Age of the key that is worked on longest.", *queue
        )

        self.requests = counter("rest_client_requests_total", "Requests to the API server.", "code", "method", "host")
        self.leader = gauge("leader_election_master_status", "1 on the leader, 0 on the others.", "name")

        self.webhook_seconds = histogram(
            f"{prefix}webhook_latency_seconds", "Seconds of an admission request.", _DURATION_BUCKETS, "webhook"
        )
        self.webhook_requests = counter(
            f"{prefix}webhook_requests_total", "Admission requests by HTTP status.", "webhook", "code"
        )
        self.webhook_in_flight = gauge(
            f"{prefix}webhook_requests_in_flight", "Admission requests being served.", "webhook"
        )
        self.webhook_panics = counter(f"{prefix}webhook_panics_total", "Unexpected exceptions of admission handlers.")
        self.conversion_panics = counter(
            f"{prefix}conversion_webhook_panics_total", "Unexpected exceptions of conversion webhooks."
        )
        self.certificate_reads = counter("certwatcher_read_certificate_total", "Attempts to load the certificate.")
        self.certificate_errors = counter(
            "certwatcher_read_certificate_errors_total", "Failed attempts to load the certificate."
        )
