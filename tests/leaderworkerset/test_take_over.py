"""Sets change hands between the Go controller and this one, and no pod notices (LWS §5, §15.2–§15.4).

The Go controller's part is played by hand: what it writes, in its wire form, under its field manager. Templates and
payloads come from the vectors that its code wrote, not from code of ours.
"""

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import Pod
from pyreconcile.client import MergePatch
from pyreconcile.crd import install_crds
from pyreconcile.manager import Manager
from pyreconcile.testing import running
from pyreconcile.webhook import install, webhook_configurations
from pyreconcile_controllers.leaderworkerset import MODELS
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet
from pyreconcile_controllers.leaderworkerset.webhook import WEBHOOKS, register

L = "leaderworkerset.sigs.k8s.io/"
LINES = (Path(__file__).parent / "data" / "revision_vectors.jsonl").read_text(encoding="utf-8")
VECTORS = {vector["case"]: vector for vector in map(json.loads, LINES.strip().split("\n"))}
PLAIN, SINGLE = VECTORS["test-wrapper default"], VECTORS["no leaderTemplate, size 1"]
UNIQUE, RICH = VECTORS["UniquePerReplica"], VECTORS["omission, escaping and quantity rules"]
APPLY = {"fieldManager": "lws", "force": "true"}


def owner(kind, obj):
    version = "v1" if kind == "Pod" else "leaderworkerset.x-k8s.io/v1"
    metadata = obj.metadata
    reference = {"apiVersion": version, "kind": kind, "name": metadata.name, "uid": metadata.uid}
    return [{**reference, "controller": True, "blockOwnerDeletion": True}]


