"""The JSON patch is checked against the jsonpatch package, over random values."""

import base64
import copy
import json

import jsonpatch
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyreconcile.webhook import apply_patch
from pyreconcile.webhook._jsonpatch import json_patch, rebase, same_json

# Times say nothing on a machine that is busy with a control plane.
relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

keys = st.sampled_from(["a", "b", "c", "x/y", "t~", "~1", "é"])
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b", 0.0, 1.0, 1.5])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
objects = st.dictionaries(keys, values, max_size=5)


@st.composite
def variants(draw, value):
    """A value with some of its parts changed, so that most of it stays the same."""
    if draw(st.integers(0, 9)) == 0:
        return draw(values)
    if isinstance(value, dict):
        kept = {key: draw(variants(item)) for key, item in value.items() if draw(st.integers(0, 7))}
        return kept | (draw(st.dictionaries(keys, scalars, max_size=1)))
    if isinstance(value, list):
        kept = [draw(variants(item)) for item in value if draw(st.integers(0, 7))]
        if draw(st.booleans()):
            kept.insert(draw(st.integers(0, len(kept))), draw(scalars))
        return kept
    return value


def text(value):
    return json.dumps(value, sort_keys=True)


@relaxed
@given(objects.flatmap(lambda old: st.tuples(st.just(old), variants(old).filter(lambda new: isinstance(new, dict)))))
def test_wh_6_patch_turns_old_into_new_and_changes_neither(pair):
    old, new = pair
    kept = copy.deepcopy(pair)
    patch = json_patch(old, new)
    assert text(jsonpatch.apply_patch(old, patch)) == text(new)
    assert text(pair) == text(kept)
    assert bool(patch) == (text(old) != text(new))


@relaxed
@given(objects.flatmap(lambda old: st.tuples(st.just(old), variants(old).filter(lambda new: isinstance(new, dict)))))
def test_apply_patch_for_tests_agrees_with_the_jsonpatch_package(pair):
    old, new = pair
    patch = base64.b64encode(json.dumps(json_patch(old, new)).encode()).decode()
    assert text(apply_patch({"response": {"allowed": True, "patch": patch}}, old)) == text(new)


@relaxed
@given(objects, objects)
def test_same_json_is_equality_of_the_written_text(a, b):
    assert same_json(a, b) == (text(a) == text(b))
    assert same_json(a, copy.deepcopy(a))


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({"a": 1}, {"a": True}, [{"op": "replace", "path": "/a", "value": True}]),
        ({"a": None}, {}, [{"op": "remove", "path": "/a"}]),
        ({}, {"a": None}, [{"op": "add", "path": "/a", "value": None}]),
        ({"x/y": {"t~": 1}}, {"x/y": {"t~": 2}}, [{"op": "replace", "path": "/x~1y/t~0", "value": 2}]),
        ({"l": [1, 2]}, {"l": [0, 1, 2]}, [{"op": "add", "path": "/l/0", "value": 0}]),
        ({"l": [1, 2, 3]}, {"l": [1, 3]}, [{"op": "remove", "path": "/l/1"}]),
        ({"l": [1, 1, 1]}, {"l": [1]}, [{"op": "remove", "path": "/l/2"}, {"op": "remove", "path": "/l/1"}]),
        ({"l": [{"n": 1}, {"n": 2}]}, {"l": [{"n": 1}, {"n": 3}]}, [{"op": "replace", "path": "/l/1/n", "value": 3}]),
    ],
)
def test_wh_6_patch_is_as_small_as_the_change(old, new, patch):
    assert json_patch(old, new) == patch


@relaxed
@given(objects.flatmap(lambda raw: st.tuples(st.just(raw), variants(raw).filter(lambda new: isinstance(new, dict)))))
def test_wh_6a_rebase_without_loss_is_the_change_itself(pair):
    raw, after = pair
    assert text(rebase(raw, raw, after)) == text(after)


@relaxed
@given(objects.flatmap(lambda raw: st.tuples(st.just(raw), variants(raw))))
def test_wh_6a_rebase_without_change_is_the_raw_object(pair):
    raw, seen = pair
    assert rebase(raw, seen, copy.deepcopy(seen)) is raw


@pytest.mark.parametrize(
    ("raw", "before", "after", "expected"),
    [
        # A field that the model dropped stays, beside one that the handler set.
        ({"new": 1}, {}, {"replicas": 1}, {"new": 1, "replicas": 1}),
        # What the model rewrote stays as it was sent.
        ({"q": "1000m"}, {"q": "1"}, {"q": "1", "r": 1}, {"q": "1000m", "r": 1}),
        # What the model made up is not added; what the handler made of it is.
        ({}, {"d": 0}, {"d": 0, "r": 1}, {"r": 1}),
        ({}, {"d": 0}, {"d": 2}, {"d": 2}),
        # The handler may set a field that the model dropped, and remove one that it knows.
        ({"n": 1, "old": 2}, {"old": 2}, {"n": 3}, {"n": 3}),
        # Inside lists: unknown fields of kept items stay, whether items are changed, added or removed.
        ({"l": [{"k": 1, "new": 5}]}, {"l": [{"k": 1}]}, {"l": [{"k": 2}]}, {"l": [{"k": 2, "new": 5}]}),
        (
            {"l": [{"k": 1, "new": 5}]},
            {"l": [{"k": 1}]},
            {"l": [{"k": 0}, {"k": 1}]},
            {"l": [{"k": 0}, {"k": 1, "new": 5}]},
        ),
        (
            {"l": [{"k": 1}, {"k": 2, "new": 5}]},
            {"l": [{"k": 1}, {"k": 2}]},
            {"l": [{"k": 2}]},
            {"l": [{"k": 2, "new": 5}]},
        ),
        ({"l": []}, {}, {"r": 1}, {"l": [], "r": 1}),
    ],
)
def test_wh_6a_rebase_keeps_what_the_model_does_not_know(raw, before, after, expected):
    assert rebase(raw, before, after) == expected
