"""The verbs on the real API server."""

import asyncio
import json
from contextlib import aclosing

import anyio
import pytest
from aiohttp import web

from pyreconcile.api import CustomResource, Spec, Status, unstructured
from pyreconcile.api.apps_v1 import Deployment
from pyreconcile.api.authorization_v1 import SelfSubjectAccessReview
from pyreconcile.api.core_v1 import ConfigMap, Namespace, Pod, Secret
from pyreconcile.api.policy_v1 import PodDisruptionBudget
from pyreconcile.client import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    ConflictError,
    ExpiredError,
    InvalidError,
    JsonPatch,
    MergePatch,
    NotFoundError,
    StrategicMergePatch,
    TooManyRequestsError,
    retry_on_conflict,
)
from pyreconcile.crd import install_crds

pytestmark = pytest.mark.plane


def config_map(namespace, name="x", **data):
    return ConfigMap.from_dict(
        {"metadata": {"name": name, "namespace": namespace, "labels": {"app": name}}, "data": data}
    )


def deployment(namespace, name="web", replicas=0):
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return Deployment.from_dict(
        {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
        }
    )


class Observer:
    def __init__(self):
        self.calls = []

    def begin(self, resource, key):
        return key

    def end(self, write, *, unknown=False):
        pass

    def written(self, resource, key, resource_version):
        self.calls.append(("written", resource.kind, key, resource_version))

    def deleted(self, resource, key, uid, resource_version):
        self.calls.append(("deleted", resource.kind, key, uid, resource_version))


async def test_cl_2_create_get_update_delete(client, namespace):
    sent = config_map(namespace, a="1")
    before = sent.to_dict()
    created = await client.create(sent)
    assert sent.to_dict() == before
    assert created.metadata.uid
    assert (created.api_version, created.kind) == ("v1", "ConfigMap")
    read = await client.get(ConfigMap, created.key)
    assert read == created
    read.data["b"] = "2"
    updated = await client.update(read)
    assert updated.data == {"a": "1", "b": "2"}
    assert updated.metadata.resource_version != read.metadata.resource_version
    await client.delete(updated)
    assert await client.find(ConfigMap, created.key) is None


@pytest.mark.rules("U-68")
async def test_cl_3_every_write_returns_the_object_as_the_server_has_it(client, namespace):
    created = await client.create(config_map(namespace, a="1"))
    updated = created.deep_copy()
    updated.data = {"b": "1"}
    answers = [
        created,
        await client.update(updated),
        await client.patch(created, MergePatch({"data": {"c": "1"}})),
        await client.apply(config_map(namespace, d="1")),
        await client.patch(ConfigMap, created.key, JsonPatch([{"op": "remove", "path": "/data/c"}])),
    ]
    assert [answer.data for answer in answers] == [
        {"a": "1"},
        {"b": "1"},
        {"b": "1", "c": "1"},
        {"b": "1", "c": "1", "d": "1"},
        {"b": "1", "d": "1"},
    ]
    assert {(answer.api_version, answer.kind) for answer in answers} == {("v1", "ConfigMap")}
    assert {answer.metadata.uid for answer in answers} == {created.metadata.uid}
    versions = [int(answer.metadata.resource_version) for answer in answers]
    assert versions == sorted(set(versions))
    # What was passed stays as it was: the answer is another object (controller-runtime writes into the passed one).
    assert (updated.data, updated.metadata.resource_version) == ({"b": "1"}, created.metadata.resource_version)


@pytest.mark.rules("U-68")
async def test_cl_3_a_read_has_no_field_that_the_server_does_not_send(client, namespace):
    created = await client.create(config_map(namespace, a="1"))
    await client.patch(created, MergePatch({"metadata": {"labels": None}, "data": None}))
    (listed,) = await client.list(ConfigMap, namespace=namespace, fields={"metadata.name": "x"})
    for read in (await client.get(ConfigMap, created.key), await client.find(ConfigMap, created.key), listed):
        assert read.metadata.labels == {}
        assert not read.data
        assert read.to_dict().keys() == {"apiVersion", "kind", "metadata"}
        assert "labels" not in read.to_dict()["metadata"]


