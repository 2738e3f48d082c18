"""Sets on the real control plane: objects, scaling in place, changes of mind, what is lost comes back (DS §5-§10)."""

from itertools import pairwise

import anyio
import pytest

from pyreconcile.api import unstructured
from pyreconcile.api.core_v1 import Pod, Service
from pyreconcile.client import ForbiddenError, InvalidError, MergePatch
from pyreconcile_controllers.disaggregatedset import DisaggregatedSet
from pyreconcile_controllers.leaderworkerset import LeaderWorkerSet

pytestmark = pytest.mark.plane

D = "disaggregatedset.x-k8s.io/"
HELD = {"schedulingGates": [{"name": "test/hold"}]}


def held(role):
    """The role with pods that never run."""
    role["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"] |= HELD
    return role


async def rolling_to_held(sets, role, prefill=3, decode=2):
    """A set in the middle of a rollout to pods that never run; returns both revisions."""
    await sets.create(role("prefill", prefill), role("decode", decode))
    await sets.available()
    (old,) = await sets.revisions()
    await sets.set_roles(held(role("prefill", prefill, image="busybox:2")), held(role("decode", decode)))

    async def begun():
        found = await sets.lws()
        new = {rev for rev, _ in found} - {old}
        return new and all(lws.spec.replicas == 1 for (rev, _), lws in found.items() if rev in new) and new.pop()

    return old, await sets.until(begun)


