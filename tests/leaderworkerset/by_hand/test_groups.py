"""Groups come and go as the set says; pods driven by hand (LWS §13.1)."""

import orjson
import pytest

from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import Node, Pod, Service
from pyreconcile.client import MergePatch
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

pytestmark = pytest.mark.asyncio(loop_scope="module")

L = "leaderworkerset.sigs.k8s.io/"
KEY = L + "template-revision-hash"
NAME = "test-sample"


async def test_lws_13_1_scale_up_number_of_groups(hand):
    await hand.create(replicas=2)
    await hand.patch(replicas=3)
    await hand.leaders(2)
    await hand.valid(3)


async def test_lws_13_1_scale_down_number_of_groups(hand):
    await hand.create(replicas=4)
    await hand.valid(4)
    await hand.patch(replicas=3)
    await hand.remove(3)
    await hand.valid(3)


async def test_lws_13_1_scale_down_to_0(hand):
    await hand.create(replicas=2)
    await hand.valid(2)
    await hand.patch(replicas=0)
    await hand.remove(0, 1)
    await hand.valid(0)


async def test_lws_13_1_scale_up_from_0(hand):
    await hand.create(replicas=0)
    await hand.patch(replicas=3)
    await hand.leaders(0, 1, 2)
    await hand.valid(3)


async def test_lws_13_1_zero_replicas(hand):
    await hand.create(replicas=0)
    await hand.valid(0)
    await hand.shows({"Available"}, replicas=0, partition=0, ready=0, updated=0)


async def test_lws_13_1_group_size_is_1(hand):
    await hand.create(size=1)
    await hand.settled()
    await hand.valid(2, workers=0)
    await hand.ready(0, 1)
    await hand.shows({"Available"}, replicas=2, partition=0, ready=2, updated=2)
    assert not await hand.worker_sets()


async def test_lws_13_1_two_groups_of_size_4_are_created(hand):
    await hand.create(size=4)
    for what in ("leader statefulset test-sample", *(f"worker statefulset for leader pod {NAME}-{i}" for i in (0, 1))):
        await hand.noted(f"Created {what}")
    await hand.valid(2)
    assert {own.spec.replicas for own in (await hand.worker_sets()).values()} == {3}


async def test_lws_13_1_a_deleted_worker_stateful_set_is_recreated(hand):
    await hand.create()
    await hand.valid(2)
    old = await hand.workers_of(0)
    await hand.client.delete(StatefulSet, old.key)

    async def another():
        found = await hand.workers_of(0)
        return found and found.metadata.uid != old.metadata.uid

    await hand.until(another)
    await hand.valid(2)


async def service(hand):
    return (await hand.services()).get(NAME)


async def test_lws_13_1_a_headless_service_is_created_and_restored(hand):
    await hand.create()

    async def there():
        return await service(hand)

    first = await hand.until(there)
    assert list(await hand.services()) == [NAME]
    assert first.spec.selector == {L + "name": NAME}
    assert (first.spec.cluster_ip, first.spec.publish_not_ready_addresses) == ("None", True)
    assert first.metadata.owner_references[0].name == NAME
    await hand.client.delete(Service, first.key)

    async def another():
        found = await service(hand)
        return found and found.metadata.uid != first.metadata.uid

    await hand.until(another)


async def test_lws_6_4_a_service_is_never_changed(hand):
    await hand.create()

    async def there():
        return await service(hand)

    found = await hand.until(there)
    edited = await hand.client.patch(Service, found.key, MergePatch({"spec": {"publishNotReadyAddresses": False}}))
    await hand.settled()
    assert (await service(hand)).metadata.resource_version == edited.metadata.resource_version


async def test_lws_13_1_unique_per_replica_makes_a_headless_service_for_every_group(hand):
    await hand.create(networkConfig={"subdomainPolicy": "UniquePerReplica"})

    async def both():
        found = await hand.services()
        return len(found) == 2 and found

    services = await hand.until(both)
    await hand.valid(2)
    for index in (0, 1):
        found = services[f"{NAME}-{index}"]
        assert found.spec.selector == {L + "name": NAME, L + "group-index": str(index)}
        (owner,) = found.metadata.owner_references
        assert (owner.kind, owner.name) == ("Pod", f"{NAME}-{index}")
        assert (await hand.workers_of(index)).spec.service_name == f"{NAME}-{index}"


