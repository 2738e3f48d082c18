"""What wakes the controllers: whatever of a set's objects is changed or deleted is put right (LWS §10)."""

import pytest

from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import Service
from pyreconcile.cache import CacheOptions
from pyreconcile.client import MergePatch

L = "leaderworkerset.sigs.k8s.io/"


def other_than(uid, find):
    async def check():
        found = await find()
        return found is not None and found.metadata.uid != uid

    return check


async def test_lws_10_what_the_set_owns_is_made_again(sets):
    await sets.create(replicas=1, size=2)
    await sets.available()
    for kind in (StatefulSet, Service):
        found = await sets.client.get(kind, sets.key("demo"))
        await sets.client.delete(kind, sets.key("demo"))
        await sets.until(
            other_than(found.metadata.uid, lambda kind=kind: sets.client.find(kind, sets.key("demo"))),
            what=f"another {kind.__name__}",
        )
    await sets.available()


async def test_lws_10_a_leader_stateful_set_without_its_label_gets_it_back(sets):
    await sets.create(replicas=1, size=1)
    await sets.available()
    patch = MergePatch({"metadata": {"labels": {L + "name": None}}, "spec": {"replicas": 0}})
    await sets.client.patch(StatefulSet, sets.key("demo"), patch)

    async def right():
        found = await sets.set("demo")
        return found.metadata.labels.get(L + "name") == "demo" and found.spec.replicas == 1

    await sets.until(right, what="label and replicas are back")


async def test_lws_10_a_worker_stateful_set_that_is_deleted_comes_back_with_its_group(sets):
    await sets.create(replicas=2, size=2)
    await sets.available()
    before = await sets.uids()
    found = (await sets.worker_sets())["demo-1"]
    await sets.client.delete(StatefulSet, found.key)
    await sets.until(
        other_than(found.metadata.uid, lambda: sets.client.find(StatefulSet, found.key)), what="another demo-1"
    )
    await sets.running("demo", 2, 2)
    after = await sets.uids()
    assert {name: after[name] for name in ("demo-0", "demo-0-1")} == {
        name: before[name] for name in ("demo-0", "demo-0-1")
    }


def test_lws_10_everything_is_looked_at_again_after_ten_hours():
    assert CacheOptions().resync_period == pytest.approx(10 * 3600)
