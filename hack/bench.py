"""Measure the ModelCache loop from outside: ``make bench``.

A control plane of its own, ``pyreconcile run`` as a separate process, objects submitted by several clients at once. For
each object the time is taken from the watcher first seeing it until it sees status.phase Ready; CPU and memory are read
from /proc for the manager's process, so it runs on Linux only.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import click
from anyio.abc import Process
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hack.manager_process import manager_process
from pyreconcile.api import unstructured
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.client import Client, ConnectOptions, MergePatch, connect
from pyreconcile.crd import install_crds
from pyreconcile.testing import ControlPlane
from pyreconcile_controllers.modelcache import ModelCache

NAMESPACE = "bench"
_ONLY_MODELCACHE = ("--controllers", "modelcache", "--webhook-bind-address", "0")
WAIT = 300.0  # seconds that any one step may take


@dataclass
class Seen:
    """The newest state of every object of a kind, and when each was first seen, and first Ready."""

    objects: dict[str, ModelCache | ConfigMap] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    events: int = 0
    changed: anyio.Event = field(default_factory=anyio.Event)

    async def follow(self, client: Client, kind: type[ModelCache] | type[ConfigMap]) -> None:
        """Watch the kind until cancelled."""
        async for event in client.watch(kind, namespace=NAMESPACE):
            now, item = time.perf_counter(), event.object
            name = item.metadata.name
            self.events += 1
            if event.type == "DELETED":
                self.objects.pop(name, None)
            else:
                self.objects[name] = item
                self.first.setdefault(name, now)
                if isinstance(item, ModelCache) and item.status and item.status.phase == "Ready":
                    self.ready.setdefault(name, now)
            self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> float:
        """Wait until ``condition`` holds; return the seconds it took.

        Raises:
            TimeoutError: it took longer than WAIT seconds.
        """
        start = time.perf_counter()
        with anyio.fail_after(WAIT):
            while not condition():
                self.changed = anyio.Event()
                await self.changed.wait()
        return time.perf_counter() - start


@dataclass(frozen=True)
class Usage:
    """CPU seconds used so far and resident memory in MiB of one process."""

    cpu: float
    memory: float

    @classmethod
    def of(cls, process: Process) -> Usage:
        """Read a process's usage."""
        base = Path(f"/proc/{process.pid}")
        fields = (base / "stat").read_text().rpartition(") ")[2].split()
        pages = int((base / "statm").read_text().split()[1])
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return cls(cpu, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


async def _measure(client: Client, kubeconfig: Path, log: Path, count: int, submitters: int) -> dict[str, float]:
    caches, configs = Seen(), Seen()
    out: dict[str, float] = {}

    def cache(name: str) -> ModelCache:
        return ModelCache.from_dict({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"model": "tiny-llm"}})

    names = [f"mc-{number:05d}" for number in range(count)]
    remaining = iter(names)

    async def submit() -> None:
        for name in remaining:
            await client.create(cache(name))

    async with anyio.create_task_group() as group:
        group.start_soon(caches.follow, client, ModelCache, name="watch of ModelCaches")
        group.start_soon(configs.follow, client, ConfigMap, name="watch of ConfigMaps")
        await client.create(cache("probe"))
        start = time.perf_counter()
        async with manager_process(kubeconfig, *_ONLY_MODELCACHE, log=log) as process:
            await caches.until(lambda: "probe" in caches.ready)
            out["start to first Ready, s"] = time.perf_counter() - start
            await anyio.sleep(2)
            idle = Usage.of(process)
            out["memory at start, MiB"] = idle.memory
            start = time.perf_counter()
            async with anyio.create_task_group() as submission:
                for _ in range(submitters):
                    submission.start_soon(submit, name="submitter")
            await caches.until(lambda: len(caches.ready) == count + 1)
            out["all Ready, s"] = time.perf_counter() - start
            latencies = sorted(caches.ready[name] - caches.first[name] for name in names)
            out["latency p50, s"] = statistics.median(latencies)
            out["latency p99, s"] = latencies[int(0.99 * (count - 1))]
            await anyio.sleep(2)
            loaded = Usage.of(process)
            out["CPU per object, ms"] = (loaded.cpu - idle.cpu) * 1000 / count
            out["memory loaded, MiB"] = loaded.memory
            events = caches.events + configs.events
            await anyio.sleep(10)
            out["CPU while idle, %"] = (Usage.of(process).cpu - loaded.cpu) * 10
            out["writes while idle"] = caches.events + configs.events - events
            old = configs.objects["probe-cfg"].metadata.uid
            await client.delete(ConfigMap, f"{NAMESPACE}/probe-cfg")
            out["deleted child back, s"] = await configs.until(
                lambda: "probe-cfg" in configs.objects and configs.objects["probe-cfg"].metadata.uid != old
            )
            await client.patch(ModelCache, f"{NAMESPACE}/probe", MergePatch({"spec": {"replicas": 3}}))

            def replicas() -> bool:
                child = configs.objects.get("probe-cfg")
                return isinstance(child, ConfigMap) and (child.data or {}).get("replicas") == "3"

            out["spec change in child, s"] = await configs.until(replicas)
            start = time.perf_counter()
            await client.delete_all_of(ModelCache, namespace=NAMESPACE)
            await caches.until(lambda: not caches.objects)
            out["all deleted, s"] = time.perf_counter() - start
        group.cancel_scope.cancel()
    return out


async def _bench(console: Console, count: int, submitters: int, repeats: int) -> None:
    rows: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="pyreconcile-bench-") as directory:
        log = Path(directory) / "manager.log"
        for _ in track(range(repeats), description="measuring", console=console):
            async with (
                ControlPlane(controller_manager=True) as plane,
                connect(ConnectOptions(kubeconfig=plane.kubeconfig)) as client,
            ):
                await install_crds(client, [ModelCache])
                await client.create(unstructured("v1", "Namespace", namespaced=False)(metadata={"name": NAMESPACE}))
                for name, value in (await _measure(client, plane.kubeconfig, log, count, submitters)).items():
                    rows.setdefault(name, []).append(value)
    table = Table(title=f"ModelCache, {count} objects, {submitters} submitters, {repeats} runs")
    for header in ("", "median", "min", "max"):
        table.add_column(header, justify="left" if not header else "right")
    for name, values in rows.items():
        table.add_row(name, *(f"{value:.3f}" for value in (statistics.median(values), min(values), max(values))))
    console.print(table)


@click.command()
@click.option("--count", default=300, show_default=True, type=click.IntRange(1))
@click.option("--submitters", default=16, show_default=True, type=click.IntRange(1))
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1))
def main(count: int, submitters: int, repeats: int) -> None:
    """Measure the ModelCache loop on a control plane of its own."""
    anyio.run(_bench, Console(), count, submitters, repeats)


if __name__ == "__main__":
    main()
