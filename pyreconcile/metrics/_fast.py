"""Counters, gauges and histograms for what happens several times in every reconcile.

prometheus_client takes a lock and half a dozen calls for each count, 15 µs a reconcile in all. These take one addition,
and become the library's metric families when they are collected. A series is counted by one thread, that of its event
loop; any thread may collect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import ClassVar, Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

S = TypeVar("S")


class Number:
    """One series of a counter or a gauge."""

    __slots__ = ("_function", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._function: Callable[[], float] | None = None

    def inc(self, amount: float = 1.0) -> None:
        """Add to it."""
        self.value += amount

    def set(self, value: float) -> None:
        """Replace it."""
        self.value = value

    def set_function(self, function: Callable[[], float]) -> None:
        """Ask for it whenever it is collected."""
        self._function = function

    def now(self) -> float:
        """Return it."""
        return self.value if self._function is None else self._function()


class Buckets:
    """One series of a histogram."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose bound it does not exceed."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def now(self) -> tuple[list[tuple[str, float]], float]:
        """Return the bounds, each with the number of values up to it, and the sum of all values."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True)), self._sum


class _Family(Collector, ABC, Generic[S]):
    """The series of one name, by the values of its labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name = name.removesuffix("_total")
        self._text = text
        self._labelnames = tuple(labels)
        self._series: dict[tuple[str, ...], S] = {}
        registry.register(self)

    @abstractmethod
    def _make(self) -> S: ...

    @abstractmethod
    def _metric(self, series: Iterable[tuple[tuple[str, ...], S]]) -> Metric: ...

    def labels(self, *values: str) -> S:
        """Return the series with these label values, which exists from now on."""
        if len(values) != len(self._labelnames):
            raise ValueError(f"{self._name} has the labels {', '.join(self._labelnames)}")
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = self._make()
        return found

    def describe(self) -> Iterable[Metric]:
        """Return the name, so that a registry refuses a second one."""
        return [self._metric(())]

    def collect(self) -> Iterable[Metric]:
        """Return all series as they are now."""
        return [self._metric(list(self._series.items()))]


class _NumberFamily(_Family[Number]):
    _made: ClassVar[type[CounterMetricFamily | GaugeMetricFamily]]

    def _make(self) -> Number:
        return Number()

    def _metric(self, series: Iterable[tuple[tuple[str, ...], Number]]) -> Metric:
        family = self._made(self._name, self._text, labels=self._labelnames)
        for values, number in series:
            family.add_metric(values, number.now())
        return family


class FastCounter(_NumberFamily):
    """A counter; its name ends with ``_total``."""

    _made = CounterMetricFamily


class FastGauge(_NumberFamily):
    """A gauge."""

    _made = GaugeMetricFamily


class FastHistogram(_Family[Buckets]):
    """A histogram with fixed buckets."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry, *, bounds: Sequence[float]
    ) -> None:
        self._bounds = tuple(bounds)
        super().__init__(name, text, labels, registry)

    def _make(self) -> Buckets:
        return Buckets(self._bounds)

    def _metric(self, series: Iterable[tuple[tuple[str, ...], Buckets]]) -> Metric:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labelnames)
        for values, buckets in series:
            counts, total = buckets.now()
            family.add_metric(values, counts, total)
        return family
