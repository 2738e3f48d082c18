"""The metric names are a contract: dashboards and alerts use them (runtime contract §16)."""

import re
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from pyreconcile.metrics import CONTENT_TYPE, Metrics


def samples(metrics: Metrics) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def bounds(metrics: Metrics, name: str) -> list[float]:
    found = re.findall(rf'^{name}_bucket{{.*?le="([^"]+)".*}} ', metrics.render().decode(), re.MULTILINE)
    return [float(bound) for bound in found]


@pytest.mark.rules("MT-1", "MT-2", "MT-3", "MT-4", "MT-5", "MT-8")
def test_a_controllers_series_exist_with_zero_from_the_start():
    metrics = Metrics()
    metrics.controller("web")
    found = samples(metrics)
    for result in ("success", "error", "requeue", "requeue_after"):
        assert found[f"controller_runtime_reconcile_total{{controller=web,result={result}}}"] == 0
    for name in (
        "reconcile_errors_total",
        "terminal_reconcile_errors_total",
        "reconcile_panics_total",
        "reconcile_timeouts_total",
        "active_workers",
    ):
        assert found[f"controller_runtime_{name}{{controller=web}}"] == 0


@pytest.mark.rules("MT-1", "MT-2", "MT-3", "MT-4", "MT-5", "MT-6", "MT-7", "MT-8")
def test_a_controller_counts_results_errors_and_workers():
    metrics = Metrics()
    web = metrics.controller("web")
    web.max_concurrent(3)
    web.worker_busy(2)
    web.worker_busy(-1)
    web.reconciled("success", 0.02)
    web.reconciled("error", 7)
    web.error()
    web.terminal_error()
    web.panic()
    web.timeout()
    found = samples(metrics)
    assert found["controller_runtime_max_concurrent_reconciles{controller=web}"] == 3
    assert found["controller_runtime_active_workers{controller=web}"] == 1
    assert found["controller_runtime_reconcile_total{controller=web,result=success}"] == 1
    assert found["controller_runtime_reconcile_time_seconds_count{controller=web}"] == 2
    assert found["controller_runtime_reconcile_time_seconds_sum{controller=web}"] == pytest.approx(7.02)
    for name in ("reconcile_errors", "terminal_reconcile_errors", "reconcile_panics", "reconcile_timeouts"):
        assert found[f"controller_runtime_{name}_total{{controller=web}}"] == 1
    with pytest.raises(KeyError):
        web.reconciled("maybe", 1)


@pytest.mark.rules("MT-6", "MT-11", "MT-20")
def test_buckets_are_those_of_controller_runtime():
    metrics = Metrics()
    metrics.controller("web")
    metrics.queue("web")
    tenths = [0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    seconds = [1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50, 60]
    assert bounds(metrics, "controller_runtime_reconcile_time_seconds") == [*tenths, *seconds, float("inf")]
    decades = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 10, 100, 1000, float("inf")]
    assert bounds(metrics, "workqueue_queue_duration_seconds") == decades
    assert bounds(metrics, "workqueue_work_duration_seconds") == decades
    metrics.webhook("/mutate")
    assert bounds(metrics, "controller_runtime_webhook_latency_seconds") == [*tenths, *seconds, float("inf")]


@pytest.mark.rules("MT-26")
def test_histograms_are_classic_ones_in_the_text_format():
    """Native ones exist in Prometheus's protobuf format only, which the library does not write."""
    metrics = Metrics()
    metrics.controller("web").reconciled("success", 0.2)
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")
    [family] = [
        family
        for family in text_string_to_metric_families(metrics.render().decode())
        if family.name == "controller_runtime_reconcile_time_seconds"
    ]
    assert {sample.name.removeprefix(family.name) for sample in family.samples} == {"_bucket", "_sum", "_count"}
    assert all(sample.native_histogram is None for sample in family.samples)


@pytest.mark.rules("MT-9", "MT-10", "MT-11", "MT-12", "MT-27")
def test_a_queue_has_its_name_as_controller_too():
    metrics = Metrics()
    queue = metrics.queue("web")
    queue.added(0)
    queue.retried()
    queue.depth(0, 2)
    queue.depth(0, -1)
    queue.depth(-100, 1)
    queue.got(0.5)
    queue.done(0.25)
    queue.watch(lambda: (5.0, 3.0))
    found = samples(metrics)
    assert found["workqueue_adds_total{controller=web,name=web}"] == 1
    assert found["workqueue_retries_total{controller=web,name=web}"] == 1
    assert found["workqueue_depth{controller=web,name=web,priority=0}"] == 1
    assert found["workqueue_depth{controller=web,name=web,priority=-100}"] == 1
    assert found["workqueue_queue_duration_seconds_sum{controller=web,name=web}"] == 0.5
    assert found["workqueue_work_duration_seconds_sum{controller=web,name=web}"] == 0.25
    assert found["pyreconcile_event_to_reconcile_seconds_sum{controller=web}"] == 0.5
    assert found["workqueue_unfinished_work_seconds{controller=web,name=web}"] == 5
    assert found["workqueue_longest_running_processor_seconds{controller=web,name=web}"] == 3


