import asyncio
import re
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pyreconcile.api import RawObject
from pyreconcile.api.core_v1 import ConfigMap, Namespace, Pod
from pyreconcile.cache import (
    Cache,
    CacheNotStartedError,
    CacheOptions,
    CacheSyncTimeoutError,
    CacheUnhealthyError,
    InformerStoppedError,
    KindOptions,
    NamespaceNotCachedError,
    NamespaceOptions,
    Scope,
    drop_fields,
    strip_managed_fields,
)
from pyreconcile.cache._options import scopes_for
from pyreconcile.client import ForbiddenError, NotFoundError

pytestmark = pytest.mark.looptime


@pytest.fixture
def cached(running: Any) -> Any:
    def cached(server: Any, *, metrics: Any = None, **options: Any) -> Any:
        return running(Cache(server, CacheOptions(**options), metrics, clock=anyio.current_time, random=lambda: 0.0))

    return cached


async def test_ca_1_reading_a_kind_starts_its_informer_once(fake_server: Any, cached: Any):
    server = fake_server()
    server.put("n/a", data={"x": "1"})
    async with cached(server) as cache:
        assert (await cache.get(ConfigMap, "n/a")).data == {"x": "1"}
        assert [obj.key for obj in await cache.list(ConfigMap)] == ["n/a"]
        assert await cache.find(ConfigMap, "n/missing") is None
        with pytest.raises(NotFoundError, match="missing"):
            await cache.get(ConfigMap, "n/missing")
        assert len(server.requests) == 1
        assert cache.informer(ConfigMap) is cache.informer(ConfigMap)


async def test_ca_1_starting_on_read_can_be_turned_off(fake_server: Any, cached: Any):
    async with cached(fake_server(), start_on_read=False) as cache:
        with pytest.raises(CacheNotStartedError, match="ask for its informer"):
            await cache.get(ConfigMap, "n/a")
        cache.informer(ConfigMap)
        assert await cache.find(ConfigMap, "n/a") is None


async def test_ca_2_before_the_start_informers_can_be_had_and_reads_are_an_error(
    fake_server: Any, recorder: Any, running: Any
):
    server, handler = fake_server(), recorder()
    server.put("n/a")
    cache = Cache(server, clock=anyio.current_time)
    registration = cache.informer(ConfigMap).add_handler(handler)
    for read in (cache.get(ConfigMap, "n/a"), cache.find(ConfigMap, "n/a"), cache.list(ConfigMap)):
        with pytest.raises(CacheNotStartedError, match="does not run"):
            await read
    with pytest.raises(CacheNotStartedError):
        cache.get_raw(ConfigMap, "n/a")
    assert server.requests == []
    async with running(cache):
        await cache.wait_for_sync()
        await registration.wait_synced()
        assert handler.calls == [("initial", "n/a")]


async def test_ca_2_a_kind_that_does_not_sync_is_a_timeout_that_says_why(fake_server: Any, cached: Any):
    server = fake_server()
    server.failure = ForbiddenError("configmaps is forbidden")
    async with cached(server, sync_timeout=30) as cache:
        with pytest.raises(CacheSyncTimeoutError, match=r"within 30 s of ConfigMap \(configmaps is forbidden\)"):
            await cache.get(ConfigMap, "n/a")
        with pytest.raises(CacheSyncTimeoutError, match="forbidden"):
            await cache.wait_for_sync()
        with pytest.raises(CacheUnhealthyError, match="no first list yet"):
            cache.check()
        server.failure = None
        assert await cache.list(ConfigMap) == []
        cache.check()


async def test_ca_2_waiting_for_a_cache_that_never_starts_is_a_timeout(fake_server: Any):
    with pytest.raises(CacheSyncTimeoutError, match="did not start within 1 s"):
        await Cache(fake_server(), CacheOptions(sync_timeout=1)).wait_for_sync()


