"""Prometheus metrics of a manager, under the names that controller-runtime's dashboards and alerts use.

Every `Metrics` has a registry of its own, so several managers (and tests) in one process do not clash. Parts of the
framework ask once for the handle of their controller, queue or webhook; a handle's series are bound then, and counting
costs one call. Counting is safe from any thread.

Names, labels and buckets: runtime contract §16 (controller-runtime ``pkg/internal/controller/metrics``,
``pkg/internal/metrics/workqueue.go``, ``pkg/webhook/internal/metrics``; client-go ``rest_client_*``).
"""

from pyreconcile.metrics._handles import ControllerMetrics, QueueMetrics, RequestDetails, WebhookMetrics
from pyreconcile.metrics._metrics import CONTENT_TYPE, Metrics

__all__ = ["CONTENT_TYPE", "ControllerMetrics", "Metrics", "QueueMetrics", "RequestDetails", "WebhookMetrics"]
