"""The cache on a real API server, with a proxy between them that cuts, delays and swallows."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from pyreconcile.api.apiextensions_v1 import CustomResourceDefinition
from pyreconcile.api.core_v1 import ConfigMap, Namespace, Pod
from pyreconcile.cache import Cache, CacheOptions, Informer, KindOptions, Reflector, Scope, ServerSupport, Sink
from pyreconcile.cache._lister import Lister
from pyreconcile.client import Client, connect
from pyreconcile.testing import ControlPlane, FaultProxy, eventually

pytestmark = pytest.mark.plane


def config_map(namespace: str, name: str, *, labels: dict[str, str] | None = None, **data: str) -> ConfigMap:
    metadata = {"namespace": namespace, "name": name, "labels": labels or {}}
    return ConfigMap.from_dict({"metadata": metadata, "data": data})


@pytest.fixture
def started(running: Any) -> Any:
    @asynccontextmanager
    async def started(client: Any, namespace: str, **options: Any) -> AsyncIterator[Cache]:
        # kube-root-ca.crt appears in a new namespace some time later and is not what the tests are about.
        mine = KindOptions(fields="metadata.name!=kube-root-ca.crt")
        options.setdefault("by_kind", {ConfigMap: mine})
        async with running(Cache(client, CacheOptions(namespaces=(namespace,), **options))) as cache:
            yield cache

    return started


async def test_in_8_changes_on_the_server_arrive_in_order(client: Client, namespace: str, started: Any, recorder: Any):
    await client.create(config_map(namespace, "before"))
    async with started(client, namespace) as cache:
        handler = recorder()
        registration = cache.informer(ConfigMap).add_handler(handler)
        await registration.wait_synced()
        obj = await client.create(config_map(namespace, "a", x="1"))
        obj.data = {"x": "2"}
        await client.update(obj)
        await client.delete(ConfigMap, f"{namespace}/a")
        calls = await handler.wait(4, seconds=30)
        assert [change for change, _ in calls] == ["initial", "add", "update", "delete"]
        (reflector,) = cache.informer(ConfigMap).reflectors
        assert (reflector.stats.streaming_lists, reflector.stats.lists, reflector.stats.watches) == (1, 0, 1)
        cache.check()


@pytest.mark.parametrize("streaming", [True, False])
async def test_rf_5_both_ways_to_list_give_the_same_objects(client: Client, namespace: str, streaming: bool):
    for number in range(5):
        await client.create(config_map(namespace, f"c{number}", labels={"set": "five"}))
    objects = []

    class First(Sink):
        def prepare(self, obj: Any) -> Any:
            return obj

        async def replace(self, listed: Any, version: str) -> None:
            objects.extend(listed.values())

        def apply(self, change: str, obj: Any) -> None: ...
        def progressed(self, version: str) -> None: ...

    scope = Scope(namespace, labels="set=five")
    support = ServerSupport(streaming_list=streaming)
    # The newest state: "0" may be answered from before the last create.
    reflector = Reflector(client.transport, ConfigMap.resource, scope, First(), support=support, first_version="")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reflector.run)
        with anyio.fail_after(20):
            while not reflector.version:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    live = [obj.to_dict() async for obj in client.list(ConfigMap, namespace=namespace, labels="set=five")]
    assert sorted(objects, key=lambda obj: obj["metadata"]["name"]) == live
    assert len(live) == 5


async def test_rf_7_a_list_in_pages_is_one_snapshot(client: Client, namespace: str):
    for number in range(5):
        await client.create(config_map(namespace, f"c{number}", labels={"set": "five"}))
    lister = Lister(client.transport, ConfigMap.resource, Scope(namespace, labels="set=five"), limit=2)
    objects, version = await lister.fetch("")
    assert [obj["metadata"]["name"] for obj in objects.values()] == [f"c{number}" for number in range(5)]
    assert int(version) >= max(int(obj["metadata"]["resourceVersion"]) for obj in objects.values())


@pytest.mark.rules("CA-4")
async def test_o_05_objects_outside_the_selector_never_arrive(client: Client, namespace: str, started: Any):
    options = {ConfigMap: KindOptions(labels="wanted=yes")}
    async with started(client, namespace, by_kind=options) as cache:
        assert await cache.list(ConfigMap) == []
        for number in range(5):
            await client.create(config_map(namespace, f"big{number}", text="x" * 1000))
        await client.create(config_map(namespace, "mine", labels={"wanted": "yes"}))
        informer = cache.informer(ConfigMap)
        with anyio.fail_after(20):
            while f"{namespace}/mine" not in informer.store:
                await anyio.sleep(0.01)
        assert (len(informer.store), informer.reflectors[0].stats.events) == (1, 1)


async def test_ca_7_indexes_selectors_and_cluster_scoped_kinds(client: Client, namespace: str, started: Any):
    for name, color in (("a", "red"), ("b", "red"), ("c", "blue")):
        await client.create(config_map(namespace, name, labels={"color": color}, color=color))
    async with started(client, namespace) as cache:
        cache.add_index(ConfigMap, "data.color", lambda obj: [(obj.get("data") or {}).get("color", "")])
        cached = client.with_options(reader=cache, write_observer=cache)
        red = [obj.metadata.name for obj in await cached.list(ConfigMap, index=("data.color", "red"))]
        assert red == ["a", "b"]
        assert [obj.metadata.name for obj in await cached.list(ConfigMap, labels="color!=red")] == ["c"]
        assert (await cached.get(Namespace, namespace)).key == namespace
        assert await cached.list(Pod) == []


async def test_ca_11_namespaces_come_and_go_while_the_cache_runs(
    client: Client, namespace: str, started: Any, recorder: Any
):
    other = f"{namespace}-b"
    await client.create(Namespace(metadata={"name": other}))
    for name in (namespace, other):
        await client.create(config_map(name, "a"))
    async with started(client, namespace) as cache:
        handler = recorder()
        informer = cache.informer(ConfigMap)
        await informer.add_handler(handler).wait_synced()
        await cache.add_namespace(other)
        assert f"{other}/a" in [obj.key for obj in await cache.list(ConfigMap)]
        own = client.with_options(reader=cache, write_observer=cache)
        await own.create(config_map(other, "b"))
        assert (await own.get(ConfigMap, f"{other}/b")).metadata.name == "b"
        await cache.remove_namespace(other)
        assert [obj.key for obj in await cache.list(ConfigMap)] == [f"{namespace}/a"]
        assert [stats.watches for stats in (reflector.stats for reflector in informer.reflectors)] == [1]
        calls = await handler.wait(5, seconds=30)
        assert calls[:3] == [("initial", f"{namespace}/a"), ("initial", f"{other}/a"), ("add", f"{other}/b")]
        assert set(calls[3:]) == {("vanished", f"{other}/a"), ("vanished", f"{other}/b")}
    await client.delete(Namespace, other)


@pytest.fixture
def behind_proxy(control_plane: ControlPlane, started: Any, client: Client, namespace: str) -> Any:
    """A cache that watches through the proxy, and a client that writes past it and reads from the cache."""

    @asynccontextmanager
    async def behind_proxy(**options: Any) -> AsyncIterator[tuple[FaultProxy, Cache, Client]]:
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(FaultProxy(control_plane.kubeconfig))
            through = await stack.enter_async_context(connect(proxy.connect_options()))
            cache = await stack.enter_async_context(started(through, namespace, **options))
            yield proxy, cache, client.with_options(reader=cache, write_observer=cache)

    return behind_proxy


async def test_ry_4_own_creations_are_found_at_once_a_hundred_times(behind_proxy: Any, namespace: str):
    async with behind_proxy() as (proxy, cache, client):
        assert await client.list(ConfigMap) == []
        with proxy.delay_stream(seconds=0.02):
            for number in range(100):
                await client.create(config_map(namespace, f"c{number}", n=str(number)))
                if number % 2:
                    assert (await client.get(ConfigMap, f"{namespace}/c{number}")).data == {"n": str(number)}
                else:
                    assert len(await client.list(ConfigMap)) == number + 1
        assert cache.own_write_waits > 50
        assert cache.live_reads == 0


@pytest.mark.rules("RY-5")
async def test_ry_4_5_own_updates_and_deletes_are_seen_at_once(behind_proxy: Any, namespace: str):
    async with behind_proxy() as (proxy, cache, client):
        await client.list(ConfigMap)
        with proxy.delay_stream(seconds=0.02):
            key = f"{namespace}/c"
            for number in range(15):
                obj = await client.create(config_map(namespace, "c", n="0"))
                obj.data = {"n": str(number)}
                await client.update(obj)
                assert (await client.get(ConfigMap, key)).data == {"n": str(number)}
                await client.delete(ConfigMap, key)
                assert await client.find(ConfigMap, key) is None
                obj = await client.create(config_map(namespace, "c"))
                await client.delete(obj)
                assert await client.list(ConfigMap) == []
        assert cache.live_reads == 0
        assert not any(part.pending for part in cache.informer(ConfigMap).parts)


async def test_ry_7_a_watch_that_lags_beyond_the_bound_gives_a_live_read(behind_proxy: Any, namespace: str):
    async with behind_proxy(read_timeout=0.1) as (proxy, cache, client):
        await client.list(ConfigMap)
        with proxy.delay_stream(seconds=math.inf):
            await client.create(config_map(namespace, "a", x="1"))
            assert (await client.get(ConfigMap, f"{namespace}/a")).data == {"x": "1"}
        assert (cache.own_write_waits, cache.live_reads) == (1, 1)


@pytest.mark.rules("RF-13", "U-48")
async def test_o_01_4a_changes_during_a_cut_are_seen_once_and_without_a_list(
    behind_proxy: Any, client: Client, namespace: str, recorder: Any
):
    for name in "abc":
        await client.create(config_map(namespace, name, labels={"owner": name}))
    async with behind_proxy() as (proxy, cache, _):
        handler = recorder()
        informer = cache.informer(ConfigMap)
        await informer.add_handler(handler).wait_synced()
        with proxy.cut():
            await client.delete(ConfigMap, f"{namespace}/b")
            await client.create(config_map(namespace, "d"))
            await eventually(lambda: informer.reflectors[0].stats.errors)
        calls = await handler.wait(5, seconds=30)
        await anyio.sleep(0.2)
        assert calls[3:] == [("delete", f"{namespace}/b"), ("add", f"{namespace}/d")]
        assert informer.store.keys() == [f"{namespace}/{name}" for name in "acd"]
        stats = informer.reflectors[0].stats
        assert (stats.lists, stats.streaming_lists) == (0, 1)


@pytest.mark.rules("PX-5", "RF-16")
@pytest.mark.parametrize("limit", ["silence", "length"])
async def test_o_19_a_connection_that_swallows_everything_is_given_up(
    control_plane: ControlPlane,
    client: Client,
    namespace: str,
    recorder: Any,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
):
    """Half-open: the peer is gone without a word. Either the silence tells, or the watch's own length and margin."""
    await client.create(config_map(namespace, "first"))
    if limit == "length":
        monkeypatch.setattr("pyreconcile.cache._reflector.WATCH_SECONDS", (2, 2))
        monkeypatch.setattr("pyreconcile.cache._reflector.WATCH_MARGIN", 0.5)
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultProxy(control_plane.kubeconfig))
        through = await stack.enter_async_context(connect(proxy.connect_options()))
        silence = 2.5 if limit == "silence" else 70.0

        def make(scope: Scope, sink: Sink) -> Reflector:
            return Reflector(through.transport, ConfigMap.resource, scope, sink, silence=silence)

        informer = Informer(ConfigMap, [Scope(namespace, fields="metadata.name!=kube-root-ca.crt")], make)
        handler = recorder()
        registration = informer.add_handler(handler)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(informer.run)
        await registration.wait_synced()
        stats = informer.reflectors[0].stats
        before = (stats.lists, stats.streaming_lists, dict(stats.errors))
        stack.enter_context(proxy.blackhole(new=False))
        await client.create(config_map(namespace, "sixth"))
        await client.delete(ConfigMap, f"{namespace}/first")
        # The other limit is at 70 s of silence, or at 300 s of length.
        assert await handler.wait(3, seconds=30) == [
            ("initial", f"{namespace}/first"),
            ("add", f"{namespace}/sixth"),
            ("delete", f"{namespace}/first"),
        ]
        assert (stats.lists, stats.streaming_lists, stats.errors) == before
        informer.stop()