@pytest.mark.rules("U-56")
async def test_ca_2_cancelled_while_syncing_another_reader_goes_on(fake_server: Any, cached: Any):
    server = fake_server()
    server.failure = ForbiddenError("no")
    async with cached(server) as cache:
        with anyio.move_on_after(2) as scope:
            await cache.get(ConfigMap, "n/a")
        assert scope.cancelled_caught
        server.failure = None
        assert await cache.find(ConfigMap, "n/a") is None


async def test_ca_2_after_the_stop_streams_are_closed_and_reads_are_an_error(fake_server: Any, cached: Any):
    server = fake_server()
    async with cached(server) as cache:
        await cache.list(ConfigMap)
        informer = cache.informer(ConfigMap)
        before = anyio.current_time()
    assert (server.open_streams, anyio.current_time()) == (0, before)
    with pytest.raises(CacheNotStartedError, match="has stopped"):
        await cache.list(ConfigMap)
    with pytest.raises(CacheNotStartedError, match="has stopped"):
        cache.informer(Pod)
    with pytest.raises(InformerStoppedError):
        informer.add_handler(object())
    with pytest.raises(CacheUnhealthyError, match="does not run"):
        cache.check()
    with pytest.raises(RuntimeError, match="runs once"):
        await cache.run(anyio.Event())


async def test_ca_3_resync_period_is_spread_by_a_tenth(fake_server: Any, recorder: Any, running: Any):
    for value, period in ((0.0, 90.0), (1.0, 110.0)):
        cache = Cache(fake_server(), CacheOptions(resync_period=100.0), random=lambda value=value: value)
        assert cache.informer(ConfigMap).add_handler(recorder()).resync == pytest.approx(period)


A, B, C, D = (lambda obj, mark=mark: {**obj, "mark": mark} for mark in "abcd")


@pytest.mark.parametrize(
    ("kind", "options", "scopes"),
    [
        (KindOptions(), CacheOptions(), [Scope()]),
        (KindOptions(), CacheOptions(labels="d", fields="f=d"), [Scope("", "d", "f=d")]),
        (KindOptions(labels="k"), CacheOptions(labels="d", fields="f=d"), [Scope("", "k", "f=d")]),
        (KindOptions(labels=""), CacheOptions(labels="d"), [Scope()]),
        (KindOptions(), CacheOptions(namespaces=("n", "m"), labels="d"), [Scope("n", "d"), Scope("m", "d")]),
        (KindOptions(namespaces=("k",)), CacheOptions(namespaces=("n",), labels="d"), [Scope("k", "d")]),
        (
            KindOptions(namespaces={"n": NamespaceOptions(labels="kn"), "m": NamespaceOptions()}, labels="k"),
            CacheOptions(
                namespaces={"n": NamespaceOptions(labels="dn"), "m": NamespaceOptions(labels="dm")}, labels="d"
            ),
            [Scope("n", "kn"), Scope("m", "k")],
        ),
        (
            KindOptions(),
            CacheOptions(namespaces={"n": NamespaceOptions(labels="dn"), "m": NamespaceOptions()}, labels="d"),
            [Scope("n", "dn"), Scope("m", "d")],
        ),
        (
            KindOptions(namespaces={"n": NamespaceOptions(transform=A)}, transform=B),
            CacheOptions(namespaces={"n": NamespaceOptions(transform=C)}, transform=D),
            [Scope("n", transform=A)],
        ),
        (
            KindOptions(namespaces={"": NamespaceOptions(labels="rest"), "n": NamespaceOptions()}),
            CacheOptions(),
            [Scope("", "rest", excluded=frozenset({"n"})), Scope("n")],
        ),
        (KindOptions(fields="metadata.namespace=x,f=1"), CacheOptions(), [Scope("x", "", "metadata.namespace=x,f=1")]),
    ],
)
@pytest.mark.rules("U-55", "CA-5")
def test_ca_4_5_the_narrowest_option_wins(kind: KindOptions, options: CacheOptions, scopes: list[Scope]):
    assert list(scopes_for(ConfigMap.resource, kind, options)) == scopes


