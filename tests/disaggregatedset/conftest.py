"""A manager with the bundles disaggregatedset and leaderworkerset at work, and words to look at sets with."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest
import pytest_asyncio

from pyreconcile.api import unstructured
from pyreconcile.api.core_v1 import Pod, Service
from pyreconcile.client import ForbiddenError, InternalServerError, MergePatch
from pyreconcile.crd import install_crds
from pyreconcile.manager import Manager
from pyreconcile.testing import eventually, running
from pyreconcile.testing._running import in_own_task
from pyreconcile.webhook import WebhookOptions, install, webhook_configurations
from pyreconcile_controllers import disaggregatedset, leaderworkerset
from pyreconcile_controllers.disaggregatedset import DisaggregatedSet
from pyreconcile_controllers.disaggregatedset import webhook as own_webhook
from pyreconcile_controllers.leaderworkerset import LeaderWorkerSet
from pyreconcile_controllers.leaderworkerset import webhook as lws_webhook

D = "disaggregatedset.x-k8s.io/"
Event = unstructured("events.k8s.io/v1", "Event")
Mutating = unstructured("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", namespaced=False)
Validating = unstructured("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", namespaced=False)
RawSet = unstructured("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet")


def raw_role(name, replicas=1, *, image="busybox:1", size=1, **more):
    pod = {"spec": {"containers": [{"name": "c", "image": image}]}}
    spec = {"replicas": replicas, "leaderWorkerTemplate": {"size": size, "workerTemplate": pod}}
    return {"name": name, "spec": {**spec, **more.pop("spec", {})}, **more}


class Watcher:
    """Records what each change of a LeaderWorkerSet makes of the whole: wanted and ready replicas by revision, role."""

    def __init__(self):
        self.replicas = {}
        self.states = []

    def see(self, event):
        lws = event.object
        labels = lws.metadata.labels
        key = labels[D + "revision"], labels[D + "role"]
        if event.type == "DELETED":
            self.replicas.pop(key, None)
        else:
            self.replicas[key] = lws.spec.replicas, (lws.status and lws.status.ready_replicas) or 0
        if not self.states or self.states[-1] != self.replicas:
            self.states.append(dict(self.replicas))


class Sets:
    """What tests do with sets in one namespace, reading live; every wait is bounded."""

    Event = Event

    def __init__(self, client, namespace):
        self.client = client
        self.namespace = namespace

    def key(self, name):
        return f"{self.namespace}/{name}"

    def make(self, *roles, name="demo", **spec):
        metadata = {"name": name, "namespace": self.namespace}
        return RawSet.from_dict({"metadata": metadata, "spec": {"roles": list(roles), **spec}})

    async def create(self, *roles, name="demo", dry_run=False, **spec):
        return await self.client.create(self.make(*roles, name=name, **spec), dry_run=dry_run)

    async def set_roles(self, *roles, name="demo"):
        return await self.client.patch(DisaggregatedSet, self.key(name), MergePatch({"spec": {"roles": list(roles)}}))

    async def get(self, name="demo"):
        return await self.client.get(DisaggregatedSet, self.key(name))

    async def lws(self, name="demo"):
        """The set's LeaderWorkerSets by (revision, role)."""
        found = await self.client.list(LeaderWorkerSet, namespace=self.namespace, labels={D + "name": name})
        return {(lws.metadata.labels[D + "revision"], lws.metadata.labels[D + "role"]): lws for lws in found}

    async def revisions(self, name="demo"):
        return {revision for revision, _ in await self.lws(name)}

    async def replicas(self, name="demo"):
        """Replicas wanted by role, when there is one revision only."""
        found = await self.lws(name)
        if len({revision for revision, _ in found}) != 1:
            return None
        return {role: lws.spec.replicas for (_, role), lws in found.items()}

    async def services(self):
        return {item.metadata.name: item for item in await self.client.list(Service, namespace=self.namespace)}

    async def pods(self, **labels):
        selector = {D + key: value for key, value in labels.items()}
        found = await self.client.list(Pod, namespace=self.namespace, labels=selector)
        return [pod for pod in found if not pod.metadata.deletion_timestamp]

    async def reasons(self, name="demo"):
        events = await self.client.list(Event, namespace=self.namespace)
        return {event["reason"] for event in events if event["regarding"].get("name") == name}

    async def notes(self, name="demo"):
        events = await self.client.list(Event, namespace=self.namespace)
        return [event["note"] for event in events if event["regarding"].get("name") == name]

    async def until(self, check, *, timeout=30, what=""):
        """Wait until a check is true, and return what it gave."""
        return await eventually(check, timeout=timeout, interval=0.05, what=what)

    async def available(self, name="demo"):
        """Wait until the set is Available for its newest generation with one revision left; return it."""

        async def check():
            found = await self.get(name)
            if found.status is None or found.status.observed_generation != found.metadata.generation:
                return None
            good = any(item.type == "Available" and item.status == "True" for item in found.status.conditions)
            return found if good and len(await self.revisions(name)) == 1 else None

        return await self.until(check, what=f"{name} is available", timeout=60)

    async def happened(self, reason, name="demo"):
        """Wait for an event with this reason."""

        async def check():
            return reason in await self.reasons(name)

        await self.until(check, what=f"event {reason}")

    @asynccontextmanager
    async def watching(self):
        """Record every state of the namespace's LeaderWorkerSets from the one now, while the block runs."""
        watcher = Watcher()

        async def watch():
            async for event in self.client.watch(LeaderWorkerSet, namespace=self.namespace):
                watcher.see(event)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)

            async def shows_what_there_is():
                found = await self.client.list(LeaderWorkerSet, namespace=self.namespace)
                return watcher.replicas.keys() == {
                    (lws.metadata.labels[D + "revision"], lws.metadata.labels[D + "role"]) for lws in found
                }

            await self.until(shows_what_there_is, what="the watch shows what there is")
            watcher.states = [dict(watcher.replicas)]
            yield watcher
            tasks.cancel_scope.cancel()


