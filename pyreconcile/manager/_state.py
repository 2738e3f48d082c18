"""What a manager holds, for the debug port: read from another thread, so nothing is changed and nothing waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyreconcile.cache import Cache, Informer
from pyreconcile.manager._groups import Runnable, RunnableGroup, runnable_name


def describe_groups(groups: Iterable[RunnableGroup]) -> dict[str, list[dict[str, str]]]:
    """Describe what runs, by group: names, and the queues of those that have one, such as controllers."""
    return {group.name: [_runnable(runnable) for runnable in group.runnables] for group in groups}


def _runnable(runnable: Runnable) -> dict[str, str]:
    found = {"name": runnable_name(runnable)}
    if (queue := getattr(runnable, "queue", None)) is not None:
        found["queue"] = repr(queue)
    return found


def describe_informers(cache: Cache) -> list[dict[str, Any]]:
    """Describe the informers: what they hold, how far they are, and who has still to hear of it."""
    return [_informer(informer) for informer in cache.informers]


def _informer(informer: Informer[Any]) -> dict[str, Any]:
    return {
        "kind": str(informer.kind.resource.gvk),
        "synced": informer.has_synced,
        "objects": len(informer.store),
        "resource_version": informer.last_resource_version,
        "handlers": [
            {
                "name": one.name,
                "synced": one.has_synced,
                "backlog": one.backlog,
                "errors": one.errors,
                "failing": one.failing,
            }
            for one in informer.registrations
        ],
        "reflectors": [
            {
                "namespace": part.scope.namespace,
                "version": reflector.version,
                "silent_seconds": round(reflector.silent_for, 3),
                "last_error": repr(reflector.last_error) if reflector.last_error is not None else None,
            }
            for part, reflector in zip(informer.parts, informer.reflectors, strict=True)
        ],
    }
