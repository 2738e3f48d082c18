"""Groups that keep failing, and the delay that a set asks for, on the real control plane (docs/restart-budget.md)."""

from datetime import UTC, datetime, timedelta

import pytest

from pyreconcile.api.core_v1 import Pod
from pyreconcile.client import ApiError, MergePatch
from pyreconcile_controllers.leaderworkerset import restart_budget
from pyreconcile_controllers.leaderworkerset.pod_controller import PodReconciler
from pyreconcile_controllers.leaderworkerset.recreation import RestartBudget
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

L = "leaderworkerset.sigs.k8s.io/"
BACKOFF = "leaderworkerset.pyreconcile.dev/restart-backoff"
RECORD = "restarts.leaderworkerset.pyreconcile.dev/group-"


class Clock:
    """The time of restart budgets. It can be stopped, so that a delay is not over before a test has looked at it."""

    def __init__(self):
        self._behind = timedelta()
        self._stopped = None

    def __call__(self):
        return self._stopped or datetime.now(UTC) - self._behind

    def stop(self):
        self._stopped = self()

    def go_on(self):
        self._behind = datetime.now(UTC) - self._stopped
        self._stopped = None


@pytest.fixture
def clock(monkeypatch):
    found = Clock()

    def budget(self):
        return RestartBudget(self.client, self.cache, self._events, now=found)

    monkeypatch.setattr(PodReconciler, "_budget", property(budget))
    return found


async def fail(sets, name):
    """Have a container of a pod started again."""
    restarted = [{"name": "c", "restartCount": 1, "image": "busybox:1", "imageID": "", "ready": True}]
    patch = MergePatch({"status": {"containerStatuses": restarted}})
    await sets.client.patch(Pod, sets.key(name), patch, subresource="status")


async def started(sets, groups, size=2, **wanted):
    await sets.create(replicas=groups, size=size, at_once=True, **wanted)
    await sets.running("demo", groups, size)
    await sets.available()
    return await sets.uids()


async def recreated(sets, old, group, groups, size=2):
    """Wait until every pod of one group is new and all pods run; return all UIDs. The other groups are as before."""

    async def check():
        uids = await sets.uids()
        mine = [name for name in old if name.split("-")[1] == str(group)]
        return all(name in uids and uids[name] != old[name] for name in mine) and uids

    await sets.until(check, what=f"group {group} is new")
    await sets.running("demo", groups, size)
    await sets.available()
    uids = await sets.uids()
    assert {name for name in old if uids[name] == old[name]} == {
        name for name in old if name.split("-")[1] != str(group)
    }
    return uids


async def record(sets, group):
    annotations = (await sets.set("demo")).metadata.annotations
    return restart_budget.Record.from_text(annotations.get(f"{RECORD}{group}"))


async def backoff_condition(sets):
    return (await sets.conditions()).get("RestartBackoff")


async def annotate(sets, **annotations):
    patch = MergePatch({"metadata": {"annotations": {f"{BACKOFF}{name}": text for name, text in annotations.items()}}})
    await sets.client.patch(LeaderWorkerSet, sets.key("demo"), patch)


async def test_lws_16_6_without_the_annotation_groups_are_recreated_at_once_for_ever(sets):
    uids = await started(sets, 1)
    for _ in range(3):
        await fail(sets, "demo-0-1")
        uids = await recreated(sets, uids, 0, 1)
    assert await record(sets, 0) is None
    assert set(await sets.conditions()) == {"Progressing", "Available"}
    assert not [note for note in await sets.notes() if "recreated in" in note]