@pytest.fixture
def manager_options(manager_options):
    return replace(manager_options, webhook=WebhookOptions(bind_address="127.0.0.1:0"))


@asynccontextmanager
async def at_work(manager, client, namespace):
    await install_crds(client, [*leaderworkerset.MODELS, *disaggregatedset.MODELS])
    leaderworkerset.setup(manager)
    disaggregatedset.setup(manager)
    # Only this namespace, so that tests do not meet in a shared cluster.
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    webhooks = [replace(item, namespace_selector=here) for item in (*lws_webhook.WEBHOOKS, *own_webhook.WEBHOOKS)]
    async with running(manager):
        built = webhook_configurations(manager.webhooks, webhooks, mutating_name=namespace, validating_name=namespace)
        await install(client, built)
        found = Sets(client, namespace)

        async def admission_is_on():
            probe = {"leaderWorkerTemplate": raw_role("a")["spec"]["leaderWorkerTemplate"]}
            metadata = {"name": "probe", "namespace": namespace}
            made = LeaderWorkerSet.from_dict({"metadata": metadata, "spec": probe})
            try:
                await found.create(raw_role("a"), raw_role("b"), name="2bad", dry_run=True)
            except ForbiddenError:
                return (await client.create(made, dry_run=True)).spec.network_config
            except InternalServerError as error:
                # After a restart the API server may for a moment still call the manager that is gone.
                if "failed calling webhook" not in str(error):
                    raise
            return False

        await found.until(admission_is_on, what="the API server asks the webhooks")
        yield found


@pytest_asyncio.fixture
async def work(manager_options, client, namespace):
    """``async with work() as sets``: a manager of its own at work while the block runs.

    The webhooks stay registered in between, as they do when a manager is restarted.
    """

    @asynccontextmanager
    async def opened():
        async with Manager(manager_options) as manager, at_work(manager, client, namespace) as found:
            yield found

    yield opened
    for kind in (DisaggregatedSet, LeaderWorkerSet):
        await client.delete_all_of(kind, namespace=namespace)
    for kind in (Mutating, Validating):
        await client.delete(kind, namespace, missing_ok=True)


@pytest_asyncio.fixture
async def sets(work) -> AsyncIterator[Sets]:
    """The controllers and webhooks at work in the test's namespace."""
    async with in_own_task(work()) as found:
        yield found


@pytest.fixture
def role():
    """Builds a role as JSON: ``role("prefill", 6, image="busybox:2")``."""
    return raw_role
