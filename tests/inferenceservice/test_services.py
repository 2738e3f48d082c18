"""What the scenarios do not show, on the real control plane: pods, records, refusals, runtimes, repairs."""

import anyio
import pytest

from hack.gateway_api import HTTP_ROUTE
from pyreconcile.api import unstructured
from pyreconcile.api.apps_v1 import ControllerRevision, Deployment
from pyreconcile.api.core_v1 import Service
from pyreconcile.client import InvalidError, MergePatch
from pyreconcile_controllers.inferenceservice import ClusterServingRuntime, InferenceService, ServingRuntime

pytestmark = pytest.mark.plane

CRASH = {"kwok.pyreconcile.dev/crash": "true"}


async def test_children_status_and_route_of_a_service(services, client, namespace):
    created = await services.create()
    await services.says(Ready="True")
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    name = "m-predictor-00001"

    deployment = await client.get(Deployment, f"{namespace}/{name}")
    assert deployment.spec.selector.match_labels == {"pyreconcile.dev/revision": name}
    assert deployment.spec.progress_deadline_seconds == 600
    pod = deployment.spec.template
    assert pod.metadata.labels["serving.kserve.io/inferenceservice"] == "m"
    assert pod.metadata.labels["app"] == f"isvc.{name}"
    assert pod.spec.containers[0].args == ["--model=m"]
    assert pod.spec.init_containers[0].args == ["gs://models/v1", "/mnt/models"]

    for kind, child in ((Deployment, name), (Service, name), (ControllerRevision, name), (HTTP_ROUTE, "m")):
        (owner,) = (await client.get(kind, f"{namespace}/{child}")).metadata.owner_references
        assert (owner.kind, owner.uid, owner.controller) == ("InferenceService", created.metadata.uid, True)

    route = (await services.route())["spec"]
    assert route["parentRefs"][0]["name"] == "kserve-ingress-gateway"
    assert route["hostnames"] == [f"m-{namespace}.example.com", f"m-predictor-{namespace}.example.com"]
    (rule,) = route["rules"]
    assert rule["timeouts"] == {"request": "60s"}

    status = (await services.get()).status
    assert status.url == f"http://m-{namespace}.example.com"
    assert status.address.url == f"http://m-predictor.{namespace}.svc.cluster.local"
    assert (status.deployment_mode, status.serving_runtime_name) == ("Standard", "server")
    assert status.observed_generation == 1
    assert [item.type for item in status.conditions] == sorted(item.type for item in status.conditions)
    assert {item.type for item in status.conditions} == {
        "IngressReady",
        "LatestDeploymentReady",
        "PredictorConfigurationReady",
        "PredictorReady",
        "PredictorRouteReady",
        "Ready",
        "RoutesReady",
    }
    wanted = {"RevisionCreated", "RevisionReady", "RevisionRolledOut", "TrafficChanged", "InferenceServiceReady"}

    async def told():
        return wanted <= set(await services.reasons())

    await services.until(told)


async def test_a_settled_service_is_not_written_again(services, client, namespace, manager):
    await services.create()
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.says(Ready="True")
    kinds = (Deployment, Service, ControllerRevision, HTTP_ROUTE)

    async def versions(*more):
        found = [obj for kind in (*kinds, *more) for obj in await client.list(kind, namespace=namespace)]
        return {(obj.kind, obj.key): obj.metadata.resource_version for obj in found}

    async def at_rest():
        conditions = (await services.deployments())["r1"].status.conditions
        rolled_out = any(item.reason == "NewReplicaSetAvailable" for item in conditions)
        before = await versions(InferenceService)
        await anyio.sleep(0.5)
        return rolled_out and await versions(InferenceService) == before

    await services.until(at_rest)
    before, passes_before = await versions(), passes(manager)
    for number in range(3):
        changes = MergePatch({"metadata": {"annotations": {"touched": str(number)}}})
        touched = await client.patch(InferenceService, services.key, changes)
    await services.until(lambda: passes(manager) > passes_before)
    await anyio.sleep(0.5)
    assert await versions() == before
    assert (await services.get()).metadata.resource_version == touched.metadata.resource_version


def passes(manager):
    """How often the controller has looked at a service."""
    counts = [
        manager.metrics.registry.get_sample_value(
            "controller_runtime_reconcile_total", {"controller": "inferenceservice", "result": result}
        )
        for result in ("success", "requeue", "requeue_after", "error")
    ]
    return sum(counts)


