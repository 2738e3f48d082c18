"""Groups that kube-scheduler places whole or not at all, on a control plane with the gate GenericWorkload (LWS §9)."""

from collections import Counter
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
import pytest_asyncio

from pyreconcile.api import unstructured
from pyreconcile.api.core_v1 import Node, Pod, ResourceQuota
from pyreconcile.api.scheduling_v1 import PriorityClass
from pyreconcile.client import ForbiddenError, MergePatch, NotFoundError
from pyreconcile.testing import ControlPlane, eventually
from pyreconcile_controllers.leaderworkerset import Settings, gang, gangs
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

L = "leaderworkerset.sigs.k8s.io/"
SIZE = 4
SPREAD = 30.0  # seconds that the binds of one group may take on a busy machine; a stuck group takes for ever
PodGroup = unstructured("scheduling.k8s.io/v1beta1", "PodGroup")


@pytest.fixture(scope="module")
def control_plane(_control_plane_portal):
    plane = ControlPlane(
        nodes=1, controller_manager=True, scheduler=True, feature_gates={"GenericWorkload": True}, use_existing=False
    )
    with _control_plane_portal.wrap_async_context_manager(plane):
        yield plane


@pytest.fixture
def settings(request):
    return getattr(request, "param", Settings(scheduler_provider="kubernetes"))