async def test_lws_16_6_with_it_the_second_failure_waits_and_other_groups_do_not(clock, sets):
    uids = await started(sets, 2, annotations={BACKOFF: "1s", f"{BACKOFF}-max": "1h"})
    clock.stop()
    await fail(sets, "demo-0-1")
    uids = await recreated(sets, uids, 0, 2)
    first = await record(sets, 0)
    assert (first.recreations, first.failure.pod) == (1, "demo-0-1")
    assert await backoff_condition(sets) is None

    await fail(sets, "demo-0")
    await sets.noted("Pod demo-0 failed: group 0 is recreated in 1 s, after 1 recreation")

    async def shown():
        condition = await backoff_condition(sets)
        return condition and condition[0] == "True" and condition

    assert "because of pod demo-0, after 1 recreation" in (await sets.until(shown))[1]
    assert await sets.uids() == uids
    clock.go_on()
    uids = await recreated(sets, uids, 0, 2)
    second = await record(sets, 0)
    assert second.recreations == 2
    assert (second.last - first.last).total_seconds() >= 0.99
    await sets.noted("Worker pod demo-0 failed, deleted leader pod demo-0 to recreate group 0")

    await fail(sets, "demo-1-1")
    await recreated(sets, uids, 1, 2)
    assert (await record(sets, 1)).recreations == 1

    async def over():
        return await backoff_condition(sets) == ("False", "no group waits to be recreated")

    await sets.until(over)


async def test_lws_16_6_what_waits_is_recreated_by_the_next_process(clock, process):
    async with process() as sets:
        uids = await started(sets, 1, size=3, annotations={BACKOFF: "2s"})
        clock.stop()
        await fail(sets, "demo-0-1")
        uids = await recreated(sets, uids, 0, 1, size=3)
        # Gone and replaced: nothing but the record tells of this failure.
        await sets.client.delete(Pod, sets.key("demo-0-2"), grace_period_seconds=0)

        async def waits():
            known = await record(sets, 0)
            replaced = (await sets.uids()).get("demo-0-2", uids["demo-0-2"]) != uids["demo-0-2"]
            return replaced and known.waits and known

        before = await sets.until(waits)
        assert (before.recreations, before.failure.pod) == (1, "demo-0-2")
        assert (await sets.uids())["demo-0"] == uids["demo-0"]
    async with process() as sets:
        clock.go_on()
        await recreated(sets, uids, 0, 1, size=3)
        after = await record(sets, 0)
        assert after.recreations == 2
        assert (after.last - before.last).total_seconds() >= 1.99
        await sets.noted("Worker pod demo-0-2 failed, deleted leader pod demo-0 to recreate group 0")


async def test_lws_16_6_taking_the_delay_back_ends_the_wait(sets):
    uids = await started(sets, 1, annotations={BACKOFF: "1h"})
    await fail(sets, "demo-0-1")
    uids = await recreated(sets, uids, 0, 1)
    await fail(sets, "demo-0-1")

    async def waits():
        return (await record(sets, 0)).waits and await backoff_condition(sets)

    assert (await sets.until(waits))[0] == "True"
    await annotate(sets, **{"": None})
    await recreated(sets, uids, 0, 1)

    async def forgotten():
        return await record(sets, 0) is None and await backoff_condition(sets) is None

    await sets.until(forgotten)


async def test_lws_16_6_a_group_that_stays_well_begins_anew(sets):
    uids = await started(sets, 1, annotations={BACKOFF: "1h", f"{BACKOFF}-max": "1h", f"{BACKOFF}-reset": "1s"})
    await fail(sets, "demo-0-1")
    uids = await recreated(sets, uids, 0, 1)

    async def forgotten():
        return await record(sets, 0) is None

    await sets.until(forgotten)
    await fail(sets, "demo-0-1")
    await recreated(sets, uids, 0, 1)


async def test_lws_16_6_annotations_that_cannot_be_used_are_refused(sets):
    with pytest.raises(ApiError, match=r"metadata\.annotations\.leaderworkerset\.pyreconcile\.dev/restart-backoff: "):
        await sets.create(annotations={BACKOFF: "soon"})
    with pytest.raises(ApiError, match=r"node-loss: Invalid value: \"force\": must be Force or Wait"):
        await sets.create(annotations={"leaderworkerset.pyreconcile.dev/node-loss": "force"})
