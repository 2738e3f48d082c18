"""The debug port answers while the loop is blocked; servers end in time (rule MG-11); how late the loop is."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import tracemalloc
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from aiohttp import web

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.controller import Builder
from pyreconcile.manager import ManagerOptions
from pyreconcile.manager._http import SHUTDOWN, HttpServer
from pyreconcile.manager._loop_monitor import LoopMonitor
from pyreconcile.testing import eventually, running


def fetch(port: int, path: str, method: str = "GET") -> Any:
    """Blocks: for threads."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    with urllib.request.urlopen(request, timeout=20) as response:
        body = response.read().decode()
        return json.loads(body) if response.headers["Content-Type"].startswith("application/json") else body


async def read(port: int, path: str, method: str = "GET") -> Any:
    return await anyio.to_thread.run_sync(fetch, port, path, method)


@pytest.fixture
def debugged(local_manager: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **options: local_manager(debug_bind_address="127.0.0.1:0", **options)


async def test_mg_11_it_is_off_by_default():
    assert ManagerOptions().debug_bind_address == "0"


async def test_mg_11_tasks_show_what_each_waits_for(debugged: Callable[..., Any], recorder: Any):
    async def wait_for_the_bus() -> None:
        await anyio.sleep_forever()

    async with debugged() as manager:
        manager.add(recorder.runnable("worker"))
        async with running(manager), anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(wait_for_the_bus, name=f"passenger {number}")
            await anyio.sleep(0.05)
            dump = await read(manager.debug_port, "/debug/tasks")
            tasks.cancel_scope.cancel()
    assert "3 tasks: passenger 0, passenger 1, passenger 2\n" in dump
    assert "wait_for_the_bus" in dump
    assert "thread 'MainThread'" in dump
    assert "worker" in dump


async def test_mg_11_a_blocked_loop_is_seen_with_its_place(debugged: Callable[..., Any]):
    found: dict[str, Any] = {}

    def look(port: int) -> None:
        found["loop"] = fetch(port, "/debug/loop")
        found["state"] = fetch(port, "/debug/state")

    def compute_far_too_long() -> None:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            pass

    async with debugged() as manager, running(manager):

        async def prompt() -> Any:
            answer = await read(manager.debug_port, "/debug/loop")
            return answer if answer["lag_seconds"] < 0.2 else None

        free = await eventually(prompt)
        assert free["answered"]
        assert free["blocked_at"] is None
        for _ in range(5):  # a busy machine may look when the loop is free again
            asker = threading.Thread(target=look, args=(manager.debug_port,))
            asker.start()
            compute_far_too_long()
            await anyio.to_thread.run_sync(asker.join)
            if found["loop"]["lag_seconds"] > 0.3 and "compute_far_too_long" in str(found["loop"]["blocked_at"]):
                break
    assert found["loop"]["lag_seconds"] > 0.3
    assert any("compute_far_too_long" in place for place in found["loop"]["blocked_at"])
    assert found["state"]["leading"]


async def test_mg_11_memory_and_where_it_is_allocated(debugged: Callable[..., Any]):
    async with debugged() as manager, running(manager):
        memory = await read(manager.debug_port, "/debug/memory")
        assert memory["resident_bytes"] > 1_000_000
        assert memory["objects"]["function"] > 100
        assert memory["tracing"] is False
        assert (await read(manager.debug_port, "/debug/memory/trace", "POST"))["tracing"]
        try:
            kept = [bytes(1000) for _ in range(2000)]
            memory = await read(manager.debug_port, "/debug/memory")
            assert len(kept) == 2000
        finally:
            ended = await read(manager.debug_port, "/debug/memory/trace", "DELETE")
        assert "test_debug.py" in memory["allocations"][0]["at"]
        assert memory["traced_bytes"] > 2_000_000
        assert not ended["tracing"]
    assert not tracemalloc.is_tracing()


@pytest.fixture
def manager_options(manager_options: ManagerOptions) -> ManagerOptions:
    from dataclasses import replace

    return replace(manager_options, debug_bind_address="127.0.0.1:0")


@pytest.mark.plane
async def test_mg_11_state_of_queues_and_informers(manager: Any, client: Any, namespace: str):
    async def look(request: Any) -> None:
        pass

    await client.create(ConfigMap.from_dict({"metadata": {"name": "secret-name", "namespace": namespace}}))
    Builder(manager).for_(ConfigMap).named("debugged").complete(look)

    async def synced() -> Any:
        state = await read(manager.debug_port, "/debug/state")
        informers = state["informers"]
        told = all(one["synced"] and not any(to["backlog"] for to in one["handlers"]) for one in informers)
        return state if informers and told else None

    async with running(manager):
        state = await eventually(synced)
    [controller] = state["runnables"]["leader-only"]
    assert controller["name"] == "debugged"
    assert controller["queue"].startswith("<PriorityQueue 'debugged' ready=")
    [informer] = state["informers"]
    assert "ConfigMap" in informer["kind"]
    assert informer["synced"]
    assert informer["objects"] >= 1
    assert informer["handlers"][0]["backlog"] == 0
    assert informer["reflectors"][0]["namespace"] == namespace
    assert informer["reflectors"][0]["last_error"] is None
    assert "secret-name" not in json.dumps(state)


async def test_mg_11_a_profile_shows_where_the_time_goes(debugged: Callable[..., Any]):
    folded: list[str] = []

    def burn() -> None:
        end = time.monotonic() + 0.03
        while time.monotonic() < end:
            pass

    async with debugged() as manager, running(manager):
        asker = threading.Thread(target=lambda: folded.append(fetch(manager.debug_port, "/debug/profile?seconds=0.4")))
        asker.start()
        while asker.is_alive():
            burn()
            await anyio.lowlevel.checkpoint()
        for bad in ("nonsense", "0", "-1", "1000", "nan"):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                await read(manager.debug_port, f"/debug/profile?seconds={bad}")
    assert "burn" in folded[0]
    stack, _, count = folded[0].splitlines()[0].rpartition(" ")
    assert ";" in stack
    assert int(count) > 0


async def test_mg_11_the_index_names_the_pages_and_an_unknown_one_is_404(debugged: Callable[..., Any]):
    async with debugged() as manager, running(manager):
        for path in ("/", "/debug", "/debug/"):
            assert "/debug/tasks" in await read(manager.debug_port, path)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            await read(manager.debug_port, "/debug/secrets")
    assert manager.debug_port == 0


@pytest.mark.rules("MG-11")
async def test_mg_11_a_web_page_cannot_use_it(debugged: Callable[..., Any]):
    def headers_of(port: int) -> list[tuple[dict[str, str], int]]:
        return [
            ({}, 200),
            ({"Host": f"localhost:{port}"}, 200),
            ({"Host": f"[::1]:{port}", "Sec-Fetch-Site": "none"}, 200),
            ({"Host": f"rebound.example:{port}"}, 403),
            ({"Host": "[broken"}, 403),
            ({"Host": ""}, 403),
            ({"Origin": "https://page.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
        ]

    async with debugged() as manager, running(manager), aiohttp.ClientSession() as session:
        for headers, status in headers_of(manager.debug_port):
            url = f"http://127.0.0.1:{manager.debug_port}/debug/memory/trace"
            async with session.delete(url, headers=headers) as response:
                assert (headers, response.status) == (headers, status)


@pytest.mark.parametrize(("address", "warned"), [("127.0.0.1:0", False), (":0", True), ("0.0.0.0:0", True)])
async def test_mg_11_on_every_interface_it_warns(
    local_manager: Callable[..., Any], capsys: pytest.CaptureFixture[str], address: str, warned: bool
):
    async with local_manager(debug_bind_address=address) as manager, running(manager):
        pass
    assert ("debug_port_open_to_all" in capsys.readouterr().out) is warned


async def test_mg_11_its_thread_ends_with_the_manager_even_while_a_profile_runs(debugged: Callable[..., Any]):
    before = threading.active_count()

    def ask(port: int) -> None:
        with pytest.raises((OSError, urllib.error.URLError)):
            fetch(port, "/debug/profile?seconds=60")

    with anyio.fail_after(10):
        async with debugged() as manager, running(manager):
            asker = threading.Thread(target=ask, args=(manager.debug_port,))
            asker.start()
            await anyio.sleep(0.2)
        await anyio.to_thread.run_sync(asker.join)
        while threading.active_count() > before + 2:  # anyio keeps a worker or two for later
            await anyio.sleep(0.01)


async def test_mg_11_http_servers_let_requests_end_for_a_minute_at_most():
    assert SHUTDOWN == 60
    for wants, limit, answered in ((0.3, SHUTDOWN, True), (30.0, 0.3, False)):
        stop, asked, results = anyio.Event(), anyio.Event(), []

        async def slow(
            request: web.BaseRequest, asked: anyio.Event = asked, wants: float = wants
        ) -> web.StreamResponse:
            asked.set()
            await anyio.sleep(wants)
            return web.Response(text="done")

        server = HttpServer("slow", option="x", address="127.0.0.1:0", handler=slow, shutdown_timeout=limit)

        async def ask(server: HttpServer = server, results: list[str] = results) -> None:
            async with aiohttp.ClientSession() as session:
                try:
                    async with session.get(f"http://127.0.0.1:{server.port}/") as response:
                        results.append(await response.text())
                except aiohttp.ClientError:
                    results.append("cut off")

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                await tasks.start(server.run, stop)
                tasks.start_soon(ask)
                await asked.wait()
                stop.set()
        assert results == (["done"] if answered else ["cut off"])


@pytest.mark.rules("MG-5")
async def test_without_grace_a_running_request_is_cut_off_at_once():
    asked = anyio.Event()

    async def slow(request: web.BaseRequest) -> web.StreamResponse:
        asked.set()
        await anyio.sleep_forever()
        return web.Response()

    server = HttpServer("slow", option="x", address="127.0.0.1:0", handler=slow)

    async def ask() -> None:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://127.0.0.1:{server.port}/")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as asking, anyio.create_task_group() as serving:
            await serving.start(server.run, anyio.Event())
            asking.start_soon(ask)
            await asked.wait()
            serving.cancel_scope.cancel()


@pytest.mark.rules("MT-27")
async def test_the_monitor_tells_how_late_the_loop_is(local_manager: Callable[..., Any]):
    lags: list[float] = []
    stop = anyio.Event()
    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        await tasks.start(LoopMonitor(lags.append, interval=0.05).run, stop)
        time.sleep(0.4)  # noqa: ASYNC251 - this is what is measured
        while not lags:
            await anyio.sleep(0.01)
        took = time.monotonic() - began
        stop.set()
    assert 0.34 < lags[0] < took - 0.04


@pytest.mark.rules("MT-27")
@pytest.mark.looptime
async def test_a_manager_with_metrics_measures_the_loop_once_a_second(local_manager: Callable[..., Any]):
    from pyreconcile.metrics import Metrics

    metrics = Metrics()
    monitor = LoopMonitor(metrics.loop_lag, clock=lambda: asyncio.get_running_loop().time())
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(monitor.run, stop)
        await anyio.sleep(10.5)
        stop.set()
    assert metrics.registry.get_sample_value("pyreconcile_event_loop_lag_seconds_count") == 10
    async with local_manager(metrics_bind_address="127.0.0.1:0") as manager:
        assert "event-loop monitor" in [one.name for one in manager._lifecycle.others.runnables]
    async with local_manager() as manager:
        assert manager._lifecycle.others.runnables == []