class Room:
    """A node of the test's own, with as many CPUs as it says, and what of its groups stands on it."""

    def __init__(self, sets):
        self.sets = sets
        self.client = sets.client
        self.name = sets.namespace
        self.cpus = 0

    async def make(self, cpus):
        self.cpus = cpus
        labels = {"test": self.name, "kubernetes.io/hostname": self.name, "rack": self.name}
        room = {"cpu": str(cpus), "memory": "64Gi", "pods": "100"}
        node = {"metadata": {"name": self.name, "labels": labels}, "status": {"allocatable": room, "capacity": room}}
        await self.client.create(Node.from_dict(node))

        async def usable():
            found = await self.client.get(Node, self.name)
            ready = any(item.type == "Ready" and item.status == "True" for item in found.status.conditions or ())
            return ready and not (found.spec and found.spec.taints)

        await self.sets.until(usable, what="the node is usable")
        await self._known_to_the_scheduler()

    def _probe(self):
        metadata = {"name": "probe", "namespace": self.sets.namespace}
        spec = {"nodeSelector": {"test": self.name}, "containers": [{"name": "c", "image": "x"}]}
        return Pod.from_dict({"metadata": metadata, "spec": spec})

    async def limit_pods(self, count):
        """Make a quota that is in force: it counts no pod that is gone, and lets no pod by that comes at once."""
        key = self.sets.key("few")
        metadata = {"name": "few", "namespace": self.sets.namespace}
        await self.client.create(ResourceQuota.from_dict({"metadata": metadata, "spec": {"hard": {"pods": "0"}}}))

        async def refuses():
            try:
                await self.client.create(self._probe(), dry_run=True)
            except ForbiddenError as error:
                return "exceeded quota" in str(error)
            return False

        async def holds():
            status = (await self.client.get(ResourceQuota, key)).to_dict().get("status") or {}
            return status.get("hard") == {"pods": str(count)} and status.get("used") == {"pods": "0"}

        # The quota controller pauses for up to 30 s when kinds come or go.
        await self.sets.until(refuses, timeout=90, what="the quota is known to admission")
        await self.client.patch(ResourceQuota, key, MergePatch({"spec": {"hard": {"pods": str(count)}}}))
        await self.sets.until(holds, timeout=90, what=f"the quota lets {count} pods by")

    async def _known_to_the_scheduler(self):
        """Have a pod that takes no room placed on the node: else whichever pod is tried first finds none."""
        probe = self._probe()
        # A new namespace has no service account for its pods at first.
        await eventually(lambda: self.client.create(probe), timeout=60, not_yet=(ForbiddenError,))

        async def placed():
            return (await self.client.get(Pod, probe.key)).spec.node_name

        await self.sets.until(placed, what="the scheduler knows the node")
        await self.client.delete(Pod, probe.key, grace_period_seconds=0)

    async def resize(self, cpus):
        self.cpus = cpus
        patch = MergePatch({"status": {"allocatable": {"cpu": str(cpus)}}})
        await self.client.patch(Node, self.name, patch, subresource="status")

    def template(self, *, image="busybox:1", cpu="1", slow="", **spec):
        pod = {
            "spec": {
                "nodeSelector": {"test": self.name},
                "containers": [{"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}}],
                **spec,
            }
        }
        if slow:
            pod["metadata"] = {"annotations": {"kwok.pyreconcile.dev/delete-delay": slow}}
        return {"workerTemplate": pod}

    async def pods(self):
        return await self.client.list(Pod, namespace=self.sets.namespace)

    async def bound(self, name="demo"):
        """How many pods of each group have a node."""
        found = Counter()
        for pod in (await self.sets.pods(name)).values():
            found[pod.metadata.name.split("-")[1]] += bool(pod.spec.node_name)
        return dict(found)

    async def until_bound(self, *counts, timeout=60):
        """Wait until the groups have so many pods on the node, in whatever order."""

        async def check():
            found = await self.bound()
            return sorted(found.values()) == sorted(counts) and (found or [True])

        return await self.sets.until(check, timeout=timeout, what=f"{counts} pods placed")

    async def until_placed(self, count, *, of):
        """Wait until so many of the pods, of whatever group, have a node, and all of them exist."""

        async def check():
            return len(await self.sets.pods()) == of and sum((await self.bound()).values()) == count

        await self.sets.until(check, what=f"{count} of {of} pods placed")

    async def refused(self, *groups):
        """Wait until kube-scheduler has said of each of these groups that it cannot place it, and we after it."""

        async def check():
            notes = await self.sets.notes()
            beginnings = [f"Group {group} waits: kube-scheduler cannot place the group: " for group in groups]
            return all(any(note.startswith(beginning) for note in notes) for beginning in beginnings)

        await self.sets.until(check, what=f"kube-scheduler has refused groups {groups}")

    async def updated(self, image):
        """Whether all pods of two groups are there, with an image."""
        pods = (await self.sets.pods()).values()
        return len(pods) == 2 * SIZE and all(pod.spec.containers[0].image == image for pod in pods)

    async def quiet(self, seconds=1.5):
        """The counts, once nothing has been bound for a while."""
        last, since = None, anyio.current_time()
        while anyio.current_time() - since < seconds:
            found = await self.bound()
            if found != last:
                last, since = found, anyio.current_time()
            await anyio.sleep(0.1)
        return last

    async def groups(self):
        found = await self.client.list(PodGroup, namespace=self.sets.namespace)
        return {item.metadata.name: item for item in found if not item.metadata.deletion_timestamp}


def group_of(pod):
    group = pod.spec.scheduling_group
    return group.pod_group_name if group else ""


class Watcher:
    """Sees every change of the pods: whether a PodGroup is partly on the node, or was let in with too little room.

    Binds of one group come one by one, but quickly.
    """

    def __init__(self, room):
        self.room = room
        self.pods = {"namespace": room.sets.namespace, "labels": {L + "name": "demo"}}
        self.placed = {}
        self.crowded = []
        self.first, self.last, self.most = {}, {}, Counter()

    async def follow(self):
        async for event in self.room.client.watch(Pod, **self.pods):
            self.see(event.type, event.object)

    def see(self, kind, pod):
        if kind == "DELETED":
            self.placed.pop(pod.metadata.uid, None)
        elif pod.spec.node_name:
            self.placed[pod.metadata.uid] = group_of(pod)
        now = anyio.current_time()
        counts = Counter(self.placed.values())
        for name, count in counts.items():
            self.first.setdefault(name, now)
            if count > self.most[name]:
                self.most[name], self.last[name] = count, now
        # A group of which the first pods are placed takes the room of all of them.
        taken = sum(count if self.most[name] >= SIZE else SIZE for name, count in counts.items())
        if taken > self.room.cpus:
            self.crowded.append((dict(counts), self.room.cpus))

    async def has_seen_all(self):
        pods = await self.room.client.list(Pod, **self.pods)
        return self.placed == {pod.metadata.uid: group_of(pod) for pod in pods if pod.spec.node_name}

    def check(self):
        assert "" not in self.most, "a pod was placed without a group"
        partial = {name: count for name, count in self.most.items() if count != SIZE}
        assert not partial, "a partial group held the node"
        assert not self.crowded, "a group was placed where there was too little room for it"
        for name, first in self.first.items():
            assert self.last[name] - first < SPREAD, name


@asynccontextmanager
async def watched(room):
    watcher = Watcher(room)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.follow)
        yield watcher
        await room.sets.until(watcher.has_seen_all, what="the watcher has seen what there is")
        tasks.cancel_scope.cancel()
    watcher.check()


@pytest_asyncio.fixture
async def room(sets):
    made = Room(sets)
    yield made
    await sets.client.delete_all_of(LeaderWorkerSet, namespace=sets.namespace)
    await sets.client.delete(Node, made.name, missing_ok=True)


@pytest.mark.parametrize("settings", [Settings()], indirect=True)
async def test_lws_9_without_gang_scheduling_half_a_group_holds_the_node(room):
    """The deadlock: two groups of four pods that ask for a CPU each, where there is one CPU, or three."""
    await room.make(1)
    await room.sets.create(replicas=2, size=SIZE, template=room.template())
    await room.until_placed(1, of=2 * SIZE)
    found = await room.quiet()
    assert sum(found.values()) == 1
    assert len(await room.sets.pods()) == 2 * SIZE
    leaders = {name: pod for name, pod in (await room.sets.pods()).items() if name.count("-") == 1}
    assert [bool(pod.spec.node_name) for pod in leaders.values()].count(True) == 1
    await room.resize(3)
    await room.until_placed(3, of=2 * SIZE)
    found = await room.quiet()
    assert sum(found.values()) == 3
    assert SIZE not in found.values()


async def test_lws_9_with_gang_scheduling_a_group_is_placed_whole_or_not_at_all(room):
    await room.make(3)
    async with watched(room):
        await room.sets.create(replicas=2, size=SIZE, template=room.template())
        await room.refused(0, 1)
        assert await room.quiet() == {"0": 0, "1": 0}
        await room.resize(4)
        await room.until_bound(0, SIZE)
        await room.resize(5)
        assert sorted((await room.quiet()).values()) == [0, SIZE]
        await room.resize(8)
        await room.until_bound(SIZE, SIZE)
    await room.sets.available()
    for group in (await room.groups()).values():
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": SIZE}}
        assert group["spec"]["disruptionMode"] == {"all": {}}


async def test_lws_9_a_recreated_group_waits_for_room_for_all_of_it(room):
    """Pods that take their time to go count as placed for the PodGroup that they name: the new ones name another."""
    await room.make(5)
    async with watched(room):
        await room.sets.create(replicas=2, size=SIZE, template=room.template(slow="1s"))
        found = await room.until_bound(0, SIZE)
        index = max(found, key=lambda key: found[key])
        before = await room.groups()
        first = next(name for name in before if name.startswith(f"demo-{index}-"))
        await room.client.delete(Pod, room.sets.key(f"demo-{index}-1"))

        async def renewed():
            current = await room.groups()
            mine = [name for name in current if name.startswith(f"demo-{index}-")]
            return first not in current and len(mine) == 1

        await room.sets.until(renewed, what="a PodGroup for the new try")
        await room.until_bound(0, SIZE)
        assert sorted((await room.quiet()).values()) == [0, SIZE]
        await room.resize(8)
        await room.until_bound(SIZE, SIZE)
        await room.sets.available()

        async def of_these_tries_only():
            return len(await room.groups()) == 2

        await room.sets.until(of_these_tries_only, what="the PodGroups of earlier tries are gone")


async def test_lws_9_a_rolling_update_replaces_the_pods_of_a_group_together(room):
    await room.make(8)
    async with watched(room):
        await room.sets.create(replicas=2, size=SIZE, template=room.template())
        await room.sets.running("demo", 2, SIZE)
        before = set(await room.groups())
        await room.sets.patch("demo", leaderWorkerTemplate=room.template(image="busybox:2"))

        await room.sets.until(lambda: room.updated("busybox:2"), timeout=90)
        await room.sets.running("demo", 2, SIZE)

        async def renewed():
            return len(await room.groups()) == 2 and not before & set(await room.groups())

        await room.sets.until(renewed, what="PodGroups of the new groups only")
    pods = await room.sets.pods()
    assert {pod.spec.containers[0].image for pod in pods.values()} == {"busybox:2"}
    # The leaders' template names no group: it would make a revision, and an update.
    assert (await room.sets.set("demo")).spec.template.spec.scheduling_group is None

    async def settled():
        return len(await room.sets.revisions()) == 1

    await room.sets.until(settled, what="one revision")


async def test_lws_9_a_rolling_update_keeps_to_it_where_there_is_room_for_one_group(room):
    await room.make(4)
    async with watched(room):
        # The lower one has the room: an update takes no ready group while the other one does not even run.
        await room.sets.create(replicas=1, size=SIZE, template=room.template())
        await room.until_bound(SIZE)
        await room.sets.patch("demo", replicas=2)
        await room.until_bound(0, SIZE)
        await room.sets.patch("demo", leaderWorkerTemplate=room.template(image="busybox:2"))

        async def begun():
            pods = (await room.sets.pods()).values()
            return any(pod.spec.containers[0].image == "busybox:2" for pod in pods)

        await room.sets.until(begun, what="the update has begun")
        assert sorted((await room.quiet()).values()) == [0, SIZE]
        await room.resize(8)
        await room.sets.until(lambda: room.updated("busybox:2"), timeout=90)
        await room.sets.running("demo", 2, SIZE)


async def test_lws_9_with_leader_ready_the_workers_are_placed_together(room):
    await room.make(3)
    await room.sets.create(replicas=1, size=SIZE, startupPolicy="LeaderReady", template=room.template())
    await room.until_bound(1)

    async def raised():
        return [gang.count_of(group.to_dict()) for group in (await room.groups()).values()] == [SIZE]

    await room.sets.until(raised, what="the count is that of the whole group")

    async def complete():
        return len(await room.sets.pods()) == SIZE

    await room.sets.until(complete)
    assert await room.quiet() == {"0": 1}
    await room.resize(4)
    await room.until_bound(SIZE)
    await room.sets.available()


async def test_lws_9_with_exclusive_topology_the_leader_chooses_the_place(room):
    await room.make(8)
    annotations = {L + "exclusive-topology": "rack"}
    await room.sets.create(replicas=1, size=SIZE, annotations=annotations, template=room.template())
    await room.sets.running("demo", 1, SIZE)
    assert [gang.count_of(group.to_dict()) for group in (await room.groups()).values()] == [SIZE]


async def test_lws_9_pod_groups_go_with_their_set(room):
    await room.make(8)
    await room.sets.create(replicas=2, size=2, template=room.template())
    await room.sets.running("demo", 2, 2)
    assert len(await room.groups()) == 2
    await room.client.delete(LeaderWorkerSet, room.sets.key("demo"))

    async def gone():
        return not await room.client.list(PodGroup, namespace=room.sets.namespace) and not await room.pods()

    # A garbage collector that does not know the set's kind yet, since its CRD is new, learns of it within 30 s.
    await room.sets.until(gone, timeout=90, what="PodGroups and pods are gone")


async def test_lws_9_a_pod_group_that_is_taken_away_comes_back(room):
    await room.make(1)
    await room.sets.create(replicas=1, size=2, template=room.template())
    await room.until_bound(0)
    (name, group), *_ = (await room.sets.until(room.groups, what="the PodGroup")).items()
    key = room.sets.key(name)
    await room.client.delete(PodGroup, key)
    with suppress(NotFoundError):  # it may be gone at once, when nobody has put a finalizer on it yet
        await room.client.patch(PodGroup, key, MergePatch({"metadata": {"finalizers": None}}))

    async def back():
        found = (await room.groups()).get(name)
        return found is not None and found.metadata.uid != group.metadata.uid

    await room.sets.until(back, what="the PodGroup is back")
    await room.resize(2)
    await room.until_bound(2)


async def test_lws_9_a_group_whose_pods_do_not_all_exist_is_spoken_of(room, monkeypatch):
    """kube-scheduler says nothing of it: no event, no condition."""
    # Later notes are counted with the first event and not shown, so it must not come before the pods; an API server's
    # times are whole seconds.
    monkeypatch.setattr(gang, "SILENT_AFTER", 5.0)
    monkeypatch.setattr(gangs, "RETRY", 0.5)
    await room.make(8)
    await room.limit_pods(2)
    await room.sets.create(replicas=1, size=SIZE, template=room.template())
    await room.sets.noted("Group 0 waits: 2 of its 4 pods exist")
    assert await room.bound() == {"0": 0}
    await room.client.delete(ResourceQuota, room.sets.key("few"))
    await room.until_bound(SIZE, timeout=60)


async def test_lws_9_workers_that_wait_for_others_behind_a_placed_leader_are_spoken_of(room, monkeypatch):
    """kube-scheduler says nothing of them either."""
    # Later notes are counted with the first event and not shown, so it must not come before the pods; an API server's
    # times are whole seconds.
    monkeypatch.setattr(gang, "SILENT_AFTER", 5.0)
    monkeypatch.setattr(gangs, "RETRY", 0.5)
    await room.make(8)
    await room.limit_pods(3)
    await room.sets.create(replicas=1, size=SIZE, startupPolicy="LeaderReady", template=room.template())
    await room.sets.noted("Group 0 waits: 3 of its 4 pods exist")
    assert await room.bound() == {"0": 1}
    await room.client.delete(ResourceQuota, room.sets.key("few"))
    await room.until_bound(SIZE, timeout=60)


async def test_lws_9_the_priority_of_a_group_is_that_of_its_pods(room):
    await room.make(4)
    name = f"high-{room.name}"
    await room.client.create(PriorityClass.from_dict({"metadata": {"name": name}, "value": 1000}))
    try:
        low = room.template()
        await room.sets.create("low", replicas=1, size=SIZE, template=low)
        await room.sets.running("low", 1, SIZE)
        # One pod of it needs one of the four places, and takes the whole group that stands there.
        await room.sets.create("demo", replicas=1, size=2, template=room.template(priorityClassName=name))
        await room.until_bound(2)
        group = next(item for key, item in (await room.groups()).items() if key.startswith("demo-0-"))
        assert (group["spec"]["priorityClassName"], group["spec"]["priority"]) == (name, 1000)

        async def gave_way():
            return set((await room.bound("low")).values()) == {0}

        await room.sets.until(gave_way, what="no pod of the other group holds the node")
    finally:
        await room.client.delete(PriorityClass, name)


@pytest.mark.parametrize("settings", [Settings()], indirect=True)
async def test_lws_9_groups_from_before_gang_scheduling_are_left_alone(room, sets):
    await room.make(8)
    await sets.create(replicas=1, size=2, template=room.template())
    await sets.running("demo", 1, 2)
    with pytest.raises(NotFoundError):
        await room.client.get(PodGroup, sets.key("demo-0"))
    assert not await room.groups()
