"""Patches, field sets and merging in the fake, apart from requests."""

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreconcile.api import copy_json
from pyreconcile.api.core_v1 import Pod, ServiceAccount
from pyreconcile.client import BadRequestError, ConflictError, InvalidError, MergePatch
from pyreconcile.testing._fake._ownership import (
    Entry,
    after_apply,
    after_update,
    compare,
    fields_of,
    merge,
    read_entries,
    write_entries,
)
from pyreconcile.testing._fake._patches import json_patch, merge_patch, strategic_merge
from pyreconcile.testing._fake._schema import ANYTHING, pruned, schema_of, with_metadata

LOOSE = with_metadata(ANYTHING)
SCHEMA = with_metadata(
    {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "size": {"type": "integer"},
                    "options": {"type": "object", "additionalProperties": {"type": "string"}},
                    "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                    "steps": {"type": "array", "items": {"type": "string"}},
                    "parts": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": {
                            "type": "object",
                            "properties": {name: {"type": "integer"} for name in "ab"} | {"name": {"type": "string"}},
                        },
                    },
                },
            }
        },
    }
)

NAMES = st.sampled_from(["a", "b", "c"])
SMALL = st.integers(0, 2)
PARTS = st.dictionaries(NAMES, st.fixed_dictionaries({}, optional={"a": SMALL, "b": SMALL}), max_size=3).map(
    lambda parts: [{"name": name, **part} for name, part in parts.items()]
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "size": SMALL,
        "options": st.dictionaries(NAMES, NAMES, min_size=1, max_size=3),
        "tags": st.lists(NAMES, unique=True, min_size=1),
        "steps": st.lists(NAMES, min_size=1, max_size=3),
        "parts": PARTS.filter(bool),
    },
)
VALUES = st.recursive(
    SMALL | NAMES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
MAPS = st.dictionaries(NAMES, VALUES, max_size=3)


def obj(spec):
    return {"metadata": {"name": "x"}, **({"spec": spec} if spec else {})}


def by(manager, operation="Apply"):
    return Entry(manager, operation, "v1", "", "2030-01-01T00:00:00Z", frozenset())


def apply(live, manager, spec, *, force=True):
    merged, entries = after_apply(live, obj(spec), SCHEMA, by(manager), force=force)
    return write_entries(merged, entries)


def has(value, wanted, schema=SCHEMA):
    """Whether all of ``wanted`` is in ``value``."""
    return merge(value, wanted, schema) == value or not compare(value, merge(value, wanted, schema), schema).changed


# -- patches -----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(MAPS, MAPS)
def test_te_10_a_json_patch_does_what_rfc_6902_says(old, new):
    operations = jsonpatch.make_patch(old, new).patch
    before = copy_json(old)
    assert json_patch(old, operations) == new
    assert old == before


@settings(deadline=None)
@given(MAPS, MAPS)
def test_te_10_a_merge_patch_between_two_objects_turns_one_into_the_other(old, new):
    before = copy_json(old)
    old, new = {"metadata": {}, **old}, {"metadata": {}, **new}
    assert merge_patch(old, dict(MergePatch.between(old, new).fields)) == new
    assert {name: value for name, value in old.items() if name != "metadata"} == before


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "add", "path": "/list/3", "value": 1},
        {"op": "add", "path": "list", "value": 1},
        {"op": "remove", "path": "/list/2"},
        {"op": "remove", "path": "/list/-"},
        {"op": "replace", "path": "/list/2", "value": 1},
        {"op": "add", "path": "/text/a", "value": 1},
        {"op": "add", "path": "/none/a", "value": 1},
        {"op": "move", "from": "/none", "path": "/a"},
        {"op": "copy", "path": "/a"},
        {"op": "jump", "path": "/a"},
        {"path": "/a"},
    ],
)
def test_te_10_an_operation_that_cannot_be_done_is_invalid(operation):
    with pytest.raises(InvalidError):
        json_patch({"list": [1, 2], "text": "x"}, [operation])


def test_te_10_pointers_and_lists_of_json_patches():
    target = {"a/b": {"c~d": [1, 2]}}
    patch = [
        {"op": "add", "path": "/a~1b/c~0d/1", "value": 9},
        {"op": "add", "path": "/a~1b/c~0d/-", "value": 3},
        {"op": "replace", "path": "/a~1b/c~0d/0", "value": 0},
    ]
    assert json_patch(target, patch) == {"a/b": {"c~d": [0, 9, 2, 3]}}
    assert json_patch(target, [{"op": "replace", "path": "", "value": {"x": 1}}]) == {"x": 1}
    with pytest.raises(BadRequestError, match="a list of operations"):
        json_patch(target, {"op": "add"})


