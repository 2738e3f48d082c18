"""Cares for one ConfigMap among large ones: ``memory.py KUBECONFIG NAMESPACE MODE``.

MODE says what keeps the large ones out of memory: a selector of ``labels`` or ``fields``, the ``namespace``, a cache of
``metadata`` alone, or one ``trimmed`` by a transform. ``predicate`` keeps them from handlers only.
"""

from __future__ import annotations

import sys

import anyio

from hack.field_bench.manager import manager_options
from hack.field_bench.report import asked, say
from pyreconcile import Builder, Manager, Request
from pyreconcile.api import KubeObject, RawObject, metadata_only
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import CacheOptions, KindOptions, strip_managed_fields
from pyreconcile.controller import MatchesLabels


def trim(obj: RawObject) -> RawObject:
    obj.pop("data", None)
    return strip_managed_fields(obj)


def options_of(mode: str, namespace: str) -> CacheOptions:
    by_mode = {
        "labels": KindOptions(labels="wanted=yes"),
        "fields": KindOptions(fields="metadata.name=wanted"),
        "namespace": KindOptions(namespaces=(namespace,)),
        "trimmed": KindOptions(transform=trim),
    }
    return CacheOptions(by_kind={ConfigMap: by_mode[mode]} if mode in by_mode else {}, transform=strip_managed_fields)


async def reconcile(request: Request) -> None:
    say("reconcile", name=request.name)


async def main(kubeconfig: str, namespace: str, mode: str) -> None:
    kind: type[KubeObject] = metadata_only(ConfigMap) if mode == "metadata" else ConfigMap
    options = manager_options(kubeconfig, options_of(mode, namespace))
    async with Manager(options) as manager:
        Builder(manager).for_(kind, predicates=[MatchesLabels("wanted=yes")]).complete(reconcile)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, manager, kind)
            await manager.run()
            tasks.cancel_scope.cancel()


async def answer(manager: Manager, kind: type[KubeObject]) -> None:
    async for _ in asked():
        say("cached", count=len(await manager.cache.list_raw(kind)))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
