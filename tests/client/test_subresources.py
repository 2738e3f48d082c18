"""Sub-resources with a body of their own."""

import pytest

from pyreconcile.api.apps_v1 import Deployment
from pyreconcile.api.authentication_v1 import TokenRequest
from pyreconcile.api.core_v1 import ConfigMap, Pod, ServiceAccount
from pyreconcile.api.policy_v1 import Eviction, PodDisruptionBudget
from pyreconcile.client import (
    ConflictError,
    MergePatch,
    MethodNotAllowedError,
    NotFoundError,
    Scale,
    TooManyRequestsError,
    connect,
)

pytestmark = [pytest.mark.plane, pytest.mark.rules("CL-2", "U-68")]


class Observer:
    def __init__(self):
        self.calls = []

    def begin(self, resource, key):
        return key

    def end(self, write, *, unknown=False):
        pass

    def written(self, resource, key, resource_version):
        self.calls.append((resource.kind, key, resource_version))

    def deleted(self, resource, key, uid, resource_version):
        raise AssertionError("nothing was deleted")


@pytest.fixture
async def deployment(client, namespace):
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return await client.create(
        Deployment(
            metadata={"name": "web", "namespace": namespace},
            spec={"replicas": 0, "paused": True, "selector": {"matchLabels": labels}, "template": template},
        )
    )


async def test_cl_2_scale_is_read_updated_patched_and_applied(client, deployment):
    observer = Observer()
    watched = client.with_options(write_observer=observer)
    scale = watched.subresource(Deployment, deployment.key, "scale", Scale)
    read = await scale.get()
    assert (read.kind, read.spec.replicas, read.status.selector) == ("Scale", 0, "app=web")
    read.spec.replicas = 1
    read.metadata.resource_version = ""
    updated = await scale.update(read)
    assert updated.spec.replicas == 1
    patched = await scale.patch(MergePatch({"spec": {"replicas": 2}}))
    assert patched.spec.replicas == 2
    wanted = Scale(metadata={"name": "web", "namespace": deployment.metadata.namespace}, spec={"replicas": 3})
    with pytest.raises(ConflictError) as caught:
        await scale.apply(wanted, force=False)
    assert [cause.field for cause in caught.value.causes] == [".spec.replicas"]
    applied = await scale.apply(wanted, field_manager="autoscaler")
    assert applied.spec.replicas == 3
    stored = await client.get(Deployment, deployment.key)
    assert stored.spec.replicas == 3
    assert ("autoscaler", "scale") in [(e["manager"], e.get("subresource")) for e in stored.metadata.managed_fields]
    # The version is the whole object's, so that a cached read of it waits for the write (rule RY-4).
    assert observer.calls == [
        ("Deployment", deployment.key, answer.metadata.resource_version) for answer in (updated, patched, applied)
    ]


async def test_cl_2_a_stale_scale_is_a_conflict(client, deployment):
    scale = client.subresource(Deployment, deployment.key, "scale", Scale)
    stale = await scale.get()
    await scale.patch(MergePatch({"spec": {"replicas": 1}}))
    stale.spec.replicas = 2
    with pytest.raises(ConflictError):
        await scale.update(stale)


async def test_cl_2_without_a_body_the_sub_resource_takes_the_object(client, deployment):
    status = client.subresource(Deployment, deployment.key, "status")
    assert (await status.get()).spec == deployment.spec
    patched = await status.patch(MergePatch({"status": {"collisionCount": 7}, "spec": {"replicas": 9}}))
    assert (patched.status.collision_count, patched.spec.replicas) == (7, 0)
    metadata = {"name": "web", "namespace": deployment.metadata.namespace}
    wanted = Deployment(metadata=metadata, spec=deployment.spec, status={"collisionCount": 8})
    assert (await status.apply(wanted)).status.collision_count == 8


async def test_cl_2_a_token_is_asked_for(client, namespace):
    account = await client.create(ServiceAccount(metadata={"name": "robot", "namespace": namespace}))
    token = client.subresource(ServiceAccount, account.key, "token", TokenRequest)
    granted = await token.create(TokenRequest(spec={"audiences": ["pyreconcile"], "expirationSeconds": 600}))
    assert granted.spec.audiences == ["pyreconcile"]
    assert granted.status.token.count(".") == 2
    dry = await token.create(TokenRequest(spec={"audiences": ["pyreconcile"]}), dry_run=True)
    assert dry.kind == "TokenRequest"


async def test_cl_2_a_pod_is_evicted_unless_a_budget_forbids_it(control_plane, client, namespace):
    spec = {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False, "nodeName": "no-node"}
    pods = [
        await client.create(Pod(metadata={"name": name, "namespace": namespace, "labels": {"app": name}}, spec=spec))
        for name in ("free", "kept")
    ]
    await client.create(
        PodDisruptionBudget(
            metadata={"name": "kept", "namespace": namespace},
            spec={"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
        )
    )
    for pod in pods:
        await client.update_status(pod, phase="Running")
    eviction = Eviction(metadata={"name": "free", "namespace": namespace})
    answer = await client.subresource(Pod, pods[0].key, "eviction", Eviction).create(eviction)
    assert answer == eviction
    gone = await client.find(Pod, pods[0].key)
    assert gone is None or gone.metadata.deletion_timestamp
    # While the budget's controller has not counted yet, the answer says when to come back: in 10 s, and one that has
    # so much time does.
    async with connect(configuration=client.transport.configuration, timeout=9) as hasty:
        with pytest.raises(TooManyRequestsError, match="disruption budget"):
            await hasty.subresource(Pod, pods[1].key, "eviction", Eviction).create(
                Eviction(metadata={"name": "kept", "namespace": namespace})
            )


async def test_cl_2_what_is_not_there_is_not_found_and_what_it_cannot_do_not_allowed(client, deployment):
    with pytest.raises(NotFoundError):
        await client.subresource(ConfigMap, deployment.key, "scale", Scale).get()
    with pytest.raises(NotFoundError):
        await client.subresource(Deployment, deployment.metadata.namespace + "/none", "scale", Scale).get()
    with pytest.raises(MethodNotAllowedError):
        await client.subresource(Deployment, deployment.key, "scale", Scale).create(Scale())
    with pytest.raises(ValueError, match="is namespaced, write 'namespace/name'"):
        client.subresource(Deployment, "web", "scale", Scale)
    with pytest.raises(TypeError, match="is not a kind with a resource"):
        client.subresource(deployment, deployment.key, "scale")