class ByHand:
    """Does what the Go controller does, in its wire form."""

    def __init__(self, sets):
        self.sets = sets
        self.client = sets.client

    async def send(self, method, path, body, **options):
        group, _, rest = path.partition("/")
        path = f"/{'api/v1' if group == 'v1' else 'apis/apps/v1'}/namespaces/{self.sets.namespace}/{rest}"
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        return orjson.loads(await self.client.transport.request(method, path, body=data, **options))

    async def create(self, path, body):
        return await self.send("POST", path, body, query={"fieldManager": "lws"})

    async def revision(self, lws, data, key, number):
        name = lws.metadata.name
        labels = {L + "name": name, L + "template-revision-hash": key}
        metadata = {
            "name": f"{name}-{key}-{number}",
            "labels": labels,
            "ownerReferences": owner("LeaderWorkerSet", lws),
        }
        body = {"kind": "ControllerRevision", "apiVersion": "apps/v1", "metadata": metadata, "revision": number}
        await self.create("apps/controllerrevisions", orjson.dumps({**body, "data": orjson.Fragment(data)}))

    async def leaders(self, lws, vector, *, key="", partition=0, unavailable=1):
        """Apply the leader StatefulSet (LWS §6.2); return the answer."""
        name, template = lws.metadata.name, json.loads(vector["data"])["spec"]["leaderWorkerTemplate"]
        network = json.loads(vector["data"])["spec"]["networkConfig"]
        own = {L + "name": name, L + "template-revision-hash": key or vector["key"]}
        pod = template.get("leaderTemplate") or template["workerTemplate"]
        annotations = group_annotations(template)
        if network["subdomainPolicy"] == "UniquePerReplica":
            annotations[L + "subdomainPolicy"] = "UniquePerReplica"
        pod = with_metadata(pod, {**own, L + "worker-index": "0"}, annotations)
        body = {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {
                "name": name,
                "namespace": self.sets.namespace,
                "labels": {**lws.metadata.labels, **own},
                "annotations": {**lws.metadata.annotations, L + "replicas": str(lws.spec.replicas)},
                "ownerReferences": owner("LeaderWorkerSet", lws),
            },
            "spec": {
                "serviceName": name,
                "replicas": lws.spec.replicas,
                "podManagementPolicy": "Parallel",
                "updateStrategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"partition": partition, "maxUnavailable": unavailable},
                },
                "selector": {"matchLabels": {L + "name": name, L + "worker-index": "0"}},
                "template": pod,
                **self.claims(template),
            },
        }
        return await self.send(
            "PATCH",
            f"apps/statefulsets/{name}",
            body,
            query=APPLY,
            content_type="application/apply-patch+yaml",
        )

    def claims(self, template):
        made = {}
        if "volumeClaimTemplates" in template:
            made["volumeClaimTemplates"] = [
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": claim["metadata"]["name"], "namespace": self.sets.namespace},
                    "spec": {name: claim["spec"][name] for name in ("accessModes", "resources")},
                }
                for claim in template["volumeClaimTemplates"]
            ]
        if "persistentVolumeClaimRetentionPolicy" in template:
            made["persistentVolumeClaimRetentionPolicy"] = template["persistentVolumeClaimRetentionPolicy"]
        return made

    async def service(self, lws, kind, obj, **selector):
        metadata = {"name": obj.metadata.name, "labels": {L + "name": lws.metadata.name}}
        metadata["ownerReferences"] = owner(kind, obj)
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {L + "name": lws.metadata.name}}
        spec["selector"].update(selector)
        await self.create("v1/services", {"kind": "Service", "apiVersion": "v1", "metadata": metadata, "spec": spec})

    async def workers(self, lws, vector, leader):
        """Create the StatefulSet of a leader's workers (LWS §7.1), and the service of a group that has its own."""
        data, name = json.loads(vector["data"])["spec"], leader.metadata.name
        template, unique = data["leaderWorkerTemplate"], data["networkConfig"]["subdomainPolicy"] == "UniquePerReplica"
        index = {L + "group-index": leader.metadata.labels[L + "group-index"]}
        if unique:
            await self.service(lws, "Pod", leader, **index)
        selector = {L + "name": lws.metadata.name, **index}
        selector[L + "group-key"] = leader.metadata.labels[L + "group-key"]
        labels = {**selector, L + "template-revision-hash": leader.metadata.labels[L + "template-revision-hash"]}
        annotations = {**group_annotations(template), L + "leader-name": name}
        metadata = {"name": name, "namespace": self.sets.namespace, "labels": {**lws.metadata.labels, **labels}}
        metadata["annotations"] = lws.metadata.annotations
        spec = {
            "serviceName": name if unique else lws.metadata.name,
            "replicas": template["size"] - 1,
            "podManagementPolicy": "Parallel",
            "ordinals": {"start": 1},
            "selector": {"matchLabels": selector},
            "template": with_metadata(template["workerTemplate"], labels, annotations),
            **self.claims(template),
        }
        body = {"kind": "StatefulSet", "apiVersion": "apps/v1", "spec": spec, "status": {"replicas": 0}}
        await self.create(
            "apps/statefulsets", {**body, "metadata": {**metadata, "ownerReferences": owner("Pod", leader)}}
        )

    async def leader_pods(self, name, key, count):
        """Wait until a set has so many leaders of a revision; return them."""

        async def check():
            labels = {L + "name": name, L + "worker-index": "0", L + "template-revision-hash": key}
            found = await self.client.list(Pod, namespace=self.sets.namespace, labels=labels)
            found = [pod for pod in found if not pod.metadata.deletion_timestamp]
            return found if len(found) == count else None

        return await self.sets.until(check, what=f"{count} leaders of {name} with key {key}")

    async def make(self, name, vector, *, data=b"", key="", replicas=2, **metadata):
        """Let a user create a set, and make all of it; return it."""
        key = key or vector["key"]
        raw = {"metadata": {"name": name, "namespace": self.sets.namespace, **metadata}}
        lws = await self.client.create(LeaderWorkerSet.from_dict({**raw, "spec": as_sent(vector, replicas)}))
        await self.revision(lws, data or vector["data"].encode(), key, 1)
        await self.leaders(lws, vector, key=key)
        if vector is not UNIQUE:
            await self.service(lws, "LeaderWorkerSet", lws)
        for leader in await self.leader_pods(name, key, replicas):
            if vector is not SINGLE:
                await self.workers(lws, vector, leader)
        return lws


def as_sent(vector, replicas=2):
    """Return a vector's spec for the API server, which takes no fractions as numbers."""
    spec = json.loads(json.dumps(vector["spec"]).replace('"cpu": 0.5', '"cpu": "0.5"'))
    return {**spec, "replicas": replicas}


