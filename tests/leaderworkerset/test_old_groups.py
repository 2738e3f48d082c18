"""Field case O-14: a group that an update has not reached yet is rebuilt as its own revision, in every part."""

import pytest

from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import Pod
from pyreconcile.client import MergePatch
from pyreconcile_controllers.leaderworkerset import groups

L = "leaderworkerset.sigs.k8s.io/"
KEY = L + "template-revision-hash"
HELD = "kwok.pyreconcile.dev/never-ready"


def template(image, *, held=False, size=None):
    metadata = {"annotations": {HELD: "true"}} if held else {}
    worker = {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": image}]}}
    return {"workerTemplate": worker, **({} if size is None else {"size": size})}


def env_of(pod):
    return {entry.name: entry.value for entry in pod.spec.containers[0].env}


async def update(sets, *, size, policy):
    """Update to image v2 of another size and policy; return once group 1 is of it, and held."""
    old = (await sets.set("demo")).metadata.labels[KEY]
    network = {"networkConfig": {"subdomainPolicy": policy}}
    await sets.patch("demo", leaderWorkerTemplate=template("busybox:2", held=True, size=size), **network)

    async def begun():
        leader = (await sets.pods()).get("demo-1")
        return leader and leader.metadata.labels[KEY] != old and leader.status.phase == "Running"

    await sets.until(begun)
    return old


async def rebuild(sets, size):
    """Delete the leader of group 0; return the pods of the group once they all are new and ready."""
    old = set((await sets.uids()).values())
    await sets.client.delete(Pod, sets.key("demo-0"), grace_period_seconds=0)

    async def rebuilt():
        pods = {name: pod for name, pod in (await sets.pods()).items() if f"{name}-".startswith("demo-0-")}
        conditions = [item for pod in pods.values() for item in (pod.status.conditions or ())]
        ready = sum(item.type == "Ready" and item.status == "True" for item in conditions)
        new = not old & {pod.metadata.uid for pod in pods.values()}
        return new and len(pods) == ready == size and pods

    return await sets.until(rebuilt)


async def release(sets, groups_, size):
    """Let the new revision become ready, and wait until all groups are of it."""

    async def done():
        for name, pod in (await sets.pods()).items():
            if HELD in pod.metadata.annotations:
                patch = MergePatch({"metadata": {"annotations": {HELD: None}}})
                await sets.client.patch(Pod, sets.key(name), patch)
        status = (await sets.get()).status
        return status.updated_replicas == status.ready_replicas == groups_

    await sets.until(done, timeout=90)
    pods = await sets.running("demo", groups_, size)
    assert {pod.spec.containers[0].image for pod in pods.values()} == {"busybox:2"}
    assert {pod.metadata.annotations[L + "size"] for pod in pods.values()} == {str(size)}
    await sets.available()


@pytest.mark.parametrize("new_size", [2, 1])
async def test_o_14_an_old_group_comes_back_as_the_old_revision(sets, new_size):
    await sets.create(replicas=2, size=4, template=template("busybox:1"))
    await sets.running("demo", 2, 4)
    await sets.available()
    old = await update(sets, size=new_size, policy="UniquePerReplica")
    pods = await rebuild(sets, 4)
    assert sorted(pods) == ["demo-0", "demo-0-1", "demo-0-2", "demo-0-3"]
    assert {pod.metadata.labels[KEY] for pod in pods.values()} == {old}
    assert {pod.metadata.annotations[L + "size"] for pod in pods.values()} == {"4"}
    assert {pod.spec.containers[0].image for pod in pods.values()} == {"busybox:1"}
    assert {pod.spec.subdomain for pod in pods.values()} == {"demo"}
    assert {env_of(pod)["LWS_GROUP_SIZE"] for pod in pods.values()} == {"4"}
    assert {env_of(pod)["LWS_LEADER_ADDRESS"] for pod in pods.values()} == {f"demo-0.demo.{sets.namespace}"}
    workers = await sets.client.get(StatefulSet, sets.key("demo-0"))
    assert (workers.spec.replicas, workers.spec.service_name) == (3, "demo")
    assert "demo" in await sets.services()
    await release(sets, 2, new_size)


async def test_o_14_an_old_group_with_a_service_of_its_own_gets_it_again(sets):
    await sets.create(
        replicas=2,
        size=2,
        template=template("busybox:1"),
        networkConfig={"subdomainPolicy": "UniquePerReplica"},
    )
    await sets.running("demo", 2, 2)
    await sets.available()
    await update(sets, size=2, policy="Shared")
    pods = await rebuild(sets, 2)
    assert {pod.spec.subdomain for pod in pods.values()} == {"demo-0"}

    async def served():
        service = (await sets.services()).get("demo-0")
        return service and service.metadata.owner_references[0].uid == pods["demo-0"].metadata.uid

    await sets.until(served)
    await release(sets, 2, 2)


async def test_o_14_an_old_group_is_not_ready_while_its_workers_are_not(sets):
    """The set's size is 1 by now, the group's is 3: its leader alone does not count as ready."""
    await sets.create(replicas=2, size=3, template=template("busybox:1"))
    await sets.running("demo", 2, 3)
    await sets.available()
    await update(sets, size=1, policy="Shared")
    patch = MergePatch({"metadata": {"annotations": {HELD: "true"}}})
    await sets.client.patch(Pod, sets.key("demo-0-2"), patch)

    async def seen():
        return (await sets.get()).status.ready_replicas == 0

    await sets.until(seen)
    await release(sets, 2, 1)


def leader(size, key="old"):
    labels = {L + "name": "demo", L + "worker-index": "0", L + "group-index": "0", KEY: key}
    metadata = {"name": "demo-0", "namespace": "ns", "uid": "u", "labels": labels}
    if size is not None:
        metadata["annotations"] = {L + "size": size}
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": metadata, "status": {"phase": "Running", "conditions": ready}}


@pytest.mark.parametrize(
    ("own", "size", "counts"),
    [("1", 4, [True]), ("4", 1, []), ("4", 4, []), (None, 1, [True]), (None, 4, []), ("?", 1, [True])],
)
def test_o_14_groups_are_counted_by_their_own_size(own, size, counts):
    """Without a worker StatefulSet only groups of one pod count, and those are ready with their leader."""
    assert [group.ready for group in groups.counted_groups(size, "new", [leader(own)], [])] == counts