async def test_lws_6_4_back_to_shared_makes_the_shared_service_at_once(hand):
    await hand.create(networkConfig={"subdomainPolicy": "UniquePerReplica"})
    await hand.valid(2)
    assert await service(hand) is None
    await hand.patch(networkConfig={"subdomainPolicy": "Shared"})

    async def all_three():
        return set(await hand.services()) == {NAME, f"{NAME}-0", f"{NAME}-1"}

    await hand.until(all_three)  # Those of the groups go with their leaders.


async def test_lws_13_1_a_deleted_leader_stateful_set_is_recreated(hand):
    await hand.create()
    old = await hand.leader_set()
    await hand.client.delete(StatefulSet, old.key)

    async def another():
        found = await hand.leader_set()
        return found and found.metadata.uid != old.metadata.uid and found

    found = await hand.until(another)
    assert found.metadata.labels[KEY] == old.metadata.labels[KEY]
    await hand.valid(2)


async def test_lws_13_1_the_scale_subresource_tells_replicas_and_selector(hand):
    await hand.create()
    patch = MergePatch({"status": {"replicas": 2}})
    await hand.client.patch(StatefulSet, hand.key(), patch, subresource="status")

    async def told():
        status = (await hand.get()).status
        return status and status.replicas == 2

    await hand.until(told)
    scale = await hand.client.get_scale(LeaderWorkerSet, hand.key())
    assert (scale.spec.replicas, scale.status.replicas) == (2, 2)
    assert scale.status.selector == (await hand.get()).status.hpa_pod_selector == f"{L}name={NAME},{L}worker-index=0"


async def test_lws_13_1_an_autoscaler_scales_through_the_scale_subresource(hand):
    await hand.create()
    await hand.client.set_scale(LeaderWorkerSet, hand.key(), 3)
    assert (await hand.get()).spec.replicas == 3
    await hand.leaders(2)
    await hand.valid(3)


async def test_lws_13_1_exclusive_placement_is_annotated_and_waits_for_the_leaders(hand):
    annotations = {L + "exclusive-topology": "rack"}
    await hand.create(annotations=annotations)
    await hand.settled()
    await hand.valid(2, workers=0)
    leaders = await hand.leader_set()
    assert leaders.metadata.annotations[L + "exclusive-topology"] == "rack"
    assert leaders.spec.template.metadata.annotations[L + "exclusive-topology"] == "rack"


async def bound(hand, index, node):
    """Bind a leader to a node, as a scheduler does."""
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": f"{NAME}-{index}"}, "target": {"name": node}}
    path = Pod.resource.path(hand.namespace, f"{NAME}-{index}", "binding")
    await hand.client.transport.request("POST", path, body=orjson.dumps(body))


async def test_lws_7_1_exclusive_placement_pins_workers_to_the_leaders_domain_once_it_is_known(hand):
    node = f"node-of-{hand.namespace}"
    await hand.client.create(Node.from_dict({"metadata": {"name": node}}))
    await hand.create(replicas=1, annotations={L + "exclusive-topology": "rack"})
    await bound(hand, 0, node)
    await hand.settled()
    assert not await hand.worker_sets()
    await hand.client.patch(Node, node, MergePatch({"metadata": {"labels": {"rack": "r1"}}}))

    async def made():
        return await hand.workers_of(0)

    own = await hand.until(made)
    assert own.spec.template.spec.node_selector == {"rack": "r1"}
    assert own.spec.template.metadata.annotations[L + "exclusive-topology"] == "rack"


async def test_lws_13_1_leader_created_makes_all_workers_at_once(hand):
    await hand.create(replicas=4, startupPolicy="LeaderCreated")
    await hand.valid(4)