def group_annotations(template):
    found = {L + "size": str(template["size"])}
    if policy := template.get("subGroupPolicy"):
        found[L + "subgroup-policy-type"] = policy["subGroupPolicyType"]
        found[L + "subgroup-size"] = str(policy["subGroupSize"])
    return found


def with_metadata(pod, labels, annotations):
    metadata = pod["metadata"]
    return {
        **pod,
        "metadata": {
            **metadata,
            "labels": {**metadata.get("labels", {}), **labels},
            "annotations": {**metadata.get("annotations", {}), **annotations},
        },
    }


@asynccontextmanager
async def admission(manager_options, client, namespace):
    """Serve the webhooks, and run no controller."""
    await install_crds(client, MODELS)
    async with Manager(manager_options) as manager:
        register(manager.webhooks)
        only_here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        webhooks = [replace(webhook, namespace_selector=only_here) for webhook in WEBHOOKS]
        async with running(manager):
            made = webhook_configurations(
                manager.webhooks, webhooks, mutating_name=namespace, validating_name=namespace
            )
            await install(client, made)
            yield


async def versions(sets, *names):
    """UID, resource version and generation of all objects of sets, but of the sets themselves only the generation."""
    found = {}
    for name in names:
        for key, obj in (await sets.everything(name)).items():
            mine = isinstance(obj, LeaderWorkerSet)
            found[key] = (obj.metadata.uid, "" if mine else obj.metadata.resource_version, obj.metadata.generation)
        for pod in (await sets.pods(name)).values():
            found[f"Pod/{pod.key}"] = (pod.metadata.uid, pod.metadata.resource_version, pod.metadata.generation)
    return found


async def quiet(sets, *names):
    """Wait until nothing of the sets changes for a second; return what `versions` gives."""
    seen = []

    async def check():
        seen.append(await versions(sets, *names))
        return len(seen) > 10 and all(item == seen[-1] for item in seen[-10:])

    await sets.settled(*names)
    await sets.until(check, what="nothing changes")
    return seen[-1]


async def counted(sets, name, ready, updated):
    """Wait until the controller has written a set's counts, the last thing of its first pass."""

    async def check():
        status = (await sets.get(name)).status
        return status is not None and (status.ready_replicas, status.updated_replicas) == (ready, updated)

    await sets.until(check, what=f"status of {name}")


