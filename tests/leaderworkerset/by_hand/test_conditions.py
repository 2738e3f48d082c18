"""Conditions and their events, state by state; pods driven by hand (LWS §6.5, §6.6, §13.1)."""

import pytest

from pyreconcile.api import unstructured
from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import Service
from pyreconcile.client import ForbiddenError, MergePatch
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

pytestmark = pytest.mark.asyncio(loop_scope="module")

Quota = unstructured("v1", "ResourceQuota")
PROGRESSING, AVAILABLE, UPDATING = {"Progressing"}, {"Available"}, {"Progressing", "UpdateInProgress"}


async def types(hand):
    return {item.type: item.status for item in (await hand.get()).status.conditions}


async def test_lws_13_1_available_state_with_its_event(hand):
    await hand.create()
    await hand.ready(0, 1)
    await hand.shows(AVAILABLE, replicas=2, partition=0, ready=2, updated=2)
    await hand.noted("All replicas are ready, with 2 groups ready of total 2 groups")


async def test_lws_13_1_progressing_state_with_its_event(hand):
    await hand.create()
    await hand.shows(PROGRESSING, replicas=2, partition=0, ready=0)
    await hand.noted("Replicas are progressing, with 0 groups ready of total 2 groups")


async def test_lws_13_1_conditions_switch_from_progressing_to_available_to_progressing(hand):
    await hand.create()
    await hand.shows(PROGRESSING, replicas=2, partition=0, ready=0)
    await hand.noted("Replicas are progressing, with 0 groups ready of total 2 groups")
    await hand.ready(0, 1)
    await hand.shows(AVAILABLE, replicas=2, partition=0, ready=2, updated=2)
    assert await types(hand) == {"Progressing": "False", "Available": "True"}
    await hand.noted("All replicas are ready, with 2 groups ready of total 2 groups")
    await hand.patch(replicas=3)
    await hand.shows(PROGRESSING, replicas=3, partition=0, ready=2, updated=2)
    assert await types(hand) == {"Progressing": "True", "Available": "False"}
    await hand.noted("Replicas are progressing, with 2 groups ready of total 3 groups")


@pytest.mark.parametrize("surge", [0, 2])
async def test_lws_13_1_no_update_is_in_progress_while_a_set_begins(hand, surge):
    await hand.create(replicas=4, size=2, rolling={"maxSurge": surge}, leaders=False)
    for index in range(4):
        await hand.leaders(index)
        await hand.settled()
        assert "UpdateInProgress" not in await types(hand)
    await hand.shows(PROGRESSING, replicas=4, partition=0, ready=0)
    await hand.valid(4)
    assert not [note for note in await hand.notes() if "Upgrade" in note]


async def test_lws_13_1_conditions_that_were_wiped_are_restored(hand):
    await hand.create()
    await hand.shows(PROGRESSING, replicas=2, partition=0)
    patch = MergePatch({"status": {"conditions": []}})
    await hand.client.patch(LeaderWorkerSet, hand.key(), patch, subresource="status")
    await hand.shows(PROGRESSING, replicas=2, partition=0)


async def test_lws_6_6_a_lost_group_takes_availability_away(hand):
    await hand.running()
    await hand.unready(1)
    await hand.shows(PROGRESSING, replicas=2, partition=0, ready=1, updated=2)
    await hand.ready(1)
    await hand.shows(AVAILABLE, replicas=2, partition=0, ready=2, updated=2)


async def test_lws_6_6_only_available_ends_update_in_progress_and_nothing_is_removed(hand):
    await hand.running(replicas=1)
    await hand.change()
    await hand.shows(UPDATING, replicas=1, partition=0, ready=1, updated=0)
    await hand.remove(0)
    await hand.leaders(0)
    await hand.shows(UPDATING, replicas=1, partition=0, ready=0, updated=1)
    await hand.ready(0)
    await hand.shows(AVAILABLE, replicas=1, partition=0, ready=1, updated=1)
    assert await types(hand) == {"Available": "True", "Progressing": "False", "UpdateInProgress": "False"}
    conditions = {item.type: item for item in (await hand.get()).status.conditions}
    assert conditions["UpdateInProgress"].reason == "GroupsUpdating"  # A condition that ends keeps its text.
    assert (await hand.get()).metadata.generation == conditions["UpdateInProgress"].observed_generation