@settings(deadline=None)  # a busy machine
@given(st.lists(st.integers(-200, 200), max_size=120))
def test_pq_12_priority_labels_are_bounded_and_depth_balances(priorities: list[int]):
    metrics = Metrics(CollectorRegistry())
    queue = metrics.queue("q")
    for priority in priorities:
        queue.depth(priority, 1)
    depths = {name: value for name, value in samples(metrics).items() if name.startswith("workqueue_depth")}
    assert len(depths) <= 26
    assert sum(depths.values()) == len(priorities)
    for priority in priorities:
        queue.depth(priority, -1)
    depths = {name: value for name, value in samples(metrics).items() if name.startswith("workqueue_depth")}
    assert set(depths.values()) <= {0}


@pytest.mark.rules("MT-13", "MT-19", "MT-20", "MT-21", "MT-22", "MT-23", "MT-24")
def test_webhooks_requests_leader_and_certificates():
    metrics = Metrics()
    hook = metrics.webhook("/mutate")
    found = samples(metrics)
    assert found["controller_runtime_webhook_requests_total{code=200,webhook=/mutate}"] == 0
    assert found["controller_runtime_webhook_requests_total{code=500,webhook=/mutate}"] == 0
    assert found["controller_runtime_webhook_requests_in_flight{webhook=/mutate}"] == 0
    assert found["controller_runtime_webhook_panics_total"] == 0
    assert found["controller_runtime_conversion_webhook_panics_total"] == 0
    hook.in_flight(1)
    hook.served(200, 0.01)
    hook.served(403, 0.01)
    hook.panic()
    metrics.conversion_panic()
    metrics.request(code="200", method="GET", host="127.0.0.1:6443")
    metrics.leader("lease", leading=True)
    metrics.certificate_read(ok=True)
    metrics.certificate_read(ok=False)
    found = samples(metrics)
    assert found["controller_runtime_webhook_requests_total{code=403,webhook=/mutate}"] == 1
    assert found["controller_runtime_webhook_latency_seconds_count{webhook=/mutate}"] == 2
    assert found["controller_runtime_webhook_requests_in_flight{webhook=/mutate}"] == 1
    assert found["controller_runtime_webhook_panics_total"] == 1
    assert found["controller_runtime_conversion_webhook_panics_total"] == 1
    assert found["rest_client_requests_total{code=200,host=127.0.0.1:6443,method=GET}"] == 1
    assert found["leader_election_master_status{name=lease}"] == 1
    assert found["certwatcher_read_certificate_total"] == 2
    assert found["certwatcher_read_certificate_errors_total"] == 1
    metrics.leader("lease", leading=False)
    assert samples(metrics)["leader_election_master_status{name=lease}"] == 0


@pytest.mark.rules("MT-25")
def test_process_and_python_series_are_on_the_same_registry():
    found = samples(Metrics())
    assert any(name.startswith("process_") for name in found)
    assert any(name.startswith("python_gc_") for name in found)
    assert any(name.startswith("python_info") for name in found)


def test_two_managers_do_not_share_series():
    one, two = Metrics(), Metrics()
    one.controller("web").error()
    two.controller("web")
    assert samples(two)["controller_runtime_reconcile_errors_total{controller=web}"] == 0
    with pytest.raises(ValueError, match="Duplicated"):
        Metrics(one.registry)


def test_created_series_are_left_out_and_histograms_stay_whole():
    metrics = Metrics()
    metrics.queue("web").got(1)
    text = metrics.render().decode()
    assert "_created" not in text
    assert 'workqueue_queue_duration_seconds_bucket{controller="web",le="1.0",name="web"} 1.0' in text


def test_counting_is_safe_from_threads():
    metrics = Metrics()

    def count() -> None:
        for _ in range(500):
            metrics.request(code="200", method="GET", host="h")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert samples(metrics)["rest_client_requests_total{code=200,host=h,method=GET}"] == 2000


def test_the_guide_lists_every_series_with_its_type_and_labels():
    guide = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]+) \|$", guide, re.MULTILINE)
    documented = {
        (name, kind, tuple(re.sub(r":.*", "", labels).replace("–", "").strip().split(", ")))
        for name, kind, labels in listed
    }
    metrics = Metrics()
    metrics.observe_requests()
    assert metrics.request_details is not None
    real = set()
    for family in [*vars(metrics._families).values(), *vars(metrics.request_details._families).values()]:
        kind = type(family).__name__.lower().removeprefix("fast")
        name = family._name + ("_total" if kind == "counter" else "")
        real.add((name, kind, family._labelnames or ("",)))
    assert documented == real


def test_a_series_of_the_user_that_ends_in_created_is_kept_and_left_as_it_is():
    class Cached:
        """Gives the same family each time."""

        def __init__(self) -> None:
            self.family = CounterMetricFamily("seen", "", created=1.0, value=2)

        def collect(self):
            return [self.family]

    metrics = Metrics(CollectorRegistry())
    Gauge("object_created", "A time.", registry=metrics.registry).set(7)
    Counter("objects_created", "A number.", registry=metrics.registry).inc()
    cached = Cached()
    metrics.registry.register(cached)
    for _ in range(2):
        found = samples(metrics)
        assert (found["object_created"], found["objects_created_total"], found["seen_total"]) == (7, 1, 2)
        assert not {"objects_created_created", "seen_created"} & found.keys()
    assert len(cached.family.samples) == 2
