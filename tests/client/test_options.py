"""What `with_options` and `in_namespace` change about every verb."""

from contextlib import aclosing
from dataclasses import replace

import pytest

from pyreconcile.api import Unstructured, unstructured
from pyreconcile.api.apps_v1 import Deployment
from pyreconcile.api.core_v1 import ConfigMap, Namespace, Pod, Secret
from pyreconcile.client import (
    BadRequestError,
    InternalServerError,
    InvalidError,
    JsonPatch,
    MergePatch,
    NotCachedError,
    NotFoundError,
    Scale,
    StrategicMergePatch,
    connect,
)
from pyreconcile.manager import Manager
from pyreconcile.testing import running

pytestmark = pytest.mark.plane

Untyped = unstructured("v1", "ConfigMap")


def config_map(namespace, name="x", **data):
    return ConfigMap(metadata={"name": name, "namespace": namespace, "labels": {"app": name}}, data=data)


def deployment(namespace, name="web"):
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return Deployment(
        metadata={"name": name, "namespace": namespace},
        spec={"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    )


class Dump:
    """A reader that holds one object of each kind that is asked for, and remembers what was."""

    def __init__(self):
        self.asked = []

    async def get(self, kind, key):
        self.asked.append(kind)
        return kind.from_dict({"metadata": {"name": "cached", "namespace": "n"}})

    find = get

    async def list(self, kind, **options):
        return [await self.get(kind, "n/cached")]


async def test_cl_7_dry_run_covers_every_write(client, namespace):
    dry = client.with_options(dry_run=True)
    stored = await client.create(deployment(namespace))
    kept = await client.create(config_map(namespace, "kept", a="1"))
    key = stored.key
    stored.metadata.resource_version = ""  # its controller writes to it too
    changed = stored.deep_copy()
    changed.spec.replicas = 1
    assert (await dry.create(config_map(namespace, "new"))).metadata.uid
    assert (await dry.update(changed)).spec.replicas == 1
    assert (await dry.update_status(stored, collision_count=3)).status.collision_count == 3
    for patch in (
        JsonPatch([{"op": "replace", "path": "/spec/replicas", "value": 1}]),
        MergePatch({"spec": {"replicas": 1}}),
        StrategicMergePatch({"spec": {"replicas": 1}}),
    ):
        assert (await dry.patch(stored, patch)).spec.replicas == 1
    assert (await dry.apply(config_map(namespace, "kept", b="1"))).data == {"a": "1", "b": "1"}
    assert (await dry.set_scale(Deployment, key, 1)).spec.replicas == 1
    scale = dry.subresource(Deployment, key, "scale", Scale)
    wanted = await scale.get()
    wanted.spec.replicas = 1
    wanted.metadata.resource_version = ""
    for call in (scale.update(wanted), scale.patch(MergePatch({"spec": {"replicas": 1}})), scale.apply(wanted)):
        assert (await call).spec.replicas == 1
    await dry.delete(stored)
    await dry.delete_all_of(ConfigMap, namespace=namespace)

    assert (await client.get(Deployment, key)).spec == stored.spec
    assert await client.get(ConfigMap, kept.key) == kept
    assert await client.find(ConfigMap, f"{namespace}/new") is None


async def test_cl_7_the_field_owner_is_recorded_by_every_write(client, namespace):
    named = client.with_options(field_manager="someone")

    def managers(obj):
        return {entry["manager"] for entry in obj.metadata.managed_fields}

    assert managers(await named.create(config_map(namespace, "a", a="1"))) == {"someone"}
    mine = await client.create(config_map(namespace, "b", a="1"))
    mine.data = {"a": "2"}
    assert managers(await named.update(mine)) == {"pyreconcile", "someone"}
    other = await client.create(config_map(namespace, "c", a="1"))
    assert managers(await named.patch(other, MergePatch({"data": {"b": "1"}}))) == {"pyreconcile", "someone"}
    assert managers(await named.apply(config_map(namespace, "d", a="1"))) == {"someone"}
    assert managers(await named.apply(config_map(namespace, "e", a="1"), field_manager="third")) == {"third"}


@pytest.mark.rules("U-68")
async def test_cl_7_field_validation_ignore_warn_and_strict(client, namespace, capsys):
    odd = ConfigMap.from_dict({"metadata": {"name": "odd", "namespace": namespace}, "dtaa": {"a": "1"}})
    strict = client.with_options(field_validation="Strict")
    with pytest.raises(BadRequestError, match='unknown field "dtaa"'):
        await strict.create(odd)
    # An apply must know every field whatever the validation, and says so with a 500.
    with pytest.raises(InternalServerError, match="dtaa: field not declared in schema"):
        await strict.apply(odd, field_validation="Ignore")
    capsys.readouterr()
    ignoring = client.with_options(field_validation="Ignore")
    created = await ignoring.create(odd)
    assert created.metadata.uid
    assert "dtaa" not in capsys.readouterr().out
    with pytest.raises(InvalidError, match="unknown field"):
        await strict.patch(created, MergePatch({"dtaa": {"a": "1"}}))
    with pytest.raises(BadRequestError, match="unknown field"):
        await strict.update(ConfigMap.from_dict({**created.to_dict(), "dtaa": {}}))
    assert (await strict.patch(created, MergePatch({"dtaa": {}}), field_validation="Ignore")).metadata.uid

    await client.with_options(field_validation="Warn").patch(created, MergePatch({"dtaa": {"a": "1"}}))
    assert "unknown field" in capsys.readouterr().out


async def test_cl_7_a_client_of_one_namespace_fills_it_in(client, namespace):
    inside = client.in_namespace(namespace)
    sent = ConfigMap(metadata={"name": "x", "labels": {"app": "x"}}, data={"a": "1"})
    created = await inside.create(sent)
    assert (created.metadata.namespace, sent.metadata.namespace) == (namespace, "")
    assert await inside.get(ConfigMap, "x") == await inside.find(ConfigMap, f"{namespace}/x") == created
    assert [obj.key for obj in await inside.list(ConfigMap, labels="app=x")] == [created.key]
    assert [obj.key async for obj in inside.list(ConfigMap, labels={"app": "x"})] == [created.key]
    async with aclosing(inside.watch(ConfigMap, labels="app=x")) as events:
        assert [(await anext(events)).object.key] == [created.key]
    assert (await inside.patch(ConfigMap, "x", MergePatch({"data": {"a": "2"}}))).data == {"a": "2"}
    assert (await inside.patch(sent, MergePatch({"data": {"a": "3"}}))).data == {"a": "3"}
    assert (await inside.update(sent)).data == {"a": "1"}
    assert (await inside.apply(ConfigMap(metadata={"name": "y"}, data={}))).key == f"{namespace}/y"
    await inside.delete(ConfigMap, "y")
    await inside.delete(sent)
    await inside.delete_all_of(ConfigMap, labels="app=x")
    assert await inside.list(ConfigMap, labels="app=x") == []

    web = deployment("")
    stored = await inside.create(web)
    stored.metadata.resource_version = ""  # its controller writes to it too
    assert (await inside.update_status(stored, collision_count=2)).status.collision_count == 2
    assert (await inside.set_scale(Deployment, "web", 1)).spec.replicas == 1
    assert (await inside.get_scale(Deployment, "web")).spec.replicas == 1
    assert (await inside.subresource(Deployment, "web", "scale", Scale).get()).spec.replicas == 1
    assert (await inside.get_subresource(Deployment, "web", "status"))["kind"] == "Deployment"
    token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    account = await client.kind_for("v1", "ServiceAccount")
    await inside.create(account(metadata={"name": "robot"}))
    assert (await inside.create_subresource(account, "robot", "token", token))["status"]["token"]


async def test_cl_7_a_client_of_one_namespace_leaves_cluster_scoped_kinds_alone(client, namespace):
    inside = client.in_namespace(namespace).with_options(dry_run=True)
    assert (await inside.get(Namespace, "default")).metadata.name == "default"
    assert len(await inside.list(Namespace)) > 1
    created = await inside.create(Namespace(metadata={"name": f"{namespace}-x"}))
    assert created.metadata.namespace == ""


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.get(ConfigMap, "default/x"),
        lambda client: client.find(ConfigMap, "default/x"),
        lambda client: client.create(config_map("default")),
        lambda client: client.update(config_map("default")),
        lambda client: client.update_status(deployment("default"), replicas=1),
        lambda client: client.apply(config_map("default")),
        lambda client: client.patch(config_map("default"), MergePatch({})),
        lambda client: client.patch(ConfigMap, "default/x", MergePatch({})),
        lambda client: client.delete(config_map("default")),
        lambda client: client.delete(ConfigMap, "default/x"),
        lambda client: client.delete_all_of(ConfigMap, namespace="default"),
        lambda client: client.get_scale(Deployment, "default/x"),
        lambda client: client.set_scale(Deployment, "default/x", 1),
        lambda client: client.get_subresource(Pod, "default/x", "status"),
        lambda client: client.create_subresource(Pod, "default/x", "eviction", {}),
    ],
)
async def test_cl_7_a_client_of_one_namespace_refuses_another(logged, namespace, requests, call):
    inside = logged.in_namespace(namespace).live
    message = f"namespace 'default': this client is bound to namespace '{namespace}'"
    with pytest.raises(ValueError, match=message):
        await call(inside)
    with pytest.raises(ValueError, match=message):
        inside.list(ConfigMap, namespace="default")
    with pytest.raises(ValueError, match=message):
        inside.watch(ConfigMap, namespace="default")
    with pytest.raises(ValueError, match=message):
        inside.subresource(Pod, "default/x", "eviction")
    assert requests.take() == []


