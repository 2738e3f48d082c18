from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.api.selectors import SelectorError
from pyreconcile.controller import (
    AnnotationChanged,
    CreateEvent,
    DeleteEvent,
    GenerationChanged,
    GenericEvent,
    LabelChanged,
    MatchesLabels,
    ObjectPredicate,
    Predicate,
    PredicateFuncs,
    ResourceVersionChanged,
    UpdateEvent,
    and_,
    not_,
    or_,
)


def judge(predicate, old, new):
    """Verdicts on create, update, delete and generic."""
    return (
        predicate.create(CreateEvent(new, ConfigMap)),
        predicate.update(UpdateEvent(old, new, ConfigMap)),
        predicate.delete(DeleteEvent(new, ConfigMap)),
        predicate.generic(GenericEvent(new, ConfigMap)),
    )


CHANGES = {
    "nothing": ({}, {}),
    "version": ({}, {"version": "2"}),
    "generation": ({"generation": 1}, {"generation": 2, "version": "2"}),
    "labels": ({}, {"labels": {"a": "b"}, "version": "2"}),
    "annotations": ({"annotations": {"a": "b"}}, {"annotations": {}, "version": "2"}),
    "finalizers": ({"generation": 1}, {"generation": 1, "finalizers": ["x/y"], "version": "2"}),
    "empty labels": ({"labels": {}}, {"version": "2"}),
}


@pytest.mark.parametrize(
    ("predicate", "passed"),
    [
        (Predicate(), set(CHANGES)),
        (ResourceVersionChanged(), set(CHANGES) - {"nothing"}),
        (GenerationChanged(), {"generation"}),
        (LabelChanged(), {"labels"}),
        (AnnotationChanged(), {"annotations"}),
    ],
)
@pytest.mark.parametrize("change", CHANGES)
def test_sr_9_changed_predicates_judge_updates_only(predicate, passed, change, raw):
    old, new = CHANGES[change]
    assert judge(predicate, raw(**old), raw(**new)) == (True, change in passed, True, True)


def test_sr_9_generation_changed_drops_every_update_without_generation(raw):
    deleted = raw(version="2", deletionTimestamp="2026-01-01T00:00:00Z")
    assert not GenerationChanged().update(UpdateEvent(raw(), deleted, ConfigMap))


def test_sr_10_functions_left_out_pass(raw):
    assert judge(PredicateFuncs(), raw(), raw()) == (True, True, True, True)

    def never(event):
        return False

    predicate = PredicateFuncs(create=never, update=never, delete=never, generic=never)
    assert judge(predicate, raw(), raw()) == (False, False, False, False)


def test_sr_10_object_predicate_judges_the_new_object_on_update(raw):
    predicate = ObjectPredicate(lambda obj: obj["metadata"]["name"] == "b")
    assert judge(predicate, raw("a"), raw("b")) == (True, True, True, True)
    assert judge(predicate, raw("b"), raw("a")) == (False, False, False, False)


def test_sr_10_label_selector(raw):
    predicate = MatchesLabels("app=web,tier!=db")
    assert judge(predicate, raw(), raw(labels={"app": "web"})) == (True, True, True, True)
    assert judge(predicate, raw(), raw(labels={"app": "web", "tier": "db"})) == (False, False, False, False)
    assert MatchesLabels({"app": "web"}).create(CreateEvent(raw(labels={"app": "web"}), ConfigMap))
    assert not MatchesLabels("app").create(CreateEvent(raw(), ConfigMap))
    with pytest.raises(SelectorError):
        MatchesLabels("app in (")


@given(st.lists(st.booleans(), max_size=5))
def test_sr_10_and_or_not_are_those_of_logic(raw, verdicts):
    predicates = [ObjectPredicate(lambda obj, verdict=verdict: verdict) for verdict in verdicts]
    assert judge(and_(*predicates), raw(), raw()) == (all(verdicts),) * 4
    assert judge(or_(*predicates), raw(), raw()) == (any(verdicts),) * 4
    assert judge(not_(and_(*predicates)), raw(), raw()) == (not all(verdicts),) * 4


def test_predicates_combine_with_operators(raw):
    yes, no = ObjectPredicate(lambda obj: True), ObjectPredicate(lambda obj: False)
    assert judge((yes & ~no) | no, raw(), raw()) == (True,) * 4
    assert judge(yes & no, raw(), raw()) == (False,) * 4
