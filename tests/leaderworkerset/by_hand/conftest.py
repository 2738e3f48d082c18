"""Sets whose pods are made, made ready and deleted by hand: an API server without StatefulSet controller, garbage
collection, scheduler and webhooks, so that every state holds until a test changes it (LWS §13.1)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from anyio.from_thread import start_blocking_portal

from pyreconcile.api import copy_json, unstructured
from pyreconcile.api.apps_v1 import ControllerRevision, StatefulSet
from pyreconcile.api.core_v1 import Namespace, Pod, Service
from pyreconcile.client import ConnectOptions, MergePatch, connect
from pyreconcile.crd import install_crds
from pyreconcile.manager import Manager, ManagerOptions
from pyreconcile.testing import ControlPlane, eventually, running
from pyreconcile.testing._running import in_own_task
from pyreconcile_controllers import leaderworkerset
from pyreconcile_controllers.leaderworkerset.controller import LeaderWorkerSetReconciler
from pyreconcile_controllers.leaderworkerset.pod_controller import PodReconciler
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

L = "leaderworkerset.sigs.k8s.io/"
KEY = L + "template-revision-hash"
NAME = "test-sample"
Event = unstructured("events.k8s.io/v1", "Event")

PROGRESSING = {"Progressing"}
UPDATING = {"Progressing", "UpdateInProgress"}
AVAILABLE = {"Available"}
MESSAGES = {
    "Available": "All replicas are ready",
    "Progressing": "Replicas are progressing",
    "UpdateInProgress": "Rolling Upgrade is in progress",
}


@pytest.fixture(scope="session")
def bare_plane():
    """An API server and nothing that acts on what is in it."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(ControlPlane(use_existing=False)) as plane,
    ):
        yield plane


class Passes:
    """Which versions of sets and pods the controllers have looked at."""

    def __init__(self):
        self._versions = {}

    def count(self, patch, reconciler, kind):
        reconcile = reconciler.reconcile

        async def counted(instance, request):
            seen = await instance.cache.find_raw(kind, request.key)
            try:
                return await reconcile(instance, request)
            finally:
                if seen is not None:
                    self._versions[kind, request.key] = int(seen["metadata"]["resourceVersion"])

        patch.setattr(reconciler, "reconcile", counted)

    async def over(self, obj):
        """Wait until a pass that knew this version of an object has ended."""

        def check():
            return self._versions.get((type(obj), obj.key), 0) >= int(obj.metadata.resource_version)

        await eventually(check, timeout=60, interval=0.01, what=f"a pass over {obj.key}")


