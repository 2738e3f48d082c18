"""What simulated pods do, and how annotations change it."""

from __future__ import annotations

import time
from contextlib import aclosing

import anyio
import pytest

from pyreconcile.api.apps_v1 import Deployment, StatefulSet
from pyreconcile.api.batch_v1 import Job
from pyreconcile.api.core_v1 import Pod
from pyreconcile.client import MergePatch

PREFIX = "kwok.pyreconcile.dev/"


def pod(namespace, *, name="p", **annotations):
    return Pod.from_dict(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "annotations": {PREFIX + name.replace("_", "-"): value for name, value in annotations.items()},
            },
            "spec": {
                "initContainers": [{"name": "sidecar", "image": "side", "restartPolicy": "Always"}],
                "containers": [{"name": "main", "image": "main"}, {"name": "helper", "image": "helper"}],
            },
        }
    )


def ready(pod):
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())


def restarts(pod):
    statuses = [*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ())]
    return {status.name: status.restart_count for status in statuses}


@pytest.fixture
def change(client, namespace):
    async def annotate(**annotations):
        values = {PREFIX + name.replace("_", "-"): value for name, value in annotations.items()}
        await client.patch(Pod, f"{namespace}/p", MergePatch({"metadata": {"annotations": values}}))

    return annotate


@pytest.fixture
def see(client, namespace, eventually):
    async def look(condition, name="p"):
        async def question():
            found = await client.get(Pod, f"{namespace}/{name}")
            return found if condition(found) else None

        return await eventually(question)

    return look


@pytest.fixture
def passes(client, namespace):
    async def follow(before, *conditions):
        """Wait until a pod has been in such states one after the other. The watch shows also those that are short."""
        left = list(conditions)
        options = {"fields": {"metadata.name": before.metadata.name}, "namespace": namespace}
        events = client.watch(Pod, resource_version=before.metadata.resource_version, **options)
        with anyio.fail_after(30):
            async with aclosing(events):
                async for event in events:
                    if left[0](event.object):
                        left.pop(0)
                    if not left:
                        return event.object
        raise AssertionError(f"the watch ended with {len(left)} states to come")

    return follow


@pytest.fixture
def stays(client, namespace):
    async def look(condition, seconds=0.5):
        with anyio.move_on_after(seconds):
            while True:
                assert condition(await client.get(Pod, f"{namespace}/p"))
                await anyio.sleep(0.05)

    return look


def template(**annotations):
    return {
        "metadata": {"labels": {"app": "x"}, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "main"}]},
    }


async def test_te_6_a_pod_is_running_and_ready_with_address_and_statuses(client, namespace, see):
    await client.create(pod(namespace))
    found = await see(ready)
    assert found.status.phase == "Running"
    assert found.status.pod_ip.startswith("10.")
    assert found.status.host_ip
    assert restarts(found) == {"main": 0, "helper": 0, "sidecar": 0}
    true = {c.type for c in found.status.conditions if c.status == "True"}
    assert true >= {"PodScheduled", "Initialized", "ContainersReady", "Ready"}
    assert all(status.state.running for status in found.status.container_statuses)


async def test_te_6_a_deployment_gets_ready_through_scheduler_and_kwok(client, namespace, eventually):
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "x"}}, "template": template()}
    await client.create(Deployment.from_dict({"metadata": {"name": "d", "namespace": namespace}, "spec": spec}))

    async def available():
        return (await client.get(Deployment, f"{namespace}/d")).status.available_replicas == 3

    await eventually(available)
    nodes = {pod.spec.node_name for pod in await client.list(Pod, namespace=namespace)}
    assert len(nodes) > 1


async def test_te_6_a_stateful_set_of_six_forms_quickly(client, namespace, eventually):
    spec = {"replicas": 6, "serviceName": "s", "selector": {"matchLabels": {"app": "x"}}, "template": template()}

    async def seconds(name):
        begun = time.monotonic()
        await client.create(StatefulSet.from_dict({"metadata": {"name": name, "namespace": namespace}, "spec": spec}))

        async def available():
            return (await client.get(StatefulSet, f"{namespace}/{name}")).status.ready_replicas == 6

        await eventually(available)
        return time.monotonic() - begun

    took = await seconds("first")  # 0.5 s on an idle machine
    if took >= 6:
        took = await seconds("second")
    assert took < 6


async def test_te_6_a_job_completes(client, namespace, eventually):
    pod_template = template()
    pod_template["spec"]["restartPolicy"] = "Never"
    job = {"metadata": {"name": "j", "namespace": namespace}, "spec": {"completions": 2, "template": pod_template}}
    await client.create(Job.from_dict(job))

    async def succeeded():
        return (await client.get(Job, f"{namespace}/j")).status.succeeded == 2

    await eventually(succeeded)