async def test_get_raises_and_find_returns_none(client, namespace):
    key = f"{namespace}/nothing"
    assert await client.find(ConfigMap, key) is None
    with pytest.raises(NotFoundError, match=r'^configmaps "nothing" not found$') as caught:
        await client.get(ConfigMap, key)
    assert caught.value.details["kind"] == "configmaps"


async def test_er_1_errors_of_the_server_are_typed(client, namespace):
    created = await client.create(config_map(namespace, a="1"))
    with pytest.raises(AlreadyExistsError, match="already exists"):
        await client.create(config_map(namespace))
    stale = created.deep_copy()
    created.data = {"a": "2"}
    await client.update(created)
    with pytest.raises(ConflictError, match="the object has been modified"):
        await client.update(stale)
    with pytest.raises(InvalidError) as caught:
        await client.create(deployment(namespace, replicas=-1))
    assert "spec.replicas" in [cause.field for cause in caught.value.causes]


async def test_er_4_retry_on_conflict_brings_two_writers_together(client, namespace):
    key = (await client.create(config_map(namespace, n="0"))).key

    async def add_one():
        read = await client.get(ConfigMap, key)
        read.data["n"] = str(int(read.data["n"]) + 1)
        return await client.update(read)

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(retry_on_conflict(add_one, tries=20))
    assert (await client.get(ConfigMap, key)).data == {"n": "3"}


async def test_create_with_generate_name(client, namespace):
    created = await client.create(ConfigMap.from_dict({"metadata": {"generateName": "gen-", "namespace": namespace}}))
    assert created.metadata.name.startswith("gen-")
    assert (await client.get(ConfigMap, created.key)).metadata.uid == created.metadata.uid


async def test_list_by_selectors_fills_in_the_kind(client, namespace):
    for name in "abc":
        await client.create(config_map(namespace, name))
    for labels in ("app in (a,b)", {"app": ["a", "b"]}):
        found = await client.list(ConfigMap, namespace=namespace, labels=labels)
        assert [(obj.kind, obj.api_version, obj.metadata.name) for obj in found] == [
            ("ConfigMap", "v1", "a"),
            ("ConfigMap", "v1", "b"),
        ]
    found = await client.list(ConfigMap, namespace=namespace, fields={"metadata.name": "c"})
    assert [obj.metadata.name for obj in found] == ["c"]
    assert any(obj.metadata.name == namespace for obj in await client.list(Namespace))


async def test_cl_8a_a_list_goes_through_all_pages(logged, namespace, requests):
    for number in range(5):
        await logged.create(config_map(namespace, f"p{number}", page="yes"))
    requests.take()
    labels = "app in (p0,p1,p2,p3,p4)"
    names = [f"p{number}" for number in range(5)]
    found = await logged.list(ConfigMap, namespace=namespace, labels=labels, limit=2)
    assert [obj.metadata.name for obj in found] == names
    assert len(requests.take()) == 3
    listing = logged.list(ConfigMap, namespace=namespace, labels=labels, limit=2)
    assert [obj.metadata.name async for obj in listing] == names


async def test_unstructured_objects_work_with_every_verb(client, namespace):
    kind = unstructured("v1", "ConfigMap", plural="configmaps")
    obj = kind.from_dict({"metadata": {"name": "u", "namespace": namespace}, "data": {"a": "1"}})
    created = await client.create(obj)
    created["data"]["b"] = "2"
    updated = await client.update(created)
    assert updated["data"] == {"a": "1", "b": "2"}
    patched = await client.patch(updated, MergePatch({"data": {"a": None}}))
    assert patched["data"] == {"b": "2"}
    (listed,) = await client.list(kind, namespace=namespace, fields={"metadata.name": "u"})
    assert (listed.kind, listed["data"]) == ("ConfigMap", {"b": "2"})
    await client.delete(kind, listed.key)


