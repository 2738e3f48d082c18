"""Sets on the real control plane: groups form, grow, shrink, heal and report (LWS §6, §7.1, §13.1)."""

import hashlib

from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import Pod, Service
from pyreconcile.client import MergePatch
from pyreconcile_controllers.leaderworkerset.revision import revision_of
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

L = "leaderworkerset.sigs.k8s.io/"


def controller(obj):
    (owner,) = [owner for owner in obj.metadata.owner_references if owner.controller]
    assert owner.block_owner_deletion
    return owner.kind, owner.name, owner.uid


async def test_lws_3_groups_form_with_names_labels_owners_and_environment(sets):
    lws = await sets.create(labels={"team": "a"}, annotations={"note": "b"})
    pods = await sets.running("demo", 2, 3)
    key = revision_of(lws.spec.to_dict()).key

    leaders = await sets.set("demo")
    assert controller(leaders) == ("LeaderWorkerSet", "demo", lws.metadata.uid)
    assert leaders.metadata.labels == {"team": "a", L + "name": "demo", L + "template-revision-hash": key}
    assert leaders.metadata.annotations == {"note": "b", L + "replicas": "2"}
    assert {entry["manager"] for entry in leaders.metadata.managed_fields if not entry.get("subresource")} == {"lws"}

    workers = await sets.worker_sets()
    assert set(workers) == {"demo-0", "demo-1"}
    for index, (name, own) in enumerate(sorted(workers.items())):
        leader = pods[name]
        group_key = hashlib.sha1(f"{sets.namespace}/{name}".encode()).hexdigest()
        group = {
            L + "name": "demo",
            L + "group-index": str(index),
            L + "group-key": group_key,
            L + "template-revision-hash": key,
        }
        assert controller(own) == ("Pod", name, leader.metadata.uid)
        assert own.metadata.labels == {"team": "a", **group}
        assert own.metadata.annotations == {"note": "b"}
        assert leader.metadata.labels.items() >= {**group, L + "worker-index": "0"}.items()
        for number in (1, 2):
            worker = pods[f"{name}-{number}"]
            assert worker.metadata.labels.items() >= {**group, L + "worker-index": str(number)}.items()
            assert worker.metadata.annotations[L + "leader-name"] == name
            env = {entry.name: entry.value for entry in worker.spec.containers[0].env}
            assert env == {
                "LWS_LEADER_ADDRESS": f"{name}.demo.{sets.namespace}",
                "LWS_GROUP_SIZE": "3",
                "LWS_WORKER_INDEX": str(number),
            }


async def test_lws_13_1_headless_service_is_made_and_restored(sets):
    await sets.create(replicas=1, size=1)

    async def service():
        return (await sets.services()).get("demo")

    first = await sets.until(service)
    assert first.spec.cluster_ip == "None"
    assert first.spec.publish_not_ready_addresses
    assert first.spec.selector == {L + "name": "demo"}
    assert first.metadata.labels == {L + "name": "demo"}
    assert controller(first)[:2] == ("LeaderWorkerSet", "demo")
    await sets.client.delete(Service, sets.key("demo"))

    async def another():
        found = await service()
        return found and found.metadata.uid != first.metadata.uid

    await sets.until(another)


async def test_lws_13_1_unique_per_replica_has_a_service_for_every_group(sets):
    await sets.create(replicas=2, size=2, networkConfig={"subdomainPolicy": "UniquePerReplica"})
    pods = await sets.running("demo", 2, 2)
    services = await sets.services()
    assert set(services) == {"demo-0", "demo-1"}
    for index, name in enumerate(sorted(services)):
        assert services[name].spec.selector == {L + "name": "demo", L + "group-index": str(index)}
        assert controller(services[name]) == ("Pod", name, pods[name].metadata.uid)
        assert pods[name].spec.subdomain == name
        assert pods[f"{name}-1"].spec.subdomain == name
        env = {entry.name: entry.value for entry in pods[f"{name}-1"].spec.containers[0].env}
        assert env["LWS_LEADER_ADDRESS"] == f"{name}.{name}.{sets.namespace}"


