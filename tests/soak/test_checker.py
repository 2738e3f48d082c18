"""The soak's checker: it is content with what is right, and finds each thing that is not."""

from dataclasses import replace

import pytest

from hack.soak.checker import KEPT, MIXED, ORDER, RULES, TOO_FEW, TOO_MANY, UNEXPLAINED
from hack.soak.facts import Change, PodFact, change_of, resolve


def roll(trace, group):
    """Update one group as it should be."""
    trace.write(partition=group, revision="r2")
    trace.stop(group)
    trace.start(group, revision="r2")


def test_a_good_update_breaks_no_rule(running):
    running.write(partition=3, revision="r2")
    for group in (2, 1, 0):
        roll(running, group)
    running.checker.settle(running.now)
    assert not running.broken()
    assert {rule for rule in RULES if running.checker.looked[rule]} == {TOO_MANY, TOO_FEW, MIXED, ORDER, UNEXPLAINED}


def test_a_good_update_with_surge_breaks_no_rule(running):
    running.ask(unavailable=0, surge=1)
    running.write(partition=3, replicas=4, revision="r2")
    running.start(3, revision="r2")
    for group in (2, 1, 0):
        roll(running, group)
    running.write(replicas=3)
    running.stop(3)
    assert not running.broken()


def test_more_groups_than_replicas_and_surge_are_found(running):
    running.ask(surge=1)
    running.write(replicas=5)
    assert running.broken() == [TOO_MANY]


def test_a_leader_too_many_is_found(running):
    running.now += 60
    running.start_leader(3)
    assert running.broken() == [TOO_MANY]


def test_two_groups_given_free_at_once_are_found(running):
    running.write(partition=1, revision="r2")
    assert running.broken() == [TOO_FEW]
    assert "groups [1, 2] with stand-ins [], allowed 1" in str(running.checker.violations[0])


def test_a_second_group_is_not_given_free_before_the_first_is_ready(running):
    running.write(partition=2, revision="r2")
    running.stop(2)
    running.start(2, revision="r2", ready=False)
    running.write(partition=1)
    assert running.broken() == [TOO_FEW]


def test_a_group_that_something_else_took_down_is_not_the_updates_doing(running):
    running.write(partition=2, revision="r2")
    running.strikes.pods.add(running.pods["s-2"].uid)
    running.stop(2)
    running.start(2, revision="r2", ready=False)
    running.write(partition=1)
    assert not running.broken()


def test_groups_that_were_broken_before_may_be_updated_for_free(running):
    for group in (1, 2):
        running.pod(f"s-{group}", ready=False)
    running.now += 60
    running.write(partition=0, revision="r2")
    assert not running.broken()


def with_a_stand_in(running):
    """In the middle of an update: group 3 is a surge group, and stands in for group 2, which is not ready."""
    running.ask(unavailable=0, surge=1)
    running.write(partition=3, replicas=4, revision="r2")
    running.start(3, revision="r2")
    running.write(partition=2)
    running.stop(2)
    running.start(2, revision="r2", ready=False)
    running.now += 60


def test_a_surge_group_taken_back_while_it_stands_in_is_found(running):
    with_a_stand_in(running)
    running.write(replicas=3)
    assert running.broken() == [TOO_FEW]


def test_a_surge_group_given_free_by_another_revision_while_it_stands_in_is_found(running):
    with_a_stand_in(running)
    running.write(partition=4, revision="r3")
    assert not running.broken()
    running.write(partition=3)
    assert running.broken() == [TOO_FEW]


def test_the_controller_may_know_of_a_change_a_little_late(running):
    running.ask(replicas=5, surge=0)
    running.ask(replicas=3, after=0.1)
    running.write(replicas=5, after=0.5)
    assert not running.broken()
    running.write(replicas=4, after=3.0)
    assert running.broken() == [TOO_MANY]


def test_a_worker_of_another_revision_is_found(running):
    running.write(partition=2, revision="r2")
    running.stop(2)
    running.start_leader(2, revision="r2")
    running.start_workers(2, revision="r1")
    assert running.broken() == [MIXED, MIXED]


def test_a_worker_with_another_image_is_found_whatever_its_label(running):
    running.write(partition=2, revision="r2")
    running.stop(2)
    running.start_leader(2, revision="r2")
    running.start_workers(2, revision="r2", version="old image")
    assert running.broken() == [MIXED]


def test_an_update_from_the_lowest_ordinal_is_found(running):
    running.ask(unavailable=3)
    running.write(partition=0, revision="r2")
    running.stop(0)
    assert running.broken() == [ORDER]


@pytest.mark.parametrize(("after", "broken"), [(0.1, []), (11.0, [UNEXPLAINED, ORDER])])
def test_what_kubernetes_still_does_of_an_earlier_update_is_in_order(running, after, broken):
    running.ask(unavailable=3)
    running.write(partition=0, revision="r2")
    for group in (2, 1):
        running.stop(group)
        running.start(group, revision="r2")
    running.write(partition=3, revision="r3")
    running.pod("s-0", terminating=True, after=after)
    assert running.broken() == broken


def test_a_leader_that_goes_without_cause_is_found(running):
    running.pod("s-1", terminating=True)
    assert running.broken() == [UNEXPLAINED]


