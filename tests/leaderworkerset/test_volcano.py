"""PodGroups of Volcano (LWS §9), with a stand-in for its CRD; the cases are those of LWS §13.1, §13.3 and §13.4."""

from pathlib import Path

import pytest

from pyreconcile.api import copy_json
from pyreconcile.client import MergePatch
from pyreconcile_controllers.leaderworkerset import Settings, volcano
from pyreconcile_controllers.leaderworkerset.revision import revision_of
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

L = "leaderworkerset.sigs.k8s.io/"
CRD = Path(__file__).with_name("data") / "volcano-podgroup.yaml"
CPU = {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}


@pytest.fixture
def settings():
    return Settings(scheduler_provider="volcano")


@pytest.fixture
async def gangs(control_plane, sets):
    await control_plane.install_crds(CRD)
    return sets


async def pod_groups(sets):
    found = await sets.client.list(volcano.POD_GROUP, namespace=sets.namespace)
    return {item.metadata.name: item for item in found if not item.metadata.deletion_timestamp}


async def until_groups(sets, names):
    async def check():
        found = await pod_groups(sets)
        return found.keys() == set(names) and (found or [True])

    # A garbage collector that does not know the kind yet, since its CRD is new, learns of it within 30 s.
    return await sets.until(check, timeout=90, what=f"PodGroups {sorted(names)}")


async def key_of(sets, name="demo"):
    return (await sets.set(name)).metadata.labels[L + "template-revision-hash"]


def leader(**annotations):
    return {
        "metadata": {
            "name": "test-0",
            "namespace": "default",
            "uid": "u",
            "labels": {L + "name": "test", L + "group-index": "0", L + "template-revision-hash": "1"},
            "annotations": {L + "size": "2", **annotations},
        },
        "spec": {"containers": [{"name": "c", "image": "i", **CPU}], "overhead": {"cpu": "100m"}},
    }


def the_set(*, size=3, annotations=None, **spec):
    worker = {"name": "w", "image": "i", "resources": {"limits": {"cpu": "2", "nvidia.com/gpu": "8"}}}
    template = {"size": size, "workerTemplate": {"spec": {"containers": [worker]}}}
    return LeaderWorkerSet.from_dict(
        {
            "metadata": {"name": "test", "namespace": "default", "annotations": annotations or {}},
            "spec": {"leaderWorkerTemplate": template, **spec},
        }
    )


def made(lws, pods):
    pod = leader()
    volcano.annotate(pod)
    return volcano.pod_group(lws, pod, revision_of(lws.spec.to_dict()), pods).to_dict()


def test_lws_9_pods_carry_the_name_of_their_group():
    pod = leader()
    volcano.annotate(pod)
    assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "test-0-1"
    assert volcano.named_in(pod) == "test-0-1"
    bare = copy_json(leader())
    del bare["metadata"]["annotations"]
    assert volcano.named_in(bare) == ""
    volcano.annotate(bare)
    assert volcano.named_in(bare) == "test-0-1"


def test_lws_9_a_pod_group_wants_all_pods_and_all_they_request():
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "test-0", "uid": "u", "controller": True}
    assert made(the_set(), 3) | {"apiVersion": "", "kind": ""} == {
        "apiVersion": "",
        "kind": "",
        "metadata": {
            "name": "test-0-1",
            "namespace": "default",
            "labels": {L + "name": "test", L + "group-index": "0", L + "template-revision-hash": "1"},
            "annotations": {},
            "ownerReferences": [owner | {"blockOwnerDeletion": True}],
        },
        "spec": {"minMember": 3, "minResources": {"cpu": "5100m", "memory": "1Gi", "nvidia.com/gpu": "16"}},
    }


def test_lws_9_queue_and_volcanos_annotations_come_from_the_set():
    annotations = {
        "scheduling.volcano.sh/queue-name": "batch",
        "volcano.sh/preemptable": "true",
        "example.com/other": "x",
    }
    group = made(the_set(annotations=annotations), 3)
    assert group["spec"]["queue"] == "batch"
    assert group["metadata"]["annotations"] == {"volcano.sh/preemptable": "true"}


def test_lws_9_a_leader_that_comes_first_is_a_group_of_its_own():
    group = made(the_set(startupPolicy="LeaderReady"), 3)
    assert group["spec"]["minMember"] == 1
    assert group["spec"]["minResources"]["cpu"] == "5100m"


async def test_lws_13_4_pod_groups_are_made_with_the_leaders(gangs):
    annotations = {"scheduling.volcano.sh/queue-name": "batch", "volcano.sh/x": "y"}
    pod = {"spec": {"containers": [{"name": "c", "image": "i", **CPU}]}}
    await gangs.create(size=4, annotations=annotations, template={"workerTemplate": pod})
    pods = await gangs.running("demo", 2, 4)
    key = await key_of(gangs)
    found = await until_groups(gangs, [f"demo-0-{key}", f"demo-1-{key}"])
    for index in (0, 1):
        group, owner = found[f"demo-{index}-{key}"], pods[f"demo-{index}"]
        assert group["spec"]["minMember"] == 4
        assert group["spec"]["minResources"] == {"cpu": "4", "memory": "4Gi"}
        assert group["spec"]["queue"] == "batch"
        assert group.metadata.annotations == {"volcano.sh/x": "y"}
        reference = group.metadata.owner_references[0]
        assert (reference.kind, reference.uid, reference.controller) == ("Pod", owner.metadata.uid, True)
        assert group.metadata.labels == {
            L + "name": "demo",
            L + "group-index": str(index),
            L + "template-revision-hash": key,
        }
    for name, item in pods.items():
        index = name.split("-")[1]
        assert item.metadata.annotations["scheduling.k8s.io/group-name"] == f"demo-{index}-{key}"
    await gangs.available()
    # Only a manager that did not find the kind at first, since it was made just before, tells that all is well again.
    assert (await gangs.conditions()).get("GangScheduling", ("True",))[0] == "True"


