"""A manager with the set's controllers and webhooks on the real control plane, and words to look at sets with."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import pytest_asyncio

from pyreconcile.api import unstructured
from pyreconcile.api.apps_v1 import ControllerRevision, StatefulSet
from pyreconcile.api.core_v1 import Pod, Service
from pyreconcile.client import ApiError, ForbiddenError, MergePatch
from pyreconcile.crd import install_crds
from pyreconcile.manager import Manager
from pyreconcile.testing import FaultProxy, eventually, running
from pyreconcile.testing._running import in_own_task
from pyreconcile.webhook import WebhookOptions, install, webhook_configurations
from pyreconcile_controllers import leaderworkerset
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet
from pyreconcile_controllers.leaderworkerset.webhook import WEBHOOKS

L = "leaderworkerset.sigs.k8s.io/"
Event = unstructured("events.k8s.io/v1", "Event")
Mutating = unstructured("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", namespaced=False)
Validating = unstructured("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", namespaced=False)


class Sets:
    """What tests do with sets in one namespace, reading live; every wait is bounded."""

    def __init__(self, client, namespace):
        self.client = client
        self.namespace = namespace

    Event = Event

    def key(self, name):
        return f"{self.namespace}/{name}"

    async def create(self, name="demo", *, dry_run=False, **wanted):
        return await self.client.create(self.make(name, **wanted), dry_run=dry_run)

    async def admitted(self):
        """Wait until the API server asks the webhooks, those that fill in and those that refuse.

        It learns of them, of their address and of their certificate a moment after they were stored.
        """

        async def asked():
            probe = await self.create("probe", dry_run=True)
            try:
                await self.create("2cube", dry_run=True)
            except ForbiddenError as error:
                return "vleaderworkerset.kb.io" in str(error) and probe.spec.network_config is not None
            return False

        what = "the API server asks the webhooks"
        await eventually(asked, timeout=60, interval=0.05, what=what, not_yet=(ApiError,))

    def make(
        self,
        name,
        *,
        replicas=2,
        size=3,
        labels=None,
        annotations=None,
        image="busybox:1",
        at_once=False,
        **spec,
    ):
        """Return a set. Its pods go ``at_once`` when they are deleted, by the API server alone: kwok, which ends the
        others, does so by name, and now and then a second time, when another pod has the name already."""
        template = spec.pop("template", {})
        pod = {"spec": {"containers": [{"name": "c", "image": image}]}}
        if at_once:
            pod["spec"]["terminationGracePeriodSeconds"] = 0
        raw = {
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "replicas": replicas,
                "leaderWorkerTemplate": {"workerTemplate": pod, "size": size, **template},
                **spec,
            },
        }
        if labels:
            raw["metadata"]["labels"] = labels
        if annotations:
            raw["metadata"]["annotations"] = annotations
        return LeaderWorkerSet.from_dict(raw)

    async def patch(self, name, **spec):
        return await self.client.patch(LeaderWorkerSet, self.key(name), MergePatch({"spec": spec}))

    async def get(self, name="demo"):
        return await self.client.get(LeaderWorkerSet, self.key(name))

    async def set(self, name):
        return await self.client.find(StatefulSet, self.key(name))

    async def pods(self, name="demo"):
        """The set's pods by name, the terminating ones left out."""
        pods = await self.client.list(Pod, namespace=self.namespace, labels={L + "name": name})
        return {pod.metadata.name: pod for pod in pods if not pod.metadata.deletion_timestamp}

    async def uids(self, name="demo"):
        return {pod_name: pod.metadata.uid for pod_name, pod in (await self.pods(name)).items()}

    async def worker_sets(self, name="demo"):
        sets = await self.client.list(StatefulSet, namespace=self.namespace, labels={L + "name": name})
        return {item.metadata.name: item for item in sets if L + "group-index" in item.metadata.labels}

    async def services(self):
        return {item.metadata.name: item for item in await self.client.list(Service, namespace=self.namespace)}

    async def revisions(self, name="demo"):
        """The set's own revisions: its StatefulSets have some too, with the same label."""
        found = await self.client.list(ControllerRevision, namespace=self.namespace, labels={L + "name": name})
        return [item for item in found if item.metadata.owner_references[0].kind == "LeaderWorkerSet"]

    async def everything(self, name="demo"):
        """All objects of a set but its pods, keyed by kind."""
        found = [await self.get(name), *(await self.services()).values(), *await self.revisions(name)]
        found += await self.client.list(StatefulSet, namespace=self.namespace, labels={L + "name": name})
        return {f"{type(obj).resource.kind}/{obj.key}": obj for obj in found}

    async def notes(self, name="demo"):
        events = await self.client.list(Event, namespace=self.namespace)
        return [event["note"] for event in events if event["regarding"].get("name") == name]

    async def conditions(self, name="demo"):
        status = (await self.get(name)).status
        return {item.type: (item.status, item.message) for item in (status.conditions if status else ())}

    async def until(self, check, *, timeout=60, what=""):
        """Wait until a check is true, and return what it gave."""
        return await eventually(check, timeout=timeout, interval=0.05, what=what)

    async def running(self, name, groups, size):
        """Wait until exactly these pods run and are ready; return them."""
        wanted = {f"{name}-{i}" for i in range(groups)}
        wanted |= {f"{name}-{i}-{w}" for i in range(groups) for w in range(1, size)}

        async def check():
            pods = await self.pods(name)
            return pods.keys() == wanted and all(ready(pod) for pod in pods.values()) and (pods or [True])

        return await self.until(check, what=f"pods {sorted(wanted)}")

    async def available(self, name="demo"):
        """Wait until the set is Available for its newest generation; return it."""

        async def check():
            lws = await self.get(name)
            if lws.status is None or lws.status.observed_generation != lws.metadata.generation:
                return None
            good = any(item.type == "Available" and item.status == "True" for item in lws.status.conditions)
            return lws if good else None

        return await self.until(check, what=f"{name} is available")

    async def settled(self, *names):
        """Wait until Kubernetes has written all that it has to write about the objects of sets as they are."""

        async def check():
            for name in names or ("demo",):
                selected = {"namespace": self.namespace, "labels": {L + "name": name}}
                pods = await self.client.list(Pod, **selected)
                sets = await self.client.list(StatefulSet, **selected)
                if not (all(map(at_rest, pods)) and all(tells_all(item, pods) for item in sets)):
                    return False
            return True

        await self.until(check, what="Kubernetes has no more to write")

    async def noted(self, note, name="demo"):
        """Wait for an event with this note."""

        async def check():
            return note in await self.notes(name)

        await self.until(check, what=f"event {note!r}")