class Hand:
    """One set in a namespace of its own, and the hand that does what other controllers would."""

    Event = Event

    def __init__(self, client, namespace, passes):
        self.client = client
        self.namespace = namespace
        self._passes = passes
        self._templates = {}
        self.admit = None
        """What a webhook would do to every leader pod."""

    def key(self, name=NAME):
        return f"{self.namespace}/{name}"

    async def create(self, *, replicas=2, size=2, rolling=None, annotations=None, leaders=True, **spec):
        """Create the set, wait for its leader StatefulSet, and create the leader pods."""
        leader = {"spec": {"containers": [{"name": "leader", "image": "nginx:1"}]}}
        ports = [{"containerPort": 8080}]
        worker = {"spec": {"containers": [{"name": "worker", "image": "nginx:1", "ports": ports}]}}
        template = {"leaderTemplate": leader, "workerTemplate": worker, "size": size, **spec.pop("template", {})}
        if rolling is not None:
            rolling = {"maxUnavailable": 1, "maxSurge": 0, "partition": 0, **rolling}
            spec["rolloutStrategy"] = {"type": "RollingUpdate", "rollingUpdateConfiguration": rolling}
        raw = {
            "metadata": {"name": NAME, "namespace": self.namespace, "annotations": annotations or {}},
            "spec": {"replicas": replicas, "leaderWorkerTemplate": template, **spec},
        }
        await self.client.create(LeaderWorkerSet.from_dict(raw))
        await self.until(self.leader_set, what="the leader StatefulSet")
        if leaders:
            await self.leaders(*range(replicas))
        return await self.get()

    async def running(self, *, replicas=2, **wanted):
        """Create the set and make all its groups ready."""
        await self.create(replicas=replicas, **wanted)
        await self.ready(*range(replicas))
        floor = ((wanted.get("rolling") or {}).get("partition")) or 0
        await self.shows(AVAILABLE, replicas=replicas, partition=floor, ready=replicas, updated=replicas)

    async def get(self):
        return await self.client.get(LeaderWorkerSet, self.key())

    async def leader_set(self):
        return await self.client.find(StatefulSet, self.key())

    async def workers_of(self, index):
        return await self.client.find(StatefulSet, self.key(f"{NAME}-{index}"))

    async def worker_sets(self):
        """The worker StatefulSets by group."""
        listed = await self.client.list(StatefulSet, namespace=self.namespace)
        return {int(item.metadata.labels[L + "group-index"]): item for item in listed if item.metadata.name != NAME}

    async def leader(self, index):
        return await self.client.find(Pod, self.key(f"{NAME}-{index}"))

    async def pods(self):
        return {pod.metadata.name: pod for pod in await self.client.list(Pod, namespace=self.namespace)}

    async def services(self):
        return {item.metadata.name: item for item in await self.client.list(Service, namespace=self.namespace)}

    async def revisions(self):
        return await self.client.list(ControllerRevision, namespace=self.namespace)

    async def notes(self):
        return [event["note"] for event in await self.client.list(Event, namespace=self.namespace)]

    async def until(self, check, *, what=""):
        return await eventually(check, timeout=60, interval=0.02, what=what)

    async def noted(self, note):
        async def check():
            return note in await self.notes()

        await self.until(check, what=f"event {note!r}")

    async def patch(self, **spec):
        return await self.client.patch(LeaderWorkerSet, self.key(), MergePatch({"spec": spec}))

    async def roll(self, **patch):
        """Limits of the rolling update."""
        await self.patch(rolloutStrategy={"rollingUpdateConfiguration": patch})

    async def change(self, image="nginx:2", **spec):
        """Change the workers' template, and wait until the leader StatefulSet has the new revision."""
        before = (await self.leader_set()).metadata.labels[KEY]
        template = spec.pop("template", {})
        if "leaderTemplate" not in template:
            worker = {"spec": {"containers": [{"name": "worker", "image": image}]}}
            template = {"workerTemplate": worker, **template}
        await self.patch(leaderWorkerTemplate=template, **spec)

        async def changed():
            return (await self.leader_set()).metadata.labels[KEY] != before

        await self.until(changed, what="a new revision in the leader StatefulSet")

    async def leaders(self, *indexes, key=None):
        """Create leader pods as the StatefulSet controller and the pod webhook would: of the newest revision, or of
        an earlier one by its key."""
        leaders = await self.leader_set()
        newest = leaders.metadata.labels[KEY]
        self._templates[newest] = leaders.to_dict()["spec"]["template"]
        template = self._templates[key or newest]
        for index in indexes:
            name = f"{NAME}-{index}"
            labels = {
                **template["metadata"]["labels"],
                L + "group-index": str(index),
                L + "group-key": f"group-{index}",
            }
            metadata = {**template["metadata"], "labels": labels, "name": name, "namespace": self.namespace}
            owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": NAME, "uid": leaders.metadata.uid}
            metadata["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
            pod = copy_json({"metadata": metadata, "spec": template["spec"]})
            if self.admit is not None:
                self.admit(pod)
            await self.client.create(Pod.from_dict(pod))

    async def workers(self, index):
        """Create the worker pods of a group as its StatefulSet would."""

        async def made():
            return await self.workers_of(index)

        own = await self.until(made, what=f"worker StatefulSet {index}")
        template = own.to_dict()["spec"]["template"]
        for number in range(1, own.spec.replicas + 1):
            labels = {**template["metadata"]["labels"], L + "worker-index": str(number)}
            metadata = {**template["metadata"], "labels": labels, "namespace": self.namespace}
            metadata["name"] = f"{NAME}-{index}-{number}"
            owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": own.metadata.name, "uid": own.metadata.uid}
            metadata["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
            await self.client.create(Pod.from_dict({"metadata": metadata, "spec": template["spec"]}))

    async def phase(self, phase, *names, ready=False):
        status = {"phase": phase, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
        for name in names:
            await self.client.patch(Pod, self.key(name), MergePatch({"status": status}), subresource="status")

    async def remove(self, *indexes):
        """Delete groups: the leader, and for the garbage collector its worker StatefulSet."""
        for index in indexes:
            name = self.key(f"{NAME}-{index}")
            await self.client.delete(Pod, name, grace_period_seconds=0, missing_ok=True)
            if await self.client.find(Pod, name) is not None:  # deleted in the foreground before
                await self.client.patch(Pod, name, MergePatch({"metadata": {"finalizers": None}}))
            await self.client.delete(StatefulSet, name, missing_ok=True)

    async def ready(self, *indexes):
        """Bring groups to the newest revision, one by one, and make them ready."""
        size = (await self.get()).spec.leader_worker_template.size
        for index in indexes:
            leader = await self.leader(index)
            if leader is None or leader.metadata.labels[KEY] != (await self.leader_set()).metadata.labels[KEY]:
                await self.remove(index)
                await self.leaders(index)
            await self.phase("Running", f"{NAME}-{index}", ready=True)
            if size > 1:
                await self._workers_ready(index)

    async def _workers_ready(self, index):
        async def made():
            return await self.workers_of(index)

        await self.until(made, what=f"worker StatefulSet {index}")
        await self.workers_status(index, currentRevision="", updateRevision="")

    async def workers_status(self, index, **status):
        own = await self.workers_of(index)
        amounts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas"), own.spec.replicas)
        patch = MergePatch({"status": {**amounts, **status}})
        await self.client.patch(StatefulSet, own.key, patch, subresource="status")

    async def unready(self, index):
        await self.workers_status(index, currentRevision="one", updateRevision="another")

    async def shows(self, true=None, *, replicas, partition, ready=None, updated=None):
        """Wait until StatefulSet and status are so; ``true`` names the conditions that are, ``ready`` and ``updated``
        how many groups are."""
        wanted = (replicas, partition, ready, updated, true)

        async def check():
            lws, leaders = await self.get(), await self.leader_set()
            status = lws.status
            if status is None or status.observed_generation != lws.metadata.generation:
                return False
            found = {item.type for item in status.conditions if item.status == "True"}
            now = (
                leaders.spec.replicas,
                leaders.spec.update_strategy.rolling_update.partition,
                status.ready_replicas if ready is not None else None,
                status.updated_replicas if updated is not None else None,
                found if true is not None else None,
            )
            seen.append(now)
            return now == wanted

        seen = []
        try:
            await self.until(check)
        except AssertionError:
            raise AssertionError(f"wanted {wanted}, and it was {list(dict.fromkeys(map(str, seen)))}") from None
        for item in (await self.get()).status.conditions:
            assert item.message == MESSAGES[item.type]

    async def settled(self):
        """Wait until both controllers have looked at all that there is now."""
        for _ in range(2):
            touch = MergePatch({"metadata": {"annotations": {"test/seen": "yes"}}})
            again = MergePatch({"metadata": {"annotations": {"test/seen": None}}})
            for patch in (touch, again):
                await self._passes.over(await self.client.patch(LeaderWorkerSet, self.key(), patch))
                for name, pod in (await self.pods()).items():
                    if pod.metadata.labels[L + "worker-index"] == "0":
                        await self._passes.over(await self.client.patch(Pod, self.key(name), patch))

    async def valid(self, replicas, *, workers=None):
        """Wait until the leader StatefulSet has so many groups, and check it and the worker StatefulSets, of which
        there are ``workers`` (by default one for every group)."""

        async def grown():
            return (await self.leader_set()).spec.replicas == replicas and len(await self.worker_sets()) == (
                replicas if workers is None else workers
            )

        await self.until(grown, what=f"{replicas} groups")
        lws, leaders = await self.get(), await self.leader_set()
        size, name = lws.spec.leader_worker_template.size, {L + "name": NAME}
        assert leaders.metadata.labels == {**name, KEY: leaders.metadata.labels[KEY]}
        assert leaders.metadata.annotations[L + "replicas"] == str(lws.spec.replicas)
        assert leaders.metadata.owner_references[0].uid == lws.metadata.uid
        assert leaders.spec.service_name == NAME
        assert leaders.spec.pod_management_policy == "Parallel"
        assert leaders.spec.selector.match_labels == {**name, L + "worker-index": "0"}
        template = leaders.spec.template
        assert template.metadata.labels == {**name, L + "worker-index": "0", KEY: leaders.metadata.labels[KEY]}
        assert template.metadata.annotations[L + "size"] == str(size)
        assert (
            template.spec.containers[0].name == lws.spec.leader_worker_template.leader_template.spec.containers[0].name
        )
        for index, own in (await self.worker_sets()).items():
            leader = await self.leader(index)
            group = {**name, L + "group-index": str(index), L + "group-key": leader.metadata.labels[L + "group-key"]}
            labels = {**group, KEY: leader.metadata.labels[KEY]}
            assert own.metadata.name == leader.metadata.name
            assert own.metadata.labels == labels
            assert own.metadata.owner_references[0].uid == leader.metadata.uid
            assert own.spec.ordinals.start == 1
            assert own.spec.selector.match_labels == group
            assert own.spec.template.metadata.labels == labels
            annotations = own.spec.template.metadata.annotations
            assert annotations[L + "leader-name"] == leader.metadata.name
            assert annotations[L + "size"] == str(own.spec.replicas + 1) == leader.metadata.annotations[L + "size"]


@asynccontextmanager
async def _at_work(plane, settings):
    passes = Passes()
    options = ManagerOptions(
        connect=ConnectOptions(kubeconfig=plane.kubeconfig),
        metrics_bind_address="0",
        health_probe_bind_address="0",
        graceful_shutdown_timeout=5,
    )
    with pytest.MonkeyPatch.context() as patch:
        passes.count(patch, LeaderWorkerSetReconciler, LeaderWorkerSet)
        passes.count(patch, PodReconciler, Pod)
        async with connect(kubeconfig=plane.kubeconfig) as client:
            await install_crds(client, leaderworkerset.MODELS)
            async with Manager(options) as manager:
                leaderworkerset.setup(manager, settings)
                async with running(manager):
                    yield client, passes


@pytest.fixture(scope="module")
def settings():
    """The settings of the controllers; a module may have others."""
    return leaderworkerset.Settings()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at_work(bare_plane, settings):
    """The controllers at work in all namespaces."""
    async with in_own_task(_at_work(bare_plane, settings)) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def hand(at_work, request) -> AsyncIterator[Hand]:
    client, passes = at_work
    namespace = Namespace.from_dict({"metadata": {"generateName": "by-hand-"}})
    made = await client.create(namespace)
    yield Hand(client, made.metadata.name, passes)
    # Nothing else of it goes without garbage collection, and nothing more is done for a set that is gone.
    await client.delete(LeaderWorkerSet, f"{made.metadata.name}/{NAME}", missing_ok=True)