def test_ca_5_namespaces_of_a_cluster_scoped_kind_are_an_error_but_defaults_are_passed_over():
    assert scopes_for(Namespace.resource, KindOptions(), CacheOptions(namespaces=("n",))) == (Scope(),)
    with pytest.raises(ValueError, match=r"by_kind\[Namespace\].namespaces: the kind is cluster-scoped"):
        scopes_for(Namespace.resource, KindOptions(namespaces=("n",)), CacheOptions())


def test_ca_4_a_faulty_selector_is_reported_when_the_kind_is_asked_for(fake_server: Any):
    cache = Cache(fake_server(), CacheOptions(by_kind={ConfigMap: KindOptions(labels="a b")}))
    with pytest.raises(ValueError, match="label selector 'a b'"):
        cache.informer(ConfigMap)


@pytest.mark.rules("U-56")
async def test_ca_5_reading_a_namespace_that_is_not_watched_is_an_error(fake_server: Any, cached: Any):
    server = fake_server()
    for key in ("n/a", "m/a", "other/a"):
        server.put(key)
    async with cached(server, namespaces=("n", "m")) as cache:
        assert [obj.key for obj in await cache.list(ConfigMap)] == ["m/a", "n/a"]
        assert [obj.key for obj in await cache.list(ConfigMap, namespace="m")] == ["m/a"]
        for read in (cache.get(ConfigMap, "other/a"), cache.list(ConfigMap, namespace="other")):
            with pytest.raises(NamespaceNotCachedError, match="'other' of ConfigMap is not watched, only n, m"):
                await read


@pytest.mark.rules("U-58")
async def test_ca_6_objects_are_copies_with_their_kind(fake_server: Any, cached: Any):
    server = fake_server(streaming=False)
    server.put("n/a", data={"x": "1"})
    async with cached(server) as cache:
        got = await cache.get(ConfigMap, "n/a")
        (listed,) = await cache.list(ConfigMap)
        assert (got.api_version, got.kind, listed.api_version, listed.kind) == ("v1", "ConfigMap") * 2
        for obj in (got, listed):
            obj.data = {"x": "2"}
            obj.metadata.labels["new"] = "label"
        assert (await cache.get(ConfigMap, "n/a")).data == {"x": "1"}
        raw = cache.get_raw(ConfigMap, "n/a")
        assert raw is await cache.find_raw(ConfigMap, "n/a")
        assert "labels" not in raw["metadata"]


async def test_ca_7_list_selects_by_labels_fields_and_indexes(fake_server: Any, cached: Any):
    server = fake_server()
    for name, color, size in (("a", "red", "1"), ("b", "red", "2"), ("c", "blue", "1"), ("d", "", "")):
        server.put(f"n/{name}", labels={"color": color} if color else {}, data={"size": size})
    server.put("m/a", labels={"color": "red"}, data={"size": "1"})

    async with cached(server) as cache:
        cache.add_index(ConfigMap, "data.size", lambda obj: [obj["data"]["size"]])
        cache.add_index(ConfigMap, "color", lambda obj: (obj["metadata"].get("labels") or {}).values())

        async def keys(**query: Any) -> str:
            return " ".join(obj.key for obj in await cache.list(ConfigMap, **query))

        assert await keys() == "m/a n/a n/b n/c n/d"
        assert await keys(labels="color in (red, blue),color!=red") == "n/c"
        assert await keys(labels={"color": "red"}, namespace="n") == "n/a n/b"
        assert await keys(labels="!color") == "n/d"
        assert await keys(fields="data.size=1") == "m/a n/a n/c"
        assert await keys(fields={"data.size": "1", "metadata.namespace": "n"}, labels="color") == "n/a n/c"
        assert await keys(fields="metadata.name=a") == "m/a n/a"
        assert await keys(fields="data.size=1", index=("color", "red"), namespace="n") == "n/a"
        assert await keys(index=("color", "green")) == ""


