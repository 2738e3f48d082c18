"""Informers are counted by their users, and namespaces come and go while the cache runs."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog

from pyreconcile.api import RawObject, metadata_only
from pyreconcile.api.core_v1 import ConfigMap, Namespace, Secret
from pyreconcile.cache import (
    Cache,
    CacheOptions,
    CacheSyncTimeoutError,
    InformerStoppedError,
    KindOptions,
    NamespaceNotCachedError,
    NamespaceOptions,
)
from pyreconcile.client import ForbiddenError

pytestmark = pytest.mark.looptime


@pytest.fixture
def cached(running: Any) -> Any:
    def cached(server: Any, **options: Any) -> Any:
        cache = Cache(server, CacheOptions(**options), clock=anyio.current_time, random=lambda: 0.0)
        return running(cache)

    return cached


async def test_ca_9_the_informer_ends_some_time_after_its_last_handler_was_removed(
    fake_server: Any, recorder: Any, cached: Any
):
    server = fake_server()
    async with cached(server, linger=30) as cache:
        informer = cache.informer(ConfigMap)
        first, second = informer.add_handler(recorder()), informer.add_handler(recorder())
        await informer.wait_synced()
        first.remove()
        await anyio.sleep(100)
        assert cache.informers == (informer,)
        second.remove()
        await anyio.sleep(29)
        assert (cache.informers, server.open_streams) == ((informer,), 1)
        await anyio.sleep(2)
        assert (cache.informers, server.open_streams, informer.stopped) == ((), 0, True)
        with pytest.raises(InformerStoppedError):
            informer.add_handler(recorder())


async def test_ca_9_a_handler_that_comes_back_in_time_finds_the_same_informer(
    fake_server: Any, recorder: Any, cached: Any
):
    server = fake_server()
    async with cached(server) as cache:
        informer = cache.informer(ConfigMap)
        informer.add_handler(recorder()).remove()
        await anyio.sleep(20)
        again = cache.informer(ConfigMap).add_handler(recorder())
        await anyio.sleep(20)
        assert cache.informers == (informer,)
        again.remove()
        await anyio.sleep(20)
        assert cache.informers == (informer,)
        await anyio.sleep(20)
        assert cache.informers == ()


@pytest.mark.parametrize("use", ["get", "list", "get_raw", "informer", "index"])
async def test_ca_9_reads_since_the_last_handler_keep_the_informer(
    fake_server: Any, recorder: Any, cached: Any, use: str
):
    server = fake_server()
    async with cached(server) as cache:
        await cache.list(ConfigMap)
        informer = cache.informer(ConfigMap)
        informer.add_handler(recorder()).remove()
        match use:
            case "get":
                await cache.find(ConfigMap, "n/a")
            case "list":
                await cache.list(ConfigMap)
            case "get_raw":
                cache.get_raw(ConfigMap, "n/a")
            case "informer":
                cache.informer(ConfigMap)
            case "index":
                cache.add_index(ConfigMap, "x", lambda obj: [])
        await anyio.sleep(1000)
        assert cache.informers == (informer,)
        # Whoever only read before is served by a new one.
        cache.informer(ConfigMap).add_handler(recorder()).remove()
        await anyio.sleep(1000)
        assert cache.informers == ()
        assert await cache.list(ConfigMap) == []
        await anyio.sleep(1000)
        assert len(cache.informers) == 1


async def test_ca_9_an_informer_without_handlers_stays_until_it_is_removed(fake_server: Any, cached: Any):
    server = fake_server()
    async with cached(server) as cache:
        await cache.list(ConfigMap)
        await anyio.sleep(10_000)
        assert server.open_streams == 1
        cache.remove_informer(ConfigMap)
        await anyio.sleep(1)
        assert server.open_streams == 0


@pytest.mark.rules("U-57")
async def test_u_57_an_informer_that_was_removed_starts_again_with_its_indexes(
    fake_server: Any, recorder: Any, cached: Any
):
    server, first, second = fake_server(), recorder(), recorder()
    server.put("n/a", data={"x": "1"})
    async with cached(server) as cache:
        cache.add_index(ConfigMap, "x", lambda obj: [obj["data"]["x"]])
        registration = cache.informer(ConfigMap).add_handler(first)
        await registration.wait_synced()
        cache.remove_informer(ConfigMap)
        server.put("n/b", data={"x": "1"})
        assert [obj.key for obj in await cache.list(ConfigMap, index=("x", "1"))] == ["n/a", "n/b"]
        await cache.informer(ConfigMap).add_handler(second).wait_synced()
        assert second.calls == [("initial", "n/a"), ("initial", "n/b")]
        assert first.calls == [("initial", "n/a")]
        registration.remove()
        await anyio.sleep(1000)
        assert len(cache.informers) == 1


async def test_ca_11_a_namespace_is_added_and_dropped_for_all_kinds_of_the_cache(
    fake_server: Any, recorder: Any, cached: Any
):
    server, handler = fake_server(), recorder()
    for key in ("n/a", "m/a", "m/b"):
        server.put(key, data={"x": "1"})
    options = {Secret: KindOptions(namespaces=("own",))}
    async with cached(server, namespaces=("n",), by_kind=options) as cache:
        cache.add_index(ConfigMap, "x", lambda obj: [obj["data"]["x"]])
        await cache.informer(ConfigMap).add_handler(handler).wait_synced()
        cache.informer(Secret)
        with pytest.raises(NamespaceNotCachedError, match="'m' of ConfigMap is not watched, only n"):
            await cache.get(ConfigMap, "m/a")

        await cache.add_namespace("m")
        await cache.add_namespace("m")
        assert [obj.key for obj in await cache.list(ConfigMap)] == ["m/a", "m/b", "n/a"]
        assert [obj.key for obj in await cache.list(ConfigMap, index=("x", "1"))] == ["m/a", "m/b", "n/a"]
        assert await handler.wait(3) == [("initial", "n/a"), ("initial", "m/a"), ("initial", "m/b")]
        server.put("m/c", data={"x": "1"})
        assert (await handler.wait(4))[3] == ("add", "m/c")
        assert [part.scope.namespace for part in cache.informer(Secret).parts] == ["own"]

        streams = server.open_streams
        await cache.remove_namespace("m")
        await cache.remove_namespace("m")
        assert server.open_streams == streams - 1
        assert [obj.key for obj in await cache.list(ConfigMap)] == ["n/a"]
        assert [obj.key for obj in await cache.list(ConfigMap, index=("x", "1"))] == ["n/a"]
        with pytest.raises(NamespaceNotCachedError):
            await cache.get(ConfigMap, "m/a")
        server.put("m/d", data={"x": "1"})
        server.put("n/b", data={"x": "1"})
        calls = await handler.wait(8)
        assert (calls[4:7], calls[7]) == ([("vanished", f"m/{name}") for name in "abc"], ("add", "n/b"))
        # A kind that is asked for later follows the namespaces of now.
        assert [part.scope.namespace for part in cache.informer(metadata_only(ConfigMap)).parts] == ["n"]


async def test_ca_11_a_namespace_is_dropped_for_all_kinds_though_cancelled(
    fake_server: Any, recorder: Any, cached: Any
):
    server, handler = fake_server(), recorder()
    server.put("m/a")
    kinds = (ConfigMap, metadata_only(ConfigMap))
    async with cached(server, namespaces=("n", "m")) as cache:
        for kind in kinds:
            await cache.informer(kind).add_handler(handler).wait_synced()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await cache.remove_namespace("m")
            await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert server.open_streams == 2
        assert (await handler.wait(4))[2:] == [("vanished", "m/a")] * 2
        for kind in kinds:
            assert [part.scope.namespace for part in cache.informer(kind).parts] == ["n"]
            assert await cache.list(kind) == []


async def test_ca_11_a_kind_with_namespaces_of_its_own_changes_apart(fake_server: Any, cached: Any):
    server = fake_server()
    for namespace in "nmk":
        server.put(f"{namespace}/a", labels={"x": namespace})
    options = {ConfigMap: KindOptions(namespaces=("n",))}
    async with cached(server, namespaces=("k",), by_kind=options) as cache:
        await cache.list(ConfigMap)
        await cache.add_namespace("m", kind=ConfigMap, options=NamespaceOptions(labels="x=m"))
        await cache.add_namespace("other")
        assert [(part.scope.namespace, part.scope.labels) for part in cache.informer(ConfigMap).parts] == [
            ("n", ""),
            ("m", "x=m"),
        ]
        assert [obj.key for obj in await cache.list(ConfigMap)] == ["m/a", "n/a"]
        await cache.remove_namespace("n", kind=ConfigMap)
        assert [obj.key for obj in await cache.list(ConfigMap)] == ["m/a"]


async def test_ca_11_namespaces_can_change_before_the_start(fake_server: Any, running: Any):
    server = fake_server()
    for namespace in "nmk":
        server.put(f"{namespace}/a")
    cache = Cache(server, CacheOptions(namespaces=("n", "k")), clock=anyio.current_time)
    cache.informer(ConfigMap)
    await cache.add_namespace("m")
    await cache.remove_namespace("k")
    async with running(cache):
        assert [obj.key for obj in await cache.list(ConfigMap)] == ["m/a", "n/a"]


async def test_ca_11_reads_in_a_new_namespace_wait_for_it_and_others_do_not(fake_server: Any, cached: Any):
    server = fake_server()
    server.put("n/a")
    server.put("m/a")
    async with cached(server, namespaces=("n",)) as cache, anyio.create_task_group() as tasks:
        await cache.list(ConfigMap)
        server.failure = ForbiddenError("not yet")
        tasks.start_soon(cache.add_namespace, "m")
        await anyio.sleep(0.1)
        before = anyio.current_time()
        assert [obj.key for obj in await cache.list(ConfigMap)] == ["n/a"]
        assert await cache.find(ConfigMap, "n/a")
        assert anyio.current_time() == before
        server.failure = None
        assert await cache.find(ConfigMap, "m/a")
        assert [obj.key for obj in await cache.list(ConfigMap, namespace="m")] == ["m/a"]


async def test_ca_11_a_namespace_that_cannot_be_listed_is_taken_back(fake_server: Any, cached: Any):
    server = fake_server()
    async with cached(server, namespaces=("n",), sync_timeout=20) as cache:
        await cache.list(ConfigMap)
        server.failure = ForbiddenError("no access")
        with pytest.raises(CacheSyncTimeoutError, match=r"namespace 'm' within 20 s of ConfigMap \(no access\)"):
            await cache.add_namespace("m")
        with anyio.move_on_after(5):
            await cache.add_namespace("k")
        server.failure = None
        assert [part.scope.namespace for part in cache.informer(ConfigMap).parts] == ["n"]
        await cache.add_namespace("m")
        assert await cache.list(ConfigMap, namespace="m") == []


async def test_ca_11_readers_that_wait_for_own_writes_are_let_go_with_their_namespace(fake_server: Any, cached: Any):
    server = fake_server()
    async with cached(server, namespaces=("n", "m")) as cache, anyio.create_task_group() as tasks:
        await cache.list(ConfigMap)
        server.hold()
        cache.written(ConfigMap.resource, "m/a", server.put("m/a")["metadata"]["resourceVersion"])

        async def read() -> None:
            with pytest.raises(NamespaceNotCachedError):
                await cache.get(ConfigMap, "m/a")

        tasks.start_soon(read)
        await anyio.sleep(1)
        await cache.remove_namespace("m")


@pytest.mark.parametrize(
    ("options", "change", "error"),
    [
        ({}, lambda cache: cache.add_namespace("m"), "watches all namespaces"),
        ({"namespaces": ("", "n")}, lambda cache: cache.remove_namespace("n"), "watches all namespaces"),
        ({"namespaces": ("n",)}, lambda cache: cache.add_namespace(""), "name one"),
        ({"namespaces": ("n",)}, lambda cache: cache.remove_namespace("n"), "the only one"),
        ({"namespaces": ("n",)}, lambda cache: cache.add_namespace("m", kind=ConfigMap), "none of its own"),
        (
            {"namespaces": ("n",)},
            lambda cache: cache.add_namespace("n", options=NamespaceOptions(labels="x")),
            "with other options",
        ),
    ],
)
async def test_ca_11_changes_that_make_no_sense_are_errors(fake_server: Any, options: Any, change: Any, error: str):
    cache = Cache(fake_server(), CacheOptions(**options))
    with pytest.raises(ValueError, match=error):
        await change(cache)


async def test_ca_11_cluster_scoped_kinds_stay_as_they_are(fake_server: Any, cached: Any):
    server = fake_server("Namespace")
    server.put("x")
    async with cached(server, namespaces=("n",)) as cache:
        assert [obj.key for obj in await cache.list(Namespace)] == ["x"]
        await cache.add_namespace("m")
        await cache.remove_namespace("n")
        assert [obj.key for obj in await cache.list(Namespace)] == ["x"]
        assert len(server.requests) == 1


@pytest.mark.rules("IN-15")
async def test_in_15_a_second_run_only_warns(fake_server: Any, cached: Any):
    async with cached(fake_server()) as cache:
        informer = cache.informer(ConfigMap)
        await informer.wait_synced()
        with structlog.testing.capture_logs() as logs:
            await informer.run()
        assert [log["event"] for log in logs] == ["informer_runs_already"]
        assert await cache.list(ConfigMap) == []


@pytest.mark.rules("IN-15")
def test_in_15_transform_and_error_handler_cannot_be_changed_later():
    def transform(obj: RawObject) -> RawObject:
        return obj

    for options in (CacheOptions(transform=transform), KindOptions(transform=transform), NamespaceOptions()):
        with pytest.raises(AttributeError):
            options.transform = None  # type: ignore[misc]
    with pytest.raises(AttributeError):
        CacheOptions().on_watch_error = print  # type: ignore[misc]