async def test_lws_15_2_sets_of_the_go_controller_are_taken_over_untouched(
    words, process, manager_options, client, namespace
):
    go, sets = ByHand(words), words
    old_form = PLAIN["data"].replace('"metadata":{}', '"metadata":{"creationTimestamp":null}').encode()
    async with admission(manager_options, client, namespace):
        await sets.admitted()
        await go.make("plain", PLAIN, labels={"team": "a"}, annotations={"note": "kept"})
        await go.make("single", SINGLE)
        await go.make("unique", UNIQUE)
        await go.make("rich", RICH, replicas=1)
        # Made by an older release, whose payload had other empty fields and so another key.
        await go.make("old", PLAIN, data=old_form, key="oldkey")
        # Half updated, and held there by a partition: two groups of each revision, and both revisions stored.
        half = await go.make("half", PLAIN, replicas=4)
        rollout = {"rollingUpdateConfiguration": {"partition": 2, "maxUnavailable": 2}}
        await sets.patch("half", networkConfig={"subdomainPolicy": "UniquePerReplica"}, rolloutStrategy=rollout)
        await go.revision(half, UNIQUE["data"].encode(), UNIQUE["key"], 2)
        await go.leaders(half, UNIQUE, partition=2, unavailable=2)
        for leader in await go.leader_pods("half", PLAIN["key"], 2):
            index = leader.metadata.labels[L + "group-index"]
            await go.service(half, "Pod", leader, **{L + "group-index": index})  # the live spec asks for it
        for leader in await go.leader_pods("half", UNIQUE["key"], 2):
            await sets.until(lambda name=leader.metadata.name: gone(sets, name), what="the old workers go")
            await go.workers(half, UNIQUE, leader)
        for name, groups in {"plain": 2, "unique": 2, "old": 2, "half": 4}.items():
            await sets.running(name, groups, 2)
        await sets.running("single", 2, 1)
        names = ("plain", "single", "unique", "rich", "old", "half")
        before = await quiet(sets, *names)
    assert len(before) > 50
    async with process():
        for name, ready, updated in (
            ("plain", 2, 2),
            ("single", 2, 2),
            ("unique", 2, 2),
            ("rich", 0, 1),
            ("old", 2, 2),
            ("half", 4, 2),
        ):
            await counted(sets, name, ready, updated)
        assert await quiet(sets, *names) == before
        notes = [note for name in names for note in await sets.notes(name)]
        assert not [note for note in notes if note.startswith(("Failed", "Creating", "Created", "Updating"))]
        # What was taken over is worked on: fields that the Go controller applied can be removed …
        await client.patch(LeaderWorkerSet, sets.key("plain"), MergePatch({"metadata": {"labels": {"team": None}}}))

        async def pruned():
            return "team" not in (await client.get(StatefulSet, sets.key("plain"))).metadata.labels

        await sets.until(pruned, what="the label is removed")
        # … a group of the old revision is rebuilt as that one says …
        uids = await sets.uids("half")
        await client.delete(Pod, sets.key("half-0-1"), grace_period_seconds=0)
        await sets.until(lambda: rebuilt(sets, "half-0", uids), what="the old group is recreated")
        await sets.running("half", 4, 2)
        workers = (await sets.worker_sets("half"))["half-0"]
        assert workers.metadata.labels[L + "template-revision-hash"] == PLAIN["key"]
        assert workers.spec.service_name == "half"
        assert {name for name, uid in (await sets.uids("half")).items() if uids[name] != uid} == {"half-0", "half-0-1"}
        # … and the update goes on from where it stood.
        done = await sets.uids("half")
        rollout = {"rollingUpdateConfiguration": {"partition": 0, "maxUnavailable": 2}}
        await sets.patch("half", rolloutStrategy=rollout)
        await counted(sets, "half", 4, 4)
        await sets.running("half", 4, 2)
        kept = {name for name, uid in (await sets.uids("half")).items() if done[name] == uid}
        assert kept == {"half-2", "half-2-1", "half-3", "half-3-1"}

        async def one_revision():
            return [item.metadata.labels[L + "template-revision-hash"] for item in await sets.revisions("half")] == [
                UNIQUE["key"]
            ]

        await sets.until(one_revision, what="the old revision is forgotten")


async def gone(sets, name):
    """Tell whether no StatefulSet of an earlier leader has a name."""
    found = await sets.set(name)
    pod = await sets.client.find(Pod, sets.key(name))
    return found is None or (pod is not None and found.metadata.owner_references[0].uid == pod.metadata.uid)


async def rebuilt(sets, leader, uids):
    now = await sets.uids("half")
    return all(name in now and now[name] != uids[name] for name in (leader, f"{leader}-1"))


@pytest.mark.parametrize("vector", [PLAIN, SINGLE, UNIQUE, RICH], ids=["plain", "single", "unique", "rich"])
async def test_lws_15_3_what_the_go_controller_applies_over_ours_changes_nothing(sets, vector):
    go = ByHand(sets)
    raw = {"metadata": {"name": "demo", "namespace": sets.namespace, "labels": {"team": "a"}}}
    lws = await sets.client.create(LeaderWorkerSet.from_dict({**raw, "spec": as_sent(vector)}))

    async def made():
        status = (await sets.get()).status
        workers = await sets.worker_sets()
        complete = len(workers) == (0 if vector is SINGLE else 2) and len(await sets.revisions()) == 1
        return status is not None and status.replicas == 2 and complete

    await sets.until(made)
    before = await quiet(sets, "demo")
    applied = await go.leaders(lws, vector)
    assert (await versions(sets, "demo")) == before
    managers = {(item["manager"], item.get("subresource", "")) for item in applied["metadata"]["managedFields"]}
    assert managers == {("lws", ""), ("kube-controller-manager", "status")}
    (revision,) = await sets.revisions()
    assert revision.metadata.labels[L + "template-revision-hash"] == vector["key"]
    path = f"/apis/apps/v1/namespaces/{sets.namespace}/controllerrevisions/{revision.metadata.name}"
    stored = await sets.client.transport.request("GET", path)
    assert f'"data":{vector["data"]},"revision":1'.encode() in stored
