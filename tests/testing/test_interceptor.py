"""Functions in place of a client's verbs."""

from contextlib import aclosing

import pytest

from pyreconcile.api.apps_v1 import Deployment
from pyreconcile.api.authentication_v1 import TokenRequest
from pyreconcile.api.core_v1 import ConfigMap, ServiceAccount
from pyreconcile.client import (
    ConflictError,
    InternalServerError,
    MergePatch,
    NotFoundError,
    Scale,
    retry_on_conflict,
)
from pyreconcile.testing import Interceptor, fake_client, intercept

pytestmark = pytest.mark.rules("TE-11")

LABELS = {"app": "web"}


def config_map(name="x", **data):
    return ConfigMap(metadata={"name": name, "namespace": "n"}, data=data or {"a": "1"})


@pytest.fixture
def real():
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    web = Deployment(
        metadata={"name": "web", "namespace": "n"},
        spec={"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template},
    )
    return fake_client(config_map(), web, ServiceAccount(metadata={"name": "robot", "namespace": "n"}))


@pytest.fixture
def seen():
    return []


@pytest.fixture
def spying(real, seen):
    """A client that notes every call and passes it on."""

    async def get(client, kind, key):
        seen.append(("get", kind, key))
        return await client.get(kind, key)

    async def list_(client, kind, **options):
        seen.append(("list", kind, options))
        return await client.list(kind, **options)

    async def watch(client, kind, **options):
        seen.append(("watch", kind, options))
        async for event in client.watch(kind, **options):
            yield event

    async def create(client, obj, **options):
        seen.append(("create", obj.key, options))
        return await client.create(obj, **options)

    async def update(client, obj, **options):
        seen.append(("update", obj.key, options))
        return await client.update(obj, **options)

    async def patch(client, kind, key, patch, **options):
        seen.append(("patch", kind, key, options))
        return await client.patch(kind, key, patch, **options)

    async def apply(client, obj, **options):
        seen.append(("apply", obj.key, options))
        return await client.apply(obj, **options)

    async def delete(client, kind, key, **options):
        seen.append(("delete", kind, key, options))
        await client.delete(kind, key, **options)

    async def delete_all_of(client, kind, **options):
        seen.append(("delete_all_of", kind, options))
        await client.delete_all_of(kind, **options)

    async def subresource_get(real):
        seen.append(("subresource_get", real.kind, real.key, real.name))
        return await real.get()

    async def subresource_create(real, body, **options):
        seen.append(("subresource_create", real.key, real.name, options))
        return await real.create(body, **options)

    async def subresource_update(real, body, **options):
        seen.append(("subresource_update", real.key, real.name, options))
        return await real.update(body, **options)

    async def subresource_patch(real, patch, **options):
        seen.append(("subresource_patch", real.key, real.name, options))
        return await real.patch(patch, **options)

    async def subresource_apply(real, body, **options):
        seen.append(("subresource_apply", real.key, real.name, options))
        return await real.apply(body, **options)

    hooks = Interceptor(
        get=get,
        list=list_,
        watch=watch,
        create=create,
        update=update,
        patch=patch,
        apply=apply,
        delete=delete,
        delete_all_of=delete_all_of,
        subresource_get=subresource_get,
        subresource_create=subresource_create,
        subresource_update=subresource_update,
        subresource_patch=subresource_patch,
        subresource_apply=subresource_apply,
    )
    return intercept(real, hooks)


async def test_te_11_every_verb_goes_through_its_function(spying, seen):
    stored = await spying.get(ConfigMap, "n/x")
    assert (await spying.find(ConfigMap, "n/x")) == stored
    assert await spying.find(ConfigMap, "n/none") is None
    assert [obj.key for obj in await spying.list(ConfigMap, namespace="n")] == ["n/x"]
    assert [obj.key async for obj in spying.list(ConfigMap)] == ["n/x"]
    async with aclosing(spying.watch(ConfigMap, namespace="n")) as events:
        assert (await anext(events)).object == stored
    await spying.create(config_map("y"), dry_run=True)
    await spying.update(stored, field_validation="Strict")
    patched = await spying.patch(stored, MergePatch({"data": {"a": "2"}}))
    assert patched.data == {"a": "2"}
    await spying.patch(ConfigMap, "n/x", MergePatch({"data": {"a": "3"}}), dry_run=True)
    assert (await spying.apply(config_map("z"), force=False)).metadata.uid
    await spying.delete(ConfigMap, "n/z", missing_ok=True)
    await spying.delete(stored)
    await spying.delete_all_of(ConfigMap, namespace="n")
    assert seen == [
        ("get", ConfigMap, "n/x"),
        ("get", ConfigMap, "n/x"),
        ("get", ConfigMap, "n/none"),
        ("list", ConfigMap, {"namespace": "n"}),
        ("list", ConfigMap, {}),
        ("watch", ConfigMap, {"namespace": "n"}),
        ("create", "n/y", {"dry_run": True}),
        ("update", "n/x", {"field_validation": "Strict"}),
        ("patch", ConfigMap, "n/x", {}),
        ("patch", ConfigMap, "n/x", {"dry_run": True}),
        ("apply", "n/z", {"force": False}),
        ("delete", ConfigMap, "n/z", {"missing_ok": True}),
        ("delete", ConfigMap, "n/x", {}),
        ("delete_all_of", ConfigMap, {"namespace": "n"}),
    ]


async def test_te_11_every_verb_of_sub_resources_goes_through_its_function(spying, seen):
    web = await spying.get(Deployment, "n/web")
    seen.clear()
    assert (await spying.update_status(web, collision_count=1)).status.collision_count == 1
    patched = await spying.patch(web, MergePatch({"status": {"collisionCount": 2}}), subresource="status")
    assert patched.status.collision_count == 2
    await spying.apply(patched, subresource="status", force=True)
    assert (await spying.get_scale(Deployment, "n/web")).spec.replicas == 1
    assert (await spying.set_scale(Deployment, "n/web", 2)).spec.replicas == 2
    scale = spying.subresource(Deployment, "n/web", "scale", Scale)
    read = await scale.get()
    await scale.update(read)
    await scale.apply(Scale(metadata={"name": "web", "namespace": "n"}, spec={"replicas": 3}))
    assert (await spying.get_subresource(Deployment, "n/web", "scale"))["spec"] == {"replicas": 3}
    token = await spying.create_subresource(ServiceAccount, "n/robot", "token", TokenRequest(spec={"audiences": ["a"]}))
    assert token["status"]["token"]
    assert seen == [
        ("subresource_update", "n/web", "status", {}),
        ("subresource_patch", "n/web", "status", {}),
        ("subresource_apply", "n/web", "status", {"force": True}),
        ("subresource_get", Deployment, "n/web", "scale"),
        ("subresource_patch", "n/web", "scale", {}),
        ("subresource_get", Deployment, "n/web", "scale"),
        ("subresource_update", "n/web", "scale", {}),
        ("subresource_apply", "n/web", "scale", {}),
        ("subresource_get", Deployment, "n/web", "scale"),
        ("subresource_create", "n/robot", "token", {}),
    ]


async def test_te_11_without_functions_everything_is_as_ever(real):
    client = intercept(real, Interceptor())
    stored = await client.get(ConfigMap, "n/x")
    assert await client.find(ConfigMap, "n/x") == stored
    assert [obj.key for obj in await client.list(ConfigMap)] == ["n/x"]
    async with aclosing(client.watch(ConfigMap)) as events:
        assert (await anext(events)).object == stored
    created = await client.create(config_map("y"))
    assert (await client.update(created)) == created
    assert (await client.patch(created, MergePatch({"data": {"b": "1"}}))).data == {"a": "1", "b": "1"}
    assert (await client.apply(config_map("z"))).metadata.uid
    await client.delete(ConfigMap, "n/z")
    await client.delete_all_of(ConfigMap, namespace="n")
    assert await client.list(ConfigMap) == []
    web = await client.get(Deployment, "n/web")
    web = await client.update_status(web, collision_count=1)
    assert (await client.patch(web, MergePatch({"status": {"collisionCount": 2}}), subresource="status")).metadata.uid
    assert (await client.apply(web, subresource="status")).status.collision_count == 1
    assert (await client.set_scale(Deployment, "n/web", 4)).spec.replicas == 4
    assert (await client.get_scale(Deployment, "n/web")).spec.replicas == 4
    scale = client.subresource(Deployment, "n/web", "scale", Scale)
    await scale.update(await scale.get())
    await scale.apply(Scale(metadata={"name": "web", "namespace": "n"}, spec={"replicas": 3}))
    assert (await client.get_subresource(Deployment, "n/web", "status"))["status"] == {"collisionCount": 1}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["a"]}}
    assert (await client.create_subresource(ServiceAccount, "n/robot", "token", body))["status"]["token"]
    handle = client.subresource(ServiceAccount, "n/robot", "token", TokenRequest)
    assert (await handle.create(TokenRequest(spec={"audiences": ["a"]}))).status.token


