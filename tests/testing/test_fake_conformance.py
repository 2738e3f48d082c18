"""One suite on the fake and on a real API server: what both do is what the fake is good for.

Each test runs twice, see the fixture ``api``. Apply and custom resources are in the second part of the suite.
"""

import json
from contextlib import aclosing

import anyio
import pytest

from pyreconcile.api import metadata_only, unstructured
from pyreconcile.api.apps_v1 import Deployment, DeploymentStatus
from pyreconcile.api.authentication_v1 import TokenRequest
from pyreconcile.api.coordination_v1 import Lease
from pyreconcile.api.core_v1 import ConfigMap, Namespace, Pod, Secret, Service, ServiceAccount
from pyreconcile.api.policy_v1 import Eviction, PodDisruptionBudget
from pyreconcile.client import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    ConflictError,
    InternalServerError,
    InvalidError,
    JsonPatch,
    MergePatch,
    MethodNotAllowedError,
    NotFoundError,
    Scale,
    StrategicMergePatch,
    TooManyRequestsError,
)

pytestmark = pytest.mark.rules("U-69")


def config_map(api, name="x", *, labels=None, finalizers=(), **data):
    metadata = {"name": name, "namespace": api.namespace, "labels": labels or {"app": name}}
    if finalizers:
        metadata["finalizers"] = list(finalizers)
    return ConfigMap(metadata=metadata, data=data)


