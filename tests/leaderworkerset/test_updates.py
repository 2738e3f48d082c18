"""Rolling updates and revisions on the real control plane (LWS §5, §6.3, §8; field cases O-12, O-14)."""

from contextlib import asynccontextmanager

import anyio
import orjson

from pyreconcile.api.apps_v1 import ControllerRevision, StatefulSet
from pyreconcile.api.core_v1 import Pod
from pyreconcile.client import MergePatch
from pyreconcile_controllers.leaderworkerset.revision import revision_of

L = "leaderworkerset.sigs.k8s.io/"
KEY = L + "template-revision-hash"


def worker_template(image):
    return {"workerTemplate": {"spec": {"containers": [{"name": "c", "image": image}]}}}


def keys(pods):
    return {pod.metadata.labels[KEY] for pod in pods.values()}


async def updated(sets, groups, name="demo"):
    """Wait until the set is available with this many groups of its newest revision; return it."""

    async def check():
        lws = await sets.available(name)
        wanted = revision_of(lws.spec.to_dict()).key
        pods = await sets.pods(name)
        size = lws.spec.leader_worker_template.size
        done = lws.status.updated_replicas == lws.status.replicas == groups
        return done and keys(pods) == {wanted} and len(pods) == groups * size and lws

    return await sets.until(check, timeout=90, what=f"{groups} groups of the new revision")


async def test_lws_13_1_rolling_update_replaces_every_group(sets):
    await sets.create(replicas=3, size=2)
    await sets.available()
    old = set((await sets.uids()).values())
    await sets.patch("demo", leaderWorkerTemplate=worker_template("busybox:2"))
    lws = await updated(sets, 3)
    assert not old & set((await sets.uids()).values())
    leaders = await sets.set("demo")
    assert leaders.spec.update_strategy.rolling_update.partition == 0
    key = revision_of(lws.spec.to_dict()).key
    await sets.noted(f"Creating revision with key {key} for updated LWS")
    for note in ("Updating replica 2", "Updating replica 1", "Updating replica 0"):
        await sets.noted(note)
    assert (await sets.conditions())["UpdateInProgress"] == ("False", "Rolling Upgrade is in progress")

    async def one_revision():
        return [groups_key(item) for item in await sets.revisions()] == [key]

    await sets.until(one_revision)


def groups_key(obj):
    return obj.metadata.labels[KEY]


@asynccontextmanager
async def replicas_seen(sets):
    """What the leader StatefulSet of ``demo`` was told while the block runs, however shortly."""
    seen = []

    def see(found):
        if found.metadata.name == "demo":
            seen.append(found.spec.replicas)

    async def watch():
        async for event in sets.client.watch(StatefulSet, namespace=sets.namespace):
            see(event.object)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await sets.until(lambda: seen, what="the watch shows what there is")
        yield seen
        tasks.cancel_scope.cancel()


async def test_lws_13_1_surge_groups_come_and_go(sets):
    rolling = {"maxUnavailable": 0, "maxSurge": 1}
    await sets.create(
        replicas=2, size=2, rolloutStrategy={"type": "RollingUpdate", "rollingUpdateConfiguration": rolling}
    )
    await sets.available()
    async with replicas_seen(sets) as seen:
        await sets.patch("demo", leaderWorkerTemplate=worker_template("busybox:2"))
        await sets.until(lambda: 3 in seen, what="a surge group")
        await updated(sets, 2)
    await sets.noted("deleting surge replica demo-2")
    await sets.running("demo", 2, 2)


async def test_lws_13_1_partition_holds_groups_back(sets):
    rolling = {"partition": 1, "maxUnavailable": 1, "maxSurge": 0}
    await sets.create(
        replicas=2, size=2, rolloutStrategy={"type": "RollingUpdate", "rollingUpdateConfiguration": rolling}
    )
    await sets.available()
    before = await sets.pods()
    await sets.patch("demo", leaderWorkerTemplate=worker_template("busybox:2"))

    async def one_updated():
        lws = await sets.available()
        return lws.status.updated_replicas == 1

    await sets.until(one_updated)
    pods = await sets.running("demo", 2, 2)
    assert pods["demo-0"].metadata.uid == before["demo-0"].metadata.uid
    assert groups_key(pods["demo-1"]) != groups_key(before["demo-1"])
    assert len(await sets.revisions()) == 2
    await sets.patch("demo", rolloutStrategy={"rollingUpdateConfiguration": {"partition": 0}})
    await updated(sets, 2)


