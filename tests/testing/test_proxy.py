"""The fault proxy: what it passes on, each fault, and what it writes down."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import orjson
import pytest
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from kubernetes_asyncio.client import Configuration

from pyreconcile.api.core_v1 import ConfigMap, Namespace
from pyreconcile.client import (
    AlreadyExistsError,
    ApiError,
    Client,
    ConfigError,
    ConnectionLostError,
    ConnectOptions,
    ExpiredError,
    ForbiddenError,
    InternalServerError,
    NotFoundError,
    RequestTimeoutError,
    TooManyRequestsError,
    connect,
)
from pyreconcile.testing import ControlPlane, FaultProxy, Match, ProxiedRequest
from pyreconcile.testing import eventually as wait_until

pytestmark = pytest.mark.plane

CONFIG_MAPS = Match(resource="configmaps")
WATCHES = Match(resource="configmaps", verb="watch")
ANSWERED_WATCH = Match(resource="configmaps", verb="watch", where=lambda request: request.status == 200)
MINE = "metadata.name!=kube-root-ca.crt"

Eventually = Callable[..., Awaitable[Any]]


def config_map(namespace: str, name: str, **data: str) -> ConfigMap:
    return ConfigMap.from_dict({"metadata": {"namespace": namespace, "name": name}, "data": data})


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(control_plane.kubeconfig) as proxy:
        yield proxy


@asynccontextmanager
async def through(proxy: FaultProxy, **options: Any) -> AsyncIterator[Client]:
    async with connect(proxy.connect_options(**options)) as client:
        yield client


class Watching:
    """A watch that runs beside the test."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.times: list[float] = []
        self.ended: Exception | str | None = None

    async def run(self, client: Client, namespace: str) -> None:
        try:
            async for event in client.watch(ConfigMap, namespace=namespace, fields=MINE):
                self.events.append((event.type, event.object.metadata.name))
                self.times.append(time.monotonic())
            self.ended = "end"
        except ApiError as error:
            self.ended = error


@asynccontextmanager
async def watching(proxy: FaultProxy, namespace: str) -> AsyncIterator[Watching]:
    """Watch ConfigMaps through the proxy, on a client of its own; entered once the watch is answered."""
    watch = Watching()
    before = len(proxy.requests(ANSWERED_WATCH))
    async with through(proxy) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run, client, namespace)
        await proxy.wait_for(ANSWERED_WATCH, count=before + 1)
        yield watch
        tasks.cancel_scope.cancel()