async def test_cl_5_patches(client, namespace):
    created = await client.create(deployment(namespace))
    replaced = await client.patch(created, JsonPatch([{"op": "replace", "path": "/spec/paused", "value": True}]))
    assert replaced.spec.paused
    merged = await client.patch(Deployment, created.key, MergePatch({"spec": {"paused": None}}))
    assert merged.spec.paused is None
    container = {"name": "second", "image": "i"}
    patch = StrategicMergePatch({"spec": {"template": {"spec": {"containers": [container]}}}})
    strategic = await client.patch(merged, patch)
    assert [c.name for c in strategic.spec.template.spec.containers] == ["second", "c"]


async def test_cl_5_optimistic_lock_is_refused_after_a_change(client, namespace):
    base = await client.create(config_map(namespace, a="1"))
    changed = base.deep_copy()
    changed.data["a"] = "2"
    patch = MergePatch.between(base, changed, optimistic_lock=True)
    await client.patch(base, MergePatch({"data": {"b": "1"}}))
    with pytest.raises(ConflictError):
        await client.patch(base, patch)
    patched = await client.patch(base, MergePatch.between(base, changed))
    assert patched.data == {"a": "2", "b": "1"}


async def test_cl_8_delete_with_preconditions(client, namespace):
    created = await client.create(config_map(namespace))
    with pytest.raises(ConflictError, match="in the precondition"):
        await client.delete(created, uid="another")
    with pytest.raises(ConflictError, match="in the precondition"):
        await client.delete(created, resource_version="1")
    await client.delete(created, uid=created.metadata.uid, resource_version=created.metadata.resource_version)
    with pytest.raises(NotFoundError):
        await client.delete(ConfigMap, created.key)
    await client.delete(ConfigMap, created.key, missing_ok=True)


async def test_cl_8_pages_continue_by_themselves_and_raw_parameters_go_through_the_transport(client, namespace):
    for name in "abc":
        await client.create(config_map(namespace, name))
    path, query = ConfigMap.resource.path(namespace), {"labelSelector": "app in (a,b,c)", "limit": "2"}
    first = json.loads(await client.transport.request("GET", path, query=query))
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    query["continue"] = first["metadata"]["continue"]
    second = json.loads(await client.transport.request("GET", path, query=query))
    assert [item["metadata"]["name"] for item in second["items"]] == ["c"]
    found = await client.list(ConfigMap, namespace=namespace, labels={"app": ["a", "b"], "other": ["x"]})
    assert found == []


async def test_cl_8_delete_with_a_grace_period_and_orphans(client, namespace):
    created = await client.create(deployment(namespace))
    await client.delete(created, grace_period_seconds=0, propagation="Orphan")
    with anyio.fail_after(90):  # the garbage collector pauses for up to 30 s when kinds have come or gone
        while (left := await client.find(Deployment, created.key)) is not None:
            assert "orphan" in left.metadata.finalizers
            await anyio.sleep(0.05)


async def test_cl_8_delete_in_the_foreground_waits_for_dependents(client, namespace):
    created = await client.create(deployment(namespace))
    await client.delete(created, propagation="Foreground")
    with anyio.fail_after(90):  # as above
        while (found := await client.find(Deployment, created.key)) is not None:
            assert "foregroundDeletion" in found.metadata.finalizers
            await anyio.sleep(0.05)


async def test_cl_2_delete_all_of(client, namespace):
    for name in "abc":
        await client.create(config_map(namespace, name))
    await client.delete_all_of(ConfigMap, namespace=namespace, labels="app in (a,b)")
    left = await client.list(ConfigMap, namespace=namespace, labels="app")
    assert [obj.metadata.name for obj in left] == ["c"]


