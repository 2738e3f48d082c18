"""Keeps as many ConfigMaps of random names as a Widget asks for: ``widgets.py KUBECONFIG NAMESPACE``.

It counts the ConfigMaps that a Widget owns in its cache, and creates or deletes the difference. It has no memory of its
own, no expectations and no names that it could know again: whatever keeps it from making one too many is the framework.
"""

from __future__ import annotations

import sys

import anyio

from hack.field_bench.manager import config_maps_of, manager_options
from hack.field_bench.report import say
from pyreconcile import Builder, Manager, Reconciler, Request
from pyreconcile.api import RawObject, Unstructured, unstructured
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.controller import set_controller_reference

Widget = unstructured("field.example.dev/v1", "Widget")


def owner_of(obj: RawObject) -> list[str]:
    return [owner["uid"] for owner in obj["metadata"].get("ownerReferences") or []]


class Widgets(Reconciler[Unstructured]):
    async def reconcile(self, request: Request) -> None:
        widget = await self.client.find(Widget, request.key)
        if widget is None or widget.metadata.deletion_timestamp:
            return
        owned = await self.client.list(ConfigMap, namespace=request.namespace, index=("owner", widget.metadata.uid))
        say("pass", owned=len(owned))
        for _ in range(len(owned), widget["spec"]["replicas"]):
            child = ConfigMap(metadata={"generateName": f"{request.name}-", "namespace": request.namespace})
            set_controller_reference(child, widget)
            created = await self.client.create(child)
            say("created", name=created.metadata.name)
        for extra in owned[widget["spec"]["replicas"] :]:
            await self.client.delete(extra)


async def main(kubeconfig: str, namespace: str) -> None:
    async with Manager(manager_options(kubeconfig, config_maps_of(namespace))) as manager:
        manager.cache.add_index(ConfigMap, "owner", owner_of)
        Builder(manager).for_(Widget).owns(ConfigMap).complete(Widgets())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell_synced, manager)
            await manager.run()


async def tell_synced(manager: Manager) -> None:
    await manager.cache.wait_for_sync()
    say("synced")


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