async def test_requests_pass_through_and_are_written_down(proxy: FaultProxy, client: Client, namespace: str):
    began = time.monotonic()
    async with through(proxy, user_agent="shopper") as shopper:
        created = await shopper.create(config_map(namespace, "a", x="1"))
        assert (await shopper.list(ConfigMap, namespace=namespace, labels="!b", fields=MINE))[0].data == {"x": "1"}
        await shopper.update_status(Namespace.from_dict((await shopper.get(Namespace, namespace)).to_dict()))
        with pytest.raises(NotFoundError, match='configmaps "b" not found'):
            await shopper.delete(ConfigMap, f"{namespace}/b")
    assert (await client.get(ConfigMap, f"{namespace}/a")).metadata.uid == created.metadata.uid
    create, listed, *_, refused = proxy.requests()
    assert (create.verb, create.method, create.status) == ("create", "POST", 201)
    assert create.path == f"/api/v1/namespaces/{namespace}/configmaps"
    assert (create.group, create.resource, create.namespace, create.name) == ("", "configmaps", namespace, "")
    assert (create.user_agent, create.fault, create.watch) == ("shopper", "", False)
    assert create.received > 100
    assert began < create.time < create.ended < listed.time
    assert (listed.verb, listed.query) == ("list", {"labelSelector": "!b", "fieldSelector": MINE, "limit": "500"})
    assert (refused.verb, refused.name, refused.status) == ("delete", "b", 404)
    assert proxy.requests(Match(verb="list"), since=began) == [listed]
    assert proxy.requests(f"/api/v1/namespaces/{namespace}/configmaps/b") == [refused]
    assert proxy.requests(lambda request: request.status == 201, since=time.monotonic()) == []


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/api/v1/pods?watch=1", ("watch", "", "pods", "", "", "")),
        ("GET", "/api/v1/namespaces/n/pods?limit=5", ("list", "", "pods", "", "n", "")),
        ("GET", "/api/v1/namespaces/n/pods/p/log?follow=true", ("get", "", "pods", "log", "n", "p")),
        ("GET", "/api/v1/namespaces/n", ("get", "", "namespaces", "", "n", "n")),
        ("PUT", "/api/v1/namespaces/n/finalize", ("update", "", "namespaces", "finalize", "n", "n")),
        ("GET", "/api/v1/namespaces", ("list", "", "namespaces", "", "", "")),
        ("DELETE", "/apis/apps/v1/namespaces/n/deployments", ("deletecollection", "apps", "deployments", "", "n", "")),
        ("DELETE", "/apis/apps/v1/namespaces/n/deployments/d", ("delete", "apps", "deployments", "", "n", "d")),
        ("PATCH", "/apis/a.b/v1/things/a%3Ab/status", ("patch", "a.b", "things", "status", "", "a:b")),
        ("POST", "/api/v1/namespaces/n/pods/p/binding", ("create", "", "pods", "binding", "n", "p")),
        ("GET", "/apis/apps/v1", ("get", "", "", "", "", "")),
        ("GET", "/healthz", ("get", "", "", "", "", "")),
    ],
)
def test_a_request_tells_what_it_is_about(method: str, target: str, expected: tuple[str, ...]):
    request = ProxiedRequest.read(method, target, time=1.0)
    parts = (request.verb, request.group, request.resource, request.subresource, request.namespace, request.name)
    assert parts == expected
    assert Match(verb=expected[0], resource=expected[2], namespace=expected[4])(request)
    assert not Match(name="other")(request)
    assert not Match(prefix="/other")(request)


async def test_only_the_proxys_own_kubeconfig_gets_in(proxy: FaultProxy):
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"{proxy.url}/version", ssl=False)
    assert proxy.requests() == []
    assert proxy.kubeconfig.stat().st_mode & 0o077 == 0


async def test_it_acts_as_the_user_that_it_was_given(own_plane: ControlPlane):
    stranger = await own_plane.add_user("stranger")
    async with FaultProxy(stranger) as proxy, through(proxy) as client:
        with pytest.raises(ForbiddenError, match='User "stranger" cannot list resource "configmaps"'):
            await client.list(ConfigMap, namespace="default")


async def test_it_serves_plain_http_on_request(control_plane: ControlPlane, namespace: str):
    connect_options = ConnectOptions(kubeconfig=control_plane.kubeconfig)
    async with FaultProxy(connect=connect_options, tls=False) as proxy, through(proxy) as client:
        assert proxy.url.startswith("http://127.0.0.1:")
        assert (await client.get(Namespace, namespace)).metadata.name == namespace


async def test_faults_and_kubeconfig_need_a_proxy_that_runs(control_plane: ControlPlane, tmp_path: Path):
    proxy = FaultProxy(control_plane.kubeconfig)
    with pytest.raises(RuntimeError, match="async with FaultProxy"):
        _ = proxy.kubeconfig
    async with proxy:
        path = proxy.kubeconfig
        faults = contextlib.ExitStack()
        faults.enter_context(proxy.cut())
        faults.enter_context(proxy.answer(500))
    faults.close()  # after the proxy: its faults have ended with it
    assert not path.exists()
    with pytest.raises(ConfigError, match="no such file"):
        async with FaultProxy(tmp_path / "none"):
            pass
    with pytest.raises(ValueError, match="give one of them"):
        FaultProxy(path, connect=ConnectOptions())
    with pytest.raises(ValueError, match="code=200"):
        proxy.answer(200)
    with pytest.raises(ValueError, match="times=0"), proxy.answer(500, times=0):
        pass


