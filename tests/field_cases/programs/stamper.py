"""Stamps each Widget with who it is and a counter, while it leads.

``stamper.py KUBECONFIG NAMESPACE IDENTITY LEASE DEADLINE RETRY``; times are in seconds. A pass over a Widget named
``slow`` takes 3 s.
"""

from __future__ import annotations

import sys
from itertools import count

import anyio

from hack.field_bench.manager import manager_options
from hack.field_bench.report import say
from pyreconcile import Builder, ElectionOptions, Manager, Reconciler, Request
from pyreconcile.api import Unstructured, unstructured
from pyreconcile.cache import CacheOptions
from pyreconcile.client import MergePatch
from pyreconcile.controller import GenerationChanged

Widget = unstructured("field.example.dev/v1", "Widget")


class Stamper(Reconciler[Unstructured]):
    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._counter = count(1)

    async def reconcile(self, request: Request) -> None:
        say("pass", name=request.name)
        if request.name == "slow":
            await anyio.sleep(3)
        stamp = {"by": self._identity, "count": next(self._counter)}
        await self.client.patch(Widget, request.key, MergePatch({"status": stamp}), subresource="status")
        say("stamped", name=request.name)


async def main(kubeconfig: str, namespace: str, identity: str, lease: str, deadline: str, retry: str) -> None:
    election = ElectionOptions(
        name="lock",
        namespace=namespace,
        identity=identity,
        lease_duration=float(lease),
        renew_deadline=float(deadline),
        retry_period=float(retry),
    )
    options = manager_options(kubeconfig, CacheOptions(namespaces=(namespace,)), leader_election=election)
    async with Manager(options) as manager:
        Builder(manager).for_(Widget, predicates=[GenerationChanged()]).complete(Stamper(identity))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell_leading, manager)
            say("ready")
            await manager.run()
            say("stopped")
            tasks.cancel_scope.cancel()


async def tell_leading(manager: Manager) -> None:
    await manager.elected.wait()
    say("leading")


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