async def test_te_6_ready_delay_holds_readiness_back(client, namespace, passes):
    begun = time.monotonic()
    created = await client.create(pod(namespace, ready_delay="1s"))
    await passes(created, lambda p: p.status.phase == "Running" and not ready(p), ready)
    assert time.monotonic() - begun >= 1


async def test_te_6_never_ready_until_the_annotation_goes(client, namespace, see, stays, change):
    await client.create(pod(namespace, never_ready="true"))
    await see(lambda p: p.status.phase == "Running")
    await stays(lambda p: not ready(p))
    await change(never_ready=None)
    await see(ready)
    await change(never_ready="true")
    await see(lambda p: not ready(p))


async def test_te_6_never_ready_ends_a_ready_delay_that_runs(client, namespace, see, stays, change):
    await client.create(pod(namespace, ready_delay="3s"))
    await see(lambda p: p.status.phase == "Running")
    await change(never_ready="true")
    await stays(lambda p: not ready(p), seconds=3.5)


async def test_te_6_restarts_raise_the_count_of_one_container(client, namespace, see, change):
    await client.create(pod(namespace, restarts="1", container="helper"))
    found = await see(lambda p: ready(p) and restarts(p)["helper"] == 1)
    assert restarts(found) == {"main": 0, "helper": 1, "sidecar": 0}
    await change(restarts="3", container="sidecar", exit_code="137")
    found = await see(lambda p: ready(p) and restarts(p)["sidecar"] == 3)
    assert found.status.init_container_statuses[0].last_state.terminated.exit_code == 137
    assert restarts(found) == {"main": 0, "helper": 1, "sidecar": 3}


async def test_te_6_a_restarted_pod_is_not_ready_for_its_ready_delay(client, namespace, see, passes, change):
    await client.create(pod(namespace, ready_delay="500ms"))
    before = await see(ready)
    await change(restarts="1")
    await passes(before, lambda p: not ready(p) and restarts(p)["main"] == 1, ready)


async def test_te_6_crash_waits_in_back_off_and_recovers(client, namespace, see, change):
    await client.create(pod(namespace, crash="true", container="main"))
    found = await see(lambda p: restarts(p).get("main") == 1)
    states = {status.name: status.state for status in found.status.container_statuses}
    assert states["main"].waiting.reason == "CrashLoopBackOff"
    assert states["helper"].running
    assert not ready(found)
    await change(crash=None)
    await see(ready)


async def test_te_6_fail_ends_the_pod(client, namespace, see, change):
    await client.create(pod(namespace))
    await see(ready)
    await change(fail="true", exit_code="3", container="main")
    found = await see(lambda p: p.status.phase == "Failed")
    codes = {status.name: status.state.terminated.exit_code for status in found.status.container_statuses}
    assert codes == {"main": 3, "helper": 0}
    assert not ready(found)


async def test_te_6_complete_ends_the_pod_well(client, namespace, passes):
    created = await client.create(pod(namespace, complete="true", complete_delay="300ms"))
    found = await passes(created, ready, lambda p: p.status.phase == "Succeeded")
    assert {status.state.terminated.reason for status in found.status.container_statuses} == {"Completed"}


async def test_te_6_readiness_gates_are_waited_for(client, namespace, see, stays):
    gated = pod(namespace).to_dict()
    gated["spec"]["readinessGates"] = [{"conditionType": "example.dev/gate"}]
    await client.create(Pod.from_dict(gated))
    await see(lambda p: p.status.phase == "Running")
    await stays(lambda p: not ready(p))
    conditions = [{"type": "example.dev/gate", "status": "True"}]
    live = await client.get(Pod, f"{namespace}/p")
    kept = [c for c in live.to_dict()["status"]["conditions"] if c["type"] != "example.dev/gate"]
    patch = MergePatch({"status": {"conditions": kept + conditions}})
    await client.patch(Pod, f"{namespace}/p", patch, subresource="status")
    await see(ready)


async def test_te_6_deletion_is_instant_or_delayed(client, namespace, see, eventually):
    async def gone(name):
        return await client.find(Pod, f"{namespace}/{name}") is None

    await client.create(pod(namespace))
    await see(ready)
    await client.delete(Pod, f"{namespace}/p")
    await eventually(lambda: gone("p"), timeout=15)  # the grace period is 30 s
    # Another name: kwok may delete the first one's a second time.
    await client.create(pod(namespace, name="q", delete_delay="700ms"))
    await see(ready, "q")
    begun = time.monotonic()
    await client.delete(Pod, f"{namespace}/q")
    await eventually(lambda: gone("q"))
    assert time.monotonic() - begun >= 0.7
