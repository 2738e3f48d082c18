"""Objects of which only the metadata is read."""

from contextlib import aclosing

import pytest

from pyreconcile.api import metadata_only, unstructured
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.client import MergePatch, NotFoundError

pytestmark = pytest.mark.plane

Metadata = metadata_only(ConfigMap)


@pytest.fixture
async def stored(client, namespace):
    return await client.create(
        ConfigMap(metadata={"name": "x", "namespace": namespace, "labels": {"app": "x"}}, data={"big": "1" * 1000})
    )


async def test_cl_4_metadata_is_read_without_the_rest(client, stored):
    read = await client.get(Metadata, stored.key)
    assert read.metadata == stored.metadata
    assert (read.api_version, read.kind) == ("v1", "ConfigMap")
    assert set(read.to_dict()) == {"apiVersion", "kind", "metadata"}
    assert (await client.find(Metadata, stored.key)) == read
    (listed,) = await client.list(Metadata, namespace=stored.metadata.namespace, labels={"app": "x"})
    assert listed == read
    body = await client.transport.request(
        "GET", Metadata.resource.path(*stored.key.split("/")), accept=Metadata.media_type
    )
    assert b"1" * 1000 not in body


async def test_cl_4_metadata_is_watched_without_the_rest(client, stored):
    events = client.watch(Metadata, namespace=stored.metadata.namespace, labels="app=x")
    async with aclosing(events):
        async for event in events:
            assert (event.type, event.object.metadata.name, event.object.kind) == ("ADDED", "x", "ConfigMap")
            break


async def test_cl_4_metadata_can_be_patched_and_the_object_deleted(client, stored):
    patched = await client.patch(
        await client.get(Metadata, stored.key), MergePatch({"metadata": {"labels": {"a": "b"}}})
    )
    assert type(patched) is Metadata
    assert patched.metadata.labels == {"app": "x", "a": "b"}
    whole = await client.get(ConfigMap, stored.key)
    assert whole.data == stored.data
    await client.delete(patched, uid=patched.metadata.uid)
    with pytest.raises(NotFoundError):
        await client.get(Metadata, stored.key)
    await client.delete_all_of(Metadata, namespace=stored.metadata.namespace, labels="app=x")


async def test_cl_4_create_and_update_of_metadata_alone_are_errors(logged, stored, requests):
    read = await logged.get(Metadata, stored.key)
    requests.take()
    with pytest.raises(TypeError, match="create: ConfigMapMetadata has only metadata, so use the class of ConfigMap"):
        await logged.create(read)
    with pytest.raises(TypeError, match="update: ConfigMapMetadata has only metadata"):
        await logged.update(read)
    assert requests.take() == []


async def test_cl_4_metadata_of_a_kind_without_a_model(client, stored):
    kind = metadata_only(unstructured("v1", "ConfigMap"))
    assert (await client.get(kind, stored.key)).metadata == stored.metadata
    assert metadata_only(kind) is kind
