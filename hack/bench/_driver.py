"""One run: a fresh control plane, one peer as a process beside it, and what an outsider can measure."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from hack.bench._peers import Peer
from hack.bench._process import Measured, explained_by, free_port
from hack.bench._server import Mirror, Server
from hack.raw_server import MERGE_PATCH, RefusedError
from pyreconcile.client import ConnectOptions, connect
from pyreconcile.crd import install_crds
from pyreconcile.testing import ControlPlane
from pyreconcile_controllers.modelcache import ModelCache

NAMESPACE = "bench"
CACHES = f"/apis/labs.example.dev/v1/namespaces/{NAMESPACE}/modelcaches"
CONFIGS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
RESOURCES = ("modelcaches", "configmaps")

_SETTLE = 2.0  # seconds between the last change and reading what a process used
_STEP = 120.0  # seconds that one step on one object may take
_SECONDS_PER_OBJECT = 0.5  # and that a load may take, beside a step's


@dataclass(frozen=True)
class Options:
    """The shape of a run."""

    submitters: int = 16
    latency_objects: int = 300
    idle_seconds: float = 10.0


@dataclass(frozen=True)
class Run:
    """What one run measured: figures by the names in `hack.bench._report`, and each object's latency in seconds."""

    peer: str
    size: int
    figures: dict[str, float]
    latencies: list[float]


def model_cache(name: str, replicas: int = 1) -> dict[str, Any]:
    """Return a ModelCache as JSON."""
    return {
        "apiVersion": "labs.example.dev/v1",
        "kind": "ModelCache",
        "metadata": {"name": name},
        "spec": {"model": "tiny-llm", "replicas": replicas},
    }


@asynccontextmanager
async def fresh_plane(*, controller_manager: bool) -> AsyncIterator[tuple[ControlPlane, Server]]:
    """Run a control plane of its own, with the CRD served and the namespace there before any peer starts."""
    async with ControlPlane(controller_manager=controller_manager, use_existing=False) as plane:
        async with connect(ConnectOptions(kubeconfig=plane.kubeconfig)) as client:
            await install_crds(client, [ModelCache])
        async with Server.connect(plane.kubeconfig) as server:
            await server.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            yield plane, server


async def submit(server: Server, names: list[str], submitters: int) -> None:
    """Create ModelCaches of these names, by so many submitters at once."""
    remaining = iter(names)

    async def work() -> None:
        for name in remaining:
            await server.call("POST", CACHES, model_cache(name))

    async with anyio.create_task_group() as group:
        for _ in range(submitters):
            group.start_soon(work, name="submitter")


async def measure(peer: Peer, size: int, options: Options) -> Run:
    """Measure a peer once with so many objects.

    Raises:
        TimeoutError: it did not do its work in time.
        EndedError: its process ended by itself.
    """
    with tempfile.TemporaryDirectory(prefix="pyreconcile-bench-") as directory:
        async with fresh_plane(controller_manager=True) as (plane, server), anyio.create_task_group() as group:
            driver = _Driver(peer, plane.kubeconfig, server, Path(directory) / "peer.log", options, group)
            await group.start(driver.caches.follow, name="watch of ModelCaches")
            await group.start(driver.configs.follow, name="watch of ConfigMaps")
            try:
                with explained_by(driver.log):
                    await driver.run(size)
            finally:
                await driver.stop()
            group.cancel_scope.cancel()
    return Run(peer.name, size, driver.figures, driver.latencies)


