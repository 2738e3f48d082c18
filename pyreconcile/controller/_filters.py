"""Reports filters that keep objects from handlers but not out of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from pyreconcile.api import KubeObject, PartialObjectMetadata
from pyreconcile.controller._predicates import MatchesLabels, Predicate

log = structlog.get_logger()


def report_late_filter(kind: type[KubeObject], predicates: Sequence[Predicate], informer: Any) -> None:
    """Warn when a label predicate judges objects that the server need not have sent.

    That is so when the informer watches all namespaces without a selector: the cache then grows with the cluster, not
    with what the controller is about (SR-11). Metadata alone is small, and not reported.

    Args:
        kind: what is watched.
        predicates: those of the watch.
        informer: a cache's informer; others are not looked at.
    """
    selectors = [predicate.selector for predicate in predicates if isinstance(predicate, MatchesLabels)]
    scopes = [part.scope for part in getattr(informer, "parts", ())]
    unfiltered = any(not (scope.namespace or scope.labels or scope.fields) for scope in scopes)
    if not selectors or not unfiltered or issubclass(kind, PartialObjectMetadata):
        return
    labels = ",".join(map(str, selectors))
    log.warning(
        "filter_after_cache",
        kind=kind.resource.kind,
        labels=labels,
        advice=(
            f"the cache holds every {kind.resource.kind} of the cluster; if nothing else needs them, have the server "
            f"leave them out: CacheOptions(by_kind={{{kind.__name__}: KindOptions(labels={labels!r})}})"
        ),
    )
