"""What a rolling update waits for, and when an event tells so."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile_controllers.leaderworkerset.rollout import GroupState, roll
from pyreconcile_controllers.leaderworkerset.waiting import (
    Waiting,
    Weight,
    blocking_group,
    find_waiting,
    pod_trouble,
)
from pyreconcile_controllers.leaderworkerset.waiting_events import REPEAT, WaitingEvents

L = "leaderworkerset.sigs.k8s.io/"
START = datetime(2026, 1, 1, tzinfo=UTC)
STARTED = "2026-01-01T00:00:00Z"
MINUTE = timedelta(minutes=1)


def condition(kind, status, since="2026-01-01T00:05:00Z", **more):
    return {"type": kind, "status": status, "lastTransitionTime": since, **more}


def pod(name, *conditions, phase="Running", containers=(), key="new", **metadata):
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": name,
            "labels": {L + "template-revision-hash": key},
            "creationTimestamp": STARTED,
            **metadata,
        },
        "status": {"phase": phase, "conditions": list(conditions), "containerStatuses": list(containers)},
    }


def well(name, **more):
    return pod(name, condition("PodScheduled", "True"), condition("Ready", "True"), **more)


def starting(name, **more):
    scheduled, ready = condition("PodScheduled", "True"), condition("Ready", "False")
    return pod(name, scheduled, ready, **{"phase": "Pending", **more})


def workers(name, replicas):
    return {"metadata": {"name": name}, "spec": {"replicas": replicas}}


def test_lws_6_3_a_pod_that_runs_and_is_ready_has_no_trouble():
    assert pod_trouble(well("a")) is None


@pytest.mark.parametrize(
    ("found", "reason", "text"),
    [
        (None, "Missing", "does not exist"),
        (pod("a", phase="Pending"), "Unscheduled", "is not scheduled"),
        (
            pod("a", condition("PodScheduled", "False", reason="Unschedulable", message="0/4 nodes"), phase="Pending"),
            "Unschedulable",
            "is not scheduled: 0/4 nodes",
        ),
        (starting("a"), "Starting", "is starting"),
        (
            starting("a", containers=[{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}]),
            "Starting",
            "is starting",
        ),
        (
            starting(
                "a", containers=[{"name": "c", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such"}}}]
            ),
            "ErrImagePull",
            "has container c in ErrImagePull: no such",
        ),
        (
            starting("a", phase="Running", containers=[{"name": "c", "state": {"terminated": {"exitCode": 3}}}]),
            "Error",
            "has container c ended with exit code 3 (Error)",
        ),
        (
            pod(
                "a",
                condition("PodScheduled", "True"),
                condition("Ready", "False", message="containers with unready: [c]"),
            ),
            "NotReady",
            "is not ready: containers with unready: [c]",
        ),
        (starting("a", phase="Failed"), "Failed", "has ended (Failed)"),
        (
            well("a", deletionTimestamp="2026-01-01T00:10:30Z", deletionGracePeriodSeconds=30),
            "Terminating",
            "is being deleted",
        ),
    ],
)
def test_lws_6_3_the_trouble_of_a_pod_is_told(found, reason, text):
    trouble = pod_trouble(found)
    assert (trouble.reason, trouble.text) == (reason, text)


def test_lws_6_3_a_trouble_began_with_the_condition_that_shows_it():
    assert pod_trouble(starting("a")).since == START + 5 * MINUTE
    assert pod_trouble(pod("a", phase="Pending")).since == START
    grace = {"deletionTimestamp": "2026-01-01T00:10:30Z", "deletionGracePeriodSeconds": 30}
    assert pod_trouble(well("a", **grace)).since == START + 10 * MINUTE
    assert pod_trouble(None).since is None


def find(*members, own=None, size=3):
    return find_waiting("demo", 1, "new", members, own, size=size, begun=START + MINUTE)


def test_lws_6_3_the_pod_that_is_the_cause_is_named():
    """A leader that waits for its workers is not ready because one of them has no place."""
    lost = pod("demo-1-2", condition("PodScheduled", "False", reason="Unschedulable"), phase="Pending")
    waiting = find(starting("demo-1", phase="Running"), starting("demo-1-1"), lost)
    assert (waiting.group, waiting.pod, waiting.reason) == (1, "demo-1-2", "Unschedulable")
    assert waiting.since == START + 5 * MINUTE
    assert (
        waiting.note
        == "Rollout of revision new waits for group 1 since 2026-01-01T00:05:00Z: pod demo-1-2 is not scheduled"
    )


def test_lws_6_3_workers_that_wait_for_their_leader_are_not_the_cause():
    assert find(starting("demo-1", phase="Running")).pod == "demo-1"
    assert find(well("demo-1")).pod == "demo-1-1"
    assert find().pod == "demo-1"


def test_lws_6_3_an_update_does_not_wait_for_longer_than_it_is_on():
    waiting = find(pod("demo-1", phase="Pending"))
    assert waiting.since == START + MINUTE
    assert find(well("demo-1")).since == START + MINUTE


def test_lws_6_3_a_group_of_another_size_is_looked_at_with_that_size():
    assert find(well("demo-1"), well("demo-1-1"), own=workers("demo-1", 1)).reason == "NotReported"
    assert find(well("demo-1"), size=1).reason == "NotReported"
    small = {L + "size": "1"}
    assert find(well("demo-1", annotations=small)).reason == "NotReported"
    assert find(starting("demo-1", annotations={L + "size": "2"}), own=workers("demo-1", 4)).pod == "demo-1"


def test_lws_6_3_a_group_that_is_well_but_not_replaced_is_told():
    waiting = find(well("demo-1", key="old"), size=1)
    assert (waiting.pod, waiting.reason) == ("demo-1", "NotReplaced")
    assert "is of revision old" in waiting.note


def test_lws_6_3_a_group_whose_pods_are_well_waits_for_its_stateful_set():
    waiting = find(well("demo-1"), well("demo-1-1"), well("demo-1-2"))
    assert waiting.pod == ""
    assert waiting.note.endswith(": it has all its pods ready, but StatefulSet demo-1 does not say so yet")


NEW, OLD, DOWN = GroupState(ready=True, updated=True), GroupState(ready=True, old=True), GroupState(updated=True)


@pytest.mark.parametrize(
    ("states", "partition", "group"),
    [
        ([OLD, OLD, DOWN], 2, 2),
        ([OLD, OLD, OLD], 2, 2),  # to be replaced, and not yet
        ([OLD, GroupState(old=True), NEW], 2, 1),  # below the partition, and in the way
        ([GroupState(), OLD, DOWN], 2, 2),
        ([OLD, OLD, NEW], 2, None),
        ([], 0, None),
    ],
)
def test_lws_6_3_the_group_in_the_way_is_found(states, partition, group):
    assert blocking_group(states, partition) == group


@given(
    st.lists(st.builds(GroupState, ready=st.booleans(), updated=st.booleans()), max_size=8),
    st.integers(0, 8),
    st.integers(1, 3),
)
def test_lws_6_3_when_no_group_is_in_the_way_the_partition_falls(states, partition, step):
    if blocking_group(states, partition) is None and 0 < partition <= len(states):
        assert roll(states, step, partition) < partition


def test_lws_6_3_causes_come_before_their_consequences():
    assert Weight.CAUSE < Weight.STARTING < Weight.ABSENT


def waiting(since=START, **more):
    values = {"revision": "new", "group": 1, "pod": "demo-1", "reason": "NotReady", "text": "is not ready", **more}
    return Waiting(since=since, **values)


def test_lws_6_5_a_wait_is_told_once_it_has_lasted():
    events = WaitingEvents(60)
    early = events.look("uid", waiting(), START + timedelta(seconds=20))
    assert (early.tell, early.look_again) == (False, 40)
    assert events.look("uid", waiting(), START + MINUTE).tell


def test_lws_6_5_the_same_wait_is_told_again_only_after_half_an_hour():
    events = WaitingEvents(60)
    assert events.look("uid", waiting(), START + MINUTE).tell
    again = events.look("uid", waiting(text="is not ready: other words"), START + 2 * MINUTE)
    assert (again.tell, again.look_again) == (False, (REPEAT - MINUTE).total_seconds())
    assert events.look("uid", waiting(), START + MINUTE + REPEAT).tell


@pytest.mark.parametrize("change", [{"group": 0}, {"pod": "demo-1-1"}, {"reason": "Unschedulable"}, {"revision": "x"}])
def test_lws_6_5_another_wait_is_told_when_it_has_lasted_too(change):
    events = WaitingEvents(60)
    assert events.look("uid", waiting(), START + MINUTE).tell
    assert not events.look("uid", waiting(START + MINUTE, **change), START + MINUTE).tell
    assert events.look("uid", waiting(START + MINUTE, **change), START + 2 * MINUTE).tell


def test_lws_6_5_a_wait_that_is_over_is_forgotten_and_sets_are_apart():
    events = WaitingEvents(60)
    assert events.look("a", waiting(), START + MINUTE).tell
    assert events.look("b", waiting(), START + MINUTE).tell
    events.forget("a")
    assert events.look("a", waiting(), START + 2 * MINUTE).tell
    assert not events.look("b", waiting(), START + 2 * MINUTE).tell


def test_lws_6_5_only_the_last_sets_are_remembered():
    events = WaitingEvents(60, size=2)
    for uid in ("a", "b", "c"):
        assert events.look(uid, waiting(), START + MINUTE).tell
    assert not events.look("c", waiting(), START + 2 * MINUTE).tell
    assert events.look("a", waiting(), START + 2 * MINUTE).tell
