"""Numbers about informers, read when the metrics are scraped, so that they cost nothing otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyreconcile.cache._informer import Informer
from pyreconcile.cache._reflector import Reflector


class HasRegistry(Protocol):
    """What the cache needs of the metrics."""

    @property
    def registry(self) -> CollectorRegistry:
        """Where collectors are registered."""


class Observed(Protocol):
    """What the collector needs of the cache."""

    @property
    def own_write_waits(self) -> int:
        """Reads that waited."""

    @property
    def live_reads(self) -> int:
        """Reads that went to the server."""

    @property
    def informers(self) -> Iterable[Informer[Any]]:
        """All informers."""


class CacheCollector(Collector):
    """The ``pyreconcile_cache_*`` series (runtime contract, section 16, last item)."""

    def __init__(self, cache: Observed) -> None:
        self._cache = cache

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the names are fixed and clash with no other collector's."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read the numbers."""
        objects = GaugeMetricFamily("pyreconcile_cache_objects", "Objects in the store.", labels=["kind"])
        backlog = GaugeMetricFamily(
            "pyreconcile_cache_handler_backlog", "Calls waiting for a handler.", labels=["kind", "handler"]
        )
        behind = GaugeMetricFamily(
            "pyreconcile_cache_handler_behind_seconds",
            "Age bound of the calls waiting for a handler.",
            labels=["kind", "handler"],
        )
        failures = CounterMetricFamily(
            "pyreconcile_cache_handler_errors", "Calls of a handler that raised.", labels=["kind", "handler"]
        )
        for informer in self._cache.informers:
            kind = informer.kind.resource.group_kind
            objects.add_metric([kind], len(informer.store))
            totals: dict[str, list[float]] = {}
            for registration in informer.registrations:
                total = totals.setdefault(registration.name, [0, 0, 0])
                total[0] += registration.backlog
                total[1] += registration.errors
                total[2] = max(total[2], registration.behind_for)
            for handler, (waiting, errors, seconds) in totals.items():
                backlog.add_metric([kind, handler], waiting)
                failures.add_metric([kind, handler], errors)
                behind.add_metric([kind, handler], seconds)
        yield objects
        yield backlog
        yield behind
        yield failures
        yield from self._reflectors()
        waits = CounterMetricFamily("pyreconcile_cache_own_write_waits", "Reads that waited for an own write.")
        waits.add_metric([], self._cache.own_write_waits)
        yield waits
        live = CounterMetricFamily("pyreconcile_cache_live_reads", "Reads that went to the server after a wait.")
        live.add_metric([], self._cache.live_reads)
        yield live

    def _reflectors(self) -> Iterator[Metric]:
        counters: tuple[tuple[str, str, Callable[[Reflector], float]], ...] = (
            ("lists", "Ordinary lists.", lambda reflector: reflector.stats.lists),
            ("streaming_lists", "Lists by a watch.", lambda reflector: reflector.stats.streaming_lists),
            ("watches", "Watches opened.", lambda reflector: reflector.stats.watches),
            ("events", "Events received.", lambda reflector: reflector.stats.events),
            ("received_bytes", "Bytes of objects received.", lambda reflector: reflector.received_bytes),
        )
        labels = ["kind", "namespace"]
        for name, text, value in counters:
            family = CounterMetricFamily(f"pyreconcile_cache_{name}", text, labels=labels)
            for values, reflector in self._labelled():
                family.add_metric(values, value(reflector))
            yield family
        silence = GaugeMetricFamily("pyreconcile_cache_silence_seconds", "Time without news.", labels=labels)
        errors = CounterMetricFamily("pyreconcile_cache_watch_errors", "Errors of watches.", labels=[*labels, "reason"])
        causes = CounterMetricFamily(
            "pyreconcile_cache_list_causes", "Lists by what led to them.", labels=[*labels, "cause"]
        )
        for values, reflector in self._labelled():
            silence.add_metric(values, reflector.silent_for)
            for reason, count in reflector.stats.errors.items():
                errors.add_metric([*values, reason], count)
            for cause, count in reflector.stats.causes.items():
                causes.add_metric([*values, cause], count)
        yield silence
        yield errors
        yield causes

    def _labelled(self) -> Iterator[tuple[list[str], Reflector]]:
        for informer in self._cache.informers:
            kind = informer.kind.resource.group_kind
            for part, reflector in zip(informer.parts, informer.reflectors, strict=True):
                yield [kind, part.scope.namespace], reflector
