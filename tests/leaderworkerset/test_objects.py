"""The objects of a set: names, labels, annotations, owners and fields (LWS §3, §6.2, §6.4, §7.1)."""

import orjson
import pytest

from pyreconcile.api.apps_v1 import ControllerRevision
from pyreconcile.api.core_v1 import Pod
from pyreconcile_controllers.leaderworkerset import names
from pyreconcile_controllers.leaderworkerset.objects import (
    controller_revision,
    group_size,
    headless_service,
    leader_stateful_set,
    strategy_of,
    worker_stateful_set,
)
from pyreconcile_controllers.leaderworkerset.revision import restore, revision_of
from pyreconcile_controllers.leaderworkerset.rollout import Plan, Strategy
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

L = "leaderworkerset.sigs.k8s.io/"


def make_set(*, labels=None, annotations=None, network=None, replicas=2, **template):
    pod = {"spec": {"containers": [{"name": "worker", "image": "busybox:1"}]}}
    raw = {
        "metadata": {"name": "demo", "namespace": "ns", "uid": "u-set", "generation": 1},
        "spec": {"replicas": replicas, "leaderWorkerTemplate": {"workerTemplate": pod, "size": 3, **template}},
    }
    if labels:
        raw["metadata"]["labels"] = labels
    if annotations:
        raw["metadata"]["annotations"] = annotations
    if network:
        raw["spec"]["networkConfig"] = {"subdomainPolicy": network}
    return LeaderWorkerSet.from_dict(raw)


def revised(lws):
    return revision_of(lws.spec.to_dict())


def leader_set(lws, plan=None, key="k1"):
    return leader_stateful_set(lws, revised(lws), key, plan or Plan(0, 2), strategy_of(lws)).to_dict()


def leader_pod(**spec):
    labels = {L + "name": "demo", L + "worker-index": "0", L + "group-index": "1", L + "group-key": "g1"}
    return Pod.from_dict(
        {
            "metadata": {
                "name": "demo-1",
                "namespace": "ns",
                "uid": "u-pod",
                "labels": {**labels, L + "template-revision-hash": "k1", "app": "x"},
            },
            "spec": {"containers": [{"name": "c"}], **spec},
        }
    )


def test_lws_6_2_leader_stateful_set():
    lws = make_set(labels={"team": "a", L + "name": "not-mine"}, annotations={"note": "b"})
    assert leader_set(lws, Plan(1, 2)) == {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": "demo",
            "namespace": "ns",
            "labels": {"team": "a", L + "name": "demo", L + "template-revision-hash": "k1"},
            "annotations": {"note": "b", L + "replicas": "2"},
            "ownerReferences": [
                {
                    "apiVersion": "leaderworkerset.x-k8s.io/v1",
                    "kind": "LeaderWorkerSet",
                    "name": "demo",
                    "uid": "u-set",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "serviceName": "demo",
            "replicas": 2,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1, "maxUnavailable": 1}},
            "selector": {"matchLabels": {L + "name": "demo", L + "worker-index": "0"}},
            "template": {
                "metadata": {
                    "labels": {L + "name": "demo", L + "worker-index": "0", L + "template-revision-hash": "k1"},
                    "annotations": {L + "size": "3"},
                },
                "spec": {"containers": [{"name": "worker", "image": "busybox:1", "resources": {}}]},
            },
        },
    }


def test_lws_3_leader_template_is_used_and_its_labels_stay():
    leader = {
        "metadata": {"labels": {"app": "x", L + "worker-index": "9"}, "annotations": {"a": "b"}},
        "spec": {"containers": [{"name": "leader"}]},
    }
    template = leader_set(make_set(leaderTemplate=leader))["spec"]["template"]
    assert template["spec"]["containers"][0]["name"] == "leader"
    assert template["metadata"]["labels"]["app"] == "x"
    assert template["metadata"]["labels"][L + "worker-index"] == "0"
    assert template["metadata"]["annotations"] == {"a": "b", L + "size": "3"}


