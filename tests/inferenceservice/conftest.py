"""The controller and a stand-in gateway on the real control plane, and words to look at services with."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hack.gateway_api import HTTP_ROUTE, StandInGateway, install_gateway_api
from pyreconcile.api import unstructured
from pyreconcile.api.apps_v1 import ControllerRevision, Deployment
from pyreconcile.api.core_v1 import Service
from pyreconcile.client import MergePatch
from pyreconcile.crd import install_crds
from pyreconcile.testing import eventually, running
from pyreconcile_controllers import inferenceservice
from pyreconcile_controllers.inferenceservice import InferenceService, ServingRuntime, Settings

KWOK = "kwok.pyreconcile.dev/"
Event = unstructured("events.k8s.io/v1", "Event")


class Services:
    """What tests do with one service, ``m``, reading live; every wait is bounded."""

    Service = Service
    Deployment = Deployment

    def __init__(self, client, namespace, gateway):
        self.client = client
        self.namespace = namespace
        self.gateway = gateway
        self.key = f"{namespace}/m"

    async def create(self, *, model="v1", percent=None, annotations=None, metadata=None, **predictor):
        await self.client.create(self.runtime())
        spec = {"model": self.model(model), "terminationGracePeriodSeconds": 0, **predictor}
        if percent is not None:
            spec["canaryTrafficPercent"] = percent
        if annotations:
            spec["annotations"] = annotations
        raw = {"metadata": {"name": "m", "namespace": self.namespace, **(metadata or {})}, "spec": {"predictor": spec}}
        return await self.client.create(InferenceService.from_dict(raw))

    def runtime(self):
        container = {"name": "kserve-container", "image": "server:1", "args": ["--model={{.Name}}"]}
        raw = {"metadata": {"name": "server", "namespace": self.namespace}, "spec": {"containers": [container]}}
        return ServingRuntime.from_dict(raw)

    @staticmethod
    def model(version):
        return {"modelFormat": {"name": "any"}, "runtime": "server", "storageUri": f"gs://models/{version}"}

    async def update(self, *, model=None, **predictor):
        if model is not None:
            predictor["model"] = self.model(model)
        await self.client.patch(InferenceService, self.key, MergePatch({"spec": {"predictor": predictor}}))

    async def get(self):
        return await self.client.get(InferenceService, self.key)

    async def component(self):
        status = (await self.get()).status
        return (status.components or {}).get("predictor") if status else None

    async def state(self):
        """C, Y, R and V of the specification's tables, as in ``r2,r2,r1,-``; and the traffic."""
        component = await self.component()
        if component is None:
            return "-,-,-,-", []
        names = (
            component.latest_created_revision,
            component.latest_ready_revision,
            component.latest_rolledout_revision,
            component.previous_rolledout_revision,
        )
        return ",".join(map(short, names)), [
            f"{short(item.revision_name)} {item.percent}{' ' + item.tag if item.tag else ''}"
            for item in component.traffic or ()
        ]

    async def reaches(self, state, traffic, *, timeout=30):
        """Wait until the status says this, and the route's weights in force are those of the traffic."""

        async def check():
            return await self.state() == (state, traffic)

        try:
            await self.until(check, timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"{state} {traffic}, but it is {await self.state()}: {await self.told()}") from error
        total = {}
        for item in traffic:
            name, share = item.split()[:2]
            total[name] = total.get(name, 0) + int(share)
        assert self.weights() == {name: share for name, share in total.items() if share}

    def weights(self):
        return {short(name): weight for name, weight in self.gateway.weights(self.key).items()}

    def history(self):
        return [{short(name): share for name, share in item.items()} for item in self.gateway.accepted[self.key]]

    async def conditions(self):
        status = (await self.get()).status
        return {item.type: (item.status, item.reason) for item in (status.conditions if status else ())}

    async def told(self):
        status = (await self.get()).status
        return {item.type: (item.status, item.reason, item.message) for item in (status.conditions if status else ())}

    async def says(self, **wanted):
        """Wait until conditions have a status, or a status and a reason."""

        async def check():
            now = await self.conditions()
            return all(
                kind in now and (now[kind] == expected if isinstance(expected, tuple) else now[kind][0] == expected)
                for kind, expected in wanted.items()
            )

        try:
            await self.until(check)
        except AssertionError as error:
            raise AssertionError(f"{wanted}, but it is {await self.told()}") from error

    async def deployments(self):
        found = await self.client.list(Deployment, namespace=self.namespace)
        return {short(item.metadata.name): item for item in found}

    async def replicas(self):
        return {name: item.spec.replicas for name, item in (await self.deployments()).items()}

    async def scales_to(self, **wanted):
        async def check():
            return await self.replicas() == wanted

        try:
            await self.until(check)
        except AssertionError as error:
            raise AssertionError(f"{wanted}, but it is {await self.replicas()}") from error

    async def records(self):
        found = await self.client.list(
            ControllerRevision, namespace=self.namespace, labels={"serving.kserve.io/inferenceservice": "m"}
        )
        return {short(item.metadata.name): item for item in found if item.metadata.name.startswith("m-predictor-")}

    async def front(self):
        service = await self.client.find(Service, f"{self.namespace}/m-predictor")
        return short(service.spec.selector["pyreconcile.dev/revision"]) if service else None

    async def route(self):
        return await self.client.find(HTTP_ROUTE, self.key)

    async def set_pods(self, revision, *, service="m", **annotations):
        """Change how a revision's pods behave, by a patch of each once all are there; None takes an annotation away."""
        changes = {f"{KWOK}{name.replace('_', '-')}": value for name, value in annotations.items()}
        pods = unstructured("v1", "Pod")
        name = f"{service}-predictor-{revision:05d}"

        async def all_there():
            labels = {"pyreconcile.dev/revision": name}
            found = await self.client.list(pods, namespace=self.namespace, labels=labels)
            wanted = (await self.client.get(Deployment, f"{self.namespace}/{name}")).spec.replicas
            return (found,) if len(found) == wanted else None

        (found,) = await self.until(all_there)
        for pod in found:
            await self.client.patch(pods, pod.key, MergePatch({"metadata": {"annotations": changes}}))

    async def reasons(self):
        events = await self.client.list(Event, namespace=self.namespace)
        return [event["reason"] for event in events if event["regarding"].get("kind") == "InferenceService"]

    async def until(self, check, *, timeout=30):
        return await eventually(check, timeout=timeout, interval=0.03)


def short(name):
    """``r2`` for ``m-predictor-00002``, ``-`` for nothing."""
    if not name:
        return "-"
    return f"r{int(name[-5:])}" if name[-5:].isdecimal() else name


@pytest.fixture
def settings():
    return Settings(propagation=0.2)


@pytest.fixture
def gateway():
    return StandInGateway()


@pytest.fixture(scope="session")
def installed():
    """The control planes that have the CRDs: to install them takes longer than most tests."""
    return set()


@pytest.fixture
async def crds(client, control_plane, installed):
    if control_plane.kubeconfig not in installed:
        await install_crds(client, inferenceservice.MODELS)
        await install_gateway_api(client)
        installed.add(control_plane.kubeconfig)


@pytest_asyncio.fixture
async def services(crds, manager, client, namespace, gateway, settings) -> AsyncIterator[Services]:
    """The controller and the gateway at work in the test's namespace."""
    inferenceservice.setup(manager, settings)
    gateway.serve(manager)
    async with running(manager):
        yield Services(client, namespace, gateway)