async def test_lws_13_1_leader_ready_makes_workers_for_ready_leaders_only(hand):
    await hand.create(replicas=2, startupPolicy="LeaderReady")
    await hand.settled()
    assert not await hand.worker_sets()
    await hand.phase("Running", f"{NAME}-0", ready=True)
    await hand.valid(2, workers=1)
    await hand.settled()
    assert set(await hand.worker_sets()) == {0}
    await hand.phase("Pending", f"{NAME}-1", ready=True)  # The condition counts, whatever the phase.
    await hand.valid(2)


async def test_lws_15_6_worker_stateful_sets_are_never_changed(hand):
    await hand.create(replicas=1)
    await hand.valid(1)
    labels = {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}}
    await hand.client.patch(LeaderWorkerSet, hand.key(), MergePatch(labels))
    own = await hand.workers_of(0)
    edited = await hand.client.patch(StatefulSet, own.key, MergePatch({"spec": {"replicas": 0}}))

    async def arrived():
        leaders = await hand.leader_set()
        return leaders.metadata.labels.get("team") == "a" and leaders.metadata.annotations.get("note") == "b"

    await hand.until(arrived)
    await hand.settled()
    assert (await hand.workers_of(0)).metadata.resource_version == edited.metadata.resource_version
    assert "team" not in edited.metadata.labels


async def test_lws_15_3_the_leader_stateful_set_is_put_right_again(hand):
    await hand.running(annotations={"note": "b"})
    changes = {"spec": {"replicas": 7, "updateStrategy": {"rollingUpdate": {"partition": 5}}}}
    await hand.client.patch(StatefulSet, hand.key(), MergePatch(changes))
    await hand.shows(replicas=2, partition=0)
    await hand.client.patch(LeaderWorkerSet, hand.key(), MergePatch({"metadata": {"annotations": {"note": None}}}))

    async def pruned():
        return "note" not in (await hand.leader_set()).metadata.annotations

    await hand.until(pruned)


async def test_lws_16_7_changed_claims_are_refused_by_the_stateful_set_and_told(hand):
    await hand.create(replicas=0)
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    await hand.patch(leaderWorkerTemplate={"volumeClaimTemplates": [claim]})

    async def told():
        return [note for note in await hand.notes() if note.startswith(f"Failed to update leader statefulset {NAME}: ")]

    await hand.until(told)

    async def retried():
        events = [event.to_dict() for event in await hand.client.list(hand.Event, namespace=hand.namespace)]
        return any((event.get("series") or {}).get("count", 0) > 1 for event in events)

    await hand.until(retried)
    assert len(await hand.revisions()) == 2  # the old one, and one for all tries


async def test_lws_15_5_another_topology_reaches_the_leaders_template_without_a_revision(hand):
    await hand.running()
    before = await hand.leader_set()
    patch = MergePatch({"metadata": {"annotations": {L + "exclusive-topology": "rack"}}})
    await hand.client.patch(LeaderWorkerSet, hand.key(), patch)

    async def annotated():
        found = await hand.leader_set()
        return found.spec.template.metadata.annotations.get(L + "exclusive-topology") == "rack" and found

    found = await hand.until(annotated)
    await hand.settled()
    assert found.metadata.labels[KEY] == before.metadata.labels[KEY]
    assert len(await hand.revisions()) == 1
    await hand.shows({"Available"}, replicas=2, partition=0, ready=2, updated=2)


async def test_lws_15_29_a_leader_stateful_set_that_is_being_deleted_is_left_alone_until_it_is_gone(hand):
    await hand.running()
    old = await hand.leader_set()
    await hand.client.delete(StatefulSet, old.key, propagation="Foreground")
    await hand.patch(replicas=3)
    await hand.settled()
    found = await hand.leader_set()
    assert (found.metadata.uid, found.spec.replicas) == (old.metadata.uid, 2)
    await hand.client.patch(StatefulSet, old.key, MergePatch({"metadata": {"finalizers": None}}))

    async def another():
        made = await hand.leader_set()
        return made and made.metadata.uid != old.metadata.uid and made

    made = await hand.until(another)
    assert (made.spec.replicas, made.metadata.labels[KEY]) == (3, old.metadata.labels[KEY])