def test_lws_3_subgroup_and_topology_annotations():
    lws = make_set(
        subGroupPolicy={"subGroupPolicyType": "LeaderWorker", "subGroupSize": 3},
        annotations={L + "exclusive-topology": "rack", L + "subgroup-exclusive-topology": "host"},
        network="UniquePerReplica",
    )
    expected = {
        L + "size": "3",
        L + "exclusive-topology": "rack",
        L + "subgroup-policy-type": "LeaderWorker",
        L + "subgroup-size": "3",
        L + "subgroup-exclusive-topology": "host",
    }
    leaders = leader_set(lws)["spec"]["template"]["metadata"]["annotations"]
    assert leaders == {**expected, L + "subdomainPolicy": "UniquePerReplica"}
    workers = worker_stateful_set(lws, leader_pod(), revised(lws)).to_dict()["spec"]["template"]
    assert workers["metadata"]["annotations"] == {**expected, L + "leader-name": "demo-1"}


def test_lws_3_an_empty_topology_annotation_is_left_out():
    lws = make_set(annotations={L + "exclusive-topology": ""})
    assert leader_set(lws)["spec"]["template"]["metadata"]["annotations"] == {L + "size": "3"}


def test_lws_3_a_subgroup_topology_needs_subgroups_and_a_value():
    policy = {"subGroupPolicyType": "LeaderExcluded", "subGroupSize": 1}
    subgroups = {L + "subgroup-policy-type": "LeaderExcluded", L + "subgroup-size": "1"}
    for topology, template, expected in (("", {"subGroupPolicy": policy}, subgroups), ("host", {}, {})):
        lws = make_set(annotations={L + "subgroup-exclusive-topology": topology}, **template)
        made = leader_set(lws), worker_stateful_set(lws, leader_pod(), revised(lws)).to_dict()
        for one, own in zip(made, ({}, {L + "leader-name": "demo-1"}), strict=True):
            annotations = one["spec"]["template"]["metadata"]["annotations"]
            assert annotations == {L + "size": "3", **expected, **own}


def test_lws_7_1_worker_stateful_set():
    lws = make_set(labels={"team": "a"}, annotations={"note": "b"})
    made = worker_stateful_set(lws, leader_pod(), revised(lws)).to_dict()
    group = {L + "name": "demo", L + "group-index": "1", L + "group-key": "g1"}
    assert made["metadata"] == {
        "name": "demo-1",
        "namespace": "ns",
        "labels": {"team": "a", **group, L + "template-revision-hash": "k1"},
        "annotations": {"note": "b"},
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": "demo-1",
                "uid": "u-pod",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    spec = made["spec"]
    assert spec["serviceName"] == "demo"
    assert spec["replicas"] == 2
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["ordinals"] == {"start": 1}
    assert spec["selector"] == {"matchLabels": group}
    assert "updateStrategy" not in spec
    assert spec["template"]["metadata"]["labels"] == {**group, L + "template-revision-hash": "k1"}
    assert spec["template"]["metadata"]["annotations"] == {L + "size": "3", L + "leader-name": "demo-1"}


def test_o_14_a_group_of_an_older_revision_is_rebuilt_as_it_was():
    old = revised(make_set(size=4, network="UniquePerReplica"))
    stored = orjson.loads(old.data)
    live = make_set(size=2, network="Shared")
    made = worker_stateful_set(live, leader_pod(), restore(stored, live.spec.to_dict())).to_dict()["spec"]
    assert made["replicas"] == 3
    assert made["serviceName"] == "demo-1"
    assert made["template"]["metadata"]["annotations"][L + "size"] == "4"


def test_lws_7_1_exclusive_topology_pins_the_workers():
    pod = {"spec": {"containers": [{"name": "c"}], "nodeSelector": {"disk": "ssd"}}}
    lws = make_set(workerTemplate=pod)
    revision = revised(lws)
    made = worker_stateful_set(lws, leader_pod(), revision, {"rack": "r1"}).to_dict()
    assert made["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "ssd", "rack": "r1"}
    assert revision == revised(lws)  # Building objects leaves the cached revision alone.


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"limits": {"google.com/tpu": 4}}, True),
        ({"requests": {"google.com/tpu": "4"}}, True),
        ({"limits": {"google.com/tpu": "0"}, "requests": {"google.com/tpu": "4"}}, True),
        ({"limits": {"google.com/tpu": "0"}, "requests": {"google.com/tpu": "0"}}, False),
        ({"limits": {"cpu": 1}}, False),
        ({}, False),
    ],
)
def test_lws_4_2_leaders_that_request_tpus_are_told_to_their_workers(resources, expected):
    leader = leader_pod(containers=[{"name": "c", "resources": resources}])
    lws = make_set()
    annotations = worker_stateful_set(lws, leader, revised(lws)).to_dict()["spec"]["template"]["metadata"][
        "annotations"
    ]
    assert (annotations.get(L + "leader-requests-tpus") == "true") is expected