async def test_te_11_a_function_may_fail_in_place_of_the_server(real):
    tries = []

    async def update(client, obj, **options):
        tries.append(obj.key)
        if len(tries) < 3:
            raise ConflictError("somebody was quicker")
        return await client.update(obj, **options)

    client = intercept(real, Interceptor(update=update))

    async def once():
        found = await client.get(ConfigMap, "n/x")
        found.data = {"a": "2"}
        return await client.update(found)

    assert (await retry_on_conflict(once)).data == {"a": "2"}
    assert len(tries) == 3


async def test_te_11_a_function_may_answer_in_place_of_the_server(real):
    async def get(client, kind, key):
        if key == "n/broken":
            raise InternalServerError("the store is down")
        return config_map("made-up")

    client = intercept(real, Interceptor(get=get))
    assert (await client.find(ConfigMap, "n/anything")).metadata.name == "made-up"
    with pytest.raises(InternalServerError):
        await client.find(ConfigMap, "n/broken")


async def test_te_11_clients_made_of_it_are_intercepted_too(real, seen):
    async def delete(client, kind, key, **options):
        seen.append((key, client.field_manager))
        await client.delete(kind, key, **options)

    client = intercept(real, Interceptor(delete=delete)).with_options(field_manager="other")
    await client.in_namespace("n").delete(ConfigMap, "x")
    assert client.live is client
    with pytest.raises(NotFoundError):
        await client.with_options(reader=real).live.delete(ConfigMap, "n/x")
    assert seen == [("n/x", "other")] * 2


@pytest.mark.plane
async def test_te_11_a_control_planes_client_can_be_intercepted(client, namespace, seen):
    async def create(client, obj, **options):
        seen.append(obj.key)
        return await client.create(obj, **options)

    spying = intercept(client, Interceptor(create=create))
    created = await spying.create(ConfigMap(metadata={"name": "x", "namespace": namespace}))
    assert await client.get(ConfigMap, created.key) == created
    assert seen == [created.key]


async def test_te_11_wrong_calls_say_what_to_write(spying):
    with pytest.raises(TypeError, match=r"delete: write client\.delete\(ConfigMap, 'namespace/name'\)"):
        await spying.delete(ConfigMap)
    with pytest.raises(TypeError, match="patch: write"):
        await spying.patch("n/x", MergePatch({}))
    with pytest.raises(TypeError, match="is not a kind with a resource"):
        spying.list("ConfigMap")
