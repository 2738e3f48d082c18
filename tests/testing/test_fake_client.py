"""What the fake client is beside an API server: what it holds from the start, indexes, kinds, time and chance."""

from contextlib import aclosing
from datetime import UTC, datetime
from random import Random

import anyio
import pytest

from pyreconcile import CustomResource, Reconciler, Result, Spec, Status
from pyreconcile.api import ScaleSubresource, metadata_only, unstructured
from pyreconcile.api.autoscaling_v1 import HorizontalPodAutoscaler as OldAutoscaler
from pyreconcile.api.autoscaling_v2 import HorizontalPodAutoscaler
from pyreconcile.api.core_v1 import ConfigMap, Namespace, Node, Pod, PodStatus
from pyreconcile.api.policy_v1 import Eviction, PodDisruptionBudget
from pyreconcile.cache import Cache
from pyreconcile.client import (
    BadRequestError,
    ConflictError,
    ExpiredError,
    InternalServerError,
    MergePatch,
    MethodNotAllowedError,
    NotFoundError,
    TooManyRequestsError,
    UnknownKindError,
)
from pyreconcile.controller import Request
from pyreconcile.testing import FakeRecorder, UntypedKind, eventually, fake_client

Gadget = unstructured("gadgets.example.dev/v1", "Gadget")


def config_map(name="x", namespace="n", **metadata):
    return ConfigMap(metadata={"name": name, "namespace": namespace, **metadata}, data={"a": "1"})


def pod(name="p", node="a", **labels):
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
    return Pod(metadata={"name": name, "namespace": "n", "labels": labels or {"app": name}}, spec=spec)


async def test_te_8_versions_begin_at_1_and_those_of_what_was_there_at_999():
    empty = fake_client()
    created = await empty.create(config_map())
    assert created.metadata.resource_version == "1"
    assert (await empty.create(config_map("y"))).metadata.resource_version == "2"
    filled = fake_client(config_map("a"), config_map("b"), config_map("c", resourceVersion="1500"))
    found = {obj.metadata.name: obj.metadata.resource_version for obj in await filled.list(ConfigMap)}
    assert found == {"a": "999", "b": "999", "c": "1500"}
    # One counter for all objects, as etcd has it: a cache can tell what came later.
    patched = await filled.patch(ConfigMap, "n/a", MergePatch({"data": {"a": "2"}}))
    assert patched.metadata.resource_version == "1501"


async def test_te_8_create_with_a_version_is_a_bad_request():
    with pytest.raises(BadRequestError, match="resourceVersion should not be set"):
        await fake_client().create(config_map(resourceVersion="5"))


async def test_te_8_what_is_there_from_the_start_is_there_as_it_was_given():
    given = pod()
    given.status = PodStatus(phase="Running")
    old = config_map(uid="u", creationTimestamp="2020-01-01T00:00:00Z")
    client = fake_client(given, Namespace(metadata={"name": "n"}), old)
    assert (await client.get(Pod, "n/p")).status.phase == "Running"
    assert (await client.get(Namespace, "n")).metadata.uid
    stored = await client.get(ConfigMap, "n/x")
    assert (stored.metadata.uid, stored.metadata.creation_timestamp.year) == ("u", 2020)
    stored.data["a"] = "2"
    assert (await client.update(stored)).data == {"a": "2"}
    assert given.metadata.uid == ""


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (config_map(deletionTimestamp="2020-01-01T00:00:00Z"), "deletionTimestamp: an object without finalizers"),
        (ConfigMap(metadata={"namespace": "n"}), "metadata.name: an object that is there from the start has a name"),
        (config_map(namespace=""), "metadata.namespace: the kind is namespaced, so it needs one"),
        (Namespace(metadata={"name": "n", "namespace": "n"}), "the kind is cluster-scoped, so leave it out"),
        (config_map(resourceVersion="abc"), "resourceVersion: 'abc' is no number"),
        (config_map("twice"), "ConfigMap 'twice' is there already"),
    ],
)
def test_te_9_what_cannot_be_there_is_refused(obj, message):
    with pytest.raises(ValueError, match=message):
        fake_client(config_map("twice"), obj)


