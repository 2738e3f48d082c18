"""The manager of the scale measurements: as ``pyreconcile run`` with ModelCache, and it watches its own event loop.

Run as ``python -m hack.bench._manager PORT NAMESPACE``: metrics are served on the port, the Lease is in the namespace.
"""

from __future__ import annotations

import sys
import time

import anyio
from prometheus_client import Gauge

import pyreconcile
from hack.bench._peers import WORKERS
from pyreconcile.cli._logging import configure
from pyreconcile.election import ElectionOptions
from pyreconcile.manager import Manager, ManagerOptions
from pyreconcile_controllers.modelcache import setup

STALL = "bench_longest_stall_seconds"
_PERIOD = 0.005  # seconds between two looks at the clocks


async def watch_loop(manager: Manager, gauge: Gauge) -> None:
    """Keep the longest time between two turns of this task, beyond its sleep, in a gauge; until cancelled.

    It begins with the first informer, for what is imported before that holds up nobody. The clock of the wall counts
    what other processes took too; the thread's own CPU time is what the loop was busy.
    """
    while not manager.cache.informers:
        await anyio.sleep(_PERIOD)
    wall, cpu = gauge.labels("wall"), gauge.labels("cpu")
    longest_wall = longest_cpu = 0.0
    last_wall, last_cpu = time.monotonic(), time.thread_time()
    while True:
        await anyio.sleep(_PERIOD)
        now_wall, now_cpu = time.monotonic(), time.thread_time()
        if (late := now_wall - last_wall - _PERIOD) > longest_wall:
            wall.set(longest_wall := late)
        if (busy := now_cpu - last_cpu) > longest_cpu:
            cpu.set(longest_cpu := busy)
        last_wall, last_cpu = now_wall, now_cpu


async def run(port: int, namespace: str) -> None:
    """Run until SIGTERM."""
    options = ManagerOptions(
        leader_election=ElectionOptions(name="bench", namespace=namespace),
        metrics_bind_address=f"127.0.0.1:{port}",
        health_probe_bind_address="0",
        max_concurrent_reconciles=WORKERS,
        handle_signals=True,
    )
    async with Manager(options) as manager, anyio.create_task_group() as group:
        setup(manager)
        gauge = Gauge(STALL, "Longest stall of the event loop.", ["clock"], registry=manager.metrics.registry)
        group.start_soon(watch_loop, manager, gauge, name="watch of the event loop")
        await manager.run()
        group.cancel_scope.cancel()


if __name__ == "__main__":
    configure(level="info", log_format="json")
    pyreconcile.run(run, int(sys.argv[1]), sys.argv[2])
