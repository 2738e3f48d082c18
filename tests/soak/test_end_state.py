"""What a soak takes for right when trouble is over, and each thing that it does not."""

from copy import deepcopy

import pytest

from hack.soak.end_state import Snapshot, problems

L = "leaderworkerset.sigs.k8s.io/"


def owned(kind, uid):
    return [{"kind": kind, "uid": uid, "controller": True}]


def stateful_set(name, labels, owner, **spec):
    labels = {L + "name": "s", L + "template-revision-hash": "r1", **labels}
    metadata = {"name": name, "uid": f"sts-{name}", "resourceVersion": "1", "labels": labels, "ownerReferences": owner}
    return {"metadata": metadata, "spec": spec}


def pod(group, worker):
    leader = f"s-{group}"
    name = f"{leader}-{worker}" if worker else leader
    labels = {L + "name": "s", L + "group-index": str(group), L + "worker-index": str(worker)}
    metadata = {
        "name": name,
        "uid": f"pod-{name}",
        "resourceVersion": "1",
        "labels": {**labels, L + "template-revision-hash": "r1"},
        "annotations": {L + "size": "2"},
        "ownerReferences": owned("StatefulSet", f"sts-{leader}" if worker else "sts-s"),
    }
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": metadata, "spec": {"containers": [{"image": "v1"}]}, "status": status}


@pytest.fixture
def right():
    """A set of two groups of two pods, as it should be."""
    template = {"spec": {"containers": [{"image": "v1"}]}}
    limits = {"maxUnavailable": 1, "maxSurge": 1, "partition": 0}
    wire = {
        "metadata": {"name": "s", "uid": "set", "resourceVersion": "1", "generation": 3},
        "spec": {
            "replicas": 2,
            "leaderWorkerTemplate": {"size": 2, "workerTemplate": template},
            "networkConfig": {"subdomainPolicy": "Shared"},
            "rolloutStrategy": {"rollingUpdateConfiguration": limits},
        },
        "status": {
            "observedGeneration": 3,
            "replicas": 2,
            "readyReplicas": 2,
            "updatedReplicas": 2,
            "conditions": [
                {"type": "Progressing", "status": "False"},
                {"type": "Available", "status": "True"},
            ],
        },
    }
    sets = [stateful_set("s", {}, owned("LeaderWorkerSet", "set"), replicas=2, updateStrategy={})]
    for group in range(2):
        labels = {L + "group-index": str(group)}
        sets.append(stateful_set(f"s-{group}", labels, owned("Pod", f"pod-s-{group}"), replicas=1))
    return Snapshot(
        sets={"s": wire},
        stateful_sets={item["metadata"]["name"]: item for item in sets},
        pods={item["metadata"]["name"]: item for item in (pod(g, w) for g in range(2) for w in range(2))},
        services={"s": {}},
        revisions={"s-r1-1": {"metadata": {"ownerReferences": owned("LeaderWorkerSet", "set")}}},
    )


def test_a_set_that_is_right_has_no_problems(right):
    assert problems(right) == []


def test_nothing_may_be_left_of_a_set_that_is_gone(right):
    right.sets.clear()
    assert sorted(problems(right))[0] == "s is left of a set that is gone"
    assert len(problems(right)) == 7


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda now: now.pods.pop("s-1"), "group 1 has no leader"),
        (lambda now: now.pods.pop("s-1-1"), "s-1-1 is not ready"),
        (lambda now: now.pods["s-0"]["status"].update(phase="Pending"), "s-0 is not ready"),
        (lambda now: now.pods["s-0-1"]["metadata"].update(deletionTimestamp="now"), "s-0-1 is not ready"),
        (lambda now: now.pods.update({"s-2": {**pod(2, 0)}}), "3 leaders for 2 groups"),
        (lambda now: now.pods.update({"s-1-2": {**pod(1, 2)}}), "s-1-2 is one too many"),
        (lambda now: now.pods["s-0-1"]["spec"]["containers"][0].update(image="v0"), "of another revision"),
        (lambda now: now.pods["s-0-1"]["metadata"].update(ownerReferences=[]), "of another group's StatefulSet"),
        (lambda now: now.stateful_sets.pop("s"), "no leader StatefulSet"),
        (lambda now: now.stateful_sets["s"]["spec"].update(replicas=3), "3 groups for 2 replicas"),
        (lambda now: now.services.clear(), "service s is missing"),
        (lambda now: now.revisions.clear(), "0 revisions of s are kept"),
        (lambda now: now.revisions.update(more=now.revisions["s-r1-1"]), "2 revisions of s are kept"),
        (lambda now: now.sets["s"]["status"].update(readyReplicas=1), "status.readyReplicas is 1, not 2"),
        (lambda now: now.sets["s"]["status"].update(observedGeneration=2), "status.observedGeneration is 2, not 3"),
        (lambda now: now.sets["s"]["status"]["conditions"].pop(), "conditions [] are True"),
        (
            lambda now: now.sets["s"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"].update(
                containers=[{"image": "v2"}]
            ),
            "group 0 is of v1, size 2",
        ),
        (
            lambda now: now.sets["s"]["spec"]["networkConfig"].update(subdomainPolicy="UniquePerReplica"),
            "service s-0 is missing",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_thing_that_is_wrong_is_told(right, spoil, said):
    now = deepcopy(right)
    spoil(now)
    assert any(said in problem for problem in problems(now)), problems(now)


def test_groups_below_the_partition_may_be_of_an_older_revision(right):
    limits = right.sets["s"]["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
    limits["partition"] = 1
    for name in ("s-0", "s-0-1"):
        right.pods[name]["spec"]["containers"][0]["image"] = "v0"
        right.pods[name]["metadata"]["labels"][L + "template-revision-hash"] = "r0"
    right.revisions["s-r0-1"] = right.revisions["s-r1-1"]
    right.sets["s"]["status"]["updatedReplicas"] = 1
    assert problems(right) == []
    limits["partition"] = 0
    assert problems(right) == ["s: group 0 is of v0, size 2", "s: 2 revisions of s are kept"]


def test_surge_groups_stay_only_while_a_partition_holds_groups_back(right):
    limits = right.sets["s"]["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
    right.sets["s"]["spec"]["replicas"] = 1
    assert "s: 2 groups for 1 replicas" in problems(right)
    right.sets["s"]["spec"]["replicas"] = 2
    limits["partition"] = 1
    right.stateful_sets["s"]["spec"]["replicas"] = 3
    assert not any("groups for" in problem for problem in problems(right))
