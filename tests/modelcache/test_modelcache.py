"""The tutorial's controller on the real control plane."""

import anyio
import pytest

from pyreconcile.api import unstructured
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.client import InvalidError, MergePatch
from pyreconcile.crd import install_crds
from pyreconcile.testing import eventually, running
from pyreconcile_controllers.modelcache import ModelCache, setup


@pytest.fixture
async def crd(client):
    await install_crds(client, [ModelCache])


@pytest.fixture
async def reconciling(crd, manager):
    setup(manager)
    async with running(manager):
        yield manager


def model_cache(namespace, name="tiny", **spec):
    return ModelCache.from_dict({"metadata": {"name": name, "namespace": namespace}, "spec": {"model": "m", **spec}})


async def ready(client, cache):
    async def probe():
        found = await client.get(ModelCache, cache.key)
        done = found.status and found.status.phase == "Ready"
        return found if done and found.status.observed_generation == found.metadata.generation else None

    return await eventually(probe)


async def test_a_cache_gets_its_config_map_finalizer_and_status(reconciling, client, namespace):
    cache = await client.create(model_cache(namespace, replicas=2))
    found = await ready(client, cache)
    child = await client.get(ConfigMap, f"{namespace}/tiny-cfg")
    assert child.data == {"model": "m", "replicas": "2"}
    (owner,) = child.metadata.owner_references
    assert (owner.kind, owner.uid, owner.controller) == ("ModelCache", cache.metadata.uid, True)
    assert found.metadata.finalizers == ["labs.example.dev/cleanup"]
    (condition,) = found.status.conditions
    assert (condition.type, condition.status, condition.observed_generation) == ("Ready", "True", 1)
    assert condition.last_transition_time is not None


async def test_replicas_default_to_1(reconciling, client, namespace):
    cache = await client.create(model_cache(namespace))
    await ready(client, cache)
    assert (await client.get(ConfigMap, f"{namespace}/tiny-cfg")).data == {"model": "m", "replicas": "1"}


async def test_a_changed_spec_reaches_the_child(reconciling, client, namespace):
    cache = await client.create(model_cache(namespace))
    await ready(client, cache)
    await client.patch(ModelCache, cache.key, MergePatch({"spec": {"replicas": 5}}))

    async def probe():
        return (await client.get(ConfigMap, f"{namespace}/tiny-cfg")).data["replicas"] == "5"

    await eventually(probe)


async def test_a_deleted_child_comes_back_and_drift_is_repaired(reconciling, client, namespace):
    cache = await client.create(model_cache(namespace))
    await ready(client, cache)
    key = f"{namespace}/tiny-cfg"
    first = await client.get(ConfigMap, key)
    await client.delete(ConfigMap, key)

    async def renewed():
        found = await client.find(ConfigMap, key)
        return found is not None and found.metadata.uid != first.metadata.uid

    await eventually(renewed)
    await client.patch(ConfigMap, key, MergePatch({"data": {"model": "drifted", "mine": "kept"}}))

    async def repaired():
        return (await client.get(ConfigMap, key)).data == {"model": "m", "replicas": "1", "mine": "kept"}

    await eventually(repaired)


async def test_deleting_a_cache_removes_its_finalizer_and_the_child_goes(reconciling, client, namespace):
    cache = await client.create(model_cache(namespace))
    await ready(client, cache)
    await client.delete(ModelCache, cache.key)

    async def gone():
        return await client.find(ModelCache, cache.key) is None

    await eventually(gone)

    async def child_gone():
        return await client.find(ConfigMap, f"{namespace}/tiny-cfg") is None

    await eventually(child_gone, timeout=120)  # the garbage collector learns of a new kind within 30 s, or 30 s later


async def test_a_settled_cache_is_not_written_again(reconciling, client, namespace):
    cache = await client.create(model_cache(namespace))
    await ready(client, cache)
    child = await client.get(ConfigMap, f"{namespace}/tiny-cfg")
    settled = await client.get(ModelCache, cache.key)
    for number in range(3):
        # Each touch makes the controller look again; only the touch itself may be written.
        touched = await client.patch(
            ModelCache, cache.key, MergePatch({"metadata": {"annotations": {"touched": str(number)}}})
        )
    await anyio.sleep(0.5)
    assert (await client.get(ModelCache, cache.key)).metadata.resource_version == touched.metadata.resource_version
    assert (await client.get(ConfigMap, child.key)).metadata.resource_version == child.metadata.resource_version
    assert settled.status == touched.status


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"model": ""}, "model must not be empty"),
        ({"replicas": 9}, "should be less than or equal to 8"),
        ({"replicas": -1}, "should be greater than or equal to 0"),
    ],
)
async def test_the_server_refuses_what_the_schema_forbids(crd, client, namespace, spec, message):
    raw_kind = unstructured("labs.example.dev/v1", "ModelCache", plural="modelcaches")  # the model checks too
    raw = {"metadata": {"name": "bad", "namespace": namespace}, "spec": {"model": "m", **spec}}
    with pytest.raises(InvalidError, match=message):
        await client.create(raw_kind.from_dict(raw))
