"""One step of the executor, and status, from LeaderWorkerSets as the cache shows them (DS §7.1, §7.5, §10)."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.api import quantity
from pyreconcile_controllers.disaggregatedset import DisaggregatedSet, Limits
from pyreconcile_controllers.disaggregatedset.children import Child, Family, is_ready
from pyreconcile_controllers.disaggregatedset.rollout import is_stable, limits_of, plan
from pyreconcile_controllers.disaggregatedset.status import next_status
from pyreconcile_controllers.disaggregatedset.types import Role

D = "disaggregatedset.x-k8s.io/"
ROLES = ("prefill", "decode")


def make_role(name, replicas, rolling=None):
    spec = {"replicas": replicas, "leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": []}}}}
    if rolling is not None:
        spec["rolloutStrategy"] = {"rollingUpdateConfiguration": rolling}
    return Role.from_dict({"name": name, "spec": spec})


def roles(*replicas, names=ROLES):
    return [make_role(name, number) for name, number in zip(names, replicas, strict=True)]


def lws(revision, role, replicas, *, initial=None, ready=None, day=1, sliced="0", **labels):
    metadata = {
        "name": f"demo-0-{revision}-{role}",
        "namespace": "ns",
        "uid": f"{revision}-{role}",
        "creationTimestamp": f"2026-01-{day:02}T00:00:00Z",
        "labels": {D + "role": role, D + "revision": revision, **labels},
    }
    if sliced is not None:
        metadata["labels"][D + "slice"] = sliced
    if initial is not None:
        metadata["annotations"] = {D + "initial-replicas": str(initial)}
    ready = replicas if ready is None else ready
    status = {"replicas": replicas, "readyReplicas": ready, "updatedReplicas": replicas}
    return {"metadata": metadata, "spec": {"replicas": replicas}, "status": status}


def revision(name, *replicas, initial=None, names=ROLES, **more):
    noted = initial or [None] * len(replicas)
    return [
        lws(name, role, number, initial=before, **more)
        for role, number, before in zip(names, replicas, noted, strict=True)
    ]


def scalings(family, wanted):
    return {(item.child.revision, item.child.role): item.replicas for item in plan(family, wanted)}


@pytest.mark.parametrize(
    ("rolling", "replicas", "expected"),
    [
        (None, 4, Limits(1, 0)),
        ({"maxSurge": 3, "maxUnavailable": 1}, 4, Limits(3, 1)),
        ({"maxSurge": 2, "maxUnavailable": 0}, 4, Limits(2, 0)),
        ({"maxSurge": 5, "maxUnavailable": 0}, 4, Limits(5, 0)),
        ({"maxSurge": 0, "maxUnavailable": 4}, 4, Limits(0, 4)),
        ({"maxSurge": 0, "maxUnavailable": 0}, 4, Limits(1, 0)),
        ({"maxSurge": 2}, 4, Limits(2, 1)),  # The schema's default.
        ({"maxSurge": "50%", "maxUnavailable": 0}, 4, Limits(2, 0)),
        ({"maxSurge": 0, "maxUnavailable": "25%"}, 4, Limits(0, 1)),
        ({"maxSurge": "25%", "maxUnavailable": "25%"}, 10, Limits(3, 2)),
        ({"maxSurge": "100%", "maxUnavailable": 0}, 5, Limits(5, 0)),
    ],
)
def test_ds_7_5_limits(rolling, replicas, expected):
    assert limits_of(make_role("a", replicas, rolling)) == expected


def test_ds_7_5_a_text_that_is_no_percentage_is_refused():
    with pytest.raises(quantity.QuantityError, match="percentage"):
        limits_of(make_role("a", 4, {"maxSurge": "many"}))


@pytest.mark.parametrize(("ready", "stable"), [((4, 2), True), ((3, 2), False), ((4, 1), False), ((3, 1), False)])
def test_ds_7_1_stability(ready, stable):
    new = [lws("new", "prefill", 4, ready=ready[0]), lws("new", "decode", 2, ready=ready[1])]
    assert is_stable(Family.of(new, "new"), roles(4, 2)) is stable


def test_ds_7_1_zero_replicas_are_stable_and_a_missing_role_is_not():
    assert is_stable(Family.of(revision("new", 0, 0), "new"), roles(4, 2))
    assert not is_stable(Family.of(revision("new", 0, names=["prefill"]), "new"), roles(4, 2))


def test_ds_7_5_three_revisions_single_steps():
    def step(b, c):
        a = [] if b is None else revision("a", 2, 2, initial=(2, 2), day=1)
        older = revision("b", 2, 2, initial=(2, 2), day=2)
        return scalings(Family.of([*a, *older, *revision("c", *c, day=3)], "c"), roles(4, 4))

    assert step((2, 2), (0, 0)) == {("c", "prefill"): 1, ("c", "decode"): 1}
    assert step(None, (2, 2)) == {("c", "prefill"): 3, ("c", "decode"): 3}
    assert step((2, 2), (2, 2)) == {("b", "prefill"): 1, ("b", "decode"): 1}


def test_ds_7_1_growth_comes_before_shrinking_and_roles_in_their_order():
    # 5,2 with surge 2 and unavailable 1 has a step that moves both sides (DS §7.4).
    rolling = {"maxSurge": 2, "maxUnavailable": 1}
    wanted = [make_role("prefill", 5, rolling), make_role("decode", 2, rolling)]
    family = Family.of([*revision("old", 4, 2, initial=(5, 2)), *revision("new", 2, 1, day=2)], "new")
    assert [(item.child.name, item.replicas) for item in plan(family, wanted)] == [
        ("demo-0-new-prefill", 4),
        ("demo-0-new-decode", 2),
        ("demo-0-old-prefill", 3),
    ]


def test_ds_7_1_a_role_that_is_no_longer_wanted_drains_with_the_others():
    old = revision("old", 4, 4, 4, initial=(4, 4, 4), names=(*ROLES, "encode"))
    family = Family.of([*old, *revision("new", 1, 1, day=2)], "new")
    assert scalings(family, roles(4, 4)) == {("old", role): 3 for role in (*ROLES, "encode")}


def test_ds_13_5_a_removed_role_is_drained_when_the_others_are_gone():
    old = revision("old", 0, 0, 1, initial=(4, 4, 4), names=(*ROLES, "encode"))
    family = Family.of([*old, *revision("new", 4, 4, day=2)], "new")
    assert scalings(family, roles(4, 4)) == {("old", "encode"): 0}


def test_ds_13_2_the_step_after_a_target_was_lowered():
    old = revision("old", 1, initial=(4,), names=["prefill"])
    family = Family.of([*old, *revision("new", 3, 3, day=2)], "new")
    assert scalings(family, roles(4, 1)) == {("new", "prefill"): 4}


def test_ds_7_1_nothing_to_do_at_the_end():
    family = Family.of([*revision("old", 0, 0, initial=(4, 4)), *revision("new", 4, 4, day=2)], "new")
    assert plan(family, roles(4, 4)) == []


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=3),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.booleans(),
)
def test_ds_16_several_old_revisions_are_drained_and_none_is_left_half(olds, target, drop_drained):
    live = {
        (f"old{day}", role): [number, number, day]
        for day, numbers in enumerate(olds, 1)
        for role, number in zip(ROLES, numbers, strict=True)
    }
    live |= {("new", role): [0, None, 9] for role in ROLES}
    for _ in range(200):
        raws = [lws(rev, role, now, initial=noted, day=day) for (rev, role), (now, noted, day) in live.items()]
        step = plan(Family.of(raws, "new"), roles(*target))
        if not step:
            break
        for item in step:
            live[item.child.revision, item.child.role][0] = item.replicas
        for day in range(1, len(olds) + 1):
            left = [live.get((f"old{day}", role), [0])[0] for role in ROLES]
            assert all(left) or not any(left)
            if drop_drained and not any(left):
                drained = [(f"old{day}", role) for role in ROLES]
                live = {key: value for key, value in live.items() if key not in drained}
    assert {key: now for key, (now, _, _) in live.items() if now} == {
        ("new", role): number for role, number in zip(ROLES, target, strict=True)
    }


pair = st.tuples(st.integers(1, 6), st.integers(1, 6))


@given(pair, st.lists(st.tuples(st.integers(0, 5), pair), max_size=4), pair)
def test_ds_13_7_targets_that_change_on_the_way_do_not_stop_a_rollout(source, changes, target):
    old, new = dict(zip(ROLES, source, strict=True)), dict.fromkeys(ROLES, 0)
    script = [wanted for count, wanted in changes for _ in range(count)]
    for _ in range(100):
        raws = [*revision("old", *old.values(), initial=source), *revision("new", *new.values(), day=2)]
        step = plan(Family.of(raws, "new"), roles(*(script.pop(0) if script else target)))
        for item in step:
            (old if item.child.revision == "old" else new)[item.child.role] = item.replicas
        if not any(old.values()):
            break
    assert not any(old.values())


def test_ds_6_family_sorts_by_revision_and_slice():
    raws = [
        *revision("a", 2, 2, day=1),
        *revision("b", 2, 2, day=3),
        *revision("c", 2, 2, day=2),
        *revision("c", 1, 1, sliced="1"),
        *revision("d", 1, sliced=None, names=["prefill"], day=4),
        {"metadata": {"name": "unlabelled", "labels": {D + "role": "prefill"}}, "spec": {}},
    ]
    family = Family.of(raws, "c")
    assert {child.revision for child in family.target.values()} == {"c"}
    assert [next(iter(group.values())).revision for group in family.old] == ["d", "b", "a"]
    assert [child.slice for child in family.surplus] == ["1", "1"]


def test_ds_2_3_an_old_release_object_of_the_current_revision_counts_as_an_older_one():
    # Without the slice label it cannot take part in the current revision: its name is another.
    legacy = revision("a", 2, sliced=None, names=["prefill"])
    family = Family.of([*legacy, *revision("a", 1, 1)], "a")
    assert [len(family.target), len(family.old_children)] == [2, 1]


@pytest.mark.parametrize(
    ("noted", "expected"), [(None, None), ("4", 4), ("0", 0), ("", None), ("x", None), ("-1", None), ("²", None)]
)
def test_ds_16_initial_replicas_are_read(noted, expected):
    raw = lws("a", "prefill", 3)
    if noted is not None:
        raw["metadata"]["annotations"] = {D + "initial-replicas": noted}
    assert Child.read(raw).initial == expected


def test_ds_16_missing_replicas_are_1_and_missing_status_is_0():
    raw = lws("a", "prefill", 3)
    raw["spec"], raw["status"] = {}, None
    child = Child.read(raw)
    assert (child.replicas, child.present, child.updated, child.ready) == (1, 0, 0, 0)


def test_ds_8_a_revision_is_ready_when_each_role_is():
    family = Family.of([lws("a", "prefill", 2, ready=1), lws("a", "decode", 2, ready=2)], "a")
    assert is_ready(family.target)
    assert is_ready(family.target, ROLES)
    assert not is_ready(family.target, [*ROLES, "encode"])
    assert not is_ready(Family.of([lws("a", "prefill", 2, ready=0), lws("a", "decode", 2)], "a").target)
    assert not is_ready(Family.of([lws("a", "prefill", 0, ready=1), lws("a", "decode", 2)], "a").target)


NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)


def owner(*replicas, status=None, generation=1):
    raw = {
        "metadata": {"name": "demo", "namespace": "ns", "uid": "u", "generation": generation},
        "spec": {"roles": [item.to_dict() for item in roles(*replicas)]},
    }
    made = DisaggregatedSet.from_dict(raw)
    made.status = status
    return made


def facts(status):
    return [(item.type, item.status, item.reason, item.last_transition_time) for item in status.conditions]


def test_ds_10_status_on_fresh_deploy():
    status = next_status(owner(3, 2), Family.of([], "a"), NOW)
    assert [entry.to_dict() for entry in status.role_statuses] == [
        {"name": name, "replicas": 0, "readyReplicas": 0, "updatedReplicas": 0} for name in ROLES
    ]
    assert status.observed_generation == 1
    assert facts(status) == [("Progressing", "True", "RolloutInProgress", NOW)]


def test_ds_10_status_sums_revisions_and_updated_counts_only_the_current_one():
    old = revision("old", 2, 1, 3, names=(*ROLES, "removed"))
    status = next_status(owner(3, 2), Family.of([*old, *revision("new", 1, 1)], "new"), NOW)
    assert [(e.name, e.replicas, e.ready_replicas, e.updated_replicas) for e in status.role_statuses] == [
        ("prefill", 3, 3, 1),
        ("decode", 2, 2, 1),
    ]
    assert facts(status) == [("Progressing", "True", "RolloutInProgress", NOW)]


def test_ds_10_all_at_zero_is_available():
    assert facts(next_status(owner(0, 0), Family.of(revision("a", 0, 0), "a"), NOW))[0][:2] == ("Available", "True")


def test_ds_10_conditions_swap_with_a_new_time_and_the_same_reason():
    ready, half = Family.of(revision("a", 3, 2), "a"), Family.of(revision("a", 3, 1), "a")
    first = next_status(owner(3, 2), half, NOW)
    second = next_status(owner(3, 2, status=first), ready, LATER)
    assert facts(second) == [
        ("Progressing", "False", "AllRolesReady", LATER),
        ("Available", "True", "AllRolesReady", LATER),
    ]
    assert second.conditions[0].message == second.conditions[1].message
    third = next_status(owner(3, 2, status=second), half, NOW)
    assert facts(third) == [
        ("Progressing", "True", "RolloutInProgress", NOW),
        ("Available", "False", "RolloutInProgress", NOW),
    ]


def test_ds_10_time_stays_while_the_status_does_and_generations_catch_up():
    ready = Family.of(revision("a", 3, 2), "a")
    first = next_status(owner(3, 2), Family.of([], "a"), NOW)
    second = next_status(owner(3, 2, status=first), ready, NOW)
    third = next_status(owner(3, 2, status=second, generation=2), ready, LATER)
    assert facts(third) == facts(second)
    assert {item.observed_generation for item in third.conditions} == {2}
    assert next_status(owner(3, 2, status=third, generation=2), ready, LATER) == third


def test_ds_10_other_conditions_and_the_given_status_are_left_alone():
    first = next_status(owner(3, 2), Family.of([], "a"), NOW)
    custom = first.conditions[0].model_copy(update={"type": "Custom"})
    first.conditions.insert(0, custom)
    second = next_status(owner(3, 2, status=first), Family.of(revision("a", 3, 2), "a"), LATER)
    assert second.conditions[0] == custom
    assert [item.type for item in first.conditions] == ["Custom", "Progressing"]
    assert first.conditions[1].status == "True"
