"""Equality as Kubernetes means it (rule HE-3)."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.client import semantic_equal

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "1", "1000m", "a"])
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "limits", "labels", "b"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"resources": {"limits": {"cpu": "1"}}}, {"resources": {"limits": {"cpu": "1000m"}}}),
        ({"requests": {"memory": "1Gi"}}, {"requests": {"memory": "1024Mi"}}),
        ({"requests": {"memory": "1e3"}}, {"requests": {"memory": "1k"}}),
        ({"requests": {"cpu": 2}}, {"requests": {"cpu": "2"}}),
        ({"requests": {"cpu": "0.1"}}, {"requests": {"cpu": "100m"}}),
        ({"emptyDir": {"sizeLimit": "1Ki"}}, {"emptyDir": {"sizeLimit": "1024"}}),
        ({"limits": [{"max": {"cpu": "1"}}]}, {"limits": [{"max": {"cpu": "1000m"}}]}),
        ({"target": {"averageValue": "500m"}}, {"target": {"averageValue": "0.5"}}),
        ({"target": {"value": "500m"}}, {"target": {"value": "0.5"}}),
        ({"at": "2026-01-01T01:00:00+01:00"}, {"at": "2026-01-01T00:00:00Z"}),
        ({"at": "2026-01-01T00:00:00.000000Z"}, {"at": "2026-01-01T00:00:00Z"}),
        ({"a": None, "b": [], "c": {}}, {}),
        ({"a": None}, {"a": {}}),
        ({"x": 1}, {"x": 1.0}),
    ],
)
def test_he_3_another_writing_is_equal(a, b):
    assert semantic_equal(a, b)
    assert semantic_equal(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "1000m"}]}),
        ({"labels": {"limits": "1"}}, {"labels": {"limits": "1000m"}}),
        ({"annotations": {"sizeLimit": "1"}}, {"annotations": {"sizeLimit": "1000m"}}),
        ({"data": {"at": "2026-01-01T01:00:00+01:00"}}, {"data": {"at": "2026-01-01T00:00:00Z"}}),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "1001m"}}),
        ({"limits": {"cpu": "x"}}, {"limits": {"cpu": "y"}}),
        ({"limits": {"cpu": "1.1.1"}}, {"limits": {"cpu": "2.2.2"}}),
        ({"x": True}, {"x": 1}),
        ({"x": False}, {"x": 0}),
        ({"x": ""}, {}),
        ({"x": 0}, {}),
        ({"x": [1, 2]}, {"x": [2, 1]}),
        ({"x": [1]}, {"x": {"a": 1}}),
        ({"port": 80}, {"port": "80"}),
        ({"x": [{}]}, {"x": []}),
    ],
)
def test_he_3_another_meaning_is_not_equal(a, b):
    assert not semantic_equal(a, b)
    assert not semantic_equal(b, a)


@given(values)
def test_he_3_a_copy_is_equal(value):
    assert semantic_equal(value, copy.deepcopy(value))


@given(values, values)
def test_he_3_equality_has_no_direction(a, b):
    assert semantic_equal(a, b) == semantic_equal(b, a)
