"""Probes and metrics over real HTTP (rules MG-8, MG-9)."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import pytest

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.manager import Manager, ManagerOptions
from pyreconcile.manager._http import parse_address
from pyreconcile.webhook import WebhookOptions


@asynccontextmanager
async def served(manager: Manager) -> AsyncIterator[Callable[..., Any]]:
    stop = anyio.Event()
    with anyio.fail_after(20):
        async with aiohttp.ClientSession() as session, anyio.create_task_group() as tasks:
            await tasks.start(manager.run, stop)

            async def get(path: str, *, metrics: bool = False) -> tuple[int, str]:
                port = manager.metrics_port if metrics else manager.health_probe_port
                async with session.get(f"http://127.0.0.1:{port}{path}") as response:
                    return response.status, await response.text()

            yield get
            stop.set()


def fail() -> None:
    raise RuntimeError("the secret reason")


async def fail_async() -> None:
    raise RuntimeError("the secret reason")


async def hold() -> None:
    await anyio.lowlevel.checkpoint()


@pytest.mark.rules("U-64")
async def test_mg_8_ping_without_checks(local_manager: Callable[..., Any]):
    async with local_manager(health_probe_bind_address="127.0.0.1:0") as manager, served(manager) as get:
        for path in ("/healthz", "/healthz/", "/readyz", "/healthz/ping"):
            assert await get(path) == (200, "ok")
        assert await get("/healthz?verbose") == (200, "[+]ping ok\nhealthz check passed\n")
        assert (await get("/healthz/none"))[0] == 404
        assert (await get("/"))[0] == 404


@pytest.mark.rules("U-64")
async def test_mg_8_checks_paths_exclude_and_verbose(local_manager: Callable[..., Any]):
    async with local_manager(health_probe_bind_address="127.0.0.1:0") as manager:
        manager.add_readyz_check("good", hold)
        manager.add_readyz_check("bad", fail)
        manager.add_readyz_check("worse", fail_async)
        with pytest.raises(ValueError, match="'bad'"):
            manager.add_readyz_check("bad", hold)
        with pytest.raises(ValueError, match="slashes"):
            manager.add_readyz_check("a/b", hold)
        async with served(manager) as get:
            status, body = await get("/readyz")
            assert status == 500
            assert body == (
                "[-]bad failed: reason withheld\n[+]good ok\n[-]worse failed: reason withheld\nreadyz check failed\n"
            )
            assert "secret" not in body
            assert await get("/readyz/good") == (200, "ok")
            assert (await get("/readyz/bad"))[0] == 500
            assert (await get("/readyz/ping"))[0] == 404
            assert await get("/readyz?exclude=bad&exclude=worse") == (200, "ok")
            status, body = await get("/readyz?exclude=bad&exclude=worse&verbose")
            assert (status, body) == (
                200,
                "[+]bad excluded: ok\n[+]good ok\n[+]worse excluded: ok\nreadyz check passed\n",
            )
            status, body = await get("/readyz?exclude=bad&exclude=worse&exclude=typo")
            assert status == 200
            assert body == "warn: some checks cannot be excluded: no match for 'typo'\nok"
            assert await get("/healthz") == (200, "ok")
            with pytest.raises(RuntimeError, match="started"):
                manager.add_readyz_check("late", hold)
            with pytest.raises(RuntimeError, match="started"):
                manager.add_healthz_check("late", hold)


async def test_mg_8_a_readiness_check_named_webhook_takes_the_place_of_ours(local_manager: Callable[..., Any]):
    own = WebhookOptions(bind_address="127.0.0.1:0")
    async with local_manager(health_probe_bind_address="127.0.0.1:0", webhook=own) as manager:
        assert manager.webhooks is not None
        manager.webhooks.add_raw_validator(ConfigMap, lambda request: None)
        manager.add_readyz_check("webhook", fail)
        async with served(manager) as get:
            assert (await get("/readyz/webhook"))[0] == 500
    async with local_manager(health_probe_bind_address="127.0.0.1:0", webhook=own) as manager:
        manager.webhooks.add_raw_validator(ConfigMap, lambda request: None)
        async with served(manager) as get:
            assert await get("/readyz/webhook") == (200, "ok")


async def test_mg_9_metrics_are_served(local_manager: Callable[..., Any]):
    async with local_manager(metrics_bind_address="127.0.0.1:0") as manager:
        manager.metrics.controller("web")
        async with served(manager) as get:
            assert manager.health_probe_port == 0
            status, body = await get("/metrics", metrics=True)
            assert status == 200
            assert 'controller_runtime_reconcile_total{controller="web",result="success"} 0.0' in body
            assert (await get("/", metrics=True))[0] == 404
    assert manager.metrics_port == 0


async def test_mg_8_health_is_served_before_caches_are_synced(local_manager: Callable[..., Any], recorder: Any):
    async with local_manager(health_probe_bind_address="127.0.0.1:0") as manager:
        manager._lifecycle.caches.add(recorder.runnable("slow cache", up_after=3600))
        async with aiohttp.ClientSession() as session, anyio.create_task_group() as tasks:
            tasks.start_soon(manager.run)
            with anyio.fail_after(10):
                while not manager.health_probe_port:
                    await anyio.sleep(0.01)
                async with session.get(f"http://127.0.0.1:{manager.health_probe_port}/healthz") as response:
                    assert response.status == 200
            tasks.cancel_scope.cancel()


@pytest.mark.rules("U-64")
@pytest.mark.parametrize("option", ["metrics_bind_address", "health_probe_bind_address", "debug_bind_address"])
async def test_mg_9_a_port_in_use_is_an_error_at_start_that_names_the_option(
    local_manager: Callable[..., Any], recorder: Any, option: str
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with local_manager(**{option: address}) as manager:
            manager.add(recorder.runnable("worker"))
            with anyio.fail_after(10), pytest.raises(OSError, match=f"{option}: cannot listen on {address}"):
                await manager.run()
    assert recorder.log == []


async def test_mg_9_every_interface_is_the_default_host(local_manager: Callable[..., Any]):
    async with local_manager(health_probe_bind_address=":0") as manager, served(manager) as get:
        assert await get("/healthz") == (200, "ok")


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        (":8080", ("", 8080)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:80", ("::1", 80)),
        ("0", None),
        ("", None),
    ],
)
def test_addresses(address: str, parts: tuple[str, int] | None):
    assert parse_address("x", address) == parts


@pytest.mark.parametrize("address", ["8080", "localhost", ":http", "::1:80", "host:70000", "host:-1", ":"])
@pytest.mark.parametrize("option", ["metrics_bind_address", "health_probe_bind_address", "debug_bind_address"])
def test_a_bad_address_is_refused_by_the_options_name(option: str, address: str):
    with pytest.raises(ValueError, match=f"^{option}: "):
        ManagerOptions(**{option: address})


def test_bad_concurrency_is_refused_by_the_options_name():
    with pytest.raises(ValueError, match=r"^max_concurrent_reconciles: "):
        ManagerOptions(max_concurrent_reconciles=0)
    with pytest.raises(ValueError, match=r"^max_concurrent_reconciles_by_kind: 'Pod'"):
        ManagerOptions(max_concurrent_reconciles_by_kind={"Pod": 0})


async def test_mg_8_the_probes_may_be_at_other_paths(local_manager: Callable[..., Any]):
    paths = {"liveness_endpoint": "/live", "readiness_endpoint": "/live/ready"}
    async with local_manager(health_probe_bind_address="127.0.0.1:0", **paths) as manager:
        manager.add_readyz_check("bad", fail)
        async with served(manager) as get:
            assert await get("/live") == (200, "ok")
            assert await get("/live/ready") == (500, "[-]bad failed: reason withheld\nlive/ready check failed\n")
            assert (await get("/live/ready/bad"))[0] == 500
            assert (await get("/healthz"))[0] == (await get("/readyz"))[0] == 404


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"liveness_endpoint": "healthz"}, "liveness_endpoint: 'healthz' is no path"),
        ({"readiness_endpoint": "/"}, "readiness_endpoint: '/' is no path"),
        ({"readiness_endpoint": "/healthz"}, "readiness_endpoint: '/healthz' is the liveness_endpoint already"),
    ],
)
def test_mg_8_a_path_that_no_probe_can_have_is_refused(given: dict[str, str], message: str):
    with pytest.raises(ValueError, match=message):
        ManagerOptions(**given)  # type: ignore[arg-type]