def test_cl_7_a_namespace_has_a_name(client):
    with pytest.raises(ValueError, match="name the namespace"):
        client.in_namespace("")


async def test_cl_1_reads_come_from_the_reader_and_all_else_goes_to_the_server(client, namespace):
    dump = Dump()
    cached = client.with_options(reader=dump)
    created = await cached.create(config_map(namespace, a="1"))
    assert dump.asked == []
    assert (await cached.get(ConfigMap, created.key)).metadata.name == "cached"
    assert [obj.metadata.name for obj in await cached.list(ConfigMap)] == ["cached"]
    assert dump.asked == [ConfigMap, ConfigMap]
    assert await cached.live.get(ConfigMap, created.key) == created
    assert [obj.key for obj in await cached.live.list(ConfigMap, namespace=namespace, labels="app=x")] == [created.key]
    assert (await cached.patch(created, MergePatch({"data": {"a": "2"}}))).data == {"a": "2"}
    await cached.delete(created)
    assert dump.asked == [ConfigMap, ConfigMap]
    assert await client.find(ConfigMap, created.key) is None


async def test_cl_1_named_kinds_and_untyped_objects_can_be_read_past_the_reader(client, namespace):
    dump = Dump()
    created = await client.create(config_map(namespace, a="1"))
    cached = client.with_options(reader=dump)
    # Untyped objects come from the cache as others do, since all forms share it; a kind's base turns that off.
    assert (await cached.get(Untyped, created.key)).metadata.name == "cached"
    partly = cached.with_options(uncached=[Secret, Unstructured])
    assert (await partly.get(Untyped, created.key))["data"] == {"a": "1"}
    assert (await partly.get(ConfigMap, created.key)).metadata.name == "cached"
    assert await partly.find(Secret, f"{namespace}/none") is None
    with pytest.raises(NotFoundError):
        await partly.get(Secret, f"{namespace}/none")
    assert await partly.list(Secret, namespace=namespace) == []
    assert [obj.metadata.name for obj in await partly.list(ConfigMap)] == ["cached"]
    with pytest.raises(ValueError, match="only a cache has indexes"):
        await partly.list(Secret, index=("a", "b"))
    dump.asked.clear()
    applied = await partly.apply(Secret(metadata={"name": "s", "namespace": namespace}, string_data={"a": "b"}))
    assert applied.metadata.uid
    await partly.apply(config_map(namespace, a="1"))
    assert dump.asked == [ConfigMap]


async def test_options_of_connect_and_with_options_add_up(control_plane, namespace):
    async with connect(kubeconfig=control_plane.kubeconfig, field_manager="first") as client:
        changed = client.with_options(dry_run=True).with_options(field_validation="Strict")
        assert changed.field_manager == "first"
        assert (await changed.create(config_map(namespace))).metadata.uid
        assert await client.find(ConfigMap, f"{namespace}/x") is None


async def test_cl_1_the_managers_client_reads_uncached_kinds_from_the_server(manager_options, namespace):
    options = replace(manager_options, uncached=[Secret], cache=replace(manager_options.cache, start_on_read=False))
    async with Manager(options) as manager, running(manager):
        created = await manager.client.create(Secret(metadata={"name": "s", "namespace": namespace}))
        assert await manager.client.get(Secret, created.key) == created
        assert manager.cache.informers == ()
        with pytest.raises(NotCachedError):
            await manager.client.get(ConfigMap, f"{namespace}/x")
        assert await manager.api_reader.find(ConfigMap, f"{namespace}/x") is None
