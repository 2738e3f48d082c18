"""A set as a tree of groups and pods."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pyreconcile_controllers.leaderworkerset import gang
from pyreconcile_controllers.leaderworkerset.description import Objects, describe
from pyreconcile_controllers.leaderworkerset.rendering import age, render, to_json
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

PAGE = Path(__file__).parents[2] / "docs" / "leaderworkerset.md"
L = "leaderworkerset.sigs.k8s.io/"
START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = START + timedelta(minutes=10)


def stamp(minutes):
    return f"{START + timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%SZ}"


def lws(*, updating=True, partition=0, surge=0, replicas=3, size=2):
    rolling = {"partition": partition, "maxUnavailable": 1, "maxSurge": surge}
    condition = {"status": "True", "lastTransitionTime": stamp(4), "observedGeneration": 2}
    conditions = [
        {
            "type": "UpdateInProgress",
            "reason": "GroupsUpdating",
            "message": "Rolling Upgrade is in progress",
            **condition,
        }
        if updating
        else {"type": "Available", "reason": "AllGroupsReady", "message": "All replicas are ready", **condition},
        {"type": "Progressing", "reason": "GroupsProgressing", "message": "x", **condition, "status": "False"},
    ]
    return LeaderWorkerSet.from_dict(
        {
            "metadata": {"name": "demo", "namespace": "ns", "uid": "set", "generation": 2},
            "spec": {
                "replicas": replicas,
                "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": rolling},
                "leaderWorkerTemplate": {"size": size, "workerTemplate": {"spec": {"containers": []}}},
            },
            "status": {"readyReplicas": 2, "updatedReplicas": 1, "conditions": conditions},
        }
    )


def leader_set(*, partition, replicas=3, key="new"):
    return {
        "metadata": {"name": "demo", "labels": {L + "template-revision-hash": key}},
        "spec": {"replicas": replicas, "updateStrategy": {"rollingUpdate": {"partition": partition}}},
    }


def worker_set(group, key, *, available=1, replicas=1):
    labels = {L + "group-index": str(group), L + "template-revision-hash": key}
    return {
        "metadata": {"name": f"demo-{group}", "labels": labels},
        "spec": {"replicas": replicas},
        "status": {"availableReplicas": available, "currentRevision": "r", "updateRevision": "r"},
    }


def pod(group, worker, key, *, ready=True, restarts=0, **status):
    name = f"demo-{group}" if worker == 0 else f"demo-{group}-{worker}"
    labels = {L + "group-index": str(group), L + "worker-index": str(worker), L + "template-revision-hash": key}
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(5)},
        {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": stamp(6)},
    ]
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": labels, "creationTimestamp": stamp(5)},
        "spec": {"nodeName": f"node-{group}"},
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "containerStatuses": [{"name": "c", "restartCount": restarts, "state": {"running": {}}}],
            **status,
        },
    }


def revision(key, number, owner="LeaderWorkerSet"):
    uid = "set" if owner == "LeaderWorkerSet" else "other"
    return {
        "metadata": {
            "name": f"demo-{key}",
            "labels": {L + "template-revision-hash": key},
            "ownerReferences": [{"kind": owner, "uid": uid, "controller": True}],
        },
        "revision": number,
    }


def rolling(**more):
    values = {
        "lws": lws(),
        "leader_set": leader_set(partition=2),
        "worker_sets": [worker_set(0, "old"), worker_set(1, "old"), worker_set(2, "new", available=0)],
        "pods": [
            pod(2, 1, "new", ready=False, restarts=3, phase="Running"),
            pod(2, 0, "new"),
            *(pod(group, worker, "old") for group in (1, 0) for worker in (1, 0)),
        ],
        "revisions": [revision("old", 1), revision("new", 2), revision("x", 9, owner="StatefulSet")],
        **more,
    }
    return describe(Objects(**values))


def test_lws_6_3_the_tree_of_a_rolling_update():
    shown = re.search(r"lws describe demo\n(.*?)\n```", PAGE.read_text(), re.DOTALL)[1]
    assert render(rolling(), NOW) == shown.replace("default/demo", "ns/demo")


def test_lws_6_3_the_same_for_programs():
    found = to_json(rolling())
    assert found["rollout"] == {
        "inProgress": True,
        "partition": 2,
        "heldBelow": 0,
        "maxUnavailable": 1,
        "maxSurge": 0,
        "waitsFor": {
            "group": 2,
            "pod": "demo-2-1",
            "reason": "NotReady",
            "message": "is not ready",
            "since": stamp(6),
        },
    }
    assert found["revisions"] == [
        {"key": "new", "revision": 2, "current": True, "groups": [2]},
        {"key": "old", "revision": 1, "current": False, "groups": [0, 1]},
    ]
    assert [group["ready"] for group in found["groups"]] == [True, True, False]
    assert found["groups"][2]["pods"][1] == {
        "name": "demo-2-1",
        "phase": "Running",
        "node": "node-2",
        "revision": "new",
        "restarts": 3,
        "ready": False,
        "reason": "NotReady",
        "message": "is not ready",
        "since": stamp(6),
    }
    assert found["conditions"][0]["lastTransitionTime"] == stamp(4)


def test_lws_6_3_groups_that_a_partition_holds_and_surge_groups_are_marked():
    found = rolling(lws=lws(partition=1, surge=1, replicas=2))
    text = render(found, NOW)
    assert "  spec.partition 1 keeps the groups below at their revision\n" in text
    assert "├─ 0  ready, revision old, held by the partition\n" in text
    assert "├─ 1  ready, revision old, to be updated\n" in text
    assert "└─ 2  not ready, revision new, surge\n" in text
    assert "at most 1 unavailable, 1 surge" in text


def test_lws_6_6_a_set_at_rest_has_no_rollout():
    pods = [pod(group, worker, "new") for group in range(3) for worker in range(2)]
    found = rolling(
        lws=lws(updating=False),
        leader_set=leader_set(partition=0),
        worker_sets=[worker_set(group, "new") for group in range(3)],
        pods=pods,
        revisions=[revision("new", 2)],
    )
    text = render(found, NOW)
    assert "  Available for 6m: All replicas are ready (AllGroupsReady)\nNo rollout; the next may have" in text
    assert "waits" not in text
    assert "  2  new (current): groups 0, 1, 2\n" in text
    assert to_json(found)["rollout"]["waitsFor"] is None


def test_lws_9_a_set_whose_groups_cannot_be_placed_whole_says_why():
    wanted = lws(updating=False)
    gang.mark(wanted.status.conditions, "this API server does not serve podgroups", 2, START + timedelta(minutes=8))
    text = render(describe(Objects(lws=wanted, leader_set=None, worker_sets=[], pods=[], revisions=[])), NOW)
    assert "\n  no GangScheduling for 2m: this API server does not serve podgroups (PodGroupsNotServed)\n" in text
    assert "Progressing" not in text


def test_lws_6_1_a_set_that_was_just_made_is_shown_too():
    found = describe(Objects(lws=lws(updating=False), leader_set=None, worker_sets=[], pods=[], revisions=[]))
    assert render(found, NOW).endswith("0 surge\nNo groups")
    found = rolling(pods=[], worker_sets=[])
    assert "  2  new (current): no group\n" in render(found, NOW)
    assert "├─ 1  no pods, no leader\n" in render(found, NOW)
    assert found.waiting is not None
    assert (found.waiting.group, found.waiting.reason) == (2, "Missing")


def test_lws_6_3_groups_beyond_the_wanted_ones_are_shown_while_they_have_pods():
    found = rolling(leader_set=leader_set(partition=2, replicas=2), lws=lws(replicas=2))
    assert [group.index for group in found.groups] == [0, 1, 2]
    assert found.groups[2].surge


def test_lws_16_3_a_group_has_the_size_of_its_own_revision():
    found = rolling(lws=lws(size=5))
    assert "2 of 2" not in render(found, NOW)
    assert [group.size for group in found.groups] == [2, 2, 2]
    few = rolling(pods=[pod(0, 0, "old")])
    assert "├─ 0  ready, 1 of 2 pods, revision old, to be updated\n" in render(few, NOW)


def test_lws_7_1_a_pod_of_another_revision_than_its_leader_is_marked():
    found = rolling(pods=[pod(2, 0, "new"), pod(2, 1, "old")])
    assert "demo-2-1  Ready, on node-2, revision old" in render(found, NOW)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (0, "0s"), (59.9, "59s"), (60, "1m"), (185, "3m5s"), (3605, "1h"), (7260, "2h1m"), (266400, "3d2h")],
)
def test_times_are_told_in_two_units(seconds, text):
    assert age(seconds) == text
