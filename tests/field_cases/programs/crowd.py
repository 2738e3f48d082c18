"""One worker, 50 ms a pass, more work than it can do: ``crowd.py KUBECONFIG NAMESPACE [fifo]``.

Objects labelled ``busy=yes`` ask for a rerun in 1 s after each pass. With ``fifo`` the queue knows no priorities.
"""

from __future__ import annotations

import sys

import anyio

from hack.field_bench.manager import config_maps_of, manager_options
from hack.field_bench.report import say
from pyreconcile import Builder, Manager, Reconciler, Request, Result
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.controller import ControllerOptions


class Crowd(Reconciler[ConfigMap]):
    async def reconcile(self, request: Request) -> Result | None:
        obj = await self.client.get(ConfigMap, request.key)
        say("pass", name=request.name, version=obj.metadata.resource_version)
        await anyio.sleep(0.05)
        return Result(requeue_after=1) if (obj.metadata.labels or {}).get("busy") == "yes" else None


async def main(kubeconfig: str, namespace: str, queue: str = "") -> None:
    async with Manager(manager_options(kubeconfig, config_maps_of(namespace))) as manager:
        builder = Builder(manager).for_(ConfigMap)
        builder.with_options(ControllerOptions(use_priority_queue=queue != "fifo")).complete(Crowd())
        await manager.run()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