def deployment(api, **spec):
    """One that no controller writes to: it is paused and wants no pods."""
    labels = {"app": "web"}
    container = {"name": "c", "image": "i", "ports": [{"containerPort": 80}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return Deployment(
        metadata={"name": "web", "namespace": api.namespace},
        spec={"replicas": 0, "paused": True, "selector": {"matchLabels": labels}, "template": template, **spec},
    )


async def settled(api, obj):
    """The object once its controller, if there is one, has written its first status."""
    with anyio.fail_after(20):
        while True:
            read = await api.client.get(type(obj), obj.key)
            if api.is_fake or (read.status and read.status.observed_generation == read.metadata.generation):
                return read
            await anyio.sleep(0.05)


# -- names and versions ------------------------------------------------------------------------------------------------


@pytest.mark.rules("TE-8")
async def test_te_8_create_fills_in_what_the_server_owns(api):
    created = await api.client.create(config_map(api, a="1"))
    metadata = created.metadata
    assert (created.api_version, created.kind, created.data) == ("v1", "ConfigMap", {"a": "1"})
    assert metadata.uid
    assert metadata.creation_timestamp
    assert metadata.resource_version.isdigit()
    assert metadata.generation is None
    assert await api.client.get(ConfigMap, created.key) == created
    deployed = await api.client.create(deployment(api))
    assert deployed.metadata.generation == 1


async def test_te_8_a_name_can_be_had_once(api):
    created = await api.client.create(config_map(api))
    with pytest.raises(AlreadyExistsError, match=r'^configmaps "x" already exists$') as caught:
        await api.client.create(config_map(api))
    assert caught.value.details["kind"] == "configmaps"
    await api.client.delete(created)
    assert (await api.client.create(config_map(api))).metadata.uid != created.metadata.uid


async def test_te_8_generate_name_adds_five_characters(api):
    wanted = ConfigMap(metadata={"generateName": "gen-", "namespace": api.namespace})
    names = {(await api.client.create(wanted)).metadata.name for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("gen-") and len(name) == 9 and name.isalnum() is False for name in names)


async def test_te_8_create_with_a_version_or_without_a_name_is_refused(api):
    wanted = config_map(api)
    wanted.metadata.resource_version = "5"
    with pytest.raises(ApiError, match="resourceVersion should not be set on objects to be created"):
        await api.client.create(wanted)
    path = ConfigMap.resource.path(api.namespace)
    with pytest.raises(InvalidError, match="name or generateName is required") as caught:
        await api.client.transport.request("POST", path, body=b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{}}')
    assert [cause.field for cause in caught.value.causes] == ["metadata.name"]


@pytest.mark.parametrize(
    ("method", "body", "message"),
    [
        ("POST", {"kind": "ConfigMap", "metadata": {"name": "z", "namespace": "zz"}}, "does not match the namespace"),
        ("POST", {"kind": "Secret", "metadata": {"name": "z"}}, "cannot be handled as a ConfigMap"),
        ("PUT", {"kind": "ConfigMap", "metadata": {"name": "z"}}, "does not match the name on the URL"),
    ],
)
async def test_te_8_names_in_the_body_are_those_of_the_url(api, method, body, message):
    await api.client.create(config_map(api))
    path = ConfigMap.resource.path(api.namespace, "x" if method == "PUT" else "")
    with pytest.raises(BadRequestError, match=message):
        await api.client.transport.request(method, path, body=json.dumps({"apiVersion": "v1", **body}).encode())


async def test_te_8_a_stale_version_is_a_conflict(api):
    stale = await api.client.create(config_map(api, a="1"))
    fresh = stale.deep_copy()
    fresh.data = {"a": "2"}
    updated = await api.client.update(fresh)
    assert int(updated.metadata.resource_version) > int(stale.metadata.resource_version)
    with pytest.raises(ConflictError, match="the object has been modified"):
        await api.client.update(stale)
    with pytest.raises(ConflictError):
        await api.client.patch(stale, MergePatch({"metadata": {"resourceVersion": stale.metadata.resource_version}}))
    stale.metadata.resource_version, stale.metadata.uid = "", "another"
    with pytest.raises(ConflictError, match="UID in precondition: another"):
        await api.client.update(stale)


@pytest.mark.parametrize(
    ("kind", "fields", "allowed"),
    [
        (ConfigMap, {}, True),
        (Secret, {}, True),
        (Service, {"spec": {"ports": [{"port": 1}]}}, True),
        (Lease, {}, False),
        (PodDisruptionBudget, {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}, False),
    ],
)
async def test_te_8_an_update_without_a_version_is_for_some_kinds_only(api, kind, fields, allowed):
    created = await api.client.create(kind(metadata={"name": "x", "namespace": api.namespace}, **fields))
    created.metadata.resource_version = ""
    created.metadata.labels = {"a": "b"}
    if allowed:
        assert (await api.client.update(created)).metadata.labels == {"a": "b"}
        return
    with pytest.raises(InvalidError, match="must be specified for an update") as caught:
        await api.client.update(created)
    assert [cause.field for cause in caught.value.causes] == ["metadata.resourceVersion"]


async def test_te_8_a_write_that_changes_nothing_keeps_the_version(api):
    created = await api.client.create(config_map(api, a="1"))
    for write in (
        api.client.update(created),
        api.client.patch(created, MergePatch({"data": {"a": "1"}})),
        api.client.patch(created, JsonPatch([{"op": "replace", "path": "/data/a", "value": "1"}])),
    ):
        assert (await write).metadata.resource_version == created.metadata.resource_version


async def test_te_8_identity_cannot_be_changed(api):
    created = await api.client.create(config_map(api))
    with pytest.raises(BadRequestError, match="does not match the name on the URL"):
        await api.client.patch(created, MergePatch({"metadata": {"name": "y"}}))
    with pytest.raises(InvalidError, match=r"metadata\.uid"):
        await api.client.patch(created, MergePatch({"metadata": {"uid": "y"}}))
    created.metadata.creation_timestamp = None
    assert (await api.client.update(created)).metadata.creation_timestamp


async def test_te_8_generation_counts_what_is_wanted(api):
    created = await settled(api, await api.client.create(deployment(api)))
    labelled = await api.client.patch(created, MergePatch({"metadata": {"labels": {"a": "b"}}}))
    observed = await api.client.update_status(labelled, collision_count=3)
    assert observed.metadata.generation == 1
    scaled = await api.client.patch(created, MergePatch({"spec": {"minReadySeconds": 5}}))
    assert scaled.metadata.generation == 2


async def test_what_is_not_there_is_not_found(api):
    key = f"{api.namespace}/nothing"
    assert await api.client.find(ConfigMap, key) is None
    ghost = ConfigMap(metadata={"name": "nothing", "namespace": api.namespace})
    for call in (
        api.client.get(ConfigMap, key),
        api.client.update(ghost),
        api.client.patch(ghost, MergePatch({"data": {"a": "1"}})),
        api.client.delete(ghost),
    ):
        with pytest.raises(NotFoundError, match=r'^configmaps "nothing" not found$'):
            await call
    unknown = unstructured("nowhere.example.dev/v1", "Thing")
    with pytest.raises(NotFoundError):
        await api.client.list(unknown)


async def test_unknown_fields_are_dropped_or_refused(api, capsys):
    odd = ConfigMap.from_dict({**config_map(api, a="1").to_dict(), "dtaa": {"a": "1"}})
    with pytest.raises(BadRequestError, match='unknown field "dtaa"'):
        await api.client.create(odd, field_validation="Strict")
    created = await api.client.create(odd, field_validation="Warn")
    assert 'unknown field "dtaa"' in capsys.readouterr().out.replace("\\", "")
    assert "dtaa" not in created.to_dict()
    await api.client.create(config_map(api, "plain", a="1"), field_validation="Strict")


async def test_dry_run_answers_and_stores_nothing(api):
    dry = api.client.with_options(dry_run=True)
    assert (await dry.create(config_map(api))).metadata.uid
    assert await api.client.find(ConfigMap, f"{api.namespace}/x") is None
    created = await api.client.create(config_map(api, a="1"))
    changed = created.deep_copy()
    changed.data = {"a": "2"}
    assert (await dry.update(changed)).data == {"a": "2"}
    assert (await dry.patch(created, MergePatch({"data": {"a": "3"}}))).data == {"a": "3"}
    assert (await dry.apply(config_map(api, b="1"))).data == {"a": "1", "b": "1"}
    await dry.delete(created)
    await dry.delete_all_of(ConfigMap, namespace=api.namespace, labels="app=x")
    assert await api.client.get(ConfigMap, created.key) == created


async def test_texts_of_a_secret_become_its_data(api):
    wanted = Secret(metadata={"name": "s", "namespace": api.namespace}, data={"a": "MQ=="}, string_data={"b": "2"})
    created = await api.client.create(wanted)
    assert created.to_dict()["data"] == {"a": "MQ==", "b": "Mg=="}
    assert created.string_data is None


# -- status, finalizers, deletion --------------------------------------------------------------------------------------


@pytest.mark.rules("TE-9")
async def test_te_9_status_is_written_apart(api):
    wanted = deployment(api)
    wanted.status = DeploymentStatus(collision_count=1)
    created = await settled(api, await api.client.create(wanted))
    assert created.status is None or created.status.collision_count is None
    created.spec.min_ready_seconds = 5
    observed = await api.client.update_status(created, collision_count=2)
    assert observed.status.collision_count == 2
    assert not observed.spec.min_ready_seconds
    observed.status.collision_count = 9
    observed.spec.min_ready_seconds = 7
    updated = await api.client.update(observed)
    assert (updated.status.collision_count, updated.spec.min_ready_seconds) == (2, 7)
    patch = MergePatch({"spec": {"minReadySeconds": 8}, "status": {"collisionCount": 3}})
    patched = await api.client.patch(updated, patch, subresource="status")
    assert (patched.status.collision_count, patched.spec.min_ready_seconds) == (3, 7)
    patched = await api.client.patch(updated, patch)
    assert (patched.status.collision_count, patched.spec.min_ready_seconds) == (3, 8)


async def test_te_9_a_kind_without_a_status_sub_resource_has_none(api):
    created = await api.client.create(config_map(api))
    with pytest.raises(NotFoundError):
        await api.client.update(created, subresource="status")
    with pytest.raises(NotFoundError):
        await api.client.get_subresource(ConfigMap, created.key, "status")


async def test_te_9_finalizers_delay_the_end(api):
    created = await api.client.create(config_map(api, finalizers=["a.example.dev/x", "a.example.dev/y"]))
    await api.client.delete(created)
    marked = await api.client.get(ConfigMap, created.key)
    assert marked.metadata.deletion_timestamp
    assert marked.metadata.deletion_grace_period_seconds == 0
    version = marked.metadata.resource_version
    await api.client.delete(created)
    assert (await api.client.get(ConfigMap, created.key)).metadata.resource_version == version
    with pytest.raises(InvalidError, match="no new finalizers can be added if the object is being deleted"):
        await api.client.patch(
            created, JsonPatch([{"op": "add", "path": "/metadata/finalizers/-", "value": "b.example.dev/z"}])
        )
    marked.metadata.finalizers = ["a.example.dev/y"]
    left = await api.client.update(marked)
    assert left.metadata.finalizers == ["a.example.dev/y"]
    left.metadata.finalizers = []
    last = await api.client.update(left)
    assert last.metadata.deletion_timestamp
    assert await api.client.find(ConfigMap, created.key) is None


async def test_te_9_the_time_of_deletion_cannot_be_changed(api):
    alive = await api.client.create(config_map(api, "alive"))
    with pytest.raises(InvalidError, match=r"metadata\.deletionTimestamp"):
        await api.client.patch(alive, MergePatch({"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}}))
    created = await api.client.create(config_map(api, finalizers=["a.example.dev/x"]))
    await api.client.delete(created)
    marked = await api.client.get(ConfigMap, created.key)
    for value in (None, "2020-01-01T00:00:00Z"):
        patched = await api.client.patch(marked, MergePatch({"metadata": {"deletionTimestamp": value}}))
        assert patched.metadata.deletion_timestamp == marked.metadata.deletion_timestamp
    await api.client.patch(marked, MergePatch({"metadata": {"finalizers": None}}))
    assert await api.client.find(ConfigMap, created.key) is None


async def test_te_9_marking_counts_as_a_generation(api):
    wanted = deployment(api)
    wanted.metadata.finalizers = ["a.example.dev/x"]
    created = await api.client.create(wanted)
    await api.client.delete(created)
    assert (await api.client.get(Deployment, created.key)).metadata.generation == 2
    await api.client.patch(created, MergePatch({"metadata": {"finalizers": None}}))


async def test_delete_has_preconditions(api):
    created = await api.client.create(config_map(api))
    for options in ({"uid": "another"}, {"resource_version": "1" + created.metadata.resource_version}):
        with pytest.raises(ConflictError, match="in the precondition"):
            await api.client.delete(created, **options)
    await api.client.delete(created, uid=created.metadata.uid, resource_version=created.metadata.resource_version)
    with pytest.raises(NotFoundError):
        await api.client.delete(created)
    await api.client.delete(created, missing_ok=True)


async def test_delete_all_of_takes_selectors(api):
    for name in "abc":
        await api.client.create(config_map(api, name, labels={"app": name, "suite": "yes"}))
    await api.client.delete_all_of(ConfigMap, namespace=api.namespace, labels="app in (a,b)", fields="metadata.name!=b")
    left = await api.client.list(ConfigMap, namespace=api.namespace, labels="suite=yes")
    assert [obj.metadata.name for obj in left] == ["b", "c"]


# -- patches -----------------------------------------------------------------------------------------------------------


async def test_json_patches(api):
    created = await api.client.create(config_map(api, a="1", b="2"))
    patched = await api.client.patch(
        created,
        JsonPatch(
            [
                {"op": "test", "path": "/data/a", "value": "1"},
                {"op": "replace", "path": "/data/a", "value": "3"},
                {"op": "add", "path": "/metadata/labels/x~1y", "value": "z"},
                {"op": "copy", "from": "/data/b", "path": "/data/c"},
                {"op": "move", "from": "/data/b", "path": "/data/d"},
                {"op": "remove", "path": "/metadata/labels/app"},
            ]
        ),
    )
    assert patched.data == {"a": "3", "c": "2", "d": "2"}
    assert patched.metadata.labels == {"x/y": "z"}
    for operation in (
        {"op": "test", "path": "/data/a", "value": "9"},
        {"op": "remove", "path": "/data/none"},
        {"op": "replace", "path": "/none/a", "value": "1"},
        {"op": "remove", "path": "/metadata/managedFields/7"},
    ):
        with pytest.raises(InvalidError):
            await api.client.patch(created, JsonPatch([operation]))
    assert (await api.client.get(ConfigMap, created.key)).data == patched.data


async def test_merge_patches(api):
    created = await api.client.create(deployment(api, progressDeadlineSeconds=60))
    patch = {"spec": {"progressDeadlineSeconds": None, "revisionHistoryLimit": 3}, "metadata": {"labels": {"a": "b"}}}
    patched = await api.client.patch(created, MergePatch(patch))
    assert patched.spec.progress_deadline_seconds != 60
    assert (patched.spec.revision_history_limit, patched.metadata.labels) == (3, {"a": "b"})
    containers = [{"name": "d", "image": "i"}]
    patched = await api.client.patch(created, MergePatch({"spec": {"template": {"spec": {"containers": containers}}}}))
    assert [container.name for container in patched.spec.template.spec.containers] == ["d"]


async def test_strategic_merge_patches(api):
    created = await api.client.create(deployment(api))

    async def patch(spec):
        patched = await api.client.patch(created, StrategicMergePatch({"spec": {"template": {"spec": spec}}}))
        return patched.spec.template.spec

    spec = await patch({"containers": [{"name": "d", "image": "j"}, {"name": "c", "args": ["x"]}]})
    assert [(c.name, c.image, c.args) for c in spec.containers] == [("d", "j", None), ("c", "i", ["x"])]
    assert spec.containers[1].ports[0].container_port == 80
    spec = await patch({"containers": [{"name": "c", "ports": [{"containerPort": 80, "name": "http"}], "args": ["y"]}]})
    assert [(c.name, c.args) for c in spec.containers] == [("d", None), ("c", ["y"])]
    assert [(port.container_port, port.name) for port in spec.containers[1].ports] == [(80, "http")]
    spec = await patch({"containers": [{"name": "d", "$patch": "delete"}], "nodeSelector": {"a": "b"}})
    assert ([c.name for c in spec.containers], spec.node_selector) == (["c"], {"a": "b"})
    spec = await patch({"containers": [{"$patch": "replace"}, {"name": "e", "image": "i"}], "nodeSelector": None})
    assert ([c.name for c in spec.containers], spec.node_selector) == (["e"], None)
    labelled = StrategicMergePatch({"metadata": {"finalizers": ["a.example.dev/x"]}})
    await api.client.patch(created, labelled)
    drop = StrategicMergePatch({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.example.dev/x"]}})
    assert (await api.client.patch(created, drop)).metadata.finalizers == []


# -- lists and watches -------------------------------------------------------------------------------------------------


async def test_lists_by_selectors_in_the_order_of_names(api):
    for name in "cab":
        await api.client.create(config_map(api, name, labels={"app": name, "suite": "yes"}))
    found = await api.client.list(ConfigMap, namespace=api.namespace, labels="suite=yes")
    assert [(obj.kind, obj.metadata.name) for obj in found] == [("ConfigMap", name) for name in "abc"]

    async def names(**selectors):
        found = await api.client.list(ConfigMap, namespace=api.namespace, **selectors)
        return [obj.metadata.name for obj in found if "suite" in obj.metadata.labels]

    assert await names(labels={"app": ["a", "b"]}) == ["a", "b"]
    assert await names(labels="app notin (a),suite") == ["b", "c"]
    assert await names(labels="!suite") == []
    assert await names(fields={"metadata.name": "c"}) == ["c"]
    assert await names(labels="suite", fields="metadata.name!=c") == ["a", "b"]
    everywhere = await api.client.list(ConfigMap, labels="suite=yes", fields={"metadata.namespace": api.namespace})
    assert [obj.metadata.name for obj in everywhere] == ["a", "b", "c"]
    with pytest.raises(BadRequestError, match="is not a known field selector"):
        await names(fields={"data.a": "1"})
    with pytest.raises(BadRequestError):
        await names(labels="a in (")


async def test_lists_come_in_pages(api):
    for number in range(5):
        await api.client.create(config_map(api, f"p{number}", labels={"suite": "yes"}))
    names = [f"p{number}" for number in range(5)]
    listing = api.client.list(ConfigMap, namespace=api.namespace, labels="suite=yes", limit=2)
    assert [obj.metadata.name async for obj in listing] == names
    assert [obj.metadata.name for obj in await listing] == names


async def test_metadata_only(api):
    created = await api.client.create(config_map(api, a="1"))
    kind = metadata_only(ConfigMap)
    assert (await api.client.get(kind, created.key)).metadata == created.metadata
    (listed,) = await api.client.list(kind, namespace=api.namespace, labels="app=x")
    assert listed.to_dict().keys() == {"apiVersion", "kind", "metadata"}
    patched = await api.client.patch(listed, MergePatch({"metadata": {"labels": {"a": "b"}}}))
    assert patched.metadata.labels == {"app": "x", "a": "b"}
    async with aclosing(api.client.watch(kind, namespace=api.namespace, labels="app=x")) as events:
        with anyio.fail_after(30):
            while (await anext(events)).object != patched:  # a watch may begin at an older version
                pass
    await api.client.delete(patched)


async def test_a_watch_from_a_version_sees_what_comes_after_it(api):
    created = await api.client.create(config_map(api, a="1"))
    version = created.metadata.resource_version
    await api.client.patch(created, MergePatch({"data": {"a": "2"}}))
    seen = []
    events = api.client.watch(ConfigMap, namespace=api.namespace, labels="app=x", resource_version=version)
    async with aclosing(events):
        with anyio.fail_after(10):
            async for event in events:
                seen.append((event.type, event.object.data.get("a")))
                if len(seen) == 1:
                    await api.client.patch(created, MergePatch({"data": {"a": "3"}}))
                    await api.client.create(config_map(api, "other"))
                    await api.client.patch(created, MergePatch({"metadata": {"labels": {"app": "y"}}}))
                    await api.client.patch(created, MergePatch({"metadata": {"labels": {"app": "x"}}}))
                    await api.client.delete(created)
                if len(seen) == 5:
                    break
    assert seen == [("MODIFIED", "2"), ("MODIFIED", "3"), ("DELETED", "3"), ("ADDED", "3"), ("DELETED", "3")]


async def test_a_watch_from_nowhere_begins_with_what_is_there(api):
    await api.client.create(config_map(api, "a", labels={"suite": "yes"}))
    events = api.client.watch(ConfigMap, namespace=api.namespace, labels="suite=yes")
    async with aclosing(events):
        with anyio.fail_after(10):
            first = await anext(events)
            assert (first.type, first.object.metadata.name) == ("ADDED", "a")
            created = await api.client.create(config_map(api, "b", labels={"suite": "yes"}))
            second = await anext(events)
            assert (second.type, second.object) == ("ADDED", created)
            await api.client.delete(created)
            last = await anext(events)
            assert (last.type, last.object.metadata.name) == ("DELETED", "b")
            assert int(last.object.metadata.resource_version) > int(created.metadata.resource_version)


async def test_a_watch_ends_when_its_time_is_over(api):
    with anyio.fail_after(10):
        events = api.client.watch(ConfigMap, namespace=api.namespace, labels="suite=none", timeout_seconds=1)
        assert [event async for event in events] == []


async def test_a_streaming_list_ends_with_a_bookmark(api):
    created = await api.client.create(config_map(api, labels={"suite": "yes"}))
    query = {
        "watch": "true",
        "labelSelector": "suite=yes",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    lines = []
    with anyio.fail_after(20):
        async with api.client.transport.stream(ConfigMap.resource.path(api.namespace), query=query) as stream:
            async for line in stream:
                lines.append(line)
                if b"BOOKMARK" in line:
                    break
    assert len(lines) == 2
    assert created.metadata.uid.encode() in lines[0]
    assert b'"k8s.io/initial-events-end":"true"' in lines[1]


# -- sub-resources with a body of their own ----------------------------------------------------------------------------


@pytest.mark.rules("TE-10")
async def test_te_10_scale(api):
    created = await api.client.create(deployment(api))
    scale = api.client.subresource(Deployment, created.key, "scale", Scale)
    read = await scale.get()
    assert (read.metadata.name, read.metadata.uid, read.spec.replicas) == ("web", created.metadata.uid, 0)
    assert read.status.selector == "app=web"
    read.spec.replicas = 1
    read.metadata.resource_version = ""
    assert (await scale.update(read)).spec.replicas == 1
    assert (await scale.patch(MergePatch({"spec": {"replicas": 2}}))).spec.replicas == 2
    assert (await api.client.set_scale(Deployment, created.key, 3)).spec.replicas == 3
    wanted = Scale(metadata={"name": "web", "namespace": api.namespace}, spec={"replicas": 4})
    with pytest.raises(ConflictError):
        await scale.apply(wanted, field_manager="scaler", force=False)
    assert (await scale.apply(wanted, field_manager="scaler")).spec.replicas == 4
    stored = await api.client.get(Deployment, created.key)
    assert (stored.spec.replicas, stored.spec.paused) == (4, True)
    owners = {(entry["manager"], entry.get("subresource")) for entry in stored.metadata.managed_fields}
    assert ("scaler", "scale") in owners
    read.metadata.resource_version = created.metadata.resource_version
    with pytest.raises(ConflictError):
        await scale.update(read)
    with pytest.raises(NotFoundError):
        await api.client.get_scale(ConfigMap, created.key)
    with pytest.raises(MethodNotAllowedError):
        await scale.create(read)


async def test_te_10_eviction_keeps_to_budgets(api):
    spec = {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False, "nodeName": "no-node"}
    for name in ("free", "kept"):
        metadata = {"name": name, "namespace": api.namespace, "labels": {"app": name}}
        pod = await api.client.create(Pod(metadata=metadata, spec=spec))
        pod.metadata.resource_version = ""
        await api.client.update_status(pod, phase="Running")
    await api.client.create(
        PodDisruptionBudget(
            metadata={"name": "kept", "namespace": api.namespace},
            spec={"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
        )
    )

    async def evict(name):
        eviction = Eviction(metadata={"name": name, "namespace": api.namespace})
        await api.client.subresource(Pod, f"{api.namespace}/{name}", "eviction", Eviction).create(eviction)

    await evict("free")
    gone = await api.client.find(Pod, f"{api.namespace}/free")
    assert gone is None or gone.metadata.deletion_timestamp
    with pytest.raises(TooManyRequestsError, match="it would violate the pod's disruption budget"):
        await evict("kept")
    assert not (await api.client.get(Pod, f"{api.namespace}/kept")).metadata.deletion_timestamp
    with pytest.raises(NotFoundError):
        await evict("none")
    await api.client.create(
        PodDisruptionBudget(
            metadata={"name": "second", "namespace": api.namespace},
            spec={"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
        )
    )
    with pytest.raises(InternalServerError, match="more than one PodDisruptionBudget"):
        await evict("kept")


async def test_te_10_tokens_of_a_service_account(api):
    account = await api.client.create(ServiceAccount(metadata={"name": "robot", "namespace": api.namespace}))
    token = api.client.subresource(ServiceAccount, account.key, "token", TokenRequest)
    granted = await token.create(TokenRequest(spec={"audiences": ["suite"], "expirationSeconds": 600}))
    assert (granted.spec.audiences, granted.spec.expiration_seconds) == (["suite"], 600)
    assert granted.status.token.count(".") == 2
    assert granted.status.expiration_timestamp
    with pytest.raises(NotFoundError):
        await api.client.subresource(ServiceAccount, f"{api.namespace}/none", "token", TokenRequest).create(
            TokenRequest(spec={"audiences": ["suite"]})
        )


async def test_cluster_scoped_kinds_have_no_namespace(api):
    name = f"suite-{api.namespace}"[:60]
    created = await api.client.create(Namespace(metadata={"name": name}))
    assert created.key == name
    assert name in [obj.metadata.name for obj in await api.client.list(Namespace)]
    await api.client.delete(Namespace, name)
