"""Caches one kind and tells every call of a handler: ``informer.py KUBECONFIG NAMESPACE KIND [LABELS]``.

KIND is ``configmaps``, ``deployments`` or ``GROUP/VERSION/KIND``. It tells each reconcile too, and one of the owner of
each object, which only the object's owner references can name. Asked for ``cached``, it tells the names in the cache;
asked for ``healthy`` and ``metrics``, what the cache says of itself.
"""

from __future__ import annotations

import sys

import anyio
from prometheus_client import generate_latest

from hack.field_bench.manager import manager_options
from hack.field_bench.report import asked, say
from pyreconcile import Builder, Manager, Request
from pyreconcile.api import KubeObject, RawObject, unstructured
from pyreconcile.api.apps_v1 import Deployment
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import CacheOptions, CacheUnhealthyError, KindOptions

KINDS: dict[str, type[KubeObject]] = {"configmaps": ConfigMap, "deployments": Deployment}


class Telling:
    """An event handler that tells what it is called with."""

    def on_add(self, obj: RawObject, *, initial: bool) -> None:
        say("add", name=obj["metadata"]["name"], initial=initial)

    def on_update(self, old: RawObject, new: RawObject) -> None:
        say("update", name=new["metadata"]["name"])

    def on_delete(self, obj: RawObject, *, state_unknown: bool) -> None:
        metadata = obj["metadata"]
        owners = [owner["name"] for owner in metadata.get("ownerReferences") or []]
        say("delete", name=metadata["name"], labels=metadata.get("labels"), owners=owners)


async def reconcile(request: Request) -> None:
    say("reconcile", name=request.name)


async def reconcile_owner(request: Request) -> None:
    say("reconcile owner", name=request.name)


def owners_of(obj: KubeObject) -> list[Request]:
    return [Request(obj.metadata.namespace, owner.name) for owner in obj.metadata.owner_references or []]


async def answer(manager: Manager, kind: type[KubeObject]) -> None:
    async for question in asked():
        if question == "cached":
            names = [obj["metadata"]["name"] for obj in await manager.cache.list_raw(kind)]
            say("cached", names=sorted(names))
        elif question == "healthy":
            try:
                manager.cache.check()
            except CacheUnhealthyError as error:
                say("healthy", healthy=False, why=str(error))
            else:
                say("healthy", healthy=True, why="")
        else:
            say("metrics", text=generate_latest(manager.metrics.registry).decode())


async def main(kubeconfig: str, namespace: str, kind_name: str, labels: str = "") -> None:
    kind = KINDS.get(kind_name) or unstructured(*kind_name.rsplit("/", 1))
    # kube-root-ca.crt comes by itself some time after its namespace.
    mine = KindOptions(labels=labels, fields="metadata.name!=kube-root-ca.crt")
    options = manager_options(kubeconfig, CacheOptions(namespaces=(namespace,), by_kind={kind: mine}))
    async with Manager(options) as manager:
        registration = manager.cache.informer(kind).add_handler(Telling())
        Builder(manager).for_(kind).complete(reconcile)
        Builder(manager).named("owners").watches(kind, owners_of).complete(reconcile_owner)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, manager, kind)
            tasks.start_soon(tell_synced, registration)
            await manager.run()
            tasks.cancel_scope.cancel()


async def tell_synced(registration) -> None:
    await registration.wait_synced()
    say("synced")


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