@pytest.mark.rules("U-68")
async def test_cl_7_dry_run_stores_nothing(client, namespace):
    observer = Observer()
    dry = client.with_options(dry_run=True, write_observer=observer)
    assert (await dry.create(config_map(namespace))).metadata.uid
    assert await client.find(ConfigMap, f"{namespace}/x") is None
    created = await client.create(config_map(namespace, a="1"), dry_run=False)
    created.data["a"] = "2"
    assert (await dry.update(created)).data == {"a": "2"}
    assert (await dry.apply(config_map(namespace, a="3"))).data == {"a": "3"}
    await dry.delete(created)
    assert (await client.get(ConfigMap, created.key)).data == {"a": "1"}
    assert observer.calls == []


async def test_cl_7_strict_field_validation_names_the_field(client, namespace):
    odd = config_map(namespace)
    odd = ConfigMap.from_dict({**odd.to_dict(), "dta": {"a": "1"}})
    with pytest.raises(BadRequestError, match='unknown field "dta"'):
        await client.create(odd, field_validation="Strict")


async def test_field_manager_is_recorded(client, namespace):
    named = client.with_options(field_manager="someone")
    created = await named.create(config_map(namespace, a="1"))
    assert named.field_manager == "someone"
    assert [entry["manager"] for entry in created.metadata.managed_fields] == ["someone"]


async def test_ry_4_ry_5_confirmed_writes_are_observed(client, namespace):
    observer = Observer()
    watched = client.with_options(write_observer=observer)
    created = await watched.create(config_map(namespace, a="1"))
    patched = await watched.patch(created, MergePatch({"data": {"a": "2"}}))
    applied = await watched.apply(config_map(namespace, b="1"))
    with pytest.raises(AlreadyExistsError):
        await watched.create(config_map(namespace))
    await watched.delete(applied)
    key, uid = created.key, created.metadata.uid
    assert observer.calls == [
        *(("written", "ConfigMap", key, obj.metadata.resource_version) for obj in (created, patched, applied)),
        ("deleted", "ConfigMap", key, uid, None),
    ]


async def test_ry_5_a_delete_that_only_marks_is_observed_with_its_version(client, namespace):
    observer = Observer()
    watched = client.with_options(write_observer=observer)
    obj = config_map(namespace)
    obj.metadata.finalizers.append("labs.example.dev/hold")
    created = await client.create(obj)
    await watched.delete(created)
    marked = await client.get(ConfigMap, created.key)
    assert observer.calls == [
        ("deleted", "ConfigMap", created.key, created.metadata.uid, marked.metadata.resource_version)
    ]
    marked.metadata.finalizers = []
    await client.update(marked)
    assert await client.find(ConfigMap, created.key) is None


async def test_watch_yields_typed_events(client, namespace):
    created = await client.create(config_map(namespace, a="1"))
    version = created.metadata.resource_version
    seen = []
    events = client.watch(ConfigMap, namespace=namespace, labels="app=x", resource_version=version)
    async with aclosing(events):
        await client.patch(created, MergePatch({"data": {"a": "2"}}))
        await client.delete(created)
        async for event in events:
            seen.append((event.type, event.object.data))
            if event.type == "DELETED":
                break
    assert seen == [("MODIFIED", {"a": "2"}), ("DELETED", {"a": "2"})]


async def test_watch_asks_for_bookmarks_and_raises_error_events(client_of):
    queries = []

    async def handler(request):
        queries.append(dict(request.query))
        bookmark = {"type": "BOOKMARK", "object": {"kind": "ConfigMap", "metadata": {"resourceVersion": "9"}}}
        error = {"type": "ERROR", "object": {"kind": "Status", "reason": "Expired", "code": 410, "message": "old"}}
        return web.Response(text=f"{json.dumps(bookmark)}\n{json.dumps(error)}\n")

    client = await client_of(handler)
    events = client.watch(ConfigMap, resource_version="7", bookmarks=True)
    event = await anext(events)
    assert (event.type, event.object.metadata.resource_version) == ("BOOKMARK", "9")
    with pytest.raises(ExpiredError, match="old"):
        await anext(events)
    (query,) = queries
    assert 300 <= int(query.pop("timeoutSeconds")) <= 600
    assert query == {"watch": "true", "resourceVersion": "7", "allowWatchBookmarks": "true"}