async def test_cut_resets_what_is_open_and_refuses_what_is_new(
    proxy: FaultProxy, namespace: str, eventually: Eventually
):
    async with watching(proxy, namespace) as watch, through(proxy) as client:
        await client.get(Namespace, namespace)
        with proxy.cut():
            await eventually(has_ended(watch))
            assert isinstance(watch.ended, ConnectionLostError)
            with pytest.raises(ConnectionLostError) as caught:
                await client.get(Namespace, namespace)
            assert caught.value.refused
        assert (await client.get(Namespace, namespace)).metadata.name == namespace


async def test_drop_connections_resets_them_once(proxy: FaultProxy, namespace: str, eventually: Eventually):
    async with watching(proxy, namespace) as first, watching(proxy, namespace) as second:
        assert proxy.drop_connections(Match(resource="pods")) == 0
        assert proxy.drop_connections(WATCHES) == 2
        await eventually(has_ended(first))
        await eventually(has_ended(second))
    async with watching(proxy, namespace) as third:
        assert proxy.drop_connections() >= 1
        await eventually(has_ended(third))


async def test_blackhole_keeps_connections_open_and_passes_nothing(
    proxy: FaultProxy, client: Client, namespace: str, eventually: Eventually
):
    async with watching(proxy, namespace) as watch, through(proxy, timeout=0.5) as old, through(proxy) as new:
        await answered(old.get, Namespace, namespace)
        with proxy.blackhole(new=False):
            await client.create(config_map(namespace, "a"))
            assert await new.get(ConfigMap, f"{namespace}/a")
            with pytest.raises(RequestTimeoutError):
                await old.create(config_map(namespace, "never"))
        assert await client.find(ConfigMap, f"{namespace}/never") is None
        assert await new.find(ConfigMap, f"{namespace}/a")
        assert (watch.events, watch.ended) == ([], None)
        async with watching(proxy, namespace) as later:
            await eventually(lambda: later.events == [("ADDED", "a")])
        assert (watch.events, watch.ended) == ([], None)


async def test_blackhole_leaves_new_connections_without_an_answer(proxy: FaultProxy, namespace: str):
    async with through(proxy, timeout=0.5) as client:
        with proxy.blackhole(), pytest.raises(RequestTimeoutError):
            await client.get(Namespace, namespace)
        assert proxy.requests() == []
        assert await answered(client.get, Namespace, namespace)


async def test_refuse_resets_these_requests_and_no_others(
    proxy: FaultProxy, client: Client, namespace: str, eventually: Eventually
):
    prefix = f"/api/v1/namespaces/{namespace}/configmaps"
    async with watching(proxy, namespace) as watch, through(proxy) as refused:
        with proxy.refuse(prefix) as fault:
            await eventually(has_ended(watch))
            assert isinstance(watch.ended, ConnectionLostError)
            with pytest.raises(ConnectionLostError):
                await refused.create(config_map(namespace, "a"))
            assert await refused.get(Namespace, namespace)
        assert fault.hits == 2
        assert await refused.find(ConfigMap, f"{namespace}/a") is None
    assert [request.status for request in proxy.requests(prefix)] == [200, None, 404]
    assert [request.fault for request in proxy.requests(prefix)] == ["refuse", "refuse", ""]


@pytest.mark.parametrize(
    ("code", "error", "reason"),
    [
        (410, ExpiredError, "Expired"),
        (429, TooManyRequestsError, "TooManyRequests"),
        (500, InternalServerError, "InternalError"),
    ],
)
async def test_answer_gives_an_error_in_the_servers_place(
    proxy: FaultProxy, namespace: str, code: int, error: type[ApiError], reason: str
):
    async with through(proxy) as client:
        with proxy.answer(code, CONFIG_MAPS, times=1) as fault:
            await client.get(Namespace, namespace)
            with pytest.raises(error) as caught:
                await client.create(config_map(namespace, "a"))
            assert (caught.value.code, caught.value.reason) == (code, reason)
            assert await client.find(ConfigMap, f"{namespace}/a") is None
        assert (fault.hits, fault.times) == (1, 0)
    assert [(request.status, request.fault) for request in proxy.requests(CONFIG_MAPS)] == [(code, "answer"), (404, "")]