async def test_kserve_1_9_7_pods_come_before_traffic_and_go_after_it(services):
    await services.create(minReplicas=4)
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.update(model="v2", canaryTrafficPercent=25)
    await services.reaches("r2,r2,r1,-", ["r2 25", "r1 75 prev"])
    await services.scales_to(r1=3, r2=1)
    services.gateway.held = True
    await services.update(canaryTrafficPercent=None)

    async def asked():
        (rule,) = (await services.route())["spec"]["rules"]
        return [item["name"] for item in rule["backendRefs"]] == ["m-predictor-00002"]

    await services.until(asked)
    deployments = await services.deployments()
    assert deployments["r2"].status.available_replicas == 4
    await anyio.sleep(0.5)
    assert (await services.replicas()) == {"r1": 3, "r2": 4}  # the gateway may still send r1 its share
    services.gateway.held = False
    await services.reaches("r2,r2,r2,r1", ["r2 100"])
    await services.scales_to(r1=0, r2=4)


async def test_kserve_1_9_8_all_but_the_revision_before_are_deleted(services):
    await services.create()
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.update(model="v2")
    await services.reaches("r2,r2,r2,r1", ["r2 100"])
    await services.update(model="v3")
    await services.reaches("r3,r3,r3,r2", ["r3 100"])
    await services.scales_to(r2=0, r3=1)

    async def gone():
        services_left = await services.client.list(Service, namespace=services.namespace)
        names = {service.metadata.name for service in services_left}
        return set(await services.records()) == {"r2", "r3"} and "m-predictor-00001" not in names

    await services.until(gone)


async def test_kserve_1_9_1_the_same_template_is_the_same_revision(services):
    await services.create()
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.update(model="v2")
    await services.reaches("r2,r2,r2,r1", ["r2 100"])
    await services.update(model="v1")
    await services.reaches("r1,r1,r1,r2", ["r1 100"])
    assert set(await services.records()) == {"r1", "r2"}


async def test_a_number_is_not_given_twice(services):
    await services.create()
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.update(model="v2", annotations=CRASH)
    await services.says(PredictorConfigurationReady=("False", "RevisionFailed"))
    await services.update(model="v1", annotations=None)
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.scales_to(r1=1)
    await services.update(model="v3")
    await services.reaches("r3,r3,r3,r1", ["r3 100"])


async def test_kserve_1_9_1_scale_and_metadata_make_no_revision(services, client):
    await services.create()
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.update(minReplicas=2)
    await client.patch(InferenceService, services.key, MergePatch({"metadata": {"labels": {"a": "b"}}}))
    await services.scales_to(r1=2)
    await services.update(minReplicas=1)
    await services.scales_to(r1=1)
    assert set(await services.records()) == {"r1"}


@pytest.mark.parametrize("autoscaler", [None, "external"])
async def test_o_17_an_update_never_collapses_the_replicas(services, client, manager, autoscaler):
    annotations = {"serving.kserve.io/autoscalerClass": autoscaler} if autoscaler else {}
    await services.create(minReplicas=4, metadata={"annotations": annotations})
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    total = 4
    if autoscaler:
        total = 7
        key = f"{services.namespace}/m-predictor-00001"
        await client.set_scale(Deployment, key, total)

        async def seen_by_the_controller():
            return (await manager.cache.find_raw(Deployment, key))["spec"]["replicas"] == total

        await services.until(seen_by_the_controller)
        await services.says(Ready="True")
        await anyio.sleep(0.5)
        assert await services.replicas() == {"r1": 7}
        managers = (await services.deployments())["r1"].metadata.managed_fields
        ours = [item for item in managers if item["operation"] == "Apply"]
        assert all("f:replicas" not in item["fieldsV1"]["f:spec"] for item in ours)
    seen = []
    async with anyio.create_task_group() as tasks:

        async def record():
            while True:
                seen.append(await services.replicas())
                await anyio.sleep(0.02)

        tasks.start_soon(record)
        await services.update(model="v2")
        await services.reaches("r2,r2,r2,r1", ["r2 100"])
        await services.scales_to(r1=0, r2=total)
        tasks.cancel_scope.cancel()
    assert {item["r1"] for item in seen} <= {total, 0}
    assert {item["r2"] for item in seen if "r2" in item} == {total}


async def test_a_canary_that_dies_loses_its_share_and_gets_it_back(services):
    await services.create()
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.update(model="v2", canaryTrafficPercent=50)
    await services.reaches("r2,r2,r1,-", ["r2 50", "r1 50 prev"])
    await services.set_pods(2, never_ready="true")
    await services.reaches("r2,r2,r1,-", ["r1 50", "r1 50 prev"])
    await services.says(Ready="True")
    await services.set_pods(2, never_ready=None)
    await services.reaches("r2,r2,r1,-", ["r2 50", "r1 50 prev"])