async def test_a_watch_line_that_is_no_event_is_an_error(client_of):
    async def handler(request):
        return web.Response(text="<html>\n")

    client = await client_of(handler)
    with pytest.raises(ApiError, match="no event"):
        await anext(client.watch(ConfigMap))


async def test_watch_ends_when_the_server_ends_it(client, namespace):
    await client.create(config_map(namespace))
    with anyio.fail_after(10):
        found = [event async for event in client.watch(ConfigMap, namespace=namespace, labels="app", timeout_seconds=1)]
    assert [(event.type, event.object.metadata.name) for event in found] == [("ADDED", "x")]


class Fresh(CustomResource[Spec, Status], group="client.pyreconcile.dev", version="v1", plural="freshes"):
    """A kind whose CRD is made now, so that the server's memory of its changes begins now."""


async def test_watch_of_a_version_too_old_is_expired(client, namespace):
    await install_crds(client, [Fresh])

    async def all_events():
        return [event async for event in client.watch(Fresh, namespace=namespace, resource_version="1")]

    with anyio.fail_after(30), pytest.raises(ExpiredError, match="too old resource version"):
        await all_events()


async def test_scale(client, namespace):
    created = await client.create(deployment(namespace))
    observer = Observer()
    scaled = await client.with_options(write_observer=observer).set_scale(Deployment, created.key, 2)
    assert scaled.spec.replicas == 2
    assert (await client.get_scale(Deployment, created.key)).status.selector == "app=web"
    assert (await client.get(Deployment, created.key)).spec.replicas == 2
    assert [call[:3] for call in observer.calls] == [("written", "Deployment", created.key)]
    with pytest.raises(NotFoundError):
        await client.get_scale(ConfigMap, created.key)


async def test_sub_resources_eviction_is_blocked_by_a_budget(client, namespace):
    pod = await client.create(
        Pod.from_dict(
            {
                "metadata": {"name": "p", "namespace": namespace, "labels": {"app": "p"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            }
        )
    )
    await client.create(
        PodDisruptionBudget.from_dict(
            {
                "metadata": {"name": "p", "namespace": namespace},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "p"}}},
            }
        )
    )
    with anyio.fail_after(30):
        while (await client.get(Pod, pod.key)).status.phase != "Running":
            await anyio.sleep(0.05)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": namespace}}
    blocked = client.with_options()
    with pytest.raises(TooManyRequestsError, match="disruption budget"):
        await blocked.create_subresource(Pod, pod.key, "eviction", eviction)
    status = await client.get_subresource(Pod, pod.key, "status")
    assert status["metadata"]["name"] == "p"


async def test_update_status_sends_only_changes(logged, namespace, requests):
    # Paused from the start it gets no ReplicaSet, and its controller's last write is of the generation that it saw.
    paused = deployment(namespace, replicas=0)
    paused.spec.paused = True
    stopped = await logged.create(paused)
    with anyio.fail_after(30):
        while (stopped.status.observed_generation or 0) < stopped.metadata.generation:
            await anyio.sleep(0.05)
            stopped = await logged.get(Deployment, stopped.key)
    requests.take()
    changed = await logged.update_status(stopped, collision_count=3)
    assert changed.status.collision_count == 3
    assert stopped.status.collision_count is None
    assert requests.take() == [("PUT", "200")]
    again = await logged.update_status(changed, collision_count=3)
    assert again.status.collision_count == 3
    assert requests.take() == []
    again.status.collision_count = 4
    assert (await logged.update_status(again)).status.collision_count == 4
    with pytest.raises(ConflictError):
        await logged.update_status(changed, collision_count=5)