def test_lws_6_2_claims_hand_on_only_some_fields():
    claim = {
        "metadata": {"name": "data", "labels": {"x": "y"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast",
            "volumeName": "lost",
            "resources": {"requests": {"storage": "1024Mi"}},
        },
    }
    lws = make_set(volumeClaimTemplates=[claim], persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete"})
    for made in (leader_set(lws), worker_stateful_set(lws, leader_pod(), revised(lws)).to_dict()):
        assert made["spec"]["volumeClaimTemplates"] == [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data", "namespace": lws.metadata.namespace},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "fast",
                    "volumeMode": "Filesystem",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
                "status": {"phase": "Pending"},
            }
        ]
        assert made["spec"]["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Delete"}


def test_lws_6_4_headless_service():
    lws = make_set()
    service = headless_service(lws, lws, {L + "name": "demo"}).to_dict()
    assert service["metadata"]["name"] == "demo"
    assert service["metadata"]["labels"] == {L + "name": "demo"}
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {L + "name": "demo"},
    }
    assert headless_service(leader_pod(), lws, {}).to_dict()["metadata"]["ownerReferences"][0]["kind"] == "Pod"


def test_lws_5_stored_revision_goes_out_in_the_hashed_bytes():
    pod = {"spec": {"containers": [{"name": "c", "args": ["a<b && c>d"]}]}}
    lws = make_set(workerTemplate=pod)
    revision = revised(lws)
    stored = controller_revision(lws, revision, "k9", 7)
    assert stored.metadata.name == f"demo-{revision.key}-7"
    assert stored.metadata.labels == {L + "name": "demo", L + "template-revision-hash": "k9"}
    assert b'"data":' + revision.data in stored.to_json()
    assert b"\\u003c" in stored.to_json()
    answer = ControllerRevision.from_json(stored.to_json())
    assert answer.data == stored.data
    assert type(stored).from_json(stored.to_json()).to_dict() == answer.to_dict()


def test_lws_1_defaults_of_size_and_limits():
    lws = LeaderWorkerSet.from_dict(
        {"metadata": {"name": "x", "namespace": "n"}, "spec": {"leaderWorkerTemplate": {"workerTemplate": {}}}}
    )
    assert group_size(revised(lws)) == 1
    assert strategy_of(lws) == Strategy(1, 1, 0, 0)


def test_lws_6_2_max_unavailable_of_the_leaders_is_never_zero():
    raw = make_set(replicas=4).to_dict()
    raw["spec"]["rolloutStrategy"] = {"rollingUpdateConfiguration": {"maxUnavailable": "10%", "maxSurge": "50%"}}
    assert strategy_of(LeaderWorkerSet.from_dict(raw)) == Strategy(4, 0, 2, 0)
    assert strategy_of(LeaderWorkerSet.from_dict(raw)).leader_max_unavailable == 2
    assert Strategy(4, 0, 0, 0).leader_max_unavailable == 1


def test_lws_3_group_keys():
    assert names.group_key("default", "test-sample") == "95e88034e460983f51a9952fe128729fbc0663b5"
    assert names.group_key("leaderworkerset", "test-sample") == "39f5d7e9122b9d94d3932e3720b43fd3b56347e8"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("demo-1", ("demo", 1)), ("demo-1-2", ("demo-1", 2)), ("demo", None), ("demo-", None), ("a-1x", None)],
)
def test_lws_2_3_pod_names_end_in_their_ordinal(name, expected):
    assert names.parent_and_ordinal(name) == expected