async def test_answer_can_name_a_time_to_wait(proxy: FaultProxy, namespace: str):
    waits = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with through(proxy, sleep=sleep) as client:
        with proxy.answer(429, times=2, retry_after=7):
            assert await client.get(Namespace, namespace)
    assert waits == [7, 7]


async def test_of_two_faults_the_later_goes_first(proxy: FaultProxy, namespace: str):
    async with through(proxy) as client:
        with proxy.answer(500), proxy.answer(429, times=1):
            for error in (TooManyRequestsError, InternalServerError, InternalServerError):
                with pytest.raises(error):
                    await client.get(Namespace, namespace)
        assert await client.get(Namespace, namespace)


async def test_drop_response_loses_the_answer_of_what_was_done(proxy: FaultProxy, client: Client, namespace: str):
    async with through(proxy) as unlucky:
        with proxy.drop_response(Match(verb="create", resource="configmaps"), times=1) as fault:
            with pytest.raises(AlreadyExistsError):
                await unlucky.create(Namespace.from_dict({"metadata": {"name": namespace}}))
            with pytest.raises(ConnectionLostError):
                await unlucky.create(config_map(namespace, "a"))
            await unlucky.create(config_map(namespace, "b"))
        assert fault.hits == 1
    assert await client.get(ConfigMap, f"{namespace}/a")
    lost = proxy.requests(Match(verb="create", resource="configmaps"))[0]
    assert (lost.status, lost.fault, lost.received) == (None, "drop_response", 0)


async def test_delay_response_holds_the_answer_of_what_was_done_back(
    proxy: FaultProxy, client: Client, namespace: str, eventually: Eventually
):
    async with through(proxy) as slow:
        began = time.monotonic()
        with proxy.delay_response(CONFIG_MAPS, seconds=0.3, times=1):
            await slow.create(config_map(namespace, "a"))
        assert 0.3 <= time.monotonic() - began < 20
        async with anyio.create_task_group() as tasks:
            with proxy.delay_response(CONFIG_MAPS, seconds=math.inf):
                tasks.start_soon(slow.create, config_map(namespace, "b"))
                await eventually(lambda: client.find(ConfigMap, f"{namespace}/b"))
                (_, held) = proxy.requests(CONFIG_MAPS)
                await eventually(lambda: held.fault == "delay_response")  # the answer is a moment later than the write
                assert held.status is None
        assert held.status == 201


async def test_delay_stream_delivers_each_event_late_and_in_order(
    proxy: FaultProxy, client: Client, namespace: str, eventually: Eventually
):
    async with watching(proxy, namespace) as watch:
        with proxy.delay_stream(WATCHES, seconds=0.5) as fault:
            created: list[float] = []
            for name in "abc":
                created.append(time.monotonic())
                await client.create(config_map(namespace, name))
            await eventually(lambda: len(watch.events) == 3)
            assert all(seen - began >= 0.5 for began, seen in zip(created, watch.times, strict=True))
        assert fault.hits == 1
        with proxy.delay_stream(Match(resource="pods"), seconds=math.inf):
            await client.create(config_map(namespace, "d"))
            await eventually(lambda: len(watch.events) == 4)
        with proxy.delay_stream(WATCHES, seconds=math.inf):
            await client.create(config_map(namespace, "e"))
            assert await client.list(ConfigMap, namespace=namespace)
            assert len(watch.events) == 4
        await eventually(lambda: watch.events == [("ADDED", name) for name in "abcde"])


async def test_requests_that_need_an_upgraded_connection_are_refused_with_a_reason(control_plane: ControlPlane):
    headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
    async with (
        FaultProxy(control_plane.kubeconfig, tls=False) as proxy,
        aiohttp.ClientSession() as session,
        session.get(f"{proxy.url}/x", headers=headers) as answer,
    ):
        assert answer.status == 501
        assert "upgraded" in (await answer.json())["message"]


