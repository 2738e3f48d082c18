"""What the rules of lists, watches and informers say beyond the tests of their parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from pyreconcile.api import RawObject, Resource
from pyreconcile.api.core_v1 import ConfigMap, Namespace, Pod, Secret, Service
from pyreconcile.cache import (
    Backoff,
    Cache,
    CacheOptions,
    Informer,
    KindOptions,
    NamespaceOptions,
    Reflector,
    Scope,
    ServerSupport,
    Sink,
    chain,
    drop_annotations,
    drop_fields,
    strip_managed_fields,
)
from pyreconcile.cache._options import scopes_for
from pyreconcile.client import ForbiddenError, InternalServerError, error_from_status

pytestmark = pytest.mark.looptime

TOO_LARGE = error_from_status(
    {"reason": "Timeout", "code": 504, "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}
)


class Nothing(Sink):
    def prepare(self, obj: RawObject) -> RawObject:
        return obj

    async def replace(self, objects: Any, version: str) -> None: ...
    def apply(self, change: str, obj: RawObject) -> None: ...
    def progressed(self, version: str) -> None: ...


@pytest.fixture
def reflecting() -> Any:
    """Runs a reflector of ConfigMaps while the block lasts."""

    @asynccontextmanager
    async def reflecting(
        transport: Any, *, streaming: bool = False, random: float = 0.0, **options: Any
    ) -> AsyncIterator[Reflector]:
        clock = anyio.current_time
        reflector = Reflector(
            transport,
            ConfigMap.resource,
            Scope(),
            Nothing(),
            support=ServerSupport(streaming_list=streaming),
            backoff=Backoff(clock=clock, random=lambda: 0.0),
            clock=clock,
            random=lambda: random,
            **options,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reflector.run)
            yield reflector
            tasks.cancel_scope.cancel()

    return reflecting


async def until(condition: Callable[[], Any]) -> None:
    with anyio.fail_after(100_000):
        while not condition():
            await anyio.sleep(0.1)


async def test_rf_1_the_error_handler_hears_of_each_failure_before_the_wait(scripted: Any, wire: Any, reflecting: Any):
    heard: list[tuple[str, float]] = []

    def handler(error: Exception) -> None:
        heard.append((type(error).__name__, anyio.current_time()))
        raise LookupError("the handler's own fault")

    transport = scripted(
        lists=[ForbiddenError("no"), wire.list_answer([], 5), wire.list_answer([], 6)],
        watches=[[], ForbiddenError("x")],
    )
    with capture_logs() as logs:
        async with reflecting(transport, on_error=handler):
            await until(lambda: len(heard) == 3)
    assert [name for name, _ in heard] == ["ForbiddenError", "WatchFailedError", "ForbiddenError"]
    times = transport.times
    assert [at for _, at in heard] == pytest.approx([times[0], times[2], times[4]], abs=0.01)
    assert [times[1] - times[0], times[3] - times[2]] == pytest.approx([0.8, 1.6], abs=0.01)
    assert [log["event"] for log in logs].count("watch_error_handler_failed") == 3


async def test_rf_1_the_caches_error_handler_is_told_of_which_resource(fake_server: Any, running: Any):
    heard: list[tuple[Resource, Exception]] = []
    server = fake_server()
    server.failure = ForbiddenError("no")
    options = CacheOptions(on_watch_error=lambda resource, error: heard.append((resource, error)))
    async with running(Cache(server, options, clock=anyio.current_time)) as cache:
        cache.informer(ConfigMap)
        await until(lambda: heard)
    assert heard[0] == (ConfigMap.resource, server.failure)


@pytest.mark.parametrize(("random", "seconds"), [(0.0, "300"), (0.5, "450"), (0.999, "599")])
async def test_rf_2_each_watch_asks_for_a_random_length_of_five_to_ten_minutes(
    scripted: Any, wire: Any, reflecting: Any, random: float, seconds: str
):
    for streaming in (True, False):
        transport = scripted(lists=[wire.list_answer([], 5)], watches=[[wire.bookmark(5, end=True), 60.0]])
        async with reflecting(transport, streaming=streaming, random=random):
            await until(lambda transport=transport: len(transport.watched) == 2)
        assert [query["timeoutSeconds"] for query in transport.watched] == [seconds] * 2


async def test_rf_4_a_version_that_is_too_large_is_forgotten(scripted: Any, wire: Any, reflecting: Any):
    transport = scripted(
        watches=[
            [wire.bookmark(7, end=True), wire.error_event(500, "InternalError")],
            TOO_LARGE,
            [wire.bookmark(9, end=True), wire.SILENT],
        ]
    )
    async with reflecting(transport, streaming=True) as reflector:
        await until(lambda: reflector.version == "9")
    assert [query.get("resourceVersion") for query in transport.watched] == [None, "7", None]


@pytest.mark.parametrize(("span", "watches", "lists"), [(0.0, 1, 2), (2.0, 3, 2), (1000.0, 4, 1)])
async def test_rf_12_internal_errors_in_the_stream_are_met_with_another_watch_for_the_set_time(
    scripted: Any, wire: Any, reflecting: Any, span: float, watches: int, lists: int
):
    fault = [wire.error_event(500, "InternalError")]
    transport = scripted(
        lists=[wire.list_answer([], 5), wire.list_answer([], 8)],
        watches=[fault, fault, fault, [60.0, wire.bookmark(9)]],
    )
    async with reflecting(transport, retry_internal_errors=span) as reflector:
        await until(lambda: reflector.version in ("8", "9"))
    versions = [query["resourceVersion"] for query in transport.watched]
    assert (versions.count("5"), len(transport.listed)) == (watches, lists)


async def test_rf_12_a_watch_that_is_refused_with_an_internal_error_lists_anew(
    scripted: Any, wire: Any, reflecting: Any
):
    transport = scripted(lists=[wire.list_answer([], 5), wire.list_answer([], 8)], watches=[InternalServerError("x")])
    async with reflecting(transport, retry_internal_errors=1000.0) as reflector:
        await until(lambda: reflector.version == "8")


async def test_rf_18_all_reflectors_start_at_once_and_few_list_at_the_same_time(scripted: Any, wire: Any, running: Any):
    """The lists never answer until they are let, so what is under way can be counted."""
    listing, most, let = 0, 0, anyio.Event()

    class Slow(type(scripted())):  # type: ignore[misc]
        async def request(self, method: str, path: str, **options: Any) -> bytes:
            nonlocal listing, most
            self.listed.append(dict(options["query"]))
            listing += 1
            most = max(most, listing)
            await let.wait()
            listing -= 1
            kind = {"configmaps": "ConfigMap", "pods": "Pod", "secrets": "Secret", "services": "Service"}
            return wire.list_answer([], 5, kind=f"{kind[path.rpartition('/')[2]]}List")

    server = Slow()
    cache = Cache(server, CacheOptions(concurrent_lists=3, streaming_lists=False), clock=anyio.current_time)
    kinds = (ConfigMap, Pod, Secret, Service)
    for kind in kinds:
        cache.informer(kind)
    async with running(cache):
        await anyio.sleep(1)
        assert (most, len(server.listed)) == (3, 3)
        let.set()
        await cache.wait_for_sync()
        assert (most, len(server.listed)) == (3, 4)
    # Another process begins anew: nothing is kept.
    assert {query["resourceVersion"] for query in server.listed} == {"0"}


@pytest.fixture
def quiet() -> Any:
    """An informer whose list-and-watch is played by the test, before its handlers are served."""

    class Still(Reflector):
        async def run(self) -> None:
            await anyio.sleep_forever()

    def quiet(scripted: Any) -> Informer[ConfigMap]:
        return Informer(ConfigMap, [Scope()], lambda scope, sink: Still(scripted(), ConfigMap.resource, scope, sink))

    return quiet


@pytest.mark.rules("U-52")
async def test_in_3_a_replace_deletes_what_only_the_queue_knew(scripted: Any, wire: Any, recorder: Any, quiet: Any):
    informer, handler = quiet(scripted), recorder()
    (part,) = informer.parts
    registration = informer.add_handler(handler)
    a, b = wire.config_map("a", 3), wire.config_map("b", 6)
    await part.replace({"n/a": a}, "5")
    part.apply("ADDED", b)
    await part.replace({"n/a": a}, "8")
    part.apply("ADDED", wire.config_map("c", 9))
    part.apply("DELETED", wire.config_map("c", 10))
    # No call was made yet: all of this is still in the handler's buffer.
    assert (handler.calls, registration.backlog) == ([], 7)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(informer.run)
        calls = await handler.wait(5)
        tasks.cancel_scope.cancel()
    assert calls == [("initial", "n/a"), ("add", "n/b"), ("vanished", "n/b"), ("add", "n/c"), ("delete", "n/c")]


@pytest.mark.rules("IN-4", "IN-2")
async def test_u_53_a_handler_has_synced_after_a_first_list_that_shrank_meanwhile(
    scripted: Any, wire: Any, recorder: Any, quiet: Any
):
    informer, handler = quiet(scripted), recorder()
    (part,) = informer.parts
    registration = informer.add_handler(handler)
    a, b = wire.config_map("a", 3), wire.config_map("b", 4)
    await part.replace({"n/a": a, "n/b": b}, "5")
    await part.replace({"n/a": a}, "8")
    assert (informer.has_synced, registration.has_synced) == (True, False)
    synced_after: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(informer.run)
        await registration.wait_synced()
        synced_after.append(len(handler.calls))
        await handler.wait(3)
        tasks.cancel_scope.cancel()
    assert handler.calls == [("initial", "n/a"), ("initial", "n/b"), ("vanished", "n/b")]
    assert synced_after[0] >= 2


async def test_in_1_events_of_many_keys_keep_their_order_and_come_in_bounded_batches(
    fake_server: Any, recorder: Any, running: Any
):
    server, handler = fake_server(), recorder()
    async with running(Cache(server, clock=anyio.current_time)) as cache:
        informer = cache.informer(ConfigMap)
        await informer.add_handler(handler).wait_synced()
        expected = []
        for number in range(3000):
            key = f"n/{(number * 7919) % 1000:04}"
            expected.append(("update" if key in server.objects else "add", key))
            server.put(key)
        steps, before = [], 0
        while len(handler.calls) < 3000:
            await anyio.lowlevel.checkpoint()
            version = int(informer.last_resource_version)
            steps.append(version - before if before else 0)
            before = version
        assert handler.calls == expected
        assert 1 < max(steps) <= 1000


@pytest.mark.rules("IN-16")
async def test_in_16_whoever_waits_for_sync_is_woken_at_that_very_moment(
    scripted: Any, wire: Any, running: Any, recorder: Any
):
    transport = scripted(
        watches=[[1.234, wire.event("ADDED", wire.config_map("a", 3)), wire.bookmark(5, end=True), 60.0]]
    )
    async with running(Cache(transport, clock=anyio.current_time)) as cache:
        began = anyio.current_time()
        registration = cache.informer(ConfigMap).add_handler(recorder())
        await cache.wait_for_sync()
        await registration.wait_synced()
        assert anyio.current_time() - began == pytest.approx(1.234, abs=0.001)


async def test_in_11_removing_a_handler_never_leaves_a_call_in_hand(fake_server: Any, running: Any):
    """Calls are plain functions, so whoever removes a handler knows that none of its calls is under way."""
    server = fake_server()
    inside: list[str] = []

    class Watchful:
        def on_add(self, obj: RawObject, *, initial: bool) -> None:
            inside.append("in")
            inside.append("out")

        def on_update(self, old: RawObject, new: RawObject) -> None: ...
        def on_delete(self, obj: RawObject, *, state_unknown: bool) -> None: ...

    for number in range(1000):
        server.put(f"n/{number}")
    async with running(Cache(server, clock=anyio.current_time)) as cache:
        for turns in range(0, 40, 4):
            registration = cache.informer(ConfigMap).add_handler(Watchful())
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            registration.remove()
            heard = len(inside)
            assert inside.count("in") == inside.count("out")
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert len(inside) == heard


def test_u_55_selectors_and_transforms_come_from_the_narrowest_level_that_has_them():
    """All 81 ways to set or leave out a selector, with the empty one among them, for each of the settings."""

    def one(obj: RawObject) -> RawObject:
        return obj

    def other(obj: RawObject) -> RawObject:
        return obj

    for field, values, nothing in (
        ("labels", ("", "a=b"), ""),
        ("fields", ("", "metadata.name=x"), ""),
        ("transform", (one, other), None),
    ):
        for levels in product((None, *values), repeat=4):
            kind_namespace, kind, namespace, default = ({field: value} for value in levels)
            options = CacheOptions(namespaces={"n": NamespaceOptions(**namespace)}, **default)
            (scope,) = scopes_for(
                ConfigMap.resource, KindOptions(namespaces={"n": NamespaceOptions(**kind_namespace)}, **kind), options
            )
            expected = next((value for value in levels if value is not None), nothing)
            assert (scope.namespace, getattr(scope, field)) == ("n", expected)
            # Without namespaces of its own the kind follows those of the cache.
            (scope,) = scopes_for(ConfigMap.resource, KindOptions(**kind), options)
            expected = next((value for value in levels[1:] if value is not None), nothing)
            assert getattr(scope, field) == expected
            # Namespaces mean nothing to a cluster-scoped kind.
            (scope,) = scopes_for(Namespace.resource, KindOptions(**kind), options)
            expected = next((value for value in (levels[1], levels[3]) if value is not None), nothing)
            assert (scope.namespace, getattr(scope, field)) == ("", expected)


@pytest.mark.rules("CA-4", "U-55")
@pytest.mark.parametrize(("of_kind", "period"), [(None, 100.0), (50.0, 50.0), (0.0, 0.0)])
async def test_ca_4_resync_period_of_a_kind_wins_over_the_caches(
    fake_server: Any, recorder: Any, of_kind: float | None, period: float
):
    options = CacheOptions(resync_period=100.0, by_kind={ConfigMap: KindOptions(resync_period=of_kind)})
    cache = Cache(fake_server(), options, random=lambda: 0.5)
    assert cache.informer(ConfigMap).add_handler(recorder()).resync == pytest.approx(period)
    assert cache.informer(Pod).add_handler(recorder()).resync == pytest.approx(100.0)


@pytest.mark.parametrize("level", ["cache", "kind", "call"])
async def test_ca_6_copying_can_be_turned_off_for_cache_kind_or_call(fake_server: Any, running: Any, level: str):
    server = fake_server()
    server.put("n/a", data={"x": "1"})
    options = {
        "cache": CacheOptions(copy=False),
        "kind": CacheOptions(by_kind={ConfigMap: KindOptions(copy=False)}),
        "call": CacheOptions(),
    }[level]
    call = {"copy": False} if level == "call" else {}
    async with running(Cache(server, options, clock=anyio.current_time)) as cache:
        first = await cache.get(ConfigMap, "n/a", **call)
        assert (first.api_version, first.kind) == ("v1", "ConfigMap")
        assert await cache.find(ConfigMap, "n/a", **call) is first
        assert (await cache.list(ConfigMap, **call))[0] is first
        assert await cache.get(ConfigMap, "n/a", copy=True) is not first
        server.put("n/a", data={"x": "2"})
        await anyio.sleep(1)
        second = await cache.get(ConfigMap, "n/a", **call)
        assert (second.data, first.data) == ({"x": "2"}, {"x": "1"})


@pytest.mark.rules("U-56")
async def test_ca_7_limit_cuts_the_list_and_there_is_no_token_to_go_on(fake_server: Any, running: Any):
    server = fake_server()
    for name in "cab":
        server.put(f"n/{name}")
    async with running(Cache(server, clock=anyio.current_time)) as cache:
        assert [obj.key for obj in await cache.list(ConfigMap, limit=2)] == ["n/a", "n/b"]
        assert [obj.key for obj in await cache.list(ConfigMap, limit=9)] == ["n/a", "n/b", "n/c"]
        with pytest.raises(ValueError, match="limit 0"):
            await cache.list(ConfigMap, limit=0)
        with pytest.raises(TypeError, match="continue_token"):
            await cache.list(ConfigMap, continue_token="n/b")  # type: ignore[call-arg]
        server.failure = ForbiddenError("no")
        with pytest.raises(TimeoutError), anyio.fail_after(1):
            await cache.list(Pod)


async def test_ca_8_an_index_can_be_added_to_many_objects_without_waiting_and_reads_leave_it_alone(
    fake_server: Any, running: Any
):
    server = fake_server()
    for name in "ab":
        server.put(f"n/{name}", data={"x": "1"})
    async with running(Cache(server, clock=anyio.current_time)) as cache:
        await cache.list(ConfigMap)
        cache.add_index(ConfigMap, "data.x", lambda obj: [obj["data"]["x"], obj["data"]["x"], "all"])
        for _ in range(3):
            for query in ({"index": ("data.x", "1")}, {"fields": "data.x=1"}, {"index": ("data.x", "all")}):
                for namespace in ("", "n"):
                    assert len(await cache.list(ConfigMap, namespace=namespace, **query)) == 2
                assert await cache.list(ConfigMap, namespace="m", **query) == []
        assert cache.informer(ConfigMap).store.index_values("data.x") == ["1", "all"]


@pytest.mark.rules("CA-10", "U-45")
async def test_ca_10_transforms_trim_what_is_stored_and_told(fake_server: Any, running: Any):
    server = fake_server()
    last_applied = "kubectl.kubernetes.io/last-applied-configuration"

    def put(key: str) -> None:
        obj = server.put(key, data={"big": "x"}, status={"images": ["a"], "phase": "up"})
        obj["metadata"].update(managedFields=[{"manager": "x"}], annotations={last_applied: "{}", "mine": "1"})
        server.history[-1][2]["metadata"].update(obj["metadata"])

    trim = chain(strip_managed_fields, drop_annotations(last_applied), drop_fields("data", "status.images", "a.b.c"))
    put("n/a")
    async with running(Cache(server, CacheOptions(transform=trim), clock=anyio.current_time)) as cache:
        await cache.list(ConfigMap)
        put("n/b")
        await anyio.sleep(1)
        for key in ("n/a", "n/b"):
            raw = cache.get_raw(ConfigMap, key)
            assert raw.keys() == {"apiVersion", "kind", "metadata", "status"}
            assert raw["status"] == {"phase": "up"}
            assert raw["metadata"]["annotations"] == {"mine": "1"}
            assert "managedFields" not in raw["metadata"]
            assert trim(raw) == raw


@pytest.mark.parametrize("path", ["metadata", "kind", "apiVersion", "metadata.name", "metadata.uid", "", "status."])
def test_ca_10_the_cache_keeps_what_it_needs(path: str):
    with pytest.raises(ValueError, match="drop_fields"):
        drop_fields("data", path)


async def test_ry_1_without_the_observer_a_read_may_miss_an_own_write(fake_server: Any, running: Any):
    """So it is upstream by default; names that are no accident, and an idempotent reconcile, live with it."""
    server = fake_server()
    async with running(Cache(server, clock=anyio.current_time)) as cache:
        assert await cache.find(ConfigMap, "n/child") is None
        server.hold()
        server.put("n/child")
        before = anyio.current_time()
        assert await cache.find(ConfigMap, "n/child") is None
        assert (anyio.current_time(), cache.own_write_waits) == (before, 0)
        server.release()
        await anyio.sleep(1)
        assert await cache.find(ConfigMap, "n/child") is not None
