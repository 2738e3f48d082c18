"""Telling from managed fields that an apply would change nothing."""

import copy

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pyreconcile.client._managed import applying_changes_nothing

NAMES = ["alpha", "beta", "gamma", "delta"]
scalars = st.integers(0, 9) | st.booleans() | st.sampled_from(["", "a", "b"])


@st.composite
def structs(draw, depth=2):
    """Draw an applied struct, the fields it owns, and a live struct that has all of it and more."""
    applied, owned, live = {}, {}, {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1)):
        applied[name], owned[f"f:{name}"], live[name] = draw(nodes(depth))
    for name in draw(st.lists(st.sampled_from(["extra1", "extra2"]), unique=True)):
        live[name] = draw(scalars)
    return applied, owned, live


@st.composite
def keyed_lists(draw, depth):
    applied, owned, live = [], {}, []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=3)):
        item, fields, other = draw(structs(depth))
        applied.append({"name": name, **item})
        owned[f'k:{{"name":"{name}"}}'] = {".": {}, "f:name": {}, **fields}
        if draw(st.booleans()):
            live.append({"name": f"{name}-of-another"})
        live.append({"name": name, **other})
    return applied, owned, live


@st.composite
def sets(draw):
    applied = draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1))
    return applied, {f"v:{orjson.dumps(value).decode()}": {} for value in applied}, ["z", *applied]


def nodes(depth):
    leaf = scalars.map(lambda value: (value, {}, value))
    atomic = st.lists(scalars, min_size=1, max_size=3).map(lambda value: (value, {}, value))
    if depth == 0:
        return leaf | atomic | sets()
    return leaf | atomic | sets() | structs(depth - 1) | keyed_lists(depth - 1)