class Scripted:
    """An API server that is none: it answers each watch with lines, and then ends it, or breaks it off when told to."""

    def __init__(self) -> None:
        self.url = ""
        self.lines: list[bytes] = []
        self.breaks_off: anyio.Event | None = None

    async def serve(self, http: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(http)
        for line in self.lines:
            await response.write(line)
        if self.breaks_off is not None and http.transport is not None:
            await self.breaks_off.wait()
            http.transport.abort()
        return response


@pytest.fixture
async def scripted() -> AsyncIterator[Callable[[], Awaitable[Scripted]]]:
    """Makes scripted servers."""
    async with contextlib.AsyncExitStack() as stack:

        async def start() -> Scripted:
            server = Scripted()
            runner = web.ServerRunner(web.Server(server.serve))
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            return server

        yield start


def event(change: str, version: int, **annotations: str) -> bytes:
    metadata = {"name": "a", "namespace": "n", "resourceVersion": str(version), "annotations": annotations}
    obj = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}
    return orjson.dumps({"type": change, "object": obj}) + b"\n"


def through_http(server: Scripted) -> FaultProxy:
    configuration = Configuration(host=server.url)
    return FaultProxy(connect=ConnectOptions(configuration=configuration), tls=False)


async def test_drop_bookmarks_leaves_out_all_but_the_end_of_a_streaming_list(scripted: Any):
    server = await scripted()
    end = event("BOOKMARK", 2, **{"k8s.io/initial-events-end": "true"})
    server.lines = [event("ADDED", 1), end, event("BOOKMARK", 3), event("ADDED", 4), event("BOOKMARK", 5)]
    async with through_http(server) as proxy, through(proxy) as client:

        async def seen() -> list[tuple[str, str]]:
            events = client.watch(ConfigMap, namespace="n", bookmarks=True)
            return [(event.type, event.object.metadata.resource_version) async for event in events]

        whole = [("ADDED", "1"), ("BOOKMARK", "2"), ("BOOKMARK", "3"), ("ADDED", "4"), ("BOOKMARK", "5")]
        assert await seen() == whole
        with proxy.drop_bookmarks(WATCHES):
            assert await seen() == [whole[0], whole[1], whole[3]]
        assert [request.bookmarks for request in proxy.requests()] == [["3", "5"], []]


async def test_retarget_sends_later_requests_to_another_server(scripted: Any):
    first, second = await scripted(), await scripted()
    first.lines, second.lines = [event("ADDED", 1)], [event("ADDED", 2)]
    async with through_http(first) as proxy, through(proxy) as client:
        for server, version in ((first, "1"), (second, "2"), (first, "1")):
            proxy.retarget(server.url)
            assert [one.object.metadata.resource_version async for one in client.watch(ConfigMap)] == [version]


async def test_a_server_that_breaks_off_or_is_away_looks_the_same_through_the_proxy(scripted: Any):
    server = await scripted()
    server.lines, server.breaks_off = [event("ADDED", 1)], anyio.Event()
    async with through_http(server) as proxy, through(proxy) as client:
        events = client.watch(ConfigMap)
        assert (await anext(events)).object.metadata.resource_version == "1"
        server.breaks_off.set()
        with pytest.raises(ConnectionLostError):
            await anext(events)
        proxy.retarget("http://127.0.0.1:1")
        with pytest.raises(ConnectionLostError):
            await client.create(config_map("n", "a"))
        assert proxy.requests()[-1].fault == "upstream"


async def test_wait_for_fails_when_nothing_comes(proxy: FaultProxy):
    with pytest.raises(AssertionError, match="1 requests that match"):
        await proxy.wait_for("/never", timeout=0.05)


def test_every_with_block_works_from_a_test_without_an_event_loop(control_plane: ControlPlane):
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(FaultProxy(control_plane.kubeconfig)) as proxy,
    ):
        with proxy.cut(), proxy.blackhole(), proxy.refuse("/x"), proxy.drop_bookmarks():
            assert proxy.drop_connections() == 0
        assert proxy.requests() == []


async def answered(get: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Ask on a client of little patience until it gets an answer in time."""
    return await wait_until(lambda: get(*args), not_yet=(RequestTimeoutError,))


def has_ended(watch: Watching) -> Callable[[], bool]:
    return lambda: watch.ended is not None