async def test_live_reads_past_the_cache(client, namespace):
    class Reader:
        async def get(self, kind, key):
            raise NotFoundError("cached")

        async def find(self, kind, key):
            return None

        async def list(self, kind, **options):
            return [options]

    created = await client.create(config_map(namespace))
    cached = client.with_options(reader=Reader())
    assert await cached.find(ConfigMap, created.key) is None
    with pytest.raises(NotFoundError, match=r"^cached$"):
        await cached.get(ConfigMap, created.key)
    expected = {"namespace": "n", "labels": "a", "fields": None, "index": ("i", "v")}
    assert await cached.list(ConfigMap, namespace="n", labels="a", index=("i", "v")) == [expected]
    assert [item async for item in cached.list(ConfigMap, namespace="n", labels="a", index=("i", "v"))] == [expected]
    assert (await cached.live.get(ConfigMap, created.key)).metadata.uid == created.metadata.uid
    assert client.live is client


async def test_secrets_are_never_logged(client, namespace, capsys):
    created = await client.create(
        Secret.from_dict({"metadata": {"name": "s", "namespace": namespace}, "stringData": {"password": "hunter2"}})
    )
    with pytest.raises(AlreadyExistsError):
        await client.create(Secret.from_dict({**created.to_dict(), "metadata": {"name": "s", "namespace": namespace}}))
    assert "aHVudGVyMg" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.get(ConfigMap, "x"), "namespaced, write 'namespace/name'"),
        (lambda c: c.get(Namespace, "a/b"), "cluster-scoped, write its name alone"),
        (lambda c: c.get(ConfigMap, "a/b/c"), "is no key"),
        (lambda c: c.create(ConfigMap.from_dict({"metadata": {"namespace": "a"}})), "neither name nor generate_name"),
        (lambda c: c.create(ConfigMap.from_dict({"metadata": {"name": "a"}})), "namespaced"),
        (lambda c: c.update(ConfigMap.from_dict({"metadata": {"namespace": "a"}})), "has no name"),
        (lambda c: c.apply(ConfigMap.from_dict({"metadata": {"namespace": "a", "generateName": "a"}})), "has no name"),
        (lambda c: c.list(ConfigMap, index=("a", "b")), "only a cache has indexes"),
        (lambda c: c.list(Namespace, namespace="a"), "cluster-scoped"),
        (lambda c: anext(c.watch(Namespace, namespace="a")), "cluster-scoped"),
        (lambda c: c.delete_all_of(ConfigMap), "namespaced"),
    ],
)
async def test_wrong_names_are_refused_before_anything_is_sent(logged, requests, call, message):
    with pytest.raises(ValueError, match=message):
        await call(logged)
    assert requests.take() == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.list("configmaps"), "list: str is not a kind"),
        (lambda c: anext(c.watch("configmaps")), "watch: str is not a kind"),
        (lambda c: c.delete(ConfigMap), "write client.delete\\(ConfigMap, 'namespace/name'\\)"),
        (lambda c: c.patch(ConfigMap, MergePatch({})), "write client.patch\\(obj, patch\\)"),
        (lambda c: c.update_status(config_map("a"), phase="x"), "ConfigMap has no status"),
        (lambda c: c.update_status(deployment("a"), phase="x"), "status.phase: DeploymentStatus has no such field"),
    ],
)
async def test_wrong_calls_say_what_to_write(logged, requests, call, message):
    with pytest.raises(TypeError, match=message):
        await call(logged)
    assert requests.take() == []


async def test_a_review_needs_no_name_and_is_not_observed(client):
    observer = Observer()
    review = SelfSubjectAccessReview(spec={"resourceAttributes": {"verb": "list", "resource": "pods"}})
    answer = await client.with_options(write_observer=observer).create(review)
    assert answer.status.allowed
    assert observer.calls == []
