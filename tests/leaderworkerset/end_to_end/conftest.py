"""Cases on a whole cluster, all at once: one manager, one namespace, and a view of it that watches keep.

A case is an async function in the module's ``CASES``; its test waits for its outcome. Nothing polls: a wait looks anew
when something of its set has changed, and short-lived states are read from what the watches have shown.
"""

import asyncio
import secrets
from collections import defaultdict
from contextlib import aclosing, asynccontextmanager

import anyio
import pytest_asyncio

from pyreconcile.api import unstructured
from pyreconcile.api.core_v1 import Namespace
from pyreconcile.cache import CacheOptions
from pyreconcile.client import ConnectOptions, MergePatch, connect
from pyreconcile.manager import Manager, ManagerOptions
from pyreconcile.testing._running import in_own_task
from pyreconcile.webhook import WebhookOptions
from pyreconcile_controllers import leaderworkerset

L = "leaderworkerset.sigs.k8s.io/"
KEY = L + "template-revision-hash"
LIMIT = 150.0
"""Seconds that a case may take, all running at once."""

RawSet = unstructured("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
KINDS = {
    "set": RawSet,
    "statefulset": unstructured("apps/v1", "StatefulSet"),
    "pod": unstructured("v1", "Pod"),
    "service": unstructured("v1", "Service"),
}


class View:
    """What is in the namespace now, and how numbers got there."""

    def __init__(self):
        self.objects = {kind: {} for kind in KINDS}
        self.replicas = defaultdict(list)
        """By set: what its leader StatefulSet was told, without repetitions."""
        self.services = defaultdict(list)
        """By set: how many services there were, without repetitions."""
        self._changed = defaultdict(asyncio.Event)

    async def follow(self, client, kind, namespace):
        async with aclosing(client.watch(KINDS[kind], namespace=namespace, timeout_seconds=600)) as events:
            async for event in events:
                self._see(kind, event)

    def _see(self, kind, event):
        raw = event.object.to_dict()
        name = raw["metadata"]["name"]
        of = name if kind == "set" else raw["metadata"].get("labels", {}).get(L + "name", "")
        if event.type == "DELETED":
            self.objects[kind].pop(name, None)
        else:
            self.objects[kind][name] = raw
        if kind == "statefulset" and name == of:
            note(self.replicas[of], raw["spec"]["replicas"])
        if kind == "service":
            note(self.services[of], len(self.of(of, "service")))
        self._changed[of].set()

    def of(self, name, kind):
        """Objects of a set by name."""
        found = self.objects[kind].items()
        return {key: raw for key, raw in found if raw["metadata"].get("labels", {}).get(L + "name") == name}

    async def until(self, name, check, what):
        """Wait until a check holds, and return what it gave."""
        with anyio.move_on_after(LIMIT):
            while True:
                self._changed[name].clear()
                if result := check():
                    return result
                await self._changed[name].wait()
        raise TimeoutError(f"{name}: {what}; there is {self.objects['set'].get(name, {}).get('status')}")


def note(values, value):
    if values[-1:] != [value]:
        values.append(value)


class Case:
    """One set, and words to look at it with."""

    def __init__(self, client, namespace, view, name):
        self.client = client
        self.namespace = namespace
        self.view = view
        self.name = name

    # -- what is done

    async def create(self, *, replicas=2, size=2, pod=None, **spec):
        template = {"workerTemplate": pod or plain(), "size": size, **spec.pop("template", {})}
        metadata = {"name": self.name, "namespace": self.namespace}
        wanted = {"replicas": replicas, "leaderWorkerTemplate": template, **spec}
        return await self.client.create(RawSet.from_dict({"metadata": metadata, "spec": wanted}))

    async def patch(self, **spec):
        """Change the set; what the view shows from then on is at least that new."""
        changed = await self.client.patch(RawSet, f"{self.namespace}/{self.name}", MergePatch({"spec": spec}))
        generation = changed.metadata.generation
        await self.until(lambda: self.set["metadata"]["generation"] >= generation, "the change is seen")

    async def delete(self, **how):
        await self.client.delete(RawSet, f"{self.namespace}/{self.name}", **how)

    async def patch_pod(self, name, patch, **how):
        await self.client.patch(KINDS["pod"], f"{self.namespace}/{name}", MergePatch(patch), **how)

    # -- what is seen

    @property
    def set(self):
        return self.view.objects["set"].get(self.name)

    @property
    def key(self):
        """The key of the newest revision."""
        return self.leaders["metadata"]["labels"][KEY]

    @property
    def leaders(self):
        return self.view.objects["statefulset"].get(self.name)

    @property
    def worker_sets(self):
        found = self.view.of(self.name, "statefulset")
        return {name: raw for name, raw in found.items() if name != self.name}

    @property
    def pods(self):
        """The pods that are not going away."""
        found = self.view.of(self.name, "pod")
        return {name: raw for name, raw in found.items() if "deletionTimestamp" not in raw["metadata"]}

    @property
    def services(self):
        return self.view.of(self.name, "service")

    def names(self, groups, size):
        """What the pods of so many groups are called."""
        leaders = [f"{self.name}-{group}" for group in range(groups)]
        return {*leaders, *(f"{leader}-{worker}" for leader in leaders for worker in range(1, size))}

    async def until(self, check, what):
        return await self.view.until(self.name, check, what)

    async def pods_there(self, groups, size, check=lambda pod: True):
        """Wait until exactly these pods are there, running or not."""

        def there():
            pods = self.pods
            return pods.keys() == self.names(groups, size) and all(map(check, pods.values())) and pods

        return await self.until(there, f"{groups} groups of {size} pods")

    async def available(self, groups, size, *, after=None):
        """Wait until the set is available with these pods, of one revision, which is not ``after``; return them."""

        def done():
            lws, leaders = self.set, self.leaders
            status = (lws or {}).get("status") or {}
            if leaders is None or status.get("observedGeneration") != lws["metadata"]["generation"]:
                return None
            good = any(item["type"] == "Available" and item["status"] == "True" for item in status["conditions"])
            counts = [status.get(field) for field in ("replicas", "readyReplicas", "updatedReplicas")]
            if not good or counts != [groups] * 3 or self.key == after:
                return None
            if leaders["spec"]["replicas"] != groups:
                return None  # its own watch is a little behind
            pods = self.pods
            keys = {pod["metadata"]["labels"][KEY] for pod in pods.values()}
            return (
                pods.keys() == self.names(groups, size)
                and keys == {self.key}
                and all(map(ready, pods.values()))
                and pods
            )

        return await self.until(done, f"{groups} groups of {size} pods are available")


def plain(image="busybox:1", **container):
    """A pod template that runs."""
    return {"spec": {"containers": [{"name": "c", "image": image, **container}]}}


def ready(pod):
    conditions = pod["status"].get("conditions", ())
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


class Outcomes:
    """How the cases ended."""

    def __init__(self, names):
        self._tasks = {}
        self._ended = {name: anyio.Event() for name in names}
        self._errors = {}

    async def run(self, name, case, of):
        try:
            await of(case)
        except Exception as error:
            self._errors[name] = error
        finally:
            self._ended[name].set()

    async def of(self, name):
        """Wait for a case; raise what it raised."""
        with anyio.fail_after(LIMIT + 10):
            await self._ended[name].wait()
        if name in self._errors:
            raise self._errors[name]


@asynccontextmanager
async def all_at_once(kubeconfig, at_work, cases):
    namespace = f"lws-end-to-end-{secrets.token_hex(3)}"
    options = ManagerOptions(
        connect=ConnectOptions(kubeconfig=kubeconfig),
        cache=CacheOptions(namespaces=(namespace,)),
        metrics_bind_address="0",
        health_probe_bind_address="0",
        graceful_shutdown_timeout=5,
        webhook=WebhookOptions(bind_address="127.0.0.1:0"),
    )
    view, outcomes = View(), Outcomes(cases)
    async with connect(kubeconfig=kubeconfig) as client:
        await client.create(Namespace.from_dict({"metadata": {"name": namespace}}))
        try:
            async with (
                Manager(options) as manager,
                at_work(manager, client, namespace, leaderworkerset.Settings()),
                anyio.create_task_group() as tasks,
            ):
                for kind in KINDS:
                    tasks.start_soon(view.follow, client, kind, namespace)
                for number, (name, of) in enumerate(cases.items()):
                    tasks.start_soon(outcomes.run, name, Case(client, namespace, view, f"s{number}"), of)
                yield outcomes
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(10):
                await client.delete(Namespace, namespace, missing_ok=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outcomes(request, control_plane, controllers_at_work):
    """The outcomes of those cases of the module that this run is to show."""
    wanted = [item.callspec.params["case"] for item in request.session.items if item.module is request.module]
    cases = {name: of for name, of in request.module.CASES.items() if name in wanted}
    async with in_own_task(all_at_once(control_plane.kubeconfig, controllers_at_work, cases)) as found:
        yield found
