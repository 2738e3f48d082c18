"""A list's body in slices gives what the parser gives for the whole, whatever the items look like."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreconcile.api import PartialObjectMetadata, metadata_only
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache._listbody import ListBody
from pyreconcile.client import Client, MergePatch

TEXT = st.text(max_size=8) | st.sampled_from(['},{"metadata":{', "]}", '"items":[', '],"kind":"', "\\", "ü"])
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["metadata", "items", "kind"]), inner),
    max_leaves=12,
)
ITEM = st.fixed_dictionaries({"metadata": st.dictionaries(st.sampled_from(["name", "items"]), VALUE), "spec": VALUE})
TEMPLATES = {"metadata": {"name": "a"}, "templates": [{"metadata": {"name": str(number)}} for number in range(20)]}


def built_in(items: Any) -> dict[str, Any]:
    return {
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": "5", "continue": "x"},
        "items": items,
    }


def custom(items: Any) -> dict[str, Any]:
    items = [{"apiVersion": "x/v1", "kind": "Thing", **item} for item in items]
    return {"apiVersion": "x/v1", "items": items, "kind": "ThingList", "metadata": {"resourceVersion": "5"}}


def partial(items: Any) -> dict[str, Any]:
    items = [{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", **item} for item in items]
    return {**built_in(items), "kind": "PartialObjectMetadataList"}


def odd(items: Any) -> dict[str, Any]:
    return {"items": items, "kind": "PodList", "after": [{"metadata": {"name": "x"}}]}


@pytest.mark.parametrize("layout", [built_in, custom, partial, odd])
@settings(max_examples=30)
@given(items=st.lists(ITEM, max_size=8), size=st.integers(1, 200), end=st.sampled_from([b"", b"\n"]))
def test_rf_17_slices_are_the_items(layout: Any, items: list[Any], size: int, end: bytes):
    whole = layout(items)
    body = ListBody(orjson.dumps(whole) + end, size=size)
    assert [item for part in body.slices() for item in part] == whole.pop("items")
    assert body.envelope == whole


def test_rf_17_a_long_list_comes_in_many_slices_even_with_items_inside_items():
    items = [{**TEMPLATES, "number": number} for number in range(500)]
    body = ListBody(orjson.dumps(built_in(items)), size=5000)
    parts = list(body.slices())
    assert [item for part in parts for item in part] == items
    assert len(parts) > 50


@pytest.mark.parametrize("body", [b"[]", b"1", b"{broken", b""])
def test_rf_17_what_is_no_list_is_an_error(body: bytes):
    with pytest.raises(ValueError, match=r"."):
        ListBody(body)


@pytest.mark.parametrize("items", [None, []])
def test_rf_10_an_empty_list_may_have_null_items(items: Any):
    assert list(ListBody(orjson.dumps(built_in(items))).slices()) == []


@pytest.mark.plane
@pytest.mark.rules("RF-17", "RF-10")
async def test_rf_17_lists_of_a_real_server_come_in_slices(client: Client, namespace: str, things: Any):
    """Of built-in kinds, of custom ones, and of metadata alone, with entries of managedFields that look alike."""
    for number in range(6):
        metadata = {"namespace": namespace, "name": f"a{number}", "labels": {"x": "y"}}
        await client.create(ConfigMap.from_dict({"metadata": metadata, "data": {"text": '],"kind":"' * 9}}))
        thing = await client.create(things.from_dict({"metadata": metadata, "spec": [{"metadata": {}}] * 3}))
        await client.patch(thing, MergePatch({"spec": []}))
    for kind in (ConfigMap, things, metadata_only(ConfigMap), metadata_only(things)):
        accept = kind.list_media_type if issubclass(kind, PartialObjectMetadata) else "application/json"
        text = await client.transport.request("GET", kind.resource.path(namespace), accept=accept)
        whole = orjson.loads(text)
        body = ListBody(text, size=300)
        parts = [part for part in body.slices() if part]
        assert len(parts) >= 5
        assert [item for part in parts for item in part] == whole.pop("items")
        assert body.envelope == whole