async def test_lws_6_5_and_6_6_events_and_conditions_tell_the_story(sets):
    await sets.create(replicas=2, size=2)
    lws = await sets.available()
    key = revision_of(lws.spec.to_dict()).key
    for note in (
        f"Creating revision with key {key} for a newly created LeaderWorkerSet",
        "Created leader statefulset demo",
        "Created worker statefulset for leader pod demo-0",
        "Created worker statefulset for leader pod demo-1",
        "Replicas are progressing, with 0 groups ready of total 2 groups",
        "All replicas are ready, with 2 groups ready of total 2 groups",
    ):
        await sets.noted(note)
    assert await sets.conditions() == {
        "Progressing": ("False", "Replicas are progressing"),
        "Available": ("True", "All replicas are ready"),
    }

    async def counted():
        status = (await sets.available()).status
        return (status.replicas, status.ready_replicas, status.updated_replicas) == (2, 2, 2) and status

    status = await sets.until(counted, what="the counts")  # that of the replicas is the leader StatefulSet's
    assert status.hpa_pod_selector == f"{L}name=demo,{L}worker-index=0"
    assert all(item.observed_generation == lws.metadata.generation for item in status.conditions)


async def test_lws_6_1_a_set_at_rest_writes_nothing(sets):
    await sets.create(replicas=1, size=2)
    await sets.available()
    await sets.settled()
    before = {key: obj.metadata.resource_version for key, obj in (await sets.everything()).items()}
    await sets.client.patch(LeaderWorkerSet, sets.key("demo"), MergePatch({"metadata": {"labels": {"x": "y"}}}))

    async def label_arrived():
        return (await sets.set("demo")).metadata.labels.get("x") == "y"

    await sets.until(label_arrived)
    after = {key: obj.metadata.resource_version for key, obj in (await sets.everything()).items()}
    assert {key for key in before if before[key] != after[key]} == {
        f"LeaderWorkerSet/{sets.key('demo')}",
        f"StatefulSet/{sets.key('demo')}",
    }


async def test_lws_13_1_scale_up_and_down_keeps_the_groups_that_stay(sets):
    await sets.create(replicas=1, size=2)
    first = await sets.running("demo", 1, 2)
    scale = await sets.client.get_scale(LeaderWorkerSet, sets.key("demo"))
    assert scale.spec.replicas == 1
    await sets.client.set_scale(LeaderWorkerSet, sets.key("demo"), 3)
    grown = await sets.running("demo", 3, 2)
    assert {name: grown[name].metadata.uid for name in first} == {name: first[name].metadata.uid for name in first}
    await sets.available()

    async def counted():
        found = await sets.client.get_scale(LeaderWorkerSet, sets.key("demo"))
        return found.status.replicas == 3 and found

    scale = await sets.until(counted, what="the scale tells of 3 replicas")
    assert scale.status.selector == f"{L}name=demo,{L}worker-index=0"
    await sets.patch("demo", replicas=2)
    await sets.running("demo", 2, 2)

    async def two_left():
        return set(await sets.worker_sets()) == {"demo-0", "demo-1"}

    await sets.until(two_left)


async def test_lws_13_1_scale_to_zero_and_back(sets):
    await sets.create(replicas=1, size=2)
    await sets.running("demo", 1, 2)
    await sets.patch("demo", replicas=0)

    async def empty():
        return not await sets.pods() and not await sets.worker_sets()

    await sets.until(empty)

    async def told():
        status = (await sets.available()).status
        return (status.replicas, status.ready_replicas) == (0, 0)

    await sets.until(told)
    await sets.patch("demo", replicas=2)
    await sets.running("demo", 2, 2)


async def test_lws_13_1_zero_replicas_are_available_at_once(sets):
    await sets.create(replicas=0)
    await sets.available()
    assert (await sets.set("demo")).spec.replicas == 0


async def test_lws_13_1_group_size_is_one(sets):
    await sets.create(replicas=2, size=1)
    await sets.running("demo", 2, 1)
    lws = await sets.available()
    assert lws.status.ready_replicas == 2
    assert not await sets.worker_sets()


