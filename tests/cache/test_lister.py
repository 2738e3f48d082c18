from typing import Any

import pytest

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import Scope
from pyreconcile.cache._lister import Lister, is_too_large, is_too_old
from pyreconcile.client import ExpiredError, GoneError, NotFoundError, RequestTimeoutError, error_from_status


def lister(transport: Any, scope: Scope | None = None, **options: Any) -> Lister:
    return Lister(transport, ConfigMap.resource, scope or Scope(), **options)


@pytest.mark.rules("U-42")
async def test_rf_7_any_version_and_newest_version_are_asked_for_in_pages_others_whole(scripted: Any, wire: Any):
    transport = scripted(lists=[wire.list_answer([], 5)] * 3)
    lists = lister(transport)
    for version in ("0", "", "4"):
        await lists.fetch(version)
    assert transport.listed == [{"resourceVersion": "0", "limit": "500"}, {"limit": "500"}, {"resourceVersion": "4"}]


@pytest.mark.rules("U-42")
async def test_rf_7_a_server_that_answers_any_version_in_pages_is_paged_from_then_on(scripted: Any, wire: Any):
    a, b = wire.config_map("a", 1), wire.config_map("b", 2)
    transport = scripted(
        lists=[wire.list_answer([a], 5, "next"), wire.list_answer([b], 5), wire.list_answer([a, b], 6)]
    )
    lists = lister(transport)
    objects, version = await lists.fetch("0")
    await lists.fetch("5")
    assert (list(objects), version) == (["n/a", "n/b"], "5")
    assert transport.listed == [
        {"resourceVersion": "0", "limit": "500"},
        {"limit": "500", "continue": "next"},
        {"resourceVersion": "5", "limit": "500"},
    ]


@pytest.mark.parametrize("error", [ExpiredError("too old"), GoneError("gone")])
@pytest.mark.rules("U-47")
async def test_rf_8_expired_page_token_gives_one_full_list_at_the_first_version(scripted: Any, wire: Any, error: Any):
    a, b = wire.config_map("a", 1), wire.config_map("b", 2)
    transport = scripted(lists=[wire.list_answer([a], 5, "next"), error, wire.list_answer([a, b], 7)])
    objects, version = await lister(transport).fetch("0")
    assert (len(objects), version) == (2, "7")
    assert transport.listed[-1] == {"resourceVersion": "0"}


async def test_rf_8_another_error_on_a_later_page_is_raised(scripted: Any, wire: Any):
    transport = scripted(lists=[wire.list_answer([], 5, "next"), NotFoundError("gone")])
    with pytest.raises(NotFoundError):
        await lister(transport).fetch("")


async def test_rf_10_items_get_the_kind_of_the_list(scripted: Any, wire: Any):
    transport = scripted(lists=[wire.list_answer([wire.config_map("a", 1)], 5)])
    objects, _ = await lister(transport).fetch("0")
    (obj,) = objects.values()
    assert (obj["apiVersion"], obj["kind"]) == ("v1", "ConfigMap")


async def test_rf_10_tables_are_refused(scripted: Any, wire: Any):
    transport = scripted(lists=[wire.list_answer([], 5, kind="Table")])
    with pytest.raises(ValueError, match="Table"):
        await lister(transport).fetch("0")


async def test_ca_5_selectors_and_excluded_namespaces_are_sent(scripted: Any, wire: Any):
    transport = scripted(lists=[wire.list_answer([], 5)])
    scope = Scope(labels="a=b", fields="metadata.name=x", excluded=frozenset({"n2", "n1"}))
    await lister(transport, scope, limit=2).fetch("")
    assert transport.listed == [
        {
            "labelSelector": "a=b",
            "fieldSelector": "metadata.name=x,metadata.namespace!=n1,metadata.namespace!=n2",
            "limit": "2",
        }
    ]


@pytest.mark.rules("U-41")
def test_rf_9_too_large_is_told_by_its_cause_or_by_its_text_on_old_servers():
    cause = {"reason": "Timeout", "code": 504, "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}
    assert is_too_large(error_from_status(cause))
    assert is_too_large(error_from_status({"reason": "Timeout", "message": "Too large resource version: 9"}))
    assert not is_too_large(RequestTimeoutError("slow"))
    assert not is_too_large(ValueError())
    assert not is_too_old(RequestTimeoutError("slow"))