async def test_ds_6_fresh_set_gets_its_objects_and_is_available(sets, role):
    await sets.create(role("prefill", 2, size=2, metadata={"labels": {"team": "x"}}), role("decode", 1))
    owner = await sets.available()
    assert owner.status.to_dict()["roleStatuses"] == [
        {"name": "prefill", "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2},
        {"name": "decode", "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1},
    ]
    assert [(item.type, item.status, item.reason) for item in owner.status.conditions] == [
        ("Progressing", "False", "AllRolesReady"),
        ("Available", "True", "AllRolesReady"),
    ]
    found = await sets.lws()
    (revision,) = {revision for revision, _ in found}
    prefill = found[revision, "prefill"]
    assert prefill.metadata.name == f"demo-0-{revision}-prefill"
    assert prefill.metadata.labels["team"] == "x"
    assert prefill.metadata.labels["app"] == "demo-0-prefill"
    (reference,) = prefill.metadata.owner_references
    assert (reference.kind, reference.uid, reference.controller) == ("DisaggregatedSet", owner.metadata.uid, True)
    assert len(await sets.pods(name="demo", role="prefill", revision=revision, slice="0")) == 4
    assert len(await sets.pods(name="demo", role="decode", revision=revision, slice="0")) == 1

    async def services():
        found = await own_services(sets)
        return len(found) == 2 and found

    service = (await sets.until(services))[f"demo-0-{revision}-prefill-prv"]
    assert service.spec.cluster_ip == "None"
    assert not service.spec.ports
    assert service.spec.selector[D + "revision"] == revision
    assert "RollingUpdateStarted" not in await sets.reasons()


async def test_ds_6_replicas_change_in_place_and_other_fields_reach_nothing(sets, role):
    await sets.create(role("prefill", 2), role("decode", 1))
    await sets.available()
    before = {key: lws.metadata.uid for key, lws in (await sets.lws()).items()}
    await sets.set_roles(role("prefill", 3, metadata={"labels": {"new": "label"}}), role("decode", 2))
    await sets.available()
    assert await sets.replicas() == {"prefill": 3, "decode": 2}
    found = await sets.lws()
    assert {key: lws.metadata.uid for key, lws in found.items()} == before
    assert not any("new" in lws.metadata.labels for lws in found.values())
    await sets.set_roles(role("prefill", 1), role("decode", 1))
    await sets.available()
    assert await sets.replicas() == {"prefill": 1, "decode": 1}


async def test_ds_10_all_roles_at_zero_are_available_and_a_new_template_then_needs_no_rollout(sets, role):
    await sets.create(role("prefill", 0), role("decode", 0))
    await sets.available()
    before = await sets.revisions()
    await sets.set_roles(role("prefill", 0, image="busybox:2"), role("decode", 0))

    async def replaced():
        return len(found := await sets.revisions()) == 1 and found != before

    await sets.until(replaced)
    assert "RollingUpdateStarted" not in await sets.reasons()
    assert await own_services(sets) == {}


async def test_ds_7_broken_revision_waits_and_the_next_one_replaces_it(sets, role):
    old, broken = await rolling_to_held(sets, role)
    found = await sets.lws()
    assert [found[old, name].spec.replicas for name in ("prefill", "decode")] == [3, 2]
    assert found[old, "prefill"].metadata.annotations[D + "initial-replicas"] == "3"
    await sets.set_roles(role("prefill", 3, image="busybox:3"), role("decode", 2, image="busybox:3"))
    async with sets.watching() as watcher:
        await sets.available()
    assert await sets.replicas() == {"prefill": 3, "decode": 2}
    assert not {old, broken} & await sets.revisions()
    for snapshot in watcher.states:
        assert sum(min(pair) for (_, name), pair in snapshot.items() if name == "prefill") >= 3
        assert sum(min(pair) for (_, name), pair in snapshot.items() if name == "decode") >= 2
    assert_ended_as_a_whole(watcher.states, broken)


def assert_ended_as_a_whole(snapshots, revision):
    """Both roles of a revision went from 1 to 0 by two writes with no other between them."""
    left = [
        tuple(snapshot.get((revision, name), (0, 0))[0] for name in ("prefill", "decode")) for snapshot in snapshots
    ]
    seen = [now for before, now in pairwise([None, *left]) if now != before]
    assert seen == [(1, 1), (0, 1), (0, 0)][-len(seen) :]
    others = [
        {key: wanted for key, (wanted, _) in snapshot.items() if key[0] != revision}
        for snapshot, now in zip(snapshots, left, strict=True)
        if now == (0, 1)
    ]
    assert all(wanted == others[0] for wanted in others)


async def test_ds_13_8_going_back_in_the_middle_makes_the_first_revision_the_current_one_again(sets, role):
    old, broken = await rolling_to_held(sets, role)
    before = {key: lws.metadata.uid for key, lws in (await sets.lws()).items()}
    async with sets.watching() as watcher:
        await sets.set_roles(role("prefill", 3), role("decode", 2))
        owner = await sets.available()
    found = await sets.lws()
    assert {key: lws.metadata.uid for key, lws in found.items()} == {k: v for k, v in before.items() if k[0] == old}
    assert D + "initial-replicas" not in found[old, "prefill"].metadata.annotations
    assert owner.status.role_statuses[0].updated_replicas == 3
    assert all(snapshot[old, "prefill"][0] == 3 for snapshot in watcher.states)
    assert broken not in await sets.revisions()


async def test_ds_13_3_lost_leader_worker_set_of_the_new_revision_is_made_again(sets, role):
    _, new = await rolling_to_held(sets, role)
    lost = (await sets.lws())[new, "decode"]
    await sets.client.delete(lost)

    async def renewed():
        found = (await sets.lws()).get((new, "decode"))
        return found is not None and found.metadata.uid != lost.metadata.uid

    await sets.until(renewed)


async def test_ds_16_roles_are_added_removed_and_renamed(sets, role):
    await sets.create(role("prefill", 2), role("decode", 1))
    await sets.available()
    await sets.set_roles(role("prefill", 2), role("decode", 1), role("encode", 2))
    await sets.available()
    assert await sets.replicas() == {"prefill": 2, "decode": 1, "encode": 2}
    await sets.set_roles(role("prefill", 2), role("encode", 2))
    await sets.available()
    assert await sets.replicas() == {"prefill": 2, "encode": 2}
    # With other names throughout, upstream leaves the old ones for ever (DS §13.5).
    await sets.set_roles(role("first", 1), role("second", 1))
    owner = await sets.available()
    assert await sets.replicas() == {"first": 1, "second": 1}
    assert [entry.name for entry in owner.status.role_statuses] == ["first", "second"]


async def test_ds_8_services_of_both_revisions_stand_while_both_serve(sets, role):
    await sets.create(role("prefill", 2), role("decode", 2))
    await sets.available()
    (old,) = await sets.revisions()

    async def made():
        return len(await own_services(sets)) == 2

    await sets.until(made)
    seen = []

    async def watch():
        async for event in sets.client.watch(Service, namespace=sets.namespace):
            revision = event.object.metadata.labels.get(D + "revision")
            if revision and event.type != "MODIFIED":
                seen.append((event.type, revision))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await sets.until(lambda: seen == [("ADDED", old)] * 2)
        await sets.set_roles(role("prefill", 2, image="busybox:2"), role("decode", 2))
        await sets.available()
        (new,) = await sets.revisions()
        expected = [*[("ADDED", old)] * 2, *[("ADDED", new)] * 2, *[("DELETED", old)] * 2]
        await sets.until(lambda: seen == expected, what=f"{expected}, seen {seen}")
        tasks.cancel_scope.cancel()


async def own_services(sets):
    return {name: item for name, item in (await sets.services()).items() if name.endswith("-prv")}


async def test_ds_13_14_deleted_service_comes_back(sets, role):
    await sets.create(role("prefill"), role("decode"))
    await sets.available()

    async def made():
        return next((item for name, item in (await own_services(sets)).items() if name.endswith("-decode-prv")), None)

    first = await sets.until(made)
    await sets.client.delete(first)

    async def renewed():
        found = await made()
        return found and found.metadata.uid != first.metadata.uid

    await sets.until(renewed)


async def test_ds_6_names_taken_by_others_are_reported_and_left_alone(sets, role):
    roles = role("prefill", 0), role("decode", 0)
    await sets.create(*roles, name="twin")
    await sets.available("twin")
    ((revision, twin),) = [(key[0], lws) for key, lws in (await sets.lws("twin")).items() if key[1] == "decode"]
    name = f"demo-0-{revision}-decode"
    metadata = {"name": name, "namespace": sets.namespace, "labels": {**twin.metadata.labels, D + "name": "demo"}}
    foreign = LeaderWorkerSet.from_dict({"metadata": metadata, "spec": twin.to_dict()["spec"]})
    foreign = await sets.client.create(foreign)
    await sets.create(*roles)
    await sets.happened("LWSConflict")
    found = await sets.client.get(LeaderWorkerSet, sets.key(name))
    assert found.metadata.uid == foreign.metadata.uid
    assert not found.metadata.owner_references
    assert found.spec == foreign.spec


async def test_ds_4_deletion_takes_everything_along(sets, role):
    await sets.create(role("prefill"), role("decode"))
    await sets.available()
    await sets.client.delete(DisaggregatedSet, sets.key("demo"))

    async def gone():
        return not (await sets.lws() or await sets.services() or await sets.client.list(Pod, namespace=sets.namespace))

    await sets.until(gone, timeout=120)  # The garbage collector learns of a new kind within 30 s, or 30 s later.


async def test_ds_10_settled_set_is_not_written_again(sets, role):
    await sets.create(role("prefill"), role("decode"))
    await sets.available()
    touch = MergePatch({"metadata": {"annotations": {"touched": "yes"}}})

    async def versions():
        return {key: lws.metadata.resource_version for key, lws in (await sets.lws()).items()}

    async def at_rest():
        before = await versions(), (await sets.get()).metadata.resource_version
        await anyio.sleep(0.5)
        return before == (await versions(), (await sets.get()).metadata.resource_version)

    await sets.until(at_rest)
    before = await versions()
    touched = await sets.client.patch(DisaggregatedSet, sets.key("demo"), touch)
    await anyio.sleep(0.5)
    assert (await sets.get()).metadata.resource_version == touched.metadata.resource_version
    assert await versions() == before


async def test_ds_3_refusals_read_as_documented(sets, role):
    async def refused(error, message, *roles, name="demo", **spec):
        with pytest.raises(error, match=message):
            await sets.create(*roles, name=name, **spec)

    pair = role("prefill", 2), role("decode", 1)
    await refused(ForbiddenError, "more than one slice is not supported yet", *pair, slices=2)
    await refused(
        ForbiddenError, "External is not supported yet", pair[0], role("decode", scaling={"mode": "External"})
    )
    await refused(ForbiddenError, "DNS-1035 limit", *pair, name="d" * 50)
    await refused(ForbiddenError, "ExclusiveSlice is not supported", *pair, placementPolicy={"type": "ExclusiveSlice"})
    await refused(InvalidError, "replicas must be zero for all non-External roles", role("prefill", 0), pair[1])
    await refused(InvalidError, "roles", pair[0])
    await refused(InvalidError, "Duplicate", pair[0], pair[0])
    stored = await sets.create(*pair, dry_run=True)
    template = stored["spec"]["roles"][0]["spec"]
    assert stored["spec"]["slices"] == 1
    assert template["startupPolicy"] == "LeaderCreated"
    assert "rolloutStrategy" not in template


async def test_ds_3_without_its_webhook_what_is_not_supported_is_left_alone(sets, role):
    validating = unstructured("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", namespaced=False)
    await sets.client.delete(validating, sets.namespace)

    async def created():
        try:
            return await sets.create(role("prefill"), role("decode"), slices=2)
        except ForbiddenError:
            return None

    await sets.until(created)
    await sets.happened("NotSupported")
    assert any("spec.slices" in note for note in await sets.notes())
    assert await sets.lws() == {}


async def test_ds_13_14_service_of_another_owner_is_reported_and_left_alone(sets, role):
    await sets.create(role("prefill", 0), role("decode", 0))
    await sets.available()
    (revision,) = await sets.revisions()
    metadata = {"name": f"demo-0-{revision}-decode-prv", "namespace": sets.namespace}
    foreign = await sets.client.create(Service(metadata=metadata, spec={"clusterIP": "None"}))
    await sets.set_roles(role("prefill", 1), role("decode", 1))
    await sets.happened("ServiceConflict")
    assert (await sets.client.get(Service, foreign.key)).to_dict() == foreign.to_dict()


async def test_ds_5_8_status_is_written_although_a_child_is_refused(sets, role):
    await sets.create(role("prefill", size=0), role("decode"))
    await sets.happened("FailedCreate")
    assert any("size must be equal or greater than 1" in note for note in await sets.notes())

    async def progressing():
        status = (await sets.get()).status
        return status and [(item.type, item.status) for item in status.conditions] == [("Progressing", "True")]

    await sets.until(progressing)


async def test_ds_5_2_leader_worker_set_of_a_slice_that_is_not_wanted_is_deleted(sets, role):
    await sets.create(role("prefill"), role("decode"))
    await sets.available()
    surplus = next(iter((await sets.lws()).values())).deep_copy()
    metadata = {
        "name": "demo-1-x",
        "namespace": sets.namespace,
        "labels": {**surplus.metadata.labels, D + "slice": "1"},
    }
    metadata["ownerReferences"] = [item.to_dict() for item in surplus.metadata.owner_references]
    made = LeaderWorkerSet.from_dict({"metadata": metadata, "spec": {**surplus.spec.to_dict(), "replicas": 0}})
    await sets.client.create(made)

    async def gone():
        return await sets.client.find(LeaderWorkerSet, made.key) is None

    await sets.until(gone)

    async def told():
        return "Deleted LeaderWorkerSet demo-1-x: slice 1 is gone" in await sets.notes()

    await sets.until(told)