A, B = {"name": "a"}, {"name": "b"}


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"parts": [{**A, "a": 1}]}, {"parts": [{**A, "b": 2}]}, [{**A, "a": 1, "b": 2}]),
        ({"parts": [{**A, "a": 1}]}, {"parts": [{**A, "a": None}]}, [A]),
        ({"parts": [A]}, {"parts": [{**A, "$patch": "delete"}]}, []),
        ({"parts": [A]}, {"parts": [{"$patch": "replace"}, B]}, [B]),
        ({"parts": [A]}, {"parts": [{"$patch": "replace", **A, "a": 1}]}, [{**A, "a": 1}]),
        ({"parts": [A]}, {"$setElementOrder/parts": [B, A], "parts": [B]}, [B, A]),
        ({"size": 1, "parts": [A]}, {"$retainKeys": ["parts"], "parts": []}, [A]),
        ({"size": 1, "parts": [A]}, {"$patch": "replace", "parts": [B]}, [B]),
    ],
)
def test_te_10_directives_of_strategic_merge_patches(target, patch, result):
    merged = strategic_merge({"spec": target}, {"spec": patch}, SCHEMA)
    assert merged["spec"]["parts"] == result
    if "size" in target:
        assert "size" not in merged["spec"]


def test_te_10_strategic_merge_patches_that_make_no_sense_are_refused():
    target = {"spec": {"parts": [{"name": "a"}], "tags": ["x"], "steps": ["x"]}}
    for patch, message in (
        ({"$patch": "delete"}, "cannot delete the whole object"),
        ({"spec": {"$patch": "jump"}}, "none of merge, replace and delete"),
        ({"spec": {"$nothing": 1}}, "unknown directive"),
        ({"spec": {"parts": [{"a": 1}]}}, "lacks 'name'"),
    ):
        with pytest.raises(BadRequestError, match=message):
            strategic_merge(target, patch, SCHEMA)
    patch = {"spec": {"tags": ["y", "x"], "steps": ["y"], "parts": None}}
    assert strategic_merge(target, patch, SCHEMA) == {"spec": {"tags": ["x", "y"], "steps": ["y"]}}
    assert strategic_merge(target, {"spec": {"$patch": "delete"}}, SCHEMA) == {}


# -- ownership ---------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(SPECS)
def test_te_10_owners_survive_being_written_and_read(spec):
    stored = apply(None, "m", spec)
    (entry,) = read_entries(stored) or [by("m")]
    assert entry.fields == fields_of(obj(spec), SCHEMA)
    assert read_entries(write_entries(stored, read_entries(stored))) == read_entries(stored)


@settings(deadline=None)
@given(SPECS, SPECS, SPECS)
def test_te_10_an_applied_configuration_is_there_and_what_was_left_out_is_gone(first, other, second):
    live = apply(apply(None, "m", first), "o", other)
    assert has(live, obj(other))
    stored = apply(live, "m", second)
    assert has(stored, obj(second))
    others = [entry.fields for entry in read_entries(stored) if entry.manager == "o"]
    wanted = fields_of(obj(second), SCHEMA).union(*others) | {("f:spec",)}
    # Nothing is there that nobody owns.
    assert fields_of({name: value for name, value in stored.items() if name != "metadata"}, SCHEMA) <= wanted
    again = apply(stored, "m", second)
    assert again == stored


@settings(deadline=None)
@given(SPECS, SPECS)
def test_te_10_without_force_an_apply_fails_where_it_would_change_what_others_own(first, second):
    live = apply(None, "m", first)
    forced = apply(live, "o", second)
    if has(forced, obj(first)):
        assert apply(live, "o", second, force=False) == forced
        assert has(forced, obj(second))
        return
    with pytest.raises(ConflictError) as caught:
        apply(live, "o", second, force=False)
    assert caught.value.causes


@settings(deadline=None)
@given(SPECS, SPECS)
def test_te_10_an_update_owns_what_it_changed_and_only_that(first, second):
    live = apply(None, "m", first)
    changed = {**obj(second), "metadata": live["metadata"]}
    entries = after_update(live, changed, SCHEMA, by("u", "Update"))
    change = compare(live, changed, SCHEMA)
    for entry in entries:
        if entry.manager == "u":
            assert entry.fields == change.changed
        else:
            assert not entry.fields & (change.changed | change.removed)


def test_te_10_an_item_without_its_key_is_told():
    with pytest.raises(ValueError, match="an item lacks 'name'"):
        fields_of({"spec": {"parts": [{"a": 1}]}}, SCHEMA)


# -- schemas -----------------------------------------------------------------------------------------------------------


def test_te_10_unknown_fields_and_nulls_are_left_out():
    unknown = []
    value = {"spec": {"size": None, "parts": [{"name": "a", "x": 1}], "options": {"any": "1"}}, "y": 1}
    assert pruned(value, SCHEMA, unknown) == {"spec": {"parts": [{"name": "a"}], "options": {"any": "1"}}}
    assert unknown == ["spec.parts[0].x", "y"]
    assert pruned({"any": {"thing": None, "a": [None]}}, LOOSE, []) == {"any": {"a": [None]}}


def test_te_10_built_in_kinds_know_their_lists():
    pod = {"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 1}]}], "tolerations": [{"key": "a"}]}}
    fields = fields_of(pod, schema_of(Pod))
    containers = ("f:spec", "f:containers", 'k:{"name":"c"}')
    assert (*containers, "f:ports", 'k:{"containerPort":1,"protocol":"TCP"}', "f:containerPort") in fields
    assert ("f:spec", "f:tolerations") in fields
    assert ("f:secrets", 'k:{"name":"s"}') in fields_of({"secrets": [{"name": "s"}]}, schema_of(ServiceAccount))
