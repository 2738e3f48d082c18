"""The quick counters show what the library's own would."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pyreconcile.metrics._families import DURATION_BUCKETS, QUEUE_BUCKETS
from pyreconcile.metrics._fast import FastCounter, FastGauge, FastHistogram

LABELS = ("controller", "name")
SERIES = st.sampled_from([("a", "b"), ('quo"te', "back\\slash\n"), ("", "ü")])


def shown(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


@given(st.lists(st.tuples(SERIES, st.floats(0, 1e6))), st.sampled_from([DURATION_BUCKETS, QUEUE_BUCKETS]))
def test_a_histogram_shows_what_the_librarys_does(values, bounds):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = FastHistogram("x_seconds", "Text.", LABELS, ours, bounds=bounds)
    slow = Histogram("x_seconds", "Text.", LABELS, buckets=bounds, registry=theirs)
    for labels, value in [*values, *((("edge", "e"), bound) for bound in bounds)]:
        fast.labels(*labels).observe(value)
        slow.labels(*labels).observe(value)
    assert shown(ours) == shown(theirs)


@given(st.lists(st.tuples(SERIES, st.floats(0, 1e6))))
def test_a_counter_and_a_gauge_show_what_the_librarys_do(values):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = FastCounter("x_total", "Text.", LABELS, ours), FastGauge("y", "Text.", LABELS, ours)
    slow = Counter("x_total", "Text.", LABELS, registry=theirs), Gauge("y", "Text.", LABELS, registry=theirs)
    for counter, gauge in (fast, slow):
        counter.labels("zero", "0")
        gauge.labels("function", "f").set_function(lambda: 2.5)
        for labels, value in values:
            counter.labels(*labels).inc(value)
            counter.labels(*labels).inc()
            gauge.labels(*labels).inc(-value)
            gauge.labels("set", "s").set(value)
    assert shown(ours) == shown(theirs)


@pytest.mark.parametrize(
    "make",
    [
        lambda registry: FastCounter("x_total", "Text.", LABELS, registry),
        lambda registry: FastGauge("x", "Text.", LABELS, registry),
        lambda registry: FastHistogram("x", "Text.", LABELS, registry, bounds=(1.0,)),
    ],
    ids=["counter", "gauge", "histogram"],
)
def test_a_name_is_registered_once_and_each_label_has_a_value(make: Callable[[CollectorRegistry], FastGauge]):
    registry = CollectorRegistry()
    family = make(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        make(registry)
    with pytest.raises(ValueError, match="has the labels controller, name"):
        family.labels("a")
    assert family.labels("a", "b") is family.labels("a", "b")


def test_what_another_thread_collects_meanwhile_is_whole():
    registry = CollectorRegistry()
    family = FastHistogram("x", "Text.", LABELS, registry, bounds=(0.5, 1.0, 2.0))
    stop = threading.Event()

    def count() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            family.labels("a", str(number % 50)).observe(number % 3)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        last: dict[str, float] = {}
        for _ in range(200):
            for metric in registry.collect():
                series: dict[str, list[float]] = {}
                for sample in metric.samples:
                    if sample.name == "x_bucket":
                        series.setdefault(sample.labels["name"], []).append(sample.value)
                for name, buckets in series.items():
                    assert buckets == sorted(buckets)
                    assert buckets[-1] >= last.get(name, 0)
                    last[name] = buckets[-1]
    finally:
        stop.set()
        thread.join()