class _Driver:
    def __init__(
        self, peer: Peer, kubeconfig: Path, server: Server, log: Path, options: Options, group: TaskGroup
    ) -> None:
        self._peer, self._kubeconfig, self._server, self.log, self._options = peer, kubeconfig, server, log, options
        self._group = group
        self._process: Measured | None = None
        self._expected = 0  # objects that some step has waited for
        self.caches, self.configs = Mirror(server, CACHES), Mirror(server, CONFIGS)
        self.figures: dict[str, float] = {}
        self.latencies: list[float] = []

    @property
    def _running(self) -> Measured:
        assert self._process is not None
        return self._process

    async def _start(self) -> None:
        command = self._peer.command(free_port())
        self._process = await Measured.start(command, environment={"KUBECONFIG": str(self._kubeconfig)}, log=self.log)
        self._group.start_soon(self._guard, self._process, name="guard of the peer")

    async def _guard(self, process: Measured) -> None:
        await process.process.wait()
        if self._process is process:
            process.check()

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.stop()

    async def run(self, size: int) -> None:
        await self._first()
        await self._latency()
        await self._load(size)
        await self._idle()
        await self._repairs()
        await self._restart()
        await self._delete_all()

    async def _first(self) -> None:
        await self._server.call("POST", CACHES, model_cache("probe"))
        start = time.perf_counter()
        await self._start()
        await self._ready(1)
        self.figures["first_ready"] = time.perf_counter() - start
        await anyio.sleep(_SETTLE)
        self.figures["memory_start"] = self._running.usage().memory

    async def _latency(self) -> None:
        names = [f"latency-{number:05}" for number in range(self._options.latency_objects)]
        await submit(self._server, names, 1)
        await self._ready(len(names))
        self.latencies = [self.caches.ready[name] - self.caches.first[name] for name in names]

    async def _load(self, size: int) -> None:
        await anyio.sleep(_SETTLE)
        before, writes = self._running.usage(), await self._server.count_writes(*RESOURCES)
        names = [f"load-{number:05}" for number in range(size)]
        start = time.perf_counter()
        async with anyio.create_task_group() as group:
            group.start_soon(submit, self._server, names, self._options.submitters)
            await self._ready(size)
        self.figures["all_ready"] = time.perf_counter() - start
        await anyio.sleep(_SETTLE)
        after = self._running.usage()
        self.figures["cpu"] = (after.cpu - before.cpu) * 1000 / size
        self.figures["memory_loaded"] = after.memory
        self.figures["writes"] = (await self._server.count_writes(*RESOURCES) - writes - size) / size

    async def _idle(self) -> None:
        before, writes = self._running.usage(), await self._server.count_writes(*RESOURCES)
        await anyio.sleep(self._options.idle_seconds)
        self.figures["idle_cpu"] = (self._running.usage().cpu - before.cpu) * 100 / self._options.idle_seconds
        self.figures["idle_writes"] = await self._server.count_writes(*RESOURCES) - writes

    async def _repairs(self) -> None:
        old = self.configs.objects["probe-cfg"]["metadata"]["uid"]
        start = time.perf_counter()
        await self._server.call("DELETE", f"{CONFIGS}/probe-cfg")
        await self.configs.until(
            lambda: self.configs.objects.get("probe-cfg", {}).get("metadata", {}).get("uid") not in (None, old),
            within=_STEP,
        )
        self.figures["child_back"] = time.perf_counter() - start
        start = time.perf_counter()
        await self._change(3)
        await self._child_has(3)
        self.figures["spec_change"] = time.perf_counter() - start

    async def _restart(self) -> None:
        await self.stop()
        await self._change(5)
        start = time.perf_counter()
        await self._start()
        await self._child_has(5)
        self.figures["restart"] = time.perf_counter() - start

    async def _delete_all(self) -> None:
        start, count = time.perf_counter(), len(self.caches.objects)
        async with anyio.create_task_group() as group:
            group.start_soon(self._delete_collection)
            await self.caches.until(lambda: not self.caches.objects, within=_STEP + _SECONDS_PER_OBJECT * count)
        self.figures["all_deleted"] = time.perf_counter() - start

    async def _delete_collection(self) -> None:
        # The server ends a request after a minute, with the collection half deleted.
        while True:
            try:
                await self._server.call("DELETE", CACHES)
            except RefusedError as error:
                if error.code != HTTPStatus.GATEWAY_TIMEOUT:
                    raise
            else:
                return

    async def _ready(self, more: int) -> None:
        self._expected += more
        limit = _STEP + _SECONDS_PER_OBJECT * more
        await self.caches.until(lambda: len(self.caches.ready) >= self._expected, within=limit)

    async def _change(self, replicas: int) -> None:
        await self._server.call("PATCH", f"{CACHES}/probe", {"spec": {"replicas": replicas}}, content_type=MERGE_PATCH)

    async def _child_has(self, replicas: int) -> None:
        def so() -> bool:
            child = self.configs.objects.get("probe-cfg", {})
            return bool(child.get("data", {}).get("replicas") == str(replicas))

        await self.configs.until(so, within=_STEP)