@pytest.mark.rules("U-56")
async def test_ca_7_unindexed_fields_inequality_and_missing_indexes_are_errors(fake_server: Any, cached: Any):
    async with cached(fake_server()) as cache:
        with pytest.raises(KeyError, match=r"no index 'data\.size'"):
            await cache.list(ConfigMap, fields="data.size=1")
        with pytest.raises(KeyError, match="no index 'owner'"):
            await cache.list(ConfigMap, index=("owner", "x"))
        with pytest.raises(ValueError, match="only exact matches"):
            await cache.list(ConfigMap, fields="metadata.name!=a")
        with pytest.raises(ValueError, match="label selector"):
            await cache.list(ConfigMap, labels="a b")


@pytest.mark.rules("U-58")
async def test_ca_8_cluster_scoped_objects_are_found_by_two_indexes_at_once(fake_server: Any, cached: Any):
    server = fake_server("Namespace")
    server.put("x", labels={"team": "a"})
    server.put("y", labels={"team": "a"}, status={"phase": "Active"})
    async with cached(server) as cache:
        cache.add_index(Namespace, "team", lambda obj: [obj["metadata"]["labels"]["team"]])
        cache.add_index(Namespace, "status.phase", lambda obj: [obj.get("status", {}).get("phase", "")])
        for _ in range(2):
            assert [obj.key for obj in await cache.list(Namespace, index=("team", "a"))] == ["x", "y"]
            assert [obj.key for obj in await cache.list(Namespace, fields="status.phase=Active")] == ["y"]
        with pytest.raises(ValueError, match="cluster-scoped, write its name alone"):
            await cache.get(Namespace, "n/x")
        with pytest.raises(ValueError, match="cluster-scoped, leave it out"):
            await cache.list(Namespace, namespace="n")


@pytest.mark.rules("U-57")
async def test_ca_9_a_removed_informer_stops_and_is_started_anew(fake_server: Any, recorder: Any, cached: Any):
    server = fake_server()
    server.put("n/a")
    async with cached(server) as cache:
        await cache.get(ConfigMap, "n/a")
        informer = cache.informer(ConfigMap)
        cache.remove_informer(ConfigMap)
        cache.remove_informer(ConfigMap)
        await anyio.sleep(1)
        assert (informer.stopped, server.open_streams) == (True, 0)
        server.put("n/b")
        assert [obj.key for obj in await cache.list(ConfigMap)] == ["n/a", "n/b"]
        assert cache.informer(ConfigMap) is not informer
        assert server.open_streams == 1


@pytest.mark.parametrize("read", ["find", "list"])
async def test_ca_9_a_read_during_which_its_informer_is_removed_goes_on_with_a_new_one(
    fake_server: Any, cached: Any, read: str
):
    server = fake_server()
    async with cached(server) as cache:

        async def found() -> bool:
            return bool(await (cache.find(ConfigMap, "n/a") if read == "find" else cache.list(ConfigMap)))

        results: list[bool] = []

        async def note() -> None:
            results.append(await found())

        assert not await found()
        # In the turn of the loop in which the reader comes to know that the kind is synced.
        old = cache.informer(ConfigMap)
        cache.remove_informer(ConfigMap)
        cache.informer(ConfigMap)
        await cache.wait_for_sync()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note)
            await asyncio.sleep(0)
            cache.remove_informer(ConfigMap)
            server.put("n/a")
        assert results == [True]
        assert old.stopped
        # While it waits for an own write.
        server.hold()
        cache.written(ConfigMap.resource, "n/a", server.put("n/a")["metadata"]["resourceVersion"])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note)
            await anyio.sleep(1)
            cache.remove_informer(ConfigMap)
        server.delete("n/a")
        server.release()
        await anyio.sleep(1)
        assert results == [True, True]
        assert not await found()