async def test_lws_13_4_pod_groups_want_the_leader_alone_with_startup_policy_leader_ready(gangs):
    await gangs.create(size=4, startupPolicy="LeaderReady")
    await gangs.running("demo", 2, 4)
    key = await key_of(gangs)
    found = await until_groups(gangs, [f"demo-0-{key}", f"demo-1-{key}"])
    assert [group["spec"]["minMember"] for group in found.values()] == [1, 1]


async def test_lws_13_4_pod_groups_go_with_their_set(gangs):
    await gangs.create(replicas=1, size=2)
    key = await key_of_running(gangs, 1, 2)
    await until_groups(gangs, [f"demo-0-{key}"])
    await gangs.client.delete(LeaderWorkerSet, gangs.key("demo"))
    await until_groups(gangs, [])


async def key_of_running(gangs, groups, size):
    await gangs.running("demo", groups, size)
    return await key_of(gangs)


async def test_lws_13_4_a_resized_set_gets_pod_groups_of_the_new_size(gangs):
    await gangs.create(replicas=1, size=2)
    old = await key_of_running(gangs, 1, 2)
    found = await until_groups(gangs, [f"demo-0-{old}"])
    assert found[f"demo-0-{old}"]["spec"]["minMember"] == 2
    await gangs.patch("demo", leaderWorkerTemplate={"size": 4})
    new = await key_of_running(gangs, 1, 4)
    assert new != old
    found = await until_groups(gangs, [f"demo-0-{new}"])
    assert found[f"demo-0-{new}"]["spec"]["minMember"] == 4


async def test_lws_13_4_a_rolling_update_makes_pod_groups_of_the_new_revision(gangs):
    await gangs.create(size=2)
    old = await key_of_running(gangs, 2, 2)
    await until_groups(gangs, [f"demo-0-{old}", f"demo-1-{old}"])
    template = {"workerTemplate": {"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}}}
    await gangs.patch("demo", leaderWorkerTemplate=template)

    async def updated():
        lws = await gangs.get()
        return lws.status.updated_replicas == 2 and lws.status.observed_generation == lws.metadata.generation

    await gangs.until(updated)
    new = await key_of(gangs)
    await until_groups(gangs, [f"demo-0-{new}", f"demo-1-{new}"])
    await gangs.available()


async def test_lws_9_a_recreated_group_gets_a_pod_group_of_its_new_leader(gangs):
    """Its name is that of the old one, which has to go first."""
    await gangs.create(replicas=1, size=2)
    old = await gangs.running("demo", 1, 2)
    key = await key_of(gangs)
    await until_groups(gangs, [f"demo-0-{key}"])
    await gangs.client.delete(type(old["demo-0"]), gangs.key("demo-0"), grace_period_seconds=0)

    async def renewed():
        group = (await pod_groups(gangs)).get(f"demo-0-{key}")
        pods = await gangs.pods()
        if group is None or len(pods) < 2 or pods["demo-0"].metadata.uid == old["demo-0"].metadata.uid:
            return False
        return group.metadata.owner_references[0].uid == pods["demo-0"].metadata.uid

    await gangs.until(renewed, timeout=90, what="a PodGroup of the new leader")


async def test_lws_9_a_group_rebuilt_mid_update_asks_for_its_own_size(gangs):
    never = {"metadata": {"annotations": {"kwok.pyreconcile.dev/never-ready": "true"}}}
    await gangs.create(replicas=2, size=3)
    old = await key_of_running(gangs, 2, 3)
    pod = {"spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
    await gangs.patch("demo", leaderWorkerTemplate={"size": 2, "workerTemplate": never | pod})

    async def updating():
        pods = await gangs.pods()
        return "demo-1" in pods and pods["demo-1"].metadata.labels[L + "template-revision-hash"] != old

    await gangs.until(updating)
    pods = await gangs.pods()
    await gangs.client.delete(type(pods["demo-0"]), gangs.key("demo-0"), grace_period_seconds=0)

    async def rebuilt():
        pods, found = await gangs.pods(), await pod_groups(gangs)
        group = found.get(f"demo-0-{old}")
        if group is None or not {"demo-0", "demo-0-1", "demo-0-2"} <= pods.keys():
            return False
        return group.metadata.owner_references[0].uid == pods["demo-0"].metadata.uid and group

    group = await gangs.until(rebuilt, timeout=90, what="group 0 of the old revision")
    assert group["spec"]["minMember"] == 3
    release = MergePatch({"metadata": {"annotations": {"kwok.pyreconcile.dev/never-ready": None}}})
    for name in ("demo-1", "demo-1-1"):
        await gangs.client.patch(type(pods["demo-0"]), gangs.key(name), release)
