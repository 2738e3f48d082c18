"""What the controller does while it sees pods late, or misses what became of them (LWS §16.1; field case O-13)."""

import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import Pod
from pyreconcile.client import MergePatch
from pyreconcile.testing import Match

BEHIND = 2.0
WATCH = Match(resource="pods", verb="watch")
READ = Match(resource="pods", where=lambda request: request.verb in ("watch", "list"))
RESUMED = Match(resource="pods", where=lambda request: request.verb == "watch" and not request.streaming_list)
LISTED = Match(resource="pods", where=lambda request: request.verb == "list" or request.streaming_list)
NAMES = ["demo-0", "demo-0-1", "demo-0-2"]


@pytest.fixture
def manager_options(manager_options, proxy):
    """All that the manager hears of the cluster comes through the proxy; the test itself looks past it."""
    return replace(manager_options, connect=proxy.connect_options())


async def delete_worker(sets):
    """Delete worker 2 at once; return when its StatefulSet has made another of the name."""
    old = (await sets.uids())["demo-0-2"]
    await sets.client.delete(Pod, sets.key("demo-0-2"), grace_period_seconds=0)

    async def replaced():
        return (await sets.uids()).get("demo-0-2", old) != old

    await sets.until(replaced)


@pytest.mark.parametrize("variant", ["late", "plain", "cut"])
async def test_o_13_the_loss_of_a_worker_recreates_the_group_once(sets, proxy, manager, variant):
    await sets.create(replicas=1, size=3, at_once=True)
    await sets.running("demo", 1, 3)
    await sets.available()
    old = await sets.uids()
    assert sorted(old) == NAMES
    with ExitStack() as faults:
        if variant == "late":
            faults.enter_context(proxy.delay_stream(WATCH, seconds=BEHIND))
            await delete_worker(sets)
        elif variant == "plain":
            await sets.client.delete(Pod, sets.key("demo-0-2"), grace_period_seconds=0)
        else:
            with proxy.refuse(READ):
                await delete_worker(sets)
                # The version of the watch has expired: pods are listed anew, and no event tells of the deletion.
                expired = faults.enter_context(proxy.answer(410, RESUMED, times=1))
                outage = time.monotonic()

        async def renewed():
            uids = await sets.uids()
            return sorted(uids) == NAMES and not set(uids.values()) & set(old.values()) and uids

        new = await sets.until(renewed)
        await sets.running("demo", 1, 3)
        await sets.available()

    async def settled():
        pods = await manager.cache.list(Pod, namespace=sets.namespace)
        return {pod.metadata.name: pod.metadata.uid for pod in pods} == new

    await sets.until(settled)
    await sets.available()
    assert await sets.uids() == new
    if variant == "cut":
        assert expired.hits == 1
        assert proxy.requests(LISTED, since=outage)
    deletions = proxy.requests(Match(resource="pods", verb="delete"))
    assert [request.name for request in deletions] == ["demo-0"]
    note = "Worker pod demo-0-2 failed, deleted leader pod demo-0 to recreate group 0"
    await sets.noted(note)
    assert [text for text in await sets.notes() if "to recreate group" in text] == [note]


KEY = "leaderworkerset.sigs.k8s.io/template-revision-hash"


async def test_lws_16_1_workers_get_the_revision_that_their_leader_has_by_now(sets, proxy):
    """The leader's label was changed in place, and the controller has not seen that when it makes workers anew."""
    rolling = {"partition": 1, "maxUnavailable": 1, "maxSurge": 0}
    await sets.create(
        replicas=2, size=2, rolloutStrategy={"type": "RollingUpdate", "rollingUpdateConfiguration": rolling}
    )
    await sets.running("demo", 2, 2)
    await sets.available()
    changed = {"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}}
    await sets.patch("demo", leaderWorkerTemplate={"workerTemplate": changed})

    async def half():
        return (await sets.available()).status.updated_replicas == 1

    await sets.until(half)
    new, before = (await sets.set("demo")).metadata.labels[KEY], (await sets.worker_sets())["demo-0"]
    assert before.metadata.labels[KEY] != new
    with proxy.delay_stream(WATCH, seconds=BEHIND):
        await sets.client.patch(Pod, sets.key("demo-0"), MergePatch({"metadata": {"labels": {KEY: new}}}))
        await sets.client.delete(StatefulSet, before.key)

        async def another():
            found = (await sets.worker_sets()).get("demo-0")
            return found and found.metadata.uid != before.metadata.uid and found

        made = await sets.until(another)
    assert made.metadata.labels[KEY] == made.spec.template.metadata.labels[KEY] == new