async def test_ca_1_a_kind_whose_crd_comes_later_is_read_without_a_restart(
    client: Client, namespace: str, started: Any, thing: Any
):
    kind, crd = thing
    async with started(client, namespace) as cache:
        informer = cache.informer(kind)
        await eventually(lambda: informer.last_error)
        created = await client.create(CustomResourceDefinition.from_dict(crd))
        try:
            with anyio.fail_after(30):
                await informer.wait_synced()
            obj = kind.from_dict({"metadata": {"namespace": namespace, "name": "a"}, "size": 3})
            await client.with_options(write_observer=cache).create(obj)
            assert (await cache.get(kind, f"{namespace}/a"))["size"] == 3
        finally:
            await client.delete(created)


async def test_in_16_an_idle_cache_costs_no_cpu(client: Client, namespace: str, started: Any, recorder: Any):
    async with started(client, namespace) as cache:
        for kind in (ConfigMap, Pod, Namespace):
            cache.informer(kind).add_handler(recorder())
        await cache.wait_for_sync()
        # One idle second will do: in others the namespaces of earlier tests may be going, which the cache is told of.
        used: list[float] = []
        while not used or (used[-1] >= 0.05 and len(used) < 60):
            before = time.process_time()
            await anyio.sleep(1.0)
            used.append(time.process_time() - before)
        assert used[-1] < 0.05, used


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.rules("RF-5", "U-46")
async def test_o_01_4b_o_02_rf_5_a_restarted_server_is_listed_once_with_or_without_streaming_lists(
    started: Any, recorder: Any, streaming: bool
):
    async with AsyncExitStack() as stack:
        plane = ControlPlane(use_existing=False, feature_gates={"WatchList": streaming})
        await stack.enter_async_context(plane)
        judge = await stack.enter_async_context(connect(kubeconfig=plane.kubeconfig))
        proxy = await stack.enter_async_context(FaultProxy(plane.kubeconfig))
        through = await stack.enter_async_context(connect(proxy.connect_options()))
        cache = await stack.enter_async_context(started(through, "default"))
        for name in "ab":
            await judge.create(config_map("default", name, labels={"owner": name}))
        handler = recorder()
        informer = cache.informer(ConfigMap)
        await informer.add_handler(handler).wait_synced()
        await cache.list(Pod)
        await judge.create(config_map("default", "c"))
        await handler.wait(3, seconds=30)
        stats, others = informer.reflectors[0].stats, cache.informer(Pod).reflectors[0].stats
        # A server that cannot is asked once, for one of the kinds.
        assert (stats.streaming_lists, stats.lists) == ((1, 0) if streaming else (1, 1))
        assert (others.streaming_lists, others.lists) == ((1, 0) if streaming else (0, 1))

        with proxy.cut():
            await judge.delete(ConfigMap, "default/b")
            for number in range(20):
                await judge.create(config_map("default", f"d{number:02}"))
            await plane.kill("kube-apiserver")  # it would take 20 s to end by itself
            await plane.restart("kube-apiserver")
            before = stats.streaming_lists + stats.lists
        calls = await handler.wait(3 + 1 + 20, seconds=40)
        assert calls[3] == ("vanished", "default/b")
        assert {change for change, _ in calls[4:]} == {"add"}
        assert len(informer.store) == 22
        assert stats.errors["ExpiredError"] == 1
        assert stats.streaming_lists + stats.lists == before + 1