async def test_lws_15_9_groups_that_a_partition_holds_back_are_added_as_the_old_revision(sets):
    rolling = {"partition": 4, "maxUnavailable": 1, "maxSurge": 0}
    await sets.create(
        replicas=2, size=2, rolloutStrategy={"type": "RollingUpdate", "rollingUpdateConfiguration": rolling}
    )
    await sets.available()
    old = groups_key(await sets.set("demo"))
    await sets.patch("demo", leaderWorkerTemplate=worker_template("busybox:2"))

    async def changed():
        return groups_key(await sets.set("demo")) != old

    await sets.until(changed)
    await sets.patch("demo", replicas=3)
    assert keys(await sets.running("demo", 3, 2)) == {old}
    assert len(await sets.revisions()) == 2
    await sets.patch("demo", rolloutStrategy={"rollingUpdateConfiguration": {"partition": 0}})
    await updated(sets, 3)


async def test_lws_8_a_new_size_rolls_through(sets):
    await sets.create(replicas=2, size=2)
    await sets.available()
    await sets.patch("demo", leaderWorkerTemplate={"size": 3})
    await updated(sets, 2)
    pods = await sets.running("demo", 2, 3)
    assert {pod.metadata.annotations[L + "size"] for pod in pods.values()} == {"3"}


async def test_lws_16_2_the_way_back_uses_the_stored_revision(sets):
    rolling = {"partition": 1, "maxUnavailable": 1, "maxSurge": 0}
    await sets.create(
        replicas=2, size=1, rolloutStrategy={"type": "RollingUpdate", "rollingUpdateConfiguration": rolling}
    )
    await sets.available()
    (first,) = await sets.revisions()
    await sets.patch("demo", leaderWorkerTemplate=worker_template("busybox:2"))

    async def half():
        return (await sets.available()).status.updated_replicas == 1 and len(await sets.revisions()) == 2

    await sets.until(half)
    await sets.patch("demo", leaderWorkerTemplate=worker_template("busybox:1"))

    async def back():
        return (await sets.available()).status.updated_replicas == 2

    await sets.until(back)
    assert len(await sets.revisions()) == 2
    assert groups_key(await sets.set("demo")) == groups_key(first)


async def test_o_14_an_old_group_is_rebuilt_as_the_old_revision(sets):
    held = {"name": "c", "image": "busybox:2"}
    await sets.create(replicas=2, size=3)
    await sets.available()
    old_key = groups_key(await sets.set("demo"))
    gated = {"spec": {"containers": [held], "schedulingGates": [{"name": "test/hold"}]}}
    await sets.client.patch(
        type(await sets.get()),
        sets.key("demo"),
        MergePatch(
            {
                "spec": {
                    "leaderWorkerTemplate": {"size": 2, "workerTemplate": gated},
                    "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
                }
            }
        ),
    )

    async def held_back():
        pods = await sets.pods()
        leader = pods.get("demo-1")
        return leader and groups_key(leader) != old_key

    await sets.until(held_back)
    old = await sets.uids()
    await sets.client.delete(Pod, sets.key("demo-0"), grace_period_seconds=0)

    async def rebuilt():
        pods = {name: pod for name, pod in (await sets.pods()).items() if name.startswith("demo-0")}
        new = all(old.get(name) != pod.metadata.uid for name, pod in pods.items())
        return new and set(pods) == {"demo-0", "demo-0-1", "demo-0-2"} and pods

    pods = await sets.until(rebuilt)
    assert keys(pods) == {old_key}
    assert {pod.metadata.annotations[L + "size"] for pod in pods.values()} == {"3"}
    assert {pod.spec.containers[0].image for pod in pods.values()} == {"busybox:1"}
    assert {pod.spec.subdomain for pod in pods.values()} == {"demo"}
    assert (await sets.worker_sets())["demo-0"].spec.replicas == 2

    async def release():
        for name, pod in (await sets.pods()).items():
            if pod.spec.scheduling_gates:
                await sets.client.patch(Pod, sets.key(name), MergePatch({"spec": {"schedulingGates": None}}))
        lws = await sets.get()
        return lws.status.updated_replicas == 2 and lws.status.ready_replicas == 2

    await sets.until(release, timeout=90)
    await sets.running("demo", 2, 2)