def configuration(spec):
    return {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x", "namespace": "ns"}, "spec": spec}


def live_object(spec, owned, **entry):
    fields = {"f:spec": owned}
    mine = {"manager": "me", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}
    other = {"manager": "me", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:spec": {"f:other": {}}}}
    obj = configuration(spec)
    obj["metadata"] |= {"uid": "u", "resourceVersion": "1", "managedFields": [other, {**mine, **entry}]}
    return obj


def unchanged(applied, live, **options):
    return applying_changes_nothing(applied, live, manager="me", **options)


def paths_to(value, wanted, at=()):
    """Give the path of each value of a JSON tree for which ``wanted`` holds."""
    if wanted(value) and at:
        yield at
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from paths_to(child, wanted, (*at, key))


def at_path(value, path):
    for key in path:
        value = value[key]
    return value


@given(structs())
def test_he_3_an_object_that_has_everything_is_left_alone(case):
    applied, owned, live = case
    assert unchanged(configuration(applied), live_object(live, owned))


@given(structs(), st.data())
def test_he_3_another_live_value_of_an_applied_field_is_sent(case, data):
    applied, owned, live = case
    *way, last = data.draw(
        st.sampled_from(list(paths_to(applied, lambda v: not isinstance(v, dict | list)))), label="path"
    )
    changed = copy.deepcopy(applied)
    at_path(changed, way)[last] = "another value"
    assert not unchanged(configuration(changed), live_object(live, owned))


@given(structs(), st.data())
def test_he_3_a_field_left_out_is_sent(case, data):
    applied, owned, live = case
    *way, last = data.draw(st.sampled_from(list(paths_to(applied, lambda v: True))), label="path")
    changed = copy.deepcopy(applied)
    del at_path(changed, way)[last]
    assert not unchanged(configuration(changed), live_object(live, owned))


@given(structs(), st.data())
def test_he_3_a_field_that_another_manager_took_is_sent(case, data):
    applied, owned, live = case
    names = [path for path in paths_to(owned, lambda v: True) if path[-1] not in (".", "f:name")]
    *way, last = data.draw(st.sampled_from(names), label="path")
    fewer = copy.deepcopy(owned)
    siblings = at_path(fewer, way)
    del siblings[last]
    # The server drops a node that lost its last child; left empty it would mean that the node is owned whole.
    assume(siblings)
    assert not unchanged(configuration(applied), live_object(live, fewer))


@pytest.mark.parametrize(
    "entry",
    [
        {"manager": "another"},
        {"operation": "Update"},
        {"apiVersion": "v2"},
        {"subresource": "status"},
        {"fieldsV1": None},
    ],
)
def test_he_3_without_an_entry_that_fits_it_is_sent(entry):
    assert unchanged(configuration({"a": 1}), live_object({"a": 1}, {"f:a": {}}))
    assert not unchanged(configuration({"a": 1}), live_object({"a": 1}, {"f:a": {}}, **entry))


def test_he_3_stripped_managed_fields_are_sent():
    live = live_object({"a": 1}, {"f:a": {}})
    del live["metadata"]["managedFields"]
    assert not unchanged(configuration({"a": 1}), live)


def test_he_3_an_entry_of_a_subresource_counts_for_it():
    live = live_object({"a": 1}, {"f:a": {}}, subresource="status")
    assert unchanged(configuration({"a": 1}), live, subresource="status")


def test_he_3_a_list_key_that_is_defaulted_counts_as_applied():
    owned = {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}}}}
    live = {"ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]}
    assert unchanged(configuration({"ports": [{"port": 80}]}), live_object(live, owned))
    assert unchanged(configuration({"ports": [{"port": 80, "protocol": "TCP"}]}), live_object(live, owned))
    assert not unchanged(configuration({"ports": [{"port": 80, "protocol": "UDP"}]}), live_object(live, owned))


def test_he_3_an_ambiguous_defaulted_key_is_sent():
    owned = {
        "f:ports": {
            'k:{"port":53,"protocol":"TCP"}': {".": {}, "f:port": {}},
            'k:{"port":53,"protocol":"UDP"}': {".": {}, "f:port": {}},
        }
    }
    live = {"ports": [{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}
    applied = {"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]}
    assert not unchanged(configuration(applied), live_object(live, owned))


def test_he_3_another_order_of_keyed_items_is_sent():
    owned = {"f:steps": {'k:{"name":"a"}': {".": {}, "f:name": {}}, 'k:{"name":"b"}': {".": {}, "f:name": {}}}}
    live = {"steps": [{"name": "a"}, {"name": "b"}]}
    assert unchanged(configuration({"steps": [{"name": "a"}, {"name": "b"}]}), live_object(live, owned))
    assert not unchanged(configuration({"steps": [{"name": "b"}, {"name": "a"}]}), live_object(live, owned))


@pytest.mark.parametrize("empty", [None, []])
def test_he_3_empty_values_that_the_server_drops_count_as_applied(empty):
    live = live_object({"a": 1}, {"f:a": {}})
    assert unchanged(configuration({"a": 1, "b": empty}), live)
    live["spec"]["b"] = {"c": 1}
    assert not unchanged(configuration({"a": 1, "b": empty}), live)
    live["spec"]["b"] = [1]
    assert not unchanged(configuration({"a": 1, "b": empty}), live)


def test_he_3_an_empty_map_that_is_not_there_is_sent_since_it_may_be_an_object_of_its_own():
    # subresources: {status: {}} in a map that merges, and a namespaceSelector: {} in a peer that is owned whole.
    assert not unchanged(configuration({"a": {"b": {}}}), live_object({"a": {}}, {"f:a": {}}))
    assert not unchanged(configuration({"a": {"b": 1}}), live_object({"a": {"b": 1, "c": {}}}, {"f:a": {}}))
    peers = [{"podSelector": {"x": "y"}}]
    assert unchanged(configuration({"from": peers}), live_object({"from": peers}, {"f:from": {}}))
    wider = [{"podSelector": {"x": "y"}, "namespaceSelector": {}}]
    assert not unchanged(configuration({"from": wider}), live_object({"from": peers}, {"f:from": {}}))


def test_he_3_empty_labels_are_part_of_any_labels():
    template = {"metadata": {"labels": {}}}
    for owned in ({}, {"f:labels": {}}, {"f:labels": {".": {}}}):
        owned = {"f:template": {"f:metadata": {**owned, "f:name": {}}}}
        live = {"template": {"metadata": {"labels": {"a": "b"}, "name": "x"}}}
        template["metadata"]["name"] = "x"
        assert unchanged(configuration({"template": template}), live_object(live, owned))
    owned["f:template"]["f:metadata"]["f:labels"] = {"f:a": {}}
    assert not unchanged(configuration({"template": template}), live_object(live, owned))


def test_he_3_quantities_and_atomic_maps():
    owned = {"f:limits": {"f:cpu": {}}, "f:selector": {}}
    live = live_object({"limits": {"cpu": "1", "memory": "1Gi"}, "selector": {"app": "1"}}, owned)
    assert unchanged(configuration({"limits": {"cpu": "1000m"}, "selector": {"app": "1"}}), live)
    assert not unchanged(configuration({"limits": {"cpu": "1"}, "selector": {"app": "1000m"}}), live)
    live["spec"]["selector"]["more"] = "x"
    assert not unchanged(configuration({"limits": {"cpu": "1"}, "selector": {"app": "1"}}), live)


@pytest.mark.parametrize("spec", [{"a": [1]}, {"a": {"b": 1}}, {"a": "1"}, {"a": [{"name": "x"}]}])
def test_he_3_another_shape_is_sent(spec):
    for live in ({"a": {"x": {}}}, {"a": [{"name": "y"}]}, {"a": 5}):
        for owned in ({"f:a": {}}, {"f:a": {"f:b": {}}}, {"f:a": {'k:{"name":"x"}': {}}}, {"f:a": {"v:1": {}}}):
            assert not unchanged(configuration(spec), live_object(live, owned))
