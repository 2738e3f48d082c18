"""The set's webhooks behind the real API server, registered once for all cases of a module; no controllers."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import anyio
import pytest
import pytest_asyncio

from pyreconcile.api import unstructured
from pyreconcile.api.core_v1 import Namespace
from pyreconcile.client import ForbiddenError, connect
from pyreconcile.crd import install_crds
from pyreconcile.testing import eventually
from pyreconcile.testing._running import in_own_task
from pyreconcile.webhook import WebhookOptions, WebhookServer, install, webhook_configurations
from pyreconcile_controllers.leaderworkerset import volcano
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet
from pyreconcile_controllers.leaderworkerset.webhook import WEBHOOKS, register

L = "leaderworkerset.sigs.k8s.io/"
# Sent as it is written: the typed models would leave out and fill in what the API server and the webhooks must.
RawSet = unstructured("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
RawPod = unstructured("v1", "Pod")
Mutating = unstructured("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", namespaced=False)
Validating = unstructured("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", namespaced=False)


class Volcano:
    """What the controllers of a manager with Volcano as its scheduler do to pods."""

    async def admit(self, pod, _request):
        volcano.annotate(pod)


class Admission:
    """What is sent to one namespace, and what is stored of it."""

    def __init__(self, client, namespace):
        self.client = client
        self.namespace = namespace

    async def create_set(self, raw):
        return await self.client.create(self._placed(RawSet, raw))

    async def update_set(self, raw):
        """Change a stored set to this, whatever its version."""
        stored = await self.client.get(RawSet, f"{self.namespace}/{raw['metadata']['name']}")
        version = {"resourceVersion": stored.metadata.resource_version}
        changed = {**raw, "metadata": {**raw["metadata"], **version}}
        return await self.client.update(self._placed(RawSet, changed))

    async def create_pod(self, raw, *, dry_run=False):
        """Return a pod as it is stored; it is deleted at once, so that its name is free again."""
        stored = await self.client.create(self._placed(RawPod, raw), dry_run=dry_run)
        if not dry_run:
            await self.client.delete(stored, grace_period_seconds=0)
        return stored.to_dict()

    def _placed(self, kind, raw):
        return kind.from_dict({**raw, "metadata": {**raw["metadata"], "namespace": self.namespace}})

    async def is_on(self):
        """Tell whether the API server asks all the webhooks."""
        workers = {"spec": {"containers": [{"name": "c", "image": "x"}]}}
        spec = {"leaderWorkerTemplate": {"workerTemplate": workers}}
        labels = {L + "name": "probe", L + "worker-index": "0"}
        pod = {"metadata": {"name": "probe-0", "labels": labels}, "spec": workers["spec"]}
        refused = {
            "mpod.kb.io": self._placed(RawPod, pod),
            "vleaderworkerset.kb.io": self._placed(RawSet, {"metadata": {"name": "2cube"}, "spec": spec}),
        }
        for webhook, obj in refused.items():
            try:
                await self.client.create(obj, dry_run=True)
            except ForbiddenError as error:
                if webhook not in str(error):
                    return False
            else:
                return False
        probe = await self.client.create(
            self._placed(RawSet, {"metadata": {"name": "probe"}, "spec": spec}), dry_run=True
        )
        return "networkConfig" in probe["spec"]


@asynccontextmanager
async def admission_in(kubeconfig, gangs=None):
    namespace = f"lws-admission-{secrets.token_hex(3)}"
    server = WebhookServer(WebhookOptions(bind_address="127.0.0.1:0"))
    register(server, gangs=gangs)
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    webhooks = [replace(webhook, namespace_selector=here) for webhook in WEBHOOKS]
    stop = anyio.Event()
    async with connect(kubeconfig=kubeconfig) as client, anyio.create_task_group() as tasks:
        await install_crds(client, [LeaderWorkerSet])
        await client.create(Namespace.from_dict({"metadata": {"name": namespace}}))
        await tasks.start(server.run, stop)
        try:
            await install(
                client,
                webhook_configurations(server, webhooks, mutating_name=namespace, validating_name=namespace),
            )
            found = Admission(client, namespace)
            await eventually(found.is_on, timeout=60, interval=0.05, what="the API server asks the webhooks")
            yield found
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(10):
                for kind in (Mutating, Validating):
                    await client.delete(kind, namespace, missing_ok=True)
                await client.delete(Namespace, namespace, missing_ok=True)
            stop.set()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admission(control_plane) -> AsyncIterator[Admission]:
    async with in_own_task(admission_in(control_plane.kubeconfig)) as found:
        yield found


@pytest.fixture
def admission_with_volcano(control_plane):
    """The same by a manager that has Volcano place the groups."""
    return partial(admission_in, control_plane.kubeconfig, Volcano())