def test_a_leader_that_vanishes_without_cause_is_found(running):
    running.go("s-1")
    assert running.broken() == [UNEXPLAINED]


def test_who_deleted_a_leader_is_told(running):
    running.strikes.deleted_by[running.pods["s-1"].uid] = "pyreconcile"
    running.pod("s-1", terminating=True)
    assert str(running.checker.violations[0]).endswith("leader s-1 goes, deleted by pyreconcile")


def test_a_pod_that_only_its_kubelet_deleted_is_no_fault_and_its_group_goes_with_it(running):
    running.strikes.deleted_by[running.pods["s-1-1"].uid] = "kwok"
    running.pod("s-1-1", terminating=True)
    running.stop(1)
    running.start(1)
    running.checker.settle(running.now)
    assert not running.broken()
    assert running.checker.looked[KEPT] == 1


def test_a_worker_that_goes_without_cause_is_found(running):
    running.pod("s-1-1", terminating=True)
    assert running.broken() == [UNEXPLAINED]


def test_a_neighbour_of_a_struck_group_may_not_go(running):
    running.strikes.pods.add(running.pods["s-0-1"].uid)
    running.go("s-0-1")
    running.pod("s-0", terminating=True)
    assert not running.broken()
    running.pod("s-1", terminating=True)
    assert running.broken() == [UNEXPLAINED]


def test_only_the_struck_pod_goes_when_the_policy_recreates_nothing(running):
    running.now += 60
    running.ask(policy="None")
    running.now += 60
    running.strikes.pods.add(running.pods["s-0-1"].uid)
    running.go("s-0-1")
    running.pod("s-0", terminating=True)
    assert running.broken() == [UNEXPLAINED]


def test_pods_of_a_lost_node_may_go_while_it_is_away_and_for_a_time_after(running):
    running.strikes.node_lost("node-1", running.now)
    running.pod("s-0-1", terminating=True)
    running.strikes.node_back("node-1", running.now)
    running.pod("s-1-1", terminating=True)
    assert not running.broken()
    running.pod("s-2-1", terminating=True, after=120.0)
    assert running.broken() == [UNEXPLAINED]


def test_scaling_down_explains_what_goes(running):
    running.ask(replicas=1)
    running.write(replicas=1)
    running.stop(2)
    running.stop(1)
    assert not running.broken()


def test_deleting_a_set_explains_what_goes(running):
    running.say(running.wish, gone=True)
    for group in range(3):
        running.stop(group)
    assert not running.broken()


def test_a_group_that_stays_after_losing_a_worker_is_found_in_the_calm(running):
    running.strikes.pods.add(running.pods["s-0-1"].uid)
    running.go("s-0-1")
    running.checker.settle(running.now)
    assert running.broken() == [KEPT]


def test_a_worker_lost_while_no_manager_runs_may_be_overlooked(running):
    running.strikes.outages.append((running.now, running.now + 5))
    running.strikes.pods.add(running.pods["s-0-1"].uid)
    running.go("s-0-1")
    running.checker.settle(running.now)
    assert not running.broken()


def test_a_group_that_stays_after_a_restart_is_found_in_the_calm(running):
    running.pod("s-0-1", restarted=True)
    running.checker.settle(running.now)
    assert running.broken() == [KEPT]


def test_changes_are_taken_in_the_order_of_their_versions_whatever_watch_was_first(running):
    time = running.now + 1
    changes = [
        Change(order=1002, time=time, gone=True, about=running.pods["s-2"]),
        Change(order=1001, time=time, gone=False, about=replace(running.leaders, replicas=2)),
        Change(order=1000, time=time, gone=False, about=replace(running.wish, replicas=2)),
    ]
    running.checker.feed(changes)
    assert not running.broken()


@pytest.mark.parametrize(
    ("value", "up", "expected"),
    [(2, False, 2), ("25%", False, 0), ("25%", True, 1), ("50%", True, 2), ("100%", False, 3)],
)
def test_percentages_of_three_groups(value, up, expected):
    assert resolve(value, 3, up=up) == expected


def test_other_text_is_refused():
    with pytest.raises(ValueError, match="neither a number nor a percentage"):
        resolve("a few", 3, up=True)


def test_a_pod_is_read_from_what_the_server_says():
    label = "leaderworkerset.sigs.k8s.io/"
    obj = {
        "metadata": {
            "name": "s-1-2",
            "uid": "u",
            "resourceVersion": "17",
            "labels": {label + "name": "s", label + "group-index": "1", label + "worker-index": "2"},
            "annotations": {label + "size": "3"},
            "ownerReferences": [{"uid": "w", "controller": True}],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"containers": [{"image": "busybox:v2"}], "nodeName": "n"},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"restartCount": 1}],
        },
    }
    pod = PodFact("s", "s-1-2", "u", 1, 2, "w", "", "busybox:v2", 3, "n", ready=True, restarted=True, terminating=True)
    assert change_of("DELETED", 2.5, obj) == Change(order=17, time=2.5, gone=True, about=pod)
    assert change_of("ADDED", 2.5, {**obj, "metadata": {**obj["metadata"], "labels": {}}}) is None
