"""Groups that fail as one, on the real control plane (LWS §7.2, §15.30; field case O-13)."""

import anyio
import pytest

from pyreconcile.api.core_v1 import Pod
from pyreconcile.client import MergePatch
from pyreconcile_controllers.leaderworkerset.pod_controller import PodReconciler

L = "leaderworkerset.sigs.k8s.io/"


async def started(sets, *, replicas=2, size=3, **wanted):
    """A running set and the UIDs of its pods."""
    await sets.create(replicas=replicas, size=size, **wanted)
    pods = await sets.running("demo", replicas, size)
    await sets.available()
    return {name: pod.metadata.uid for name, pod in pods.items()}


async def renewed(sets, old, names):
    """Wait until these pods are new ones, and all pods run; return all UIDs."""

    async def check():
        uids = await sets.uids()
        return all(name in uids and uids[name] != old[name] for name in names)

    await sets.until(check, what=f"{names} are new")
    groups = {name.split("-")[1] for name in old}
    await sets.running("demo", len(groups), len(old) // len(groups))
    return await sets.uids()


GROUP_0 = ["demo-0", "demo-0-1", "demo-0-2"]
GROUP_1 = ["demo-1", "demo-1-1", "demo-1-2"]


async def test_o_13_a_worker_deleted_at_once_takes_its_group_along(sets):
    old = await started(sets, at_once=True)
    await sets.client.delete(Pod, sets.key("demo-0-1"), grace_period_seconds=0)
    new = await renewed(sets, old, GROUP_0)
    assert all(new[name] == old[name] for name in GROUP_1)
    await sets.available()
    note = "Worker pod demo-0-1 failed, deleted leader pod demo-0 to recreate group 0"
    await sets.noted(note)
    assert [text for text in await sets.notes() if "to recreate group" in text] == [note]


class Gate:
    """Holds every pass of the pod controller while it is closed."""

    def __init__(self):
        self.opened = anyio.Event()
        self.opened.set()

    def close(self):
        self.opened = anyio.Event()


@pytest.fixture
def gate(monkeypatch):
    found = Gate()
    reconcile = PodReconciler.reconcile

    async def held(self, request):
        await found.opened.wait()
        return await reconcile(self, request)

    monkeypatch.setattr(PodReconciler, "reconcile", held)
    return found


async def test_o_13_a_worker_that_was_replaced_before_anyone_looked_takes_its_group_along(gate, sets):
    old = await started(sets, replicas=1, at_once=True)
    gate.close()
    await sets.client.delete(Pod, sets.key("demo-0-2"), grace_period_seconds=0)

    async def replaced():
        return (await sets.uids()).get("demo-0-2", old["demo-0-2"]) != old["demo-0-2"]

    await sets.until(replaced)
    gate.opened.set()
    await renewed(sets, old, GROUP_0)
    await sets.available()
    note = "Worker pod demo-0-2 failed, deleted leader pod demo-0 to recreate group 0"
    await sets.noted(note)
    assert [text for text in await sets.notes() if "to recreate group" in text] == [note]


async def test_lws_7_2_a_worker_deleted_with_grace_takes_its_group_along(sets):
    old = await started(sets, replicas=1, size=3)
    await sets.client.delete(Pod, sets.key("demo-0-2"))
    await renewed(sets, old, GROUP_0)


async def test_lws_7_2_a_restarted_container_takes_its_group_along(sets):
    old = await started(sets)
    restarted = [{"name": "c", "restartCount": 1, "image": "busybox:1", "imageID": "", "ready": True}]
    patch = MergePatch({"status": {"containerStatuses": restarted}})
    await sets.client.patch(Pod, sets.key("demo-1-2"), patch, subresource="status")
    new = await renewed(sets, old, GROUP_1)
    assert all(new[name] == old[name] for name in GROUP_0)
    await sets.noted("Worker pod demo-1-2 failed, deleted leader pod demo-1 to recreate group 1")


async def test_lws_7_2_a_restarted_leader_takes_its_group_along(sets):
    old = await started(sets, replicas=1, size=2)
    restarted = [{"name": "c", "restartCount": 1, "image": "busybox:1", "imageID": "", "ready": True}]
    patch = MergePatch({"status": {"containerStatuses": restarted}})
    await sets.client.patch(Pod, sets.key("demo-0"), patch, subresource="status")
    await renewed(sets, old, ["demo-0", "demo-0-1"])
    await sets.noted("Worker pod demo-0 failed, deleted leader pod demo-0 to recreate group 0")


async def test_lws_7_2_a_deleted_leader_gets_new_workers_once(sets):
    old = await started(sets, replicas=1, size=2, at_once=True)
    await sets.client.delete(Pod, sets.key("demo-0"), grace_period_seconds=0)
    new = await renewed(sets, old, ["demo-0", "demo-0-1"])
    await sets.available()
    assert await sets.uids() == new
    assert not [text for text in await sets.notes() if "to recreate group" in text]


async def test_lws_7_2_policy_none_heals_the_pod_alone(sets):
    old = await started(sets, replicas=1, size=3, template={"restartPolicy": "None"})
    await sets.client.delete(Pod, sets.key("demo-0-1"), grace_period_seconds=0)
    new = await renewed(sets, old, ["demo-0-1"])
    assert (new["demo-0"], new["demo-0-2"]) == (old["demo-0"], old["demo-0-2"])


async def test_lws_7_2_after_start_a_started_group_is_recreated(sets):
    old = await started(sets, replicas=1, size=3, template={"restartPolicy": "RecreateGroupAfterStart"})
    await sets.client.delete(Pod, sets.key("demo-0-1"), grace_period_seconds=0)
    await renewed(sets, old, GROUP_0)


async def test_lws_7_2_after_start_a_group_that_still_starts_is_left_alone(sets):
    held = {"spec": {"containers": [{"name": "c", "image": "x"}], "schedulingGates": [{"name": "test/hold"}]}}
    free = {"spec": {"containers": [{"name": "c", "image": "x"}]}}
    template = {"restartPolicy": "RecreateGroupAfterStart", "workerTemplate": held, "leaderTemplate": free}
    await sets.create(replicas=1, size=3, template=template)

    async def complete():
        return len(await sets.uids()) == 3 and await sets.uids()

    old = await sets.until(complete)
    await sets.client.delete(Pod, sets.key("demo-0-1"), grace_period_seconds=0)

    async def replaced():
        uids = await sets.uids()
        return uids.get("demo-0-1", old["demo-0-1"]) != old["demo-0-1"] and uids

    new = await sets.until(replaced)
    assert (new["demo-0"], new["demo-0-2"]) == (old["demo-0"], old["demo-0-2"])


async def test_lws_7_2_the_annotation_asks_for_the_same_patience(sets):
    held = {"spec": {"containers": [{"name": "c", "image": "x"}], "schedulingGates": [{"name": "test/hold"}]}}
    free = {"spec": {"containers": [{"name": "c", "image": "x"}]}}
    await sets.create(
        replicas=1,
        size=2,
        template={"workerTemplate": held, "leaderTemplate": free},
        annotations={L + "experimental-recreate-group-after-start": ""},
    )

    async def complete():
        return len(await sets.uids()) == 2 and await sets.uids()

    old = await sets.until(complete)
    await sets.client.delete(Pod, sets.key("demo-0-1"), grace_period_seconds=0)

    async def replaced():
        uids = await sets.uids()
        return uids.get("demo-0-1", old["demo-0-1"]) != old["demo-0-1"] and uids

    assert (await sets.until(replaced))["demo-0"] == old["demo-0"]