async def test_ca_2_a_read_during_which_the_cache_ends_is_an_error_then_and_later(fake_server: Any, cached: Any):
    errors: list[Exception] = []

    async def read(cache: Cache) -> None:
        try:
            await cache.find(ConfigMap, "n/a")
        except CacheNotStartedError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        async with cached(fake_server()) as cache:
            cache.informer(ConfigMap)
            await cache.wait_for_sync()
            stop = cache.informer(ConfigMap)
            cache.written(ConfigMap.resource, "n/a", "100000")
            tasks.start_soon(read, cache)
            await anyio.sleep(1)
            assert not stop.stopped
        await read(cache)
    assert [str(error) for error in errors] == ["ConfigMap cannot be read: the cache has stopped"] * 2


async def test_ca_9_an_informer_can_be_removed_before_the_start(fake_server: Any, running: Any):
    cache = Cache(fake_server(), clock=anyio.current_time)
    informer = cache.informer(ConfigMap)
    cache.remove_informer(ConfigMap)
    async with running(cache):
        assert informer.stopped
        assert await cache.list(ConfigMap) == []


async def test_ca_10_managed_fields_can_be_stripped(fake_server: Any, cached: Any):
    server = fake_server()
    server.put("n/a")["metadata"]["managedFields"] = [{"manager": "x"}]
    async with cached(server, transform=strip_managed_fields) as cache:
        assert (await cache.get(ConfigMap, "n/a")).metadata.managed_fields is None


async def test_a_peek_shows_only_objects_that_are_as_the_server_has_them(fake_server: Any, cached: Any):
    # An update is built from what it shows: fields that a transform has dropped would be lost on the server.
    server = fake_server()
    server.put("n/a", data={"x": "1"})
    for options, shown in (({}, {"x": "1"}), ({"transform": drop_fields("data.x")}, None)):
        async with cached(server, **options) as cache:
            assert cache.peek(ConfigMap, "n/a") is None  # not read before
            await cache.get(ConfigMap, "n/a")
            found = cache.peek(ConfigMap, "n/a")
            assert (found and found["data"]) == shown
            assert cache.peek(ConfigMap, "n/b") is None


async def test_equal_field_sets_of_cached_objects_are_kept_once(fake_server: Any, cached: Any):
    server = fake_server()

    def put(key: str, field: str) -> list[dict[str, Any]]:
        managed = [{"manager": key, "fieldsV1": {"f:data": {f"f:{field}": {}}}}, {"manager": "none"}]
        server.put(key)["metadata"]["managedFields"] = managed
        server.history[-1][2]["metadata"]["managedFields"] = managed
        return managed

    expected = {"n/a": put("n/a", "x"), "n/b": put("n/b", "x"), "n/c": put("n/c", "y")}
    async with cached(server) as cache:
        assert len(await cache.list(ConfigMap)) == 3
        expected["n/d"] = put("n/d", "x")
        await anyio.sleep(1)
        managed = {key: cache.get_raw(ConfigMap, key)["metadata"]["managedFields"] for key in expected}
        assert managed == expected
        first, *others = (managed[key][0]["fieldsV1"] for key in ("n/a", "n/b", "n/d", "n/c"))
        assert [fields is first for fields in others] == [True, True, False]


@pytest.mark.parametrize("key", ["a", "n/a/b", "", "n/"])
async def test_ca_6_a_key_that_does_not_fit_the_kind_is_an_error(fake_server: Any, cached: Any, key: str):
    async with cached(fake_server()) as cache:
        with pytest.raises(ValueError, match="namespace/name"):
            await cache.get(ConfigMap, key)


