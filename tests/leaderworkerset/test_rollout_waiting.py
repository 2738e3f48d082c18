"""An event and ``pyreconcile lws describe`` tell what a rolling update waits for, on the real control plane."""

import json
import sys

import anyio
import pytest

from pyreconcile.testing import eventually
from pyreconcile_controllers.leaderworkerset import Settings

NOWHERE = {
    "workerTemplate": {
        "spec": {"nodeSelector": {"example.com/none": "here"}, "containers": [{"name": "c", "image": "busybox:2"}]}
    }
}
SOMEWHERE = {"workerTemplate": {"spec": {"nodeSelector": None, "containers": [{"name": "c", "image": "busybox:3"}]}}}


@pytest.fixture
def settings():
    return Settings(waiting_event_after=2)  # times in objects are whole seconds


async def waits(sets):
    events = await sets.client.list(sets.Event, namespace=sets.namespace)
    return [event for event in events if event["reason"] == "RolloutWaiting"]


async def described(control_plane, sets, *arguments):
    command = [sys.executable, "-m", "pyreconcile", "lws", "describe", "demo", "-n", sets.namespace, *arguments]
    done = await anyio.run_process([*command, "--kubeconfig", str(control_plane.kubeconfig)])
    return done.stdout.decode()


async def test_lws_6_5_an_event_and_the_description_tell_what_a_rollout_waits_for(sets, control_plane):
    await sets.create(replicas=2, size=2)
    before = await sets.available()
    assert not await waits(sets)
    await sets.patch("demo", leaderWorkerTemplate=NOWHERE)

    async def told():
        # On a busy machine there may be others before: the pod took its time to be there, or to be tried.
        return [event for event in await waits(sets) if " is not scheduled: " in event["note"]]

    [event] = await eventually(told, timeout=60, interval=0.1, what="an event tells of the wait")
    assert event["type"] == "Normal"
    assert event["regarding"]["name"] == "demo"
    assert event["related"]["name"].startswith("demo-1")
    assert event["note"].startswith("Rollout of revision ")
    assert " waits for group 1 since " in event["note"]
    assert ": pod demo-1" in event["note"]

    conditions = await sets.conditions()
    assert conditions["UpdateInProgress"] == ("True", "Rolling Upgrade is in progress")  # upstream's words

    text = await described(control_plane, sets)
    assert f"LeaderWorkerSet {sets.namespace}/demo\n  2 groups of 2 pods, 1 ready, " in text
    assert "\n  waits for group 1 for " in text
    assert "├─ 0  ready, revision " in text
    assert "└─ 1  not ready, revision " in text
    found = json.loads(await described(control_plane, sets, "-o", "json"))
    assert found["rollout"]["waitsFor"]["group"] == 1
    assert found["rollout"]["waitsFor"]["reason"] == "Unschedulable"
    assert [revision["groups"] for revision in found["revisions"]] == [[1], [0]]
    assert [revision["current"] for revision in found["revisions"]] == [True, False]

    await sets.patch("demo", leaderWorkerTemplate=SOMEWHERE)

    async def done():
        lws = await sets.available()
        return lws.metadata.generation > before.metadata.generation and lws.status.updated_replicas == 2

    await sets.until(done, what="the update is done")
    assert {event["note"].partition(" since ")[0].partition(" waits ")[2] for event in await waits(sets)} <= {
        "for group 1",
        "for group 0",
    }
    text = await described(control_plane, sets)
    assert "No rollout; the next may have at most 1 unavailable, 0 surge" in text
    assert "waits for" not in text


async def test_lws_6_5_a_set_that_is_not_there_is_one_line(control_plane, namespace):
    command = [sys.executable, "-m", "pyreconcile", "lws", "describe", "none", "-n", namespace]
    done = await anyio.run_process([*command, "--kubeconfig", str(control_plane.kubeconfig)], check=False)
    assert done.returncode == 1
    assert b"not found" in done.stderr
    assert len(done.stderr.splitlines()) == 1
