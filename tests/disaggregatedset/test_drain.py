"""Scaling down several old revisions (DS §7.3, §7.5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile_controllers.disaggregatedset.drain import distribute, newest_first

A, B, C = "abc"


def by_role(replicas):
    return dict(zip((A, B, C), replicas, strict=False))


CASES = {
    "one revision": ((2, 2), [(4, 4)], [(2, 2)]),
    "newest first, and it ends": ((2, 2), [(2, 2), (2, 2)], [(0, 0), (2, 2)]),
    "one role ends, so all do": ((1, 2), [(3, 2)], [(0, 0)]),
    "larger revision": ((2, 2), [(6, 6)], [(4, 4)]),
    "three revisions": ((4, 4), [(2, 2), (2, 2), (2, 2)], [(0, 0), (0, 0), (2, 2)]),
    "A 1,2 under B 3,3, one each": ((1, 1), [(3, 3), (1, 2)], [(2, 2), (1, 2)]),
    "A 1,1 under B 3,3, two each": ((2, 2), [(3, 3), (1, 1)], [(1, 1), (1, 1)]),
    "role not in the revision: 0,1,0": ((0, 1, 0), [(4, 4)], [(4, 3)]),
    "role not in the revision: 1,1,0": ((1, 1, 0), [(4, 4)], [(3, 3)]),
    "role not in the revision: 4,0,0": ((4, 0, 0), [(4, 4)], [(0, 0)]),
    "nothing to take": ((0, 0), [(4, 4)], [(4, 4)]),
    "an ended role uses up its part only": ((1, 2), [(3, 2), (3, 3)], [(0, 0), (2, 3)]),
    # Upstream takes the role at 0 for one that ends, and drops the other at once (DS §13.1).
    "a role that was at 0 ends nothing": ((1, 0), [(4, 0)], [(3, 0)]),
}


@pytest.mark.parametrize("name", CASES)
def test_ds_7_5_distribution(name):
    budget, before, after = CASES[name]
    assert distribute(by_role(budget), list(map(by_role, before))) == list(map(by_role, after))


def test_ds_7_3_age_is_that_of_the_youngest_object_and_the_newest_comes_first():
    assert newest_first({}) == []
    created = {"one": ["2026-01-01T00:00:00Z"], "two": ["2025-01-01T00:00:00Z", "2026-03-01T00:00:00Z"]}
    assert newest_first(created) == ["two", "one"]
    assert created["two"] == ["2025-01-01T00:00:00Z", "2026-03-01T00:00:00Z"]
    same = {name: ["2026-01-01T00:00:00Z"] for name in ("b", "a", "c")}
    assert newest_first(same) == ["c", "b", "a"]


numbers = st.integers(0, 8)


@given(
    st.fixed_dictionaries({A: numbers, B: numbers, C: numbers}),
    st.lists(st.fixed_dictionaries({A: numbers, B: numbers}, optional={C: numbers}), max_size=4),
)
def test_ds_7_3_distribution_takes_at_least_the_budget_and_leaves_no_half_revision(budget, revisions):
    kept = distribute(budget, revisions)
    for before, after in zip(revisions, kept, strict=True):
        assert before.keys() == after.keys()
        assert all(0 <= after[role] <= before[role] for role in before)
        ended = [role for role in before if before[role] > 0 and after[role] == 0]
        assert not ended or not any(after.values())
    for role, number in budget.items():
        there = sum(before.get(role, 0) for before in revisions)
        taken = there - sum(after.get(role, 0) for after in kept)
        assert taken >= min(number, there)