async def test_in_12_readiness_shows_a_handler_that_raises_and_a_watch_that_is_down(fake_server: Any, cached: Any):
    server = fake_server()

    class Bad:
        def on_add(self, obj: RawObject, *, initial: bool) -> None:
            if obj["metadata"]["name"] == "a":
                raise LookupError

        def on_update(self, old: RawObject, new: RawObject) -> None: ...
        def on_delete(self, obj: RawObject, *, state_unknown: bool) -> None: ...

    async with cached(server) as cache:
        cache.informer(ConfigMap).add_handler(Bad(), name="mine")
        await cache.wait_for_sync()
        cache.check()
        server.put("n/a")
        await anyio.sleep(1)
        with pytest.raises(CacheUnhealthyError, match="ConfigMap: handler mine raises"):
            cache.check()
        server.put("n/b")
        await anyio.sleep(1)
        cache.check()
        server.failure = ForbiddenError("no more")
        server.cut()
        await anyio.sleep(20)
        cache.check()
        await anyio.sleep(60)
        with pytest.raises(CacheUnhealthyError, match=r"ConfigMap: no watch for \d+ s \(no more\)"):
            cache.check()


@pytest.mark.rules("MT-27")
async def test_metrics_tell_of_objects_handlers_and_watches(fake_server: Any, recorder: Any, cached: Any):
    class Metrics:
        registry = CollectorRegistry()

    server = fake_server()
    server.put("n/a")
    async with cached(server, metrics=Metrics()) as cache:
        await cache.informer(ConfigMap).add_handler(recorder(), name="mine").wait_synced()
        await cache.get(ConfigMap, "n/a")
        text = generate_latest(Metrics.registry).decode()
    for line in (
        'pyreconcile_cache_objects{kind="ConfigMap"} 1.0',
        'pyreconcile_cache_handler_backlog{handler="mine",kind="ConfigMap"} 0.0',
        'pyreconcile_cache_handler_behind_seconds{handler="mine",kind="ConfigMap"} 0.0',
        'pyreconcile_cache_handler_errors_total{handler="mine",kind="ConfigMap"} 0.0',
        'pyreconcile_cache_streaming_lists_total{kind="ConfigMap",namespace=""} 1.0',
        'pyreconcile_cache_watches_total{kind="ConfigMap",namespace=""} 1.0',
        'pyreconcile_cache_list_causes_total{cause="start",kind="ConfigMap",namespace=""} 1.0',
        'pyreconcile_cache_silence_seconds{kind="ConfigMap",namespace=""}',
        "pyreconcile_cache_own_write_waits_total",
        "pyreconcile_cache_live_reads_total 0.0",
    ):
        assert line in text
    [received] = re.findall(
        r'^pyreconcile_cache_received_bytes_total{kind="ConfigMap",namespace=""} (\S+)$', text, re.M
    )
    assert float(received) > 100


@pytest.mark.rules("MT-27")
async def test_metrics_tell_why_there_was_a_list_and_how_long_a_handler_is_behind(
    fake_server: Any, recorder: Any, cached: Any
):
    class Metrics:
        registry = CollectorRegistry()

    server = fake_server()
    server.put("n/a")
    async with cached(server, metrics=Metrics()) as cache:
        informer = cache.informer(ConfigMap)
        registration = informer.add_handler(recorder(), name="mine")
        await registration.wait_synced()
        server.failure = ForbiddenError("no more")
        server.cut()
        await anyio.sleep(20)
        server.failure = None
        await anyio.sleep(60)
        registration.push("add", {}, {"metadata": {"name": "b"}})
        assert registration.behind_for > 0
        assert registration.backlog == 1
        text = generate_latest(Metrics.registry).decode()
    assert 'pyreconcile_cache_list_causes_total{cause="start",kind="ConfigMap",namespace=""} 1.0' in text
    assert 'pyreconcile_cache_list_causes_total{cause="ForbiddenError",kind="ConfigMap",namespace=""}' in text
    assert 'pyreconcile_cache_watch_errors_total{kind="ConfigMap",namespace="",reason="ForbiddenError"}' in text
