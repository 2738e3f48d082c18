"""A cluster that has no HTTPRoutes at first: the controller runs, says so, and uses them as soon as they are there."""

import pytest

from hack.gateway_api import HTTP_ROUTE, install_gateway_api
from pyreconcile.api.apiextensions_v1 import CustomResourceDefinition
from pyreconcile.api.apps_v1 import Deployment
from pyreconcile.api.core_v1 import Service
from pyreconcile.cache import CacheOptions
from pyreconcile.client import ConnectOptions, MergePatch, connect
from pyreconcile.crd import install_crds
from pyreconcile.manager import Manager, ManagerOptions
from pyreconcile.testing import ControlPlane, eventually, running
from pyreconcile_controllers import inferenceservice
from pyreconcile_controllers.inferenceservice import InferenceService, Settings

pytestmark = pytest.mark.plane

KEY = "default/m"


@pytest.fixture
async def plane():
    """An API server alone: the tests play the Deployment controller."""
    async with ControlPlane(use_existing=False) as plane:
        yield plane


async def until(check, seconds=30):
    return await eventually(check, timeout=seconds, interval=0.03)


def isvc(image):
    container = {"name": "kserve-container", "image": image}
    predictor = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": "m", "namespace": "default"}, "spec": {"predictor": predictor}}


async def be_available(client, name):
    """Write the status that a Deployment with all its pods has."""

    async def write():
        found = await client.get(Deployment, f"default/{name}")
        count = found.spec.replicas
        status = {"replicas": count, "updatedReplicas": count, "readyReplicas": count, "availableReplicas": count}
        status["observedGeneration"] = found.metadata.generation
        await client.patch(found, MergePatch({"status": status}), subresource="status")
        return True

    await until(write)


async def conditions(client):
    status = (await client.get(InferenceService, KEY)).status
    return {item.type: (item.status, item.reason) for item in (status.conditions if status else ())}


async def test_gateway_api_missing_then_installed_then_deleted(plane):
    options = ManagerOptions(
        connect=ConnectOptions(kubeconfig=plane.kubeconfig),
        cache=CacheOptions(namespaces=("default",)),
        metrics_bind_address="0",
        health_probe_bind_address="0",
    )
    async with connect(kubeconfig=plane.kubeconfig) as client:
        await install_crds(client, inferenceservice.MODELS)
        async with Manager(options) as manager:
            inferenceservice.setup(manager, Settings(propagation=0.1, discovery_period=0.2))
            async with running(manager):
                await without(client, manager)
                await installed(client)
                await deleted(client, manager)


async def without(client, manager):
    await client.create(InferenceService.from_dict(isvc("server:1")))
    await be_available(client, "m-predictor-00001")

    async def told():
        now = await conditions(client)
        return now.get("IngressReady") == ("False", "GatewayAPINotInstalled") and now["PredictorReady"][0] == "True"

    await until(told)
    manager.cache.check()  # the manager counts as ready
    # Clients in the cluster are served; a share cannot be had, so a canary gets none until it is promoted.
    change = isvc("server:2")["spec"]
    change["predictor"]["canaryTrafficPercent"] = 10
    await client.patch(InferenceService, KEY, MergePatch({"spec": change}))
    await be_available(client, "m-predictor-00002")

    async def waits():
        now = await conditions(client)
        status = (await client.get(InferenceService, KEY)).status.components["predictor"]
        return (
            now["PredictorRouteReady"] == ("Unknown", "TrafficNotMigrated")
            and status.latest_ready_revision == "m-predictor-00002"
            and status.latest_rolledout_revision == "m-predictor-00001"
        )

    await until(waits)
    assert await front(client) == "m-predictor-00001"
    errors = manager.metrics.registry.get_sample_value(
        "controller_runtime_reconcile_errors_total", {"controller": "inferenceservice"}
    )
    assert not errors


async def front(client):
    return (await client.get(Service, "default/m-predictor")).spec.selector["pyreconcile.dev/revision"]


async def installed(client):
    await install_gateway_api(client)

    async def split():
        (rule,) = (await client.get(HTTP_ROUTE, KEY))["spec"]["rules"]
        weights = {item["name"]: item["weight"] for item in rule["backendRefs"]}
        reason = (await conditions(client))["IngressReady"]
        wanted = {"m-predictor-00001": 90, "m-predictor-00002": 10}
        return reason == ("False", "ParentStatusNotAvailable") and weights == wanted

    await until(split)


async def deleted(client, manager):
    await client.delete(CustomResourceDefinition, "httproutes.gateway.networking.k8s.io")

    async def told():
        return (await conditions(client))["IngressReady"] == ("False", "GatewayAPINotInstalled")

    await until(told)
    manager.cache.check()
    await client.patch(InferenceService, KEY, MergePatch({"spec": {"predictor": {"canaryTrafficPercent": None}}}))

    async def promoted():
        return await front(client) == "m-predictor-00002"

    await until(promoted)