async def test_lws_13_1_leader_and_worker_sets_that_are_deleted_come_back(sets):
    await sets.create(replicas=1, size=2)
    await sets.running("demo", 1, 2)
    old = await sets.set("demo")
    key = old.metadata.labels[L + "template-revision-hash"]
    old_workers = (await sets.worker_sets())["demo-0"]
    await sets.client.delete(StatefulSet, sets.key("demo-0"))

    async def workers_back():
        found = (await sets.worker_sets()).get("demo-0")
        return found and found.metadata.uid != old_workers.metadata.uid

    await sets.until(workers_back)
    await sets.client.delete(StatefulSet, sets.key("demo"))

    async def leaders_back():
        found = await sets.set("demo")
        return found and found.metadata.uid != old.metadata.uid and found

    again = await sets.until(leaders_back)
    assert again.metadata.labels[L + "template-revision-hash"] == key
    await sets.running("demo", 1, 2)
    await sets.available()


async def test_lws_13_1_leader_ready_waits_with_the_workers(sets):
    leader = {"spec": {"containers": [{"name": "c", "image": "x"}], "schedulingGates": [{"name": "test/hold"}]}}
    await sets.create(replicas=1, size=2, startupPolicy="LeaderReady", template={"leaderTemplate": leader})

    async def held():
        return (await sets.pods()).get("demo-0")

    await sets.until(held)
    await sets.noted("Replicas are progressing, with 0 groups ready of total 1 groups")
    assert not await sets.worker_sets()
    await sets.client.patch(Pod, sets.key("demo-0"), MergePatch({"spec": {"schedulingGates": None}}))
    pods = await sets.running("demo", 1, 2)
    (ready,) = [item for item in pods["demo-0"].status.conditions if item.type == "Ready"]
    made = (await sets.worker_sets())["demo-0"].metadata.creation_timestamp
    assert made >= ready.last_transition_time


async def test_lws_7_1_exclusive_topology_waits_for_the_leader_and_pins_the_workers(sets):
    leader = {"spec": {"containers": [{"name": "c", "image": "x"}], "schedulingGates": [{"name": "test/hold"}]}}
    topology = "kubernetes.io/hostname"
    await sets.create(
        replicas=1, size=2, template={"leaderTemplate": leader}, annotations={L + "exclusive-topology": topology}
    )

    async def held():
        return (await sets.pods()).get("demo-0")

    await sets.until(held)
    await sets.noted("Replicas are progressing, with 0 groups ready of total 1 groups")
    assert not await sets.worker_sets()
    await sets.client.patch(Pod, sets.key("demo-0"), MergePatch({"spec": {"schedulingGates": None}}))
    pods = await sets.running("demo", 1, 2)
    workers = (await sets.worker_sets())["demo-0"]
    assert workers.spec.template.spec.node_selector == {topology: pods["demo-0"].spec.node_name}
    assert pods["demo-0-1"].spec.node_name == pods["demo-0"].spec.node_name


async def test_lws_7_1_a_leader_with_a_workers_annotation_gets_no_workers(sets):
    leader = {
        "metadata": {"annotations": {L + "leader-name": "other"}},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    await sets.create(replicas=1, size=2, template={"leaderTemplate": leader})
    await sets.noted(
        f"leader pod {sets.namespace}/demo-0 contains mistake annotation '{L}leader-name': "
        "requires Kubernetes ≥v1.27 or v1.26 with StatefulSetStartOrdinal feature"
    )
    assert not await sets.worker_sets()


async def test_lws_6_1_a_failing_apply_is_told_and_leaves_one_revision(sets):
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    await sets.create(replicas=0, size=1, template={"volumeClaimTemplates": [claim]})
    # No storage request: the leader StatefulSet is refused, again and again.

    async def told():
        return [note for note in await sets.notes() if note.startswith("Failed to create leader statefulset demo: ")]

    await sets.until(told)

    async def retried():
        events = await sets.client.list(sets.Event, namespace=sets.namespace)
        return any((event.get("series") or {}).get("count", 0) > 1 for event in events)

    await sets.until(retried)
    assert len(await sets.revisions()) == 1


async def test_lws_15_29_a_set_being_deleted_is_left_alone(sets):
    await sets.create(replicas=1, size=2)
    await sets.running("demo", 1, 2)
    await sets.client.delete(LeaderWorkerSet, sets.key("demo"), propagation="Foreground")

    async def gone():
        if await sets.client.find(LeaderWorkerSet, sets.key("demo")) is not None:
            return False
        return not await sets.pods() and await sets.set("demo") is None and not await sets.services()

    # A garbage collector that does not know the set's kind yet, since its CRD is new, learns of it within 30 s.
    await sets.until(gone, timeout=90)