async def test_a_service_whose_pods_are_gone_keeps_its_route_and_is_not_ready(services):
    await services.create()
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.says(Ready="True")
    await services.set_pods(1, never_ready="true")
    await services.says(Ready=("False", "RevisionUnavailable"))
    assert (await services.route())["spec"]["rules"][0]["backendRefs"][0]["weight"] == 100

    async def told():
        return "InferenceServiceNotReady" in await services.reasons()

    await services.until(told)
    await services.set_pods(1, never_ready=None)
    await services.says(Ready="True")


async def test_kserve_1_9_6_a_revision_that_is_gone_is_told_and_promotion_gets_out_of_it(services, client):
    await services.create()
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.update(model="v2", canaryTrafficPercent=10)
    await services.reaches("r2,r2,r1,-", ["r2 10", "r1 90 prev"])
    await client.delete(ControllerRevision, f"{services.namespace}/m-predictor-00001")
    await services.says(PredictorRouteReady=("False", "RevisionMissing"))
    assert services.weights() == {"r1": 90, "r2": 10}
    await services.update(canaryTrafficPercent=None)
    await services.reaches("r2,r2,r2,r1", ["r2 100"])


async def test_a_gateway_that_refuses_is_shown_and_nothing_is_rolled_out(services):
    services.gateway.refusing = "no such listener"
    await services.create()
    await services.says(IngressReady=("False", "NotAllowedByListeners"), PredictorReady="True", Ready="False")
    assert (await services.state())[0] == "r1,r1,-,-"
    services.gateway.refusing = ""
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.says(Ready="True")


async def test_what_was_changed_or_deleted_by_hand_is_repaired(services, client, namespace):
    await services.create()
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    key = f"{namespace}/m-predictor-00001"
    first = await client.get(Deployment, key)
    await client.delete(Deployment, key)
    route = await services.route()
    rules = [{**route["spec"]["rules"][0], "backendRefs": [{"name": "elsewhere", "port": 80}]}]
    await client.patch(HTTP_ROUTE, route.key, MergePatch({"spec": {"rules": rules}}))
    await client.patch(Service, f"{namespace}/m-predictor", MergePatch({"spec": {"selector": {"a": "b"}}}))

    async def repaired():
        (rule,) = (await services.route())["spec"]["rules"]
        found = await client.find(Deployment, key)
        front = await client.get(Service, f"{namespace}/m-predictor")
        return (
            found is not None
            and found.metadata.uid != first.metadata.uid
            and [item["name"] for item in rule["backendRefs"]] == ["m-predictor-00001"]
            and front.spec.selector == {"pyreconcile.dev/revision": "m-predictor-00001"}
        )

    await services.until(repaired)
    await services.says(Ready="True")


async def test_kserve_2_1_a_missing_runtime_is_told_and_waited_for(services, client, namespace):
    name = f"late-{namespace[-6:]}"
    await services.create(model="v1")
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.update(model="v1", minReplicas=1)
    await client.patch(
        InferenceService, services.key, MergePatch({"spec": {"predictor": {"model": {"runtime": name}}}})
    )
    await services.says(PredictorConfigurationReady=("False", "RuntimeNotRecognized"), Ready="True")
    container = {"name": "kserve-container", "image": "other:1"}
    cluster = {"metadata": {"name": name}, "spec": {"containers": [container]}}
    await client.create(ClusterServingRuntime.from_dict(cluster))
    try:
        await services.reaches("r2,r2,r2,r1", ["r2 100"])
        assert (await services.get()).status.cluster_serving_runtime_name == name
        # The namespace's own runtime comes first, and a changed runtime is a new revision.
        own = {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"containers": [container], "disabled": True},
        }
        own = await client.create(ServingRuntime.from_dict(own))
        await services.says(PredictorConfigurationReady=("False", "RuntimeDisabled"), Ready="True")
        own.spec.disabled = False
        own.spec.containers[0].image = "other:2"
        await client.update(own)
        await services.reaches("r3,r3,r3,r2", ["r3 100"])
        assert (await services.get()).status.serving_runtime_name == name
    finally:
        await client.delete(ClusterServingRuntime, name)


async def test_a_model_without_runtime_is_told(services, client, namespace):
    raw = {"metadata": {"name": "m", "namespace": namespace}, "spec": {"predictor": {"model": {"image": "x"}}}}
    await client.create(InferenceService.from_dict(raw))
    await services.says(PredictorReady=("False", "NoSupportingRuntime"), Ready="False")


