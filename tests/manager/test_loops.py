"""A whole program on asyncio's event loop and on uvloop's (PX-7)."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import ssl
import threading
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

import pyreconcile
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import CacheOptions
from pyreconcile.certs import CertificateAuthority, TLSOptions
from pyreconcile.client import ConnectOptions, MergePatch, connect
from pyreconcile.controller import Builder, Request
from pyreconcile.election import ElectionOptions
from pyreconcile.manager import Manager, ManagerOptions, run
from pyreconcile.testing import ControlPlane, eventually
from pyreconcile.webhook import WebhookOptions, admission_review

LOOPS = {"asyncio": "asyncio.unix_events", "uvloop": "uvloop"}


async def name_of_loop(*more: str) -> tuple[str, ...]:
    return (type(asyncio.get_running_loop()).__module__, *more)


@pytest.mark.parametrize("loop", LOOPS)
def test_run_takes_the_loop_that_is_asked_for_and_returns_the_result(loop: Any):
    module, argument = run(name_of_loop, "argument", loop=loop)
    assert module.startswith(LOOPS[loop])
    assert argument == "argument"
    assert pyreconcile.run is run


def test_auto_is_uvloop_when_it_is_installed(monkeypatch: pytest.MonkeyPatch):
    assert run(name_of_loop)[0].startswith("uvloop")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(name_of_loop)[0].startswith("asyncio")
    with pytest.raises(ValueError, match=r"^loop: uvloop is not installed; 'pip install"):
        run(name_of_loop, loop="uvloop")
    with pytest.raises(ValueError, match=r"^loop: 'trio' must be one of auto, asyncio, uvloop"):
        run(name_of_loop, loop="trio")  # type: ignore[arg-type]


def write_pair(folder: Path) -> bytes:
    authority = CertificateAuthority()
    pair = authority.issue(["localhost"])
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    return authority.certificate


async def whole_program(kubeconfig: Path, namespace: str, folder: Path) -> list[str]:
    """Elect, reconcile, serve everything, take up a new certificate, and stop on a signal."""
    trust = write_pair(folder)
    options = ManagerOptions(
        connect=ConnectOptions(kubeconfig=kubeconfig),
        cache=CacheOptions(namespaces=(namespace,)),
        leader_election=ElectionOptions(name="lock", namespace=namespace, identity="a"),
        metrics_bind_address="127.0.0.1:0",
        metrics_tls=TLSOptions(cert_dir=folder),
        health_probe_bind_address="127.0.0.1:0",
        debug_bind_address="127.0.0.1:0",
        webhook=WebhookOptions(bind_address="127.0.0.1:0"),
        handle_signals=True,
    )
    seen: list[str] = []
    async with Manager(options) as manager, connect(kubeconfig=kubeconfig) as client:

        async def reconcile(request: Request) -> None:
            found = await manager.client.find(ConfigMap, request.key)
            if found is None:
                seen.append(f"{request.name} is gone")
            elif "echo" in found.metadata.labels and (found.data or {}).get("echo") != found.metadata.labels["echo"]:
                patch = MergePatch({"data": {"echo": found.metadata.labels["echo"]}})
                await manager.client.patch(ConfigMap, request.key, patch)

        Builder(manager).for_(ConfigMap).named(f"echo-{namespace}").complete(reconcile)
        assert manager.webhooks is not None
        manager.webhooks.add_raw_validator(ConfigMap, lambda request: None)
        async with anyio.create_task_group() as tasks:
            await tasks.start(manager.run)
            await manager.elected.wait()
            metadata = {"name": "a", "namespace": namespace, "labels": {"echo": "one"}}
            created = await client.create(ConfigMap.from_dict({"metadata": metadata}))

            async def echoes(text: str) -> bool:
                return ((await client.get(ConfigMap, created.key)).data or {}).get("echo") == text

            await eventually(lambda: echoes("one"))
            await client.patch(ConfigMap, created.key, MergePatch({"metadata": {"labels": {"echo": "two"}}}))
            await eventually(lambda: echoes("two"))
            await client.delete(ConfigMap, created.key)
            await eventually(lambda: "a is gone" in seen)
            ports = (manager.health_probe_port, manager.debug_port)
            urls = [f"http://127.0.0.1:{ports[0]}/readyz", f"http://127.0.0.1:{ports[1]}/debug/loop"]
            async with aiohttp.ClientSession() as session:
                for url in urls:
                    async with session.get(url) as response:
                        assert response.status == 200, url
            await metrics_trusted_by(manager, trust)
            await metrics_trusted_by(manager, write_pair(folder))
            hook = f"https://127.0.0.1:{manager.webhooks.port}/validate--v1-configmap"
            trusted = ssl.create_default_context(cadata=manager.webhooks.ca_bundle.decode())
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as session,
                session.post(hook, json=admission_review(created)) as response,
            ):
                assert (await response.json())["response"]["allowed"]
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    return seen


async def metrics_trusted_by(manager: Manager, authority: bytes) -> None:
    context = ssl.create_default_context(cadata=authority.decode())

    async def trusted() -> bool:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            try:
                async with session.get(f"https://localhost:{manager.metrics_port}/metrics") as response:
                    return b"workqueue_adds_total" in await response.read()
            except aiohttp.ClientError:
                return False

    await eventually(trusted)


@pytest.mark.plane
@pytest.mark.parametrize("loop", LOOPS)
def test_px_7_a_whole_program_runs_on_either_loop(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, loop: Any
):
    seen = run(whole_program, control_plane.kubeconfig, namespace, tmp_path, loop=loop)
    assert "a is gone" in seen


@pytest.mark.rules("MG-7", "PX-7")
@pytest.mark.parametrize("loop", LOOPS)
def test_mg_7_a_second_signal_ends_a_blocked_uvloop_too(loop: Any):
    import time

    from kubernetes_asyncio.client import Configuration

    exits: list[int] = []

    async def main() -> None:
        options = ManagerOptions(
            connect=ConnectOptions(configuration=Configuration(host="http://127.0.0.1:1")),
            metrics_bind_address="0",
            health_probe_bind_address="0",
            handle_signals=True,
        )
        async with Manager(options, exit_process=exits.append) as manager, anyio.create_task_group() as tasks:
            await tasks.start(manager.run)
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
            for _ in range(300):
                time.sleep(0.01)  # noqa: ASYNC251 - the loop is blocked on purpose
                if exits:
                    break

    run(main, loop=loop)
    assert exits == [1]
