"""All metrics of one manager."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import Metric

from pyreconcile.metrics._families import Families, RequestFamilies
from pyreconcile.metrics._fast import Number
from pyreconcile.metrics._handles import ControllerMetrics, QueueMetrics, RequestDetails, WebhookMetrics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of `Metrics.render`."""

_HAVE_CREATED: Final = ("counter", "histogram", "summary")


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
        self._families = Families(registry)
        self._queues: dict[str, QueueMetrics] = {}
        self._controllers: dict[str, ControllerMetrics] = {}
        self._webhooks: dict[str, WebhookMetrics] = {}
        self._requests: dict[tuple[str, str, str], Number] = {}
        self.request_details: RequestDetails | None = None
        """Where clients tell times and sizes of requests; None before `observe_requests`."""

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

    def observe_requests(self) -> None:
        """Also count times, sizes and retries of requests (``rest_client_*``); for clients that connect after this.

        They cost a few microseconds for each request and some 60 series for each verb, so nobody has them unasked.
        Calling it again changes nothing.
        """
        if self.request_details is None:
            self.request_details = RequestDetails(RequestFamilies(self.registry))

    def loop_lag(self, seconds: float) -> None:
        """Observe by how much a timer of the event loop was late."""
        self._families.loop_lag.observe(seconds)

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
            if family.type in _HAVE_CREATED:
                created = f"{family.name}_created"
                family = copy(family)  # a collector may give the same one again
                family.samples = [sample for sample in family.samples if sample.name != created]
            yield family
