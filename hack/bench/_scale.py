"""Many objects in one process: how long the first sync takes, what it costs, and that nothing else suffers from it."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from hack.bench._driver import CACHES, NAMESPACE, RESOURCES, fresh_plane, submit
from hack.bench._manager import STALL
from hack.bench._process import Measured, explained_by, free_port
from hack.bench._server import Mirror, Server, samples

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"

_POLL = 0.5  # seconds between two looks at the manager's metrics, which cost it time too
_SETTLE = 5.0
_IDLE = 30.0
_STEP = 120.0
_SECONDS_PER_OBJECT = 0.1
_SUBMITTERS = 32


@dataclass(frozen=True)
class ScaleRun:
    """What was measured with so many objects, each with its ConfigMap."""

    size: int
    figures: dict[str, float]


TITLES = {
    "load": "start of the process to all Ready, none before, s",
    "sync": "restart: start of the process to both kinds in the cache, s",
    "caught_up": "restart: start of the process to every object reconciled, s",
    "writes": "restart: write requests",
    "memory_each": "memory per cached object, KiB",
    "memory": "memory, MiB",
    "stall_load_cpu": "longest stall while making all Ready, ms of CPU",
    "stall_load_wall": "longest stall while making all Ready, ms of wall clock",
    "stall_sync_cpu": "longest stall during the restart, ms of CPU",
    "stall_sync_wall": "longest stall during the restart, ms of wall clock",
    "renewal_gap": "longest time between two renewals of the Lease, s",
    "idle_writes": "write requests in 30 idle seconds",
}


@dataclass
class Renewals:
    """The renewals of the Lease, as the Lease itself tells them."""

    server: Server
    longest: float = 0.0
    _last: tuple[str, datetime] | None = field(default=None)

    async def follow(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled."""
        listed = await self.server.call("GET", LEASES)
        task_status.started()
        async for event in self.server.watch(LEASES, listed["metadata"]["resourceVersion"]):
            spec = event["object"]["spec"]
            holder = spec.get("holderIdentity")
            if not holder:
                self._last = None  # given back
                continue
            renewed = datetime.fromisoformat(spec["renewTime"])
            if self._last is not None and self._last[0] == holder:
                self.longest = max(self.longest, (renewed - self._last[1]).total_seconds())
            self._last = (holder, renewed)


@dataclass(frozen=True)
class _Manager:
    """A running manager and its metrics."""

    process: Measured
    server: Server
    port: int
    since: float

    async def values(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and values of one of its series; none while it does not serve them yet."""
        self.process.check()
        try:
            async with self.server.session.get(f"http://127.0.0.1:{self.port}/metrics") as answer:
                return samples(await answer.text(), name)
        except OSError:
            return []

    async def stall(self, clock: str) -> float:
        """Return the longest stall so far in milliseconds."""
        return 1000 * max((value for labels, value in await self.values(STALL) if labels["clock"] == clock), default=0)

    async def until(self, name: str, labels: dict[str, str], least: float, *, within: float) -> float:
        """Wait until a series has at least a value; return the seconds since the process was started."""
        with anyio.fail_after(within):
            while True:
                found = [value for other, value in await self.values(name) if labels.items() <= other.items()]
                if sum(found) >= least:
                    return time.perf_counter() - self.since
                await anyio.sleep(_POLL)


@asynccontextmanager
async def _manager(kubeconfig: Path, server: Server, log: Path) -> AsyncIterator[_Manager]:
    port = free_port()
    command = [sys.executable, "-m", "hack.bench._manager", str(port), NAMESPACE]
    since = time.perf_counter()
    process = await Measured.start(command, environment={"KUBECONFIG": str(kubeconfig)}, log=log)
    try:
        with explained_by(log):
            yield _Manager(process, server, port, since)
    finally:
        await process.stop()


async def measure_scale(size: int) -> ScaleRun:
    """Measure with so many objects, on a control plane of its own.

    Raises:
        TimeoutError: the manager did not do its work in time.
        EndedError: it ended by itself.
    """
    figures: dict[str, float] = {}
    within = _STEP + _SECONDS_PER_OBJECT * size
    done = {"controller": "modelcache", "result": "success"}
    with tempfile.TemporaryDirectory(prefix="pyreconcile-bench-") as directory:
        log = Path(directory) / "manager.log"
        async with fresh_plane(controller_manager=False) as (plane, server), anyio.create_task_group() as group:
            renewals, caches = Renewals(server), Mirror(server, CACHES, keep=False)
            await group.start(renewals.follow, name="watch of the Lease")
            async with _manager(plane.kubeconfig, server, log) as empty:
                await empty.until("leader_election_master_status", {}, 1, within=_STEP)
                await anyio.sleep(_SETTLE)
                start = empty.process.usage().memory

            await group.start(caches.follow, name="watch of ModelCaches")
            await submit(server, [f"mc-{number:06}" for number in range(size)], _SUBMITTERS)
            async with _manager(plane.kubeconfig, server, log) as manager:
                await caches.until(lambda: len(caches.ready) == size, within=within)
                figures["load"] = time.perf_counter() - manager.since
                for clock in ("cpu", "wall"):
                    figures[f"stall_load_{clock}"] = await manager.stall(clock)
                await anyio.sleep(_SETTLE)

            writes = await server.count_writes(*RESOURCES)
            async with _manager(plane.kubeconfig, server, log) as manager:
                await manager.until(
                    "pyreconcile_cache_objects", {"kind": "ModelCache.labs.example.dev"}, size, within=within
                )
                figures["sync"] = await manager.until(
                    "pyreconcile_cache_objects", {"kind": "ConfigMap"}, size, within=within
                )
                figures["caught_up"] = await manager.until(
                    "controller_runtime_reconcile_total", done, size, within=within
                )
                await anyio.sleep(_SETTLE)
                for clock in ("cpu", "wall"):
                    figures[f"stall_sync_{clock}"] = await manager.stall(clock)
                figures["writes"] = await server.count_writes(*RESOURCES) - writes
                figures["memory"] = manager.process.usage().memory
                figures["memory_each"] = (figures["memory"] - start) * 1024 / (2 * size)
                await anyio.sleep(_IDLE)
                figures["idle_writes"] = await server.count_writes(*RESOURCES) - writes - figures["writes"]
            figures["renewal_gap"] = renewals.longest
            group.cancel_scope.cancel()
    return ScaleRun(size, figures)