async def test_te_9_an_object_can_be_there_that_is_being_deleted():
    marked = config_map(deletionTimestamp="2020-01-01T00:00:00Z", finalizers=["a.example.dev/x"])
    client = fake_client(marked)
    await client.patch(marked, MergePatch({"metadata": {"finalizers": []}}))
    assert await client.find(ConfigMap, "n/x") is None


async def test_te_10_field_selectors_need_an_index():
    client = fake_client(
        pod("p", "a"), pod("q", "b"), indexes={(Pod, "spec.nodeName"): lambda obj: [obj["spec"]["nodeName"]]}
    )
    assert [obj.metadata.name for obj in await client.list(Pod, fields={"spec.nodeName": "b"})] == ["q"]
    assert [obj.metadata.name for obj in await client.list(Pod, fields="spec.nodeName!=b,metadata.name=p")] == ["p"]
    with pytest.raises(BadRequestError, match=r'"status\.phase" is not a known field selector.* give it an index'):
        await client.list(Pod, fields={"status.phase": "Running"})
    with pytest.raises(BadRequestError, match="is not a known field selector"):
        await client.list(Node, fields={"spec.nodeName": "b"})
    client.server.add_index(Pod, "status.phase", lambda obj: [(obj.get("status") or {}).get("phase", "")])
    assert len(await client.list(Pod, fields={"status.phase": ""})) == 2
    events = client.watch(Pod, fields={"spec.nodeName": "a"})
    async with aclosing(events):
        assert (await anext(events)).object.metadata.name == "p"
        await client.delete_all_of(Pod, namespace="n", fields={"spec.nodeName": "a"})
        assert (await anext(events)).type == "DELETED"
    assert [obj.metadata.name for obj in await client.list(Pod)] == ["q"]


async def test_te_10_kinds_without_a_model_are_served_when_they_are_named():
    with pytest.raises(NotFoundError, match="could not find the requested resource"):
        await fake_client().list(Gadget)
    with pytest.raises(UnknownKindError):
        await fake_client().kind_for("gadgets.example.dev/v1", "Gadget")
    client = fake_client(kinds=[Gadget])
    assert await client.kind_for("gadgets.example.dev/v1", "Gadget") is Gadget
    created = await client.create(Gadget(metadata={"name": "g", "namespace": "n"}, spec={"x": 1}, status={"y": 2}))
    assert (created["spec"], created["status"], created.metadata.generation) == ({"x": 1}, {"y": 2}, 1)
    with pytest.raises(NotFoundError):
        await client.update_status(created, y=3)
    assert [obj.metadata.name for obj in await fake_client(created).list(Gadget)] == ["g"]
    assert (await fake_client(created).get(metadata_only(Gadget), "n/g")).kind == "Gadget"


async def test_te_9_a_kind_without_a_model_may_have_status_and_scale():
    kind = UntypedKind(Gadget, status_subresource=True, scale=ScaleSubresource())
    client = fake_client(Gadget(metadata={"name": "g", "namespace": "n"}, spec={"replicas": 2}), kinds=[kind])
    gadget = await client.get(Gadget, "n/g")
    gadget["spec"]["replicas"] = 9
    updated = await client.update_status(gadget, replicas=1)
    assert (updated["spec"], updated["status"]) == ({"replicas": 2}, {"replicas": 1})
    assert (await client.set_scale(Gadget, "n/g", 3)).status.replicas == 1
    assert (await client.get(Gadget, "n/g"))["spec"] == {"replicas": 3}


async def test_te_10_the_versions_of_a_kind_share_their_objects():
    client = fake_client()
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
    created = await client.create(
        HorizontalPodAutoscaler(
            metadata={"name": "h", "namespace": "n"}, spec={"maxReplicas": 3, "scaleTargetRef": target}
        )
    )
    old = await client.get(OldAutoscaler, created.key)
    assert (old.api_version, old.spec.max_replicas) == ("autoscaling/v1", 3)
    assert (await client.patch(old, MergePatch({"spec": {"maxReplicas": 4}}))).api_version == "autoscaling/v1"
    assert (await client.get(HorizontalPodAutoscaler, created.key)).spec.max_replicas == 4


