"""In which order groups go, and how many serve meanwhile: every change of every pod recorded by a watch (LWS §6.3)."""

from contextlib import asynccontextmanager

import anyio

from pyreconcile.api.core_v1 import Pod

L = "leaderworkerset.sigs.k8s.io/"
CHANGED = {"workerTemplate": {"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}}}


class Recorder:
    """What the watch says of a set: for each change, the groups that are ready and the uids of the leaders."""

    def __init__(self, size):
        self.size = size
        self.pods = {}
        self.ready = []
        self.leaders = []

    def see(self, event):
        pod = event.object
        if event.type == "DELETED" or pod.metadata.deletion_timestamp:
            self.pods.pop(pod.metadata.name, None)
        else:
            self.pods[pod.metadata.name] = pod
        groups = {}
        for item in self.pods.values():
            groups.setdefault(int(item.metadata.labels[L + "group-index"]), []).append(is_ready(item))
        self.ready.append({index for index, pods in groups.items() if len(pods) == self.size and all(pods)})
        leads = [item for item in self.pods.values() if item.metadata.labels[L + "worker-index"] == "0"]
        self.leaders.append({int(item.metadata.labels[L + "group-index"]): item.metadata.uid for item in leads})

    def shows(self, uids):
        """Tell whether these pods are there and no others, and all are ready."""
        return {pod.metadata.uid for pod in self.pods.values() if is_ready(pod)} == uids and len(self.pods) == len(uids)


def is_ready(pod):
    conditions = (pod.status.conditions if pod.status else None) or ()
    return any(item.type == "Ready" and item.status == "True" for item in conditions)


@asynccontextmanager
async def recording(sets, size):
    """Record the pods of the set ``demo``, whose groups are all ready, while the block runs."""
    recorder = Recorder(size)
    present = set((await sets.uids()).values())

    async def watch():
        async for event in sets.client.watch(Pod, namespace=sets.namespace, labels={L + "name": "demo"}):
            recorder.see(event)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        # It may begin a little earlier than now.
        await sets.until(lambda: recorder.shows(present), what="the watch shows what there is")
        del recorder.ready[:-1], recorder.leaders[:-1]
        yield recorder
        tasks.cancel_scope.cancel()


async def four_groups(sets, **rolling):
    """Make four groups of two pods that are ready; return the uids of their leaders."""
    await sets.create(replicas=4, size=2, at_once=True, rolloutStrategy={"rollingUpdateConfiguration": rolling})
    await sets.available()
    pods = await sets.running("demo", 4, 2)
    return {index: pods[f"demo-{index}"].metadata.uid for index in range(4)}


async def renewed(sets, recorder, old, groups):
    """Wait until the watch has seen exactly these groups replaced and four groups ready, and the set is Available."""

    async def check():
        leaders = recorder.leaders[-1]
        done = len(leaders) == 4 and {i for i, uid in leaders.items() if uid != old.get(i)} == set(groups)
        return done and recorder.ready[-1] == {0, 1, 2, 3} and await sets.available()

    await sets.until(check, timeout=90, what=f"groups {groups} are new")


def order_of(recorder, old):
    """The groups in the order in which their leaders were first seen replaced."""
    seen = {}
    for leaders in recorder.leaders:
        seen.update({index: None for index, uid in leaders.items() if uid != old.get(index)})
    return list(seen)


async def test_lws_6_3_the_highest_ordinal_goes_first_and_one_group_at_a_time(sets):
    old = await four_groups(sets, maxUnavailable=1, maxSurge=0)
    async with recording(sets, 2) as recorder:
        await sets.patch("demo", leaderWorkerTemplate=CHANGED)
        await renewed(sets, recorder, old, [0, 1, 2, 3])
    assert order_of(recorder, old) == [3, 2, 1, 0]
    assert min(map(len, recorder.ready)) == 3
    assert max(map(len, recorder.leaders)) == 4


async def test_lws_6_3_a_partition_of_2_updates_groups_2_and_3_and_0_updates_the_rest(sets):
    old = await four_groups(sets, partition=2, maxUnavailable=1, maxSurge=0)
    async with recording(sets, 2) as recorder:
        await sets.patch("demo", leaderWorkerTemplate=CHANGED)
        await renewed(sets, recorder, old, [2, 3])
        assert order_of(recorder, old) == [3, 2]
        lws = await sets.available()
        assert (lws.status.updated_replicas, lws.status.ready_replicas) == (2, 4)
        assert len(await sets.revisions()) == 2
        await sets.patch("demo", rolloutStrategy={"rollingUpdateConfiguration": {"partition": 0}})
        await renewed(sets, recorder, old, [0, 1, 2, 3])
    assert order_of(recorder, old) == [3, 2, 1, 0]
    assert min(map(len, recorder.ready)) == 3


async def test_lws_6_3_a_surge_of_1_takes_4_groups_to_5_and_back_with_4_ready_throughout(sets):
    old = await four_groups(sets, maxUnavailable=0, maxSurge=1)
    async with recording(sets, 2) as recorder:
        await sets.patch("demo", leaderWorkerTemplate=CHANGED)
        await renewed(sets, recorder, old, [0, 1, 2, 3])
    assert order_of(recorder, old) == [4, 3, 2, 1, 0]
    assert max(map(len, recorder.leaders)) == 5
    assert min(map(len, recorder.ready)) == 4
    assert set(recorder.leaders[-1]) == {0, 1, 2, 3}
    await sets.running("demo", 4, 2)


async def test_lws_8_a_scale_to_1_keeps_group_0(sets):
    await four_groups(sets, maxUnavailable=1, maxSurge=0)
    before = {name: uid for name, uid in (await sets.uids()).items() if name.startswith("demo-0")}
    await sets.patch("demo", replicas=1)
    await sets.running("demo", 1, 2)
    assert await sets.uids() == before
    lws = await sets.available()
    assert lws.spec.replicas == 1