async def test_lws_15_2_take_over_keeps_the_key_of_the_leaders(sets, manager):
    await sets.create(replicas=0, size=2)
    await sets.available()
    (stored,) = await sets.revisions()
    # As a controller with other bytes would have left it: another key, and a payload that says the same.
    data = orjson.loads(orjson.dumps(stored.data))
    data["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"] = {"creationTimestamp": None}
    adopted = ControllerRevision.from_dict(
        {
            "metadata": {
                "name": "demo-adopted-9",
                "namespace": sets.namespace,
                "labels": {L + "name": "demo", KEY: "adopted"},
                "ownerReferences": stored.to_dict()["metadata"]["ownerReferences"],
            },
            "data": data,
            "revision": 9,
        }
    )
    await sets.client.create(adopted)

    async def known():
        return await manager.cache.find_raw(ControllerRevision, sets.key("demo-adopted-9"))

    await sets.until(known, what="the manager knows the revision before it sees who has its key")
    labelled = {"metadata": {"labels": {KEY: "adopted"}}}
    patch = MergePatch({**labelled, "spec": {"template": labelled}})
    await sets.client.patch(StatefulSet, sets.key("demo"), patch)
    await sets.patch("demo", replicas=1)
    before = await sets.running("demo", 1, 2)
    assert keys(before) == {"adopted"}
    lws = await sets.available()
    assert lws.status.updated_replicas == 1
    await sets.client.patch(type(lws), sets.key("demo"), MergePatch({"metadata": {"labels": {"x": "y"}}}))

    async def touched():
        return (await sets.set("demo")).metadata.labels.get("x") == "y"

    await sets.until(touched)
    assert groups_key(await sets.set("demo")) == "adopted"
    assert [item.metadata.name for item in await sets.revisions()] == ["demo-adopted-9"]
    assert await sets.uids() == {name: pod.metadata.uid for name, pod in before.items()}
    assert not [note for note in await sets.notes() if "updated LWS" in note]


async def test_lws_13_1_a_missing_revision_is_made_with_the_key_of_the_leaders(sets):
    await sets.create(replicas=1, size=1, rolloutStrategy={"rollingUpdateConfiguration": {"partition": 1}})
    await sets.available()
    await sets.client.patch(StatefulSet, sets.key("demo"), MergePatch({"metadata": {"labels": {KEY: "template-hash"}}}))
    await sets.noted("Creating missing revision with key template-hash for existing LeaderWorkerSet")
    assert groups_key(await sets.set("demo")) == "template-hash"
    assert "template-hash" in {groups_key(item) for item in await sets.revisions()}


async def test_lws_5_stored_revision_is_the_hashed_payload(sets):
    lws = await sets.create(replicas=0, size=1, image="a<b&c")
    await sets.available()
    revision = revision_of(lws.spec.to_dict())
    (stored,) = await sets.revisions()
    assert stored.metadata.name == f"demo-{revision.key}-1"
    path = ControllerRevision.resource.path(sets.namespace, stored.metadata.name)
    raw = await sets.client.transport.request("GET", path)
    assert b'"data":' + revision.data in raw


async def test_o_12_a_set_of_which_no_group_was_ever_ready_is_updated(sets):
    gated = {"spec": {"containers": [{"name": "c", "image": "bad"}], "schedulingGates": [{"name": "test/hold"}]}}
    rolling = {"rollingUpdateConfiguration": {"maxUnavailable": 0, "maxSurge": 1}}
    await sets.create(replicas=3, size=1, template={"workerTemplate": gated}, rolloutStrategy=rolling)

    async def all_there():
        return len(await sets.pods()) == 3

    await sets.until(all_there)
    free = {"spec": {"containers": [{"name": "c", "image": "good"}], "schedulingGates": None}}
    await sets.patch("demo", leaderWorkerTemplate={"workerTemplate": free})
    await updated(sets, 3)
    leaders = await sets.set("demo")
    assert (leaders.spec.replicas, leaders.spec.update_strategy.rolling_update.partition) == (3, 0)


async def test_o_15_a_new_set_with_a_partition_makes_no_surge_groups(sets):
    rolling = {"rollingUpdateConfiguration": {"partition": 9, "maxUnavailable": 1, "maxSurge": 2}}
    await sets.create(replicas=2, size=2, rolloutStrategy=rolling)
    await sets.available()
    before = await sets.uids()
    assert len(before) == 4
    await sets.patch("demo", leaderWorkerTemplate=worker_template("busybox:2"))

    async def seen():
        return len(await sets.revisions()) == 2 and await sets.available()

    await sets.until(seen)
    assert await sets.uids() == before
    assert (await sets.set("demo")).spec.replicas == 2
    assert not [note for note in await sets.notes() if "surge" in note]
