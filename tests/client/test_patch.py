"""Patches."""

import copy

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.client import JsonPatch, MergePatch, StrategicMergePatch

scalars = st.integers(0, 2) | st.booleans() | st.sampled_from(["", "a", "b"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
objects = st.fixed_dictionaries({"spec": st.dictionaries(st.sampled_from("abcd"), values, max_size=4)})


def merged(target, patch):
    """RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def same(a, b):
    return orjson.dumps(a, option=orjson.OPT_SORT_KEYS) == orjson.dumps(b, option=orjson.OPT_SORT_KEYS)


@given(objects, objects)
def test_cl_5_the_merge_patch_between_two_objects_turns_one_into_the_other(base, changed):
    before = copy.deepcopy((base, changed))
    patch = MergePatch.between(base, changed)
    assert same(merged(base, patch.fields).get("spec", {}), changed["spec"])
    assert bool(patch) == (not same(base, changed))
    assert before == (base, changed)


@pytest.mark.parametrize(
    ("base", "changed", "fields"),
    [
        ({"a": 1}, {}, {"a": None}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({}, {"a": None}, {"a": None}),
        ({"a": None}, {"a": None}, {}),
        ({"a": None}, {}, {}),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": [1, 2]}, {"a": [1]}, {"a": [1]}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, {"a": {"c": None}}),
    ],
)
def test_cl_5_unset_and_none_are_told_apart(base, changed, fields):
    assert MergePatch.between(base, changed).fields == fields


def test_cl_5_optimistic_lock_adds_the_bases_version():
    base = ConfigMap.from_dict({"metadata": {"name": "x", "resourceVersion": "7"}, "data": {"a": "1"}})
    changed = base.deep_copy()
    changed.data = {"a": "2"}
    assert MergePatch.between(base, changed).fields == {"data": {"a": "2"}}
    locked = MergePatch.between(base, changed, optimistic_lock=True)
    assert locked.fields == {"data": {"a": "2"}, "metadata": {"resourceVersion": "7"}}


def test_cl_5_optimistic_lock_without_a_version_is_an_error():
    base = ConfigMap.from_dict({"metadata": {"name": "x"}})
    with pytest.raises(ValueError, match="resourceVersion"):
        MergePatch.between(base, base, optimistic_lock=True)


def test_cl_5_another_resource_version_is_no_difference():
    old = {"metadata": {"name": "x", "resourceVersion": "7"}}
    new = {"metadata": {"name": "x", "resourceVersion": "8"}}
    assert not MergePatch.between(old, new)


def test_cl_5_forms_as_sent():
    operation = {"op": "remove", "path": "/spec/paused"}
    assert orjson.loads(JsonPatch([operation]).to_json()) == [operation]
    assert orjson.loads(StrategicMergePatch({"a": None}).to_json()) == {"a": None}
    assert not JsonPatch([])
    assert not StrategicMergePatch({})