def ready(pod):
    return has(pod, Ready="True")


def has(pod, **wanted):
    conditions = (pod.status.conditions if pod.status else None) or ()
    return any(wanted.get(item.type) == item.status for item in conditions)


def at_rest(pod):
    """Tell whether a pod stays as it is: it is ready, or has no place."""
    return pod.metadata.deletion_timestamp is None and has(pod, Ready="True", PodScheduled="False")


def tells_all(stateful_set, pods):
    """Tell whether the status of a StatefulSet is what follows from its pods."""
    status, metadata = stateful_set.status, stateful_set.metadata
    if status is None or status.observed_generation != metadata.generation:
        return False
    mine = [pod for pod in pods if any(owner.uid == metadata.uid for owner in pod.metadata.owner_references)]
    revisions = [pod.metadata.labels.get("controller-revision-hash") for pod in mine]
    count = sum(map(ready, mine))
    told = (status.replicas, status.ready_replicas, status.available_replicas, status.updated_replicas)
    so = (len(mine), count, count, revisions.count(status.update_revision))
    return len(mine) == stateful_set.spec.replicas and tuple(number or 0 for number in told) == so


@pytest.fixture
def manager_options(manager_options):
    return replace(manager_options, webhook=WebhookOptions(bind_address="127.0.0.1:0"))


@asynccontextmanager
async def at_work(manager, client, namespace, settings, *, stay=False):
    """Run the controllers and webhooks of one process; unless they ``stay``, the sets are deleted at its end."""
    await install_crds(client, leaderworkerset.MODELS)
    leaderworkerset.setup(manager, settings)
    only_here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    webhooks = [replace(webhook, namespace_selector=only_here) for webhook in WEBHOOKS]
    async with running(manager):
        await install(
            client,
            webhook_configurations(manager.webhooks, webhooks, mutating_name=namespace, validating_name=namespace),
        )
        found = Sets(client, namespace)
        try:
            await found.admitted()
            yield found
        finally:
            if not stay:
                await tidy(client, namespace)


async def tidy(client, namespace):
    """Delete the sets of a test, and its webhooks."""
    await client.delete_all_of(LeaderWorkerSet, namespace=namespace)
    for kind in (Mutating, Validating):
        await client.delete(kind, namespace, missing_ok=True)


@pytest_asyncio.fixture
async def proxy(control_plane) -> AsyncIterator[FaultProxy]:
    """A proxy before the API server, for modules that send their manager through it."""
    async with FaultProxy(control_plane.kubeconfig) as running_proxy:
        yield running_proxy


@pytest.fixture
def settings():
    """What the controllers are told; a test module may override it."""
    return leaderworkerset.Settings()


@pytest_asyncio.fixture
async def sets(manager, client, namespace, settings) -> AsyncIterator[Sets]:
    """The controllers and webhooks at work in the test's namespace."""
    async with in_own_task(at_work(manager, client, namespace, settings)) as found:
        yield found


@pytest.fixture
def words(client, namespace):
    """Words to look at the namespace's sets with, while no controller runs yet."""
    return Sets(client, namespace)


@pytest_asyncio.fixture
async def process(manager_options, client, namespace, settings):
    """Runs the controllers and webhooks while an ``async with process()`` block runs, one after the other."""

    @asynccontextmanager
    async def start():
        async with (
            Manager(manager_options) as manager,
            at_work(manager, client, namespace, settings, stay=True) as found,
        ):
            yield found

    yield start
    await tidy(client, namespace)


@pytest.fixture(scope="session")
def controllers_at_work():
    """What `sets` is made with, for fixtures that several tests share."""
    return at_work