async def test_te_10_a_budget_lets_as_many_pods_go_as_its_status_says():
    budget = PodDisruptionBudget(
        metadata={"name": "b", "namespace": "n"},
        spec={"selector": {"matchLabels": {"app": "x"}}},
        status={"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2},
    )
    client = fake_client(budget, pod("p", app="x"), pod("q", app="x"), pod("r", app="y"))

    async def evict(name, **options):
        body = Eviction(metadata={"name": name, "namespace": "n"})
        await client.subresource(Pod, f"n/{name}", "eviction", Eviction).create(body, **options)

    await evict("p", dry_run=True)
    await evict("p")
    with pytest.raises(TooManyRequestsError):
        await evict("q")
    await evict("r")
    assert [obj.metadata.name for obj in await client.list(Pod)] == ["q"]
    assert (await client.get(PodDisruptionBudget, "n/b")).status.disruptions_allowed == 0


async def test_te_10_history_can_be_forgotten():
    client = fake_client(*(config_map(f"c{number}") for number in range(4)))
    first = (await client.get(ConfigMap, "n/c0")).metadata.resource_version
    listing = aiter(client.list(ConfigMap, limit=2))
    assert [(await anext(listing)).metadata.name for _ in range(2)] == ["c0", "c1"]
    await client.delete(ConfigMap, "n/c3")
    client.server.compact()
    # The rest of the old list is gone, so it starts over and leaves out what was given already (rule CL-8a).
    assert [obj.metadata.name async for obj in listing] == ["c2"]
    with pytest.raises(ExpiredError, match="too old resource version: 999"):
        await anext(client.watch(ConfigMap, resource_version=first))


async def test_objects_can_be_added_while_others_watch():
    client = fake_client(config_map("a"))
    events = client.watch(ConfigMap)
    async with aclosing(events):
        assert (await anext(events)).object.metadata.name == "a"
        client.server.add(config_map("b"))
        with anyio.fail_after(5):
            event = await anext(events)
        assert (event.type, event.object.metadata.name) == ("ADDED", "b")
        assert event.object.metadata.resource_version == "1000"


@pytest.mark.rules("TE-10")
async def test_te_10_an_object_that_is_added_after_the_history_was_forgotten_is_seen_by_a_watch():
    client = fake_client(config_map("a"))
    listed = await client.create(config_map("b"))
    client.server.compact()
    client.server.add(config_map("c"))
    events = client.watch(ConfigMap, resource_version=listed.metadata.resource_version)
    async with aclosing(events):
        with anyio.fail_after(5):
            event = await anext(events)
    assert (event.type, event.object.metadata.name) == ("ADDED", "c")


@pytest.mark.rules("TE-10")
async def test_te_10_a_refused_eviction_uses_up_no_budget():
    budgets = [
        PodDisruptionBudget(
            metadata={"name": name, "namespace": "n"},
            spec={"selector": {"matchLabels": {"app": "x"}}},
            status={"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2},
        )
        for name in ("a", "b")
    ]
    client = fake_client(*budgets, pod("p", app="x"))
    with pytest.raises(InternalServerError, match="more than one PodDisruptionBudget"):
        await client.subresource(Pod, "n/p", "eviction", Eviction).create(
            Eviction(metadata={"name": "p", "namespace": "n"})
        )
    assert [budget.status.disruptions_allowed for budget in await client.list(PodDisruptionBudget)] == [1, 1]
    assert await client.find(Pod, "n/p")


async def test_time_and_chance_can_be_given():
    def make():
        return fake_client(now=lambda: datetime(2030, 1, 2, tzinfo=UTC), random=Random(1))

    objects = [await make().create(ConfigMap(metadata={"generateName": "g-", "namespace": "n"})) for _ in range(2)]
    assert objects[0] == objects[1]
    assert objects[0].metadata.creation_timestamp == datetime(2030, 1, 2, tzinfo=UTC)


async def test_what_was_read_is_nobody_elses():
    client = fake_client(config_map())
    first = await client.get(ConfigMap, "n/x")
    first.data["a"] = "9"
    assert (await client.get(ConfigMap, "n/x")).data == {"a": "1"}


async def test_what_is_not_there_says_so():
    client = fake_client(config_map())
    for path in ("/", "/version", "/apis/a", "/api/v1/namespaces/n/configmaps/x/y/z", "/api/v1/nodes/n/configmaps"):
        with pytest.raises(NotFoundError):
            await client.transport.request("GET", path)
    path = ConfigMap.resource.path("n", "x")
    with pytest.raises(MethodNotAllowedError):
        await client.transport.request("POST", path, body=b"{}")
    with pytest.raises(NotFoundError):
        await client.transport.request("POST", f"{path}/eviction", body=b"{}")
    with pytest.raises(MethodNotAllowedError):
        await client.transport.request("POST", ConfigMap.resource.path(), body=b"{}")
    with pytest.raises(BadRequestError, match="streams watches only"):
        async with client.transport.stream(path):
            pass


async def test_le_11_the_write_guard_stands_before_every_write():
    def refuse():
        raise PermissionError("not the leader")

    client = fake_client(config_map()).with_options(write_guard=refuse)
    assert await client.get(ConfigMap, "n/x")
    with pytest.raises(PermissionError):
        await client.delete(ConfigMap, "n/x")


async def test_options_keep_the_server():
    client = fake_client(config_map())
    other = client.with_options(field_manager="other")
    assert other.server is client.server
    assert (await other.apply(config_map("y"))).metadata.managed_fields[0]["manager"] == "other"
    assert await client.find(ConfigMap, "n/y")
    assert (await client.in_namespace("n").get(ConfigMap, "y")).metadata.namespace == "n"
    assert client.transport.host == "fake.invalid"
    assert client.transport.configuration.host == client.transport.base_url


async def test_a_cache_follows_the_fake():
    client = fake_client(config_map("a"))
    cache = Cache(client)
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: cache.run(stop, task_status=task_status))
        cached = client.with_options(reader=cache, write_observer=cache)
        assert [obj.metadata.name for obj in await cached.list(ConfigMap)] == ["a"]
        created = await cached.create(config_map("b"))
        assert await cached.get(ConfigMap, "n/b") == created
        await cached.delete(created)
        assert await cached.find(ConfigMap, "n/b") is None
        await client.patch(ConfigMap, "n/a", MergePatch({"data": {"a": "2"}}))

        async def seen():
            return (await cached.get(ConfigMap, "n/a")).data == {"a": "2"}

        await eventually(seen)
        stop.set()


class CopySpec(Spec):
    source: str


class CopyStatus(Status):
    copied: bool = False


class Copy(CustomResource[CopySpec, CopyStatus], group="fake.tests.dev", version="v1"):
    """A copy of a ConfigMap."""


class CopyReconciler(Reconciler[Copy]):
    async def reconcile(self, request: Request) -> Result | None:
        copy = await self.client.find(Copy, request.key)
        if copy is None:
            return None
        source = await self.client.find(ConfigMap, f"{request.namespace}/{copy.spec.source}")
        if source is None:
            self.recorder.event(copy, "Warning", "NoSource", f"{copy.spec.source} is not there", action="Copy")
            return Result(requeue_after=5)
        made = ConfigMap(metadata={"name": request.name, "namespace": request.namespace}, data=source.data)
        await self.client.apply(made, owner=copy)
        await self.client.update_status(copy, copied=True)
        return None


async def test_a_reconciler_runs_without_a_control_plane():
    copy = Copy(metadata={"name": "c", "namespace": "n"}, spec=CopySpec(source="x"))
    client, recorder = fake_client(copy), FakeRecorder()
    reconciler = CopyReconciler()
    reconciler.bind(client=client, cache=Cache(client), recorder=recorder)
    request = Request("n", "c")
    assert await reconciler.reconcile(request) == Result(requeue_after=5)
    assert [str(event) for event in recorder.events] == ["Warning NoSource x is not there"]
    assert recorder.events[0].regarding.key == "n/c"

    await client.create(config_map())
    assert await reconciler.reconcile(request) is None
    made = await client.get(ConfigMap, "n/c")
    assert made.data == {"a": "1"}
    assert made.metadata.owner_references[0].uid == (await client.get(Copy, "n/c")).metadata.uid
    assert (await client.get(Copy, "n/c")).status.copied
    version = made.metadata.resource_version
    await reconciler.reconcile(request)
    assert (await client.get(ConfigMap, "n/c")).metadata.resource_version == version
    await client.delete(Copy, "n/c")
    assert await reconciler.reconcile(request) is None


async def test_conflicts_are_found_between_two_clients():
    client = fake_client(config_map())
    first, second = await client.get(ConfigMap, "n/x"), await client.get(ConfigMap, "n/x")
    first.data = {"a": "2"}
    await client.update(first)
    second.data = {"a": "3"}
    with pytest.raises(ConflictError):
        await client.update(second)
