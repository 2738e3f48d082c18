"""A label predicate that keeps nothing out of memory is reported (O-05, SR-11)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from pyreconcile.api import metadata_only
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import Scope
from pyreconcile.controller import GenerationChanged, MatchesLabels
from pyreconcile.controller._filters import report_late_filter

MINE = MatchesLabels("app=web,tier!=db")


def informer(*scopes: Scope) -> Any:
    return SimpleNamespace(parts=[SimpleNamespace(scope=scope) for scope in scopes])


def test_sr_11_a_predicate_on_a_watch_of_the_whole_cluster_is_reported_with_the_remedy():
    with capture_logs() as logs:
        report_late_filter(ConfigMap, [GenerationChanged(), MINE], informer(Scope()))
    (entry,) = logs
    assert (entry["event"], entry["log_level"], entry["kind"]) == ("filter_after_cache", "warning", "ConfigMap")
    assert "CacheOptions(by_kind={ConfigMap: KindOptions(labels='app=web,tier!=db')})" in entry["advice"]


@pytest.mark.parametrize(
    ("predicates", "scopes"),
    [
        ([GenerationChanged()], [Scope()]),
        ([MINE], [Scope("a"), Scope("b")]),
        ([MINE], [Scope(labels="app=web")]),
        ([MINE], [Scope(fields="metadata.name=x")]),
        ([MINE], []),
    ],
)
def test_sr_11_other_watches_are_not(predicates: list[Any], scopes: list[Scope]):
    with capture_logs() as logs:
        report_late_filter(ConfigMap, predicates, informer(*scopes))
        report_late_filter(metadata_only(ConfigMap), [MINE], informer(Scope()))
    assert logs == []
