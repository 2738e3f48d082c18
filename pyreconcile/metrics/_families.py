"""The metric families and their buckets (runtime contract §16)."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pyreconcile.metrics._fast import FastCounter, FastGauge, FastHistogram

# Buckets (A) of §16: seconds of a reconcile or of an admission request.
DURATION_BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0),
    *(15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0),
)

# Buckets (B) of §16: twelve decades from 10 ns.
QUEUE_BUCKETS: Final = tuple(float(f"1e{exponent}") for exponent in range(-8, 4))

# Buckets (C) of §16: seconds of a request to the API server; and its bytes.
REQUEST_BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
SIZE_BUCKETS: Final = tuple(
    float(size) for size in (64, 256, 512, 2**10, 2**12, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24)
)

LAG_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Families:
    """The metric families of §16, created once per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        # Those of queues, controllers and webhooks count several times in each reconcile or request, all in one thread.
        def fast_counter(name: str, text: str, *labels: str) -> FastCounter:
            return FastCounter(name, text, labels, registry)

        def fast_gauge(name: str, text: str, *labels: str) -> FastGauge:
            return FastGauge(name, text, labels, registry)

        def fast_histogram(name: str, text: str, bounds: tuple[float, ...], *labels: str) -> FastHistogram:
            return FastHistogram(name, text, labels, registry, bounds=bounds)

        prefix = "controller_runtime_"
        self.reconciles = fast_counter(f"{prefix}reconcile_total", "Reconciles by result.", "controller", "result")
        self.reconcile_errors = fast_counter(f"{prefix}reconcile_errors_total", "Reconciles that failed.", "controller")
        self.terminal_errors = fast_counter(
            f"{prefix}terminal_reconcile_errors_total", "Reconciles that failed and are not retried.", "controller"
        )
        self.reconcile_panics = fast_counter(
            f"{prefix}reconcile_panics_total", "Unexpected exceptions of reconcilers.", "controller"
        )
        self.reconcile_timeouts = fast_counter(
            f"{prefix}reconcile_timeouts_total", "Reconciles ended by the reconciliation timeout.", "controller"
        )
        self.reconcile_seconds = fast_histogram(
            f"{prefix}reconcile_time_seconds", "Seconds of a reconcile.", DURATION_BUCKETS, "controller"
        )
        self.reconcile_stalls = fast_counter(
            "pyreconcile_reconcile_blocked_loop_seconds_total",
            "Seconds for which reconciles kept the event loop from everything else.",
            "controller",
        )
        self.max_concurrent = fast_gauge(
            f"{prefix}max_concurrent_reconciles", "Reconciles that may run at once.", "controller"
        )
        self.active_workers = fast_gauge(f"{prefix}active_workers", "Reconciles that run now.", "controller")

        queue = ("name", "controller")
        self.queue_depth = fast_gauge("workqueue_depth", "Keys that are ready.", *queue, "priority")
        self.queue_adds = fast_counter("workqueue_adds_total", "Keys added.", *queue)
        self.queue_retries = fast_counter("workqueue_retries_total", "Keys added with a delay.", *queue)
        self.queue_wait = fast_histogram(
            "workqueue_queue_duration_seconds", "Seconds a key is ready before it is taken.", QUEUE_BUCKETS, *queue
        )
        self.queue_work = fast_histogram(
            "workqueue_work_duration_seconds", "Seconds a worker has a key.", QUEUE_BUCKETS, *queue
        )
        self.queue_unfinished = fast_gauge(
            "workqueue_unfinished_work_seconds", "Sum of the ages of the keys being worked on.", *queue
        )
        self.queue_longest = fast_gauge(
            "workqueue_longest_running_processor_seconds", "Age of the key that is worked on longest.", *queue
        )

        self.reaction = fast_histogram(
            "pyreconcile_event_to_reconcile_seconds",
            "Seconds from an event, or the end of a delay, to the start of the reconcile.",
            LAG_BUCKETS,
            "controller",
        )

        self.requests = fast_counter(
            "rest_client_requests_total", "Requests to the API server.", "code", "method", "host"
        )
        self.leader = gauge("leader_election_master_status", "1 on the leader, 0 on the others.", "name")

        self.webhook_seconds = fast_histogram(
            f"{prefix}webhook_latency_seconds", "Seconds of an admission request.", DURATION_BUCKETS, "webhook"
        )
        self.webhook_requests = fast_counter(
            f"{prefix}webhook_requests_total", "Admission requests by HTTP status.", "webhook", "code"
        )
        self.webhook_in_flight = fast_gauge(
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
        self.loop_lag = histogram(
            "pyreconcile_event_loop_lag_seconds", "Seconds by which a timer of the event loop was late.", LAG_BUCKETS
        )


class RequestFamilies:
    """The families of §16 that exist only after `Metrics.observe_requests`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"rest_client_{name}", text, labels, buckets=buckets, registry=registry)

        call = ("verb", "host")
        self.duration = histogram("request_duration_seconds", "Seconds of a request.", REQUEST_BUCKETS, *call)
        self.limiter = histogram(
            "rate_limiter_duration_seconds", "Seconds a request waited for its turn.", REQUEST_BUCKETS, *call
        )
        self.resolution = histogram(
            "dns_resolution_duration_seconds", "Seconds of looking the server's name up.", REQUEST_BUCKETS, "host"
        )
        self.request_size = histogram("request_size_bytes", "Bytes of a request's body.", SIZE_BUCKETS, *call)
        self.response_size = histogram("response_size_bytes", "Bytes of an answer's body.", SIZE_BUCKETS, *call)
        self.retries = Counter(
            "rest_client_request_retries_total",
            "Requests sent again.",
            ("code", "verb", "host"),
            registry=registry,
        )
