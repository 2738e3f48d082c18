"""The set's webhooks behind the real API server, without the controllers: what is stored, what users read."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import pytest

from pyreconcile.api import unstructured
from pyreconcile.api.admissionregistration_v1 import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from pyreconcile.api.core_v1 import Pod
from pyreconcile.client import ApiError, Client, ForbiddenError, InvalidError, MergePatch
from pyreconcile.crd import install_crds
from pyreconcile.webhook import WebhookOptions, WebhookServer, install, webhook_configurations
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet
from pyreconcile_controllers.leaderworkerset.webhook import WEBHOOKS, register

pytestmark = pytest.mark.plane

L = "leaderworkerset.sigs.k8s.io/"
DENIED = 'admission webhook "vleaderworkerset.kb.io" denied the request: '
ROLLING = "spec.rolloutStrategy.rollingUpdateConfiguration"
# Sent as it is written here: the typed model would leave out and fill in what the API server and the webhook must.
RawSet = unstructured("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")


@contextlib.asynccontextmanager
async def registered(client: Client, namespace: str) -> AsyncIterator[None]:
    """Run the webhooks and register them for one namespace, so that tests do not meet in a shared cluster."""
    await install_crds(client, [LeaderWorkerSet])
    server = WebhookServer(WebhookOptions(bind_address="127.0.0.1:0"))
    register(server)
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    webhooks = [replace(webhook, namespace_selector=here) for webhook in WEBHOOKS]
    names = {"mutating_name": f"lws-m-{namespace}", "validating_name": f"lws-v-{namespace}"}
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run, stop)
        try:
            await install(client, webhook_configurations(server, webhooks, **names))
            await in_force(client, namespace)
            yield
        finally:
            await client.delete(MutatingWebhookConfiguration, names["mutating_name"], missing_ok=True)
            await client.delete(ValidatingWebhookConfiguration, names["validating_name"], missing_ok=True)
            stop.set()


async def in_force(client: Client, namespace: str) -> None:
    """Wait until the API server asks both webhooks of sets, and pods can be made in the namespace."""
    with anyio.fail_after(60):
        while True:
            try:
                probe = await client.create(lws(namespace), dry_run=True)
                await client.create(pod(namespace, "probe-0", L="none"), dry_run=True)
                await client.create(lws(namespace, name="2cube"), dry_run=True)
            except ForbiddenError as error:
                if "vleaderworkerset.kb.io" in str(error) and "networkConfig" in probe["spec"]:
                    return
            await anyio.sleep(0.05)


def lws(namespace: str, *, name: str = "demo", template: dict[str, Any] | None = None, **spec: Any) -> Any:
    workers = {"spec": {"containers": [{"name": "worker", "image": "nginx"}]}}
    return RawSet.from_dict(
        {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"leaderWorkerTemplate": {"workerTemplate": workers} | (template or {})} | spec,
        }
    )


def pod(namespace: str, pod_name: str, /, *, annotations: dict[str, str] | None = None, **labels: str) -> Pod:
    return Pod.from_dict(
        {
            "metadata": {
                "name": pod_name,
                "namespace": namespace,
                "labels": {L + key.replace("_", "-"): value for key, value in labels.items()},
                "annotations": {L + key: value for key, value in (annotations or {}).items()},
            },
            "spec": {
                "subdomain": "demo",
                "containers": [
                    {
                        "name": "main",
                        "image": "nginx",
                        "env": [{"name": "ADDRESS", "value": "$(LWS_LEADER_ADDRESS):1"}],
                        "resources": {"limits": {"google.com/tpu": "4"}, "requests": {"google.com/tpu": "4"}},
                    }
                ],
            },
        }
    )


async def test_lws_2_1_defaults_are_stored(client, namespace):
    async with registered(client, namespace):
        stored = await client.create(lws(namespace))
        spec = stored["spec"]
        assert spec["replicas"] == 1
        assert spec["startupPolicy"] == "LeaderCreated"
        assert spec["leaderWorkerTemplate"]["size"] == 1
        assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
        assert spec["networkConfig"] == {"subdomainPolicy": "Shared"}
        assert spec["rolloutStrategy"] == {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"partition": 0, "maxUnavailable": 1, "maxSurge": 0},
        }
        other = await client.create(
            lws(
                namespace,
                name="other",
                replicas=2,
                template={"size": 2, "restartPolicy": "Default"},
                rolloutStrategy={"type": "", "rollingUpdateConfiguration": {"maxUnavailable": 2}},
                networkConfig={"subdomainPolicy": "UniquePerReplica"},
            )
        )
        assert other["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "None"
        assert other["spec"]["networkConfig"] == {"subdomainPolicy": "UniquePerReplica"}
        assert other["spec"]["rolloutStrategy"] == {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"partition": 0, "maxUnavailable": 2, "maxSurge": 0},
        }


async def test_lws_2_2_refusals_read_as_documented(client, namespace):
    def rolling(**fields):
        return {"rolloutStrategy": {"rollingUpdateConfiguration": fields}}

    subgroup = "spec.leaderWorkerTemplate.SubGroupPolicy.subGroupSize"
    cases = {
        f"{ROLLING}.maxUnavailable: Invalid value: 0: must not be 0 when `maxSurge` is 0": lws(
            namespace, **rolling(maxUnavailable=0, maxSurge=0)
        ),
        f'{ROLLING}.maxSurge: Invalid value: "200%": must not be greater than 100%': lws(
            namespace, **rolling(maxSurge="200%")
        ),
        f"{subgroup}: Invalid value: 0: subGroupSize must be equal or greater than 1": lws(
            namespace, template={"size": 2, "subGroupPolicy": {"subGroupSize": 0}}
        ),
        "spec.replicas: Invalid value: 100000: the product of replicas and worker replicas must not exceed "
        "2147483647": lws(namespace, replicas=100_000, template={"size": 1_000_000}),
    }
    async with registered(client, namespace):
        for message, refused in cases.items():
            with pytest.raises(ForbiddenError) as caught:
                await client.create(refused)
            assert str(caught.value) == DENIED + message
        with pytest.raises(ForbiddenError, match=r'metadata\.name: Invalid value: "2cube": a DNS-1035 label'):
            await client.create(lws(namespace, name="2cube"))


async def test_lws_15_26_the_schema_refuses_before_the_validating_webhook(client, namespace):
    async with registered(client, namespace):
        for refused in (
            lws(namespace, replicas=1_000_001),
            lws(namespace, startupPolicy=""),
            lws(namespace, template={"restartPolicy": "Sometimes"}),
            lws(namespace, rolloutStrategy={"type": "Sideways"}),
        ):
            with pytest.raises(InvalidError) as caught:
                await client.create(refused)
            assert "denied the request" not in str(caught.value)


async def test_lws_2_2_updates(client, namespace):
    async with registered(client, namespace):
        stored = await client.create(lws(namespace, replicas=2, template={"size": 2}))
        for allowed in (
            {"replicas": 3},
            {"leaderWorkerTemplate": {"size": 3}},
            {"networkConfig": {"subdomainPolicy": "UniquePerReplica"}},
            {"networkConfig": None},
            {"rolloutStrategy": {"rollingUpdateConfiguration": {"partition": 7}}},
        ):
            stored = await client.patch(stored, MergePatch({"spec": allowed}))
        assert stored["spec"]["networkConfig"] == {"subdomainPolicy": "Shared"}
        for refused, message in (
            ({"leaderWorkerTemplate": {"subGroupPolicy": {"subGroupSize": 1}}}, "cannot enable subGroupSize after"),
            ({"rolloutStrategy": {"rollingUpdateConfiguration": {"maxUnavailable": "0%"}}}, "must not be 0 when"),
        ):
            with pytest.raises(ForbiddenError, match=message):
                await client.patch(stored, MergePatch({"spec": refused}))
        with pytest.raises(ApiError, match="partition"):
            await client.patch(
                stored, MergePatch({"spec": {"rolloutStrategy": {"rollingUpdateConfiguration": {"partition": -1}}}})
            )


async def test_lws_2_3_and_4_pods_get_labels_placement_and_environment(client, namespace):
    async with registered(client, namespace):
        leader = await client.create(
            pod(
                namespace,
                "demo-1",
                annotations={"size": "3", "exclusive-topology": "rack"},
                name="demo",
                worker_index="0",
            )
        )
        labels = leader.metadata.labels
        assert labels[L + "group-index"] == "1"
        assert len(labels[L + "group-key"]) == 40
        affinity = leader.to_dict()["spec"]["affinity"]
        (term,) = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["labelSelector"]["matchExpressions"][0]["values"] == [labels[L + "group-key"]]
        env = {item.name: item.value for item in leader.spec.containers[0].env}
        assert list(env)[:4] == ["LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "ADDRESS"]
        assert env["LWS_LEADER_ADDRESS"] == f"demo-1.demo.{namespace}"
        assert env["TPU_WORKER_HOSTNAMES"] == "demo-1.demo,demo-1-1.demo,demo-1-2.demo"

        worker = await client.create(
            pod(
                namespace,
                "demo-1-2",
                annotations={"size": "3", "leader-name": "demo-1", "leader-requests-tpus": "true"},
                name="demo",
                group_index="1",
                group_key=labels[L + "group-key"],
            )
        )
        assert worker.metadata.labels[L + "worker-index"] == "2"
        env = {item.name: item.value for item in worker.spec.containers[0].env}
        assert (env["LWS_WORKER_INDEX"], env["TPU_WORKER_ID"]) == ("2", "2")


async def test_lws_2_3_pods_of_no_set_are_untouched_and_broken_ones_refused(client, namespace):
    async with registered(client, namespace):
        plain = await client.create(pod(namespace, "plain-0", app="x"))
        assert [item.name for item in plain.spec.containers[0].env] == ["ADDRESS"]
        assert plain.metadata.labels == {L + "app": "x"}
        with pytest.raises(ForbiddenError, match=r'"mpod\.kb\.io" denied the request: size annotation is unexpectedly'):
            await client.create(pod(namespace, "demo-0", name="demo", worker_index="0"))