async def test_lws_6_5_events_carry_reason_action_and_what_they_relate_to(hand):
    await hand.running(replicas=3, rolling={"maxUnavailable": 2})
    await hand.change()
    await hand.shows(UPDATING, replicas=3, partition=1, ready=3, updated=0)
    await hand.ready(2, 1, 0)
    await hand.shows(AVAILABLE, replicas=3, partition=0)
    revision, leader = "ControllerRevision", "Pod"
    key = (await hand.leader_set()).metadata.labels["leaderworkerset.sigs.k8s.io/template-revision-hash"]
    expected = {
        f"Creating revision with key {key} for updated LWS": ("Normal", "CreatingRevision", "Create", revision),
        "Created leader statefulset test-sample": ("Normal", "GroupsProgressing", "Create", revision),
        "Created worker statefulset for leader pod test-sample-2": ("Normal", "GroupsProgressing", "Create", leader),
        "Updating replicas 1 to 2 (inclusive)": ("Normal", "GroupsUpdating", "Update", revision),
        "Updating replica 0": ("Normal", "GroupsUpdating", "Update", revision),
        "Rolling Upgrade is in progress, with 3 groups ready of total 3 groups": (
            "Normal", "GroupsUpdating", "Update", None,
        ),
        "All replicas are ready, with 3 groups ready of total 3 groups": ("Normal", "AllGroupsReady", "Update", None),
    }  # fmt: skip
    for note in expected:
        await hand.noted(note)
    notes = {}
    for event in await hand.client.list(hand.Event, namespace=hand.namespace):
        raw = event.to_dict()
        assert raw["reportingController"] == "leaderworkerset"
        assert raw["regarding"]["kind"] == "LeaderWorkerSet"
        related = (raw.get("related") or {}).get("kind")
        notes[raw["note"]] = (raw["type"], raw["reason"], raw["action"], related)
    assert {note: notes.get(note) for note in expected} == expected


async def refuse(hand, what, probe):
    """Have the API server refuse new objects of one sort, by a quota whose status is written by hand too."""
    raw = {"metadata": {"name": "none", "namespace": hand.namespace}, "spec": {"hard": {what: "0"}}}
    quota = await hand.client.create(Quota.from_dict(raw))
    patch = MergePatch({"status": {"hard": {what: "0"}, "used": {what: "0"}}})
    await hand.client.patch(Quota, quota.key, patch, subresource="status")

    async def refused():
        try:
            await hand.client.create(probe, dry_run=True)
        except ForbiddenError:
            return True
        return False

    await hand.until(refused, what="the quota is in force")


async def failed(hand, beginning):
    async def told():
        events = [event.to_dict() for event in await hand.client.list(hand.Event, namespace=hand.namespace)]
        return next((event for event in events if event["note"].startswith(beginning)), None)

    return await hand.until(told, what=f"event {beginning!r}")


def stateful_set(hand):
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "serviceName": "p", "template": template}
    return StatefulSet.from_dict({"metadata": {"name": "probe", "namespace": hand.namespace}, "spec": spec})


async def test_lws_6_5_a_worker_stateful_set_that_is_refused_is_told_with_its_leader(hand):
    await hand.create(replicas=1, leaders=False)
    await refuse(hand, "count/statefulsets.apps", stateful_set(hand))
    await hand.leaders(0)
    event = await failed(hand, "Failed to create worker statefulset for leader pod test-sample-0: ")
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "FailedCreate", "Create")
    assert event["related"]["name"] == "test-sample-0"


async def test_lws_6_5_a_headless_service_that_is_refused_is_told(hand):
    spec = {"clusterIP": "None"}
    probe = Service.from_dict({"metadata": {"name": "probe", "namespace": hand.namespace}, "spec": spec})
    await refuse(hand, "services", probe)
    await hand.create(replicas=1)
    event = await failed(hand, "Failed to create headless service for error: ")
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "FailedCreate", "Create")
    assert event.get("related") is None