async def test_a_template_that_the_server_refuses_is_a_failed_revision(services):
    await services.create()
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.update(volumes=[{"name": "BAD NAME", "emptyDir": {}}])
    await services.says(PredictorConfigurationReady=("False", "RevisionFailed"), Ready="True")
    assert "volumes" in (await services.told())["PredictorConfigurationReady"][2]
    await services.update(volumes=None)
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    await services.says(LatestDeploymentReady="True")


async def test_kserve_1_9_13_a_deployment_that_was_there_is_the_first_revision(services, client, namespace, manager):
    isvc = await services.create(metadata={"annotations": {"serving.kserve.io/deploymentMode": "ModelMesh"}})
    labels = {"app": "isvc.m-predictor"}
    deployment = Deployment.from_dict(
        {
            "metadata": {"name": "m-predictor", "namespace": namespace},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "kserve-container", "image": "old:1"}]},
                },
            },
        }
    )
    adopted = await client.apply(deployment, owner=isvc)
    await services.until(lambda: manager.cache.find_raw(Deployment, adopted.key))
    mode = {"metadata": {"annotations": {"serving.kserve.io/deploymentMode": "RawDeployment"}}}
    await client.patch(InferenceService, services.key, MergePatch(mode))
    await services.reaches("r1,r1,r1,-", ["r1 100"])
    assert set(await services.deployments()) == {"m-predictor"}
    same = await client.get(Deployment, adopted.key)
    assert (same.metadata.uid, same.metadata.generation) == (adopted.metadata.uid, 1)
    assert (await client.get(Service, f"{namespace}/m-predictor-00001")).spec.selector == labels
    await services.update(model="v2")
    await services.reaches("r2,r2,r2,r1", ["r2 100"])
    await services.scales_to(**{"m-predictor": 0, "r2": 1})


async def test_a_finalizer_of_kserves_controller_is_taken_off(services, client):
    await services.create(metadata={"finalizers": ["inferenceservice.finalizers"]})
    await client.delete(InferenceService, services.key)

    async def gone():
        return await client.find(InferenceService, services.key) is None

    await services.until(gone)


async def test_fields_that_nothing_acts_on_are_kept(services, client):
    await services.create(
        scaleTarget=3, logger={"mode": "all"}, futureField={"a": [1]}, batcher={"maxBatchSize": 8}, maxReplicas=9
    )
    await services.says(Ready="True")
    raw = (await services.get()).to_dict()["spec"]["predictor"]
    assert raw["futureField"] == {"a": [1]}
    assert (raw["scaleTarget"], raw["logger"], raw["maxReplicas"]) == (3, {"mode": "all"}, 9)
    assert "name" not in raw["model"]


RAW = unstructured("serving.kserve.io/v1beta1", "InferenceService", plural="inferenceservices")  # no checks of our own


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"predictor": {"model": {}, "canaryTrafficPercent": 101}}, "canaryTrafficPercent.*less than or equal to 100"),
        ({"predictor": {"model": {}, "canaryTrafficPercent": -1}}, "canaryTrafficPercent.*greater than or equal to 0"),
        ({"predictor": {"model": {}, "minReplicas": -1}}, "minReplicas.*greater than or equal to 0"),
        ({"predictor": {}}, "give model, or containers"),
        ({"predictor": {"model": {}, "containers": [{"name": "kserve-container"}]}}, "give model, or containers"),
        ({"predictor": {"model": {"name": "x"}}}, "name is not allowed"),
        ({"predictor": {"model": {"storage": {}}}}, "storage is not supported"),
        ({"predictor": {"model": {}, "workerSpec": {}}}, "workerSpec is not supported"),
        ({"predictor": {"model": {}, "storageUris": []}}, "storageUris is not supported"),
        ({"predictor": {"sklearn": {"storageUri": "gs://x"}}}, "sklearn is not supported"),
        ({"predictor": {"model": {}}, "transformer": {}}, "transformer is not supported"),
        ({"predictor": {"model": {}}, "explainer": {}}, "explainer is not supported"),
        ({"predictor": {"model": {}}, "canary": []}, "canary is not supported.*use predictor.canaryTrafficPercent"),
        ({}, "predictor: Required"),
    ],
)
async def test_what_is_not_supported_is_refused(crds, client, namespace, spec, message):
    raw = {"metadata": {"name": "bad", "namespace": namespace}, "spec": spec}
    with pytest.raises(InvalidError, match=message):
        await client.create(RAW.from_dict(raw), dry_run=True)


async def test_a_name_that_children_cannot_have_is_refused(crds, client, namespace):
    raw = {"metadata": {"name": "1st", "namespace": namespace}, "spec": {"predictor": {"model": {}}}}
    with pytest.raises(InvalidError, match="begin with a letter"):
        await client.create(RAW.from_dict(raw), dry_run=True)
