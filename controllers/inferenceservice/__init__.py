"""InferenceService: a served model with revisions, canaries and roll-backs, on plain Deployments and HTTPRoutes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyreconcile.api import RawObject
from pyreconcile.api.apps_v1 import ControllerRevision, Deployment
from pyreconcile.api.core_v1 import Pod, Service
from pyreconcile.cache import Cache
from pyreconcile.controller import Builder, EnqueueMapped, Request, ResourceVersionChanged
from pyreconcile_controllers.inferenceservice import names
from pyreconcile_controllers.inferenceservice.controller import InferenceServiceReconciler
from pyreconcile_controllers.inferenceservice.objects import (
    BY_REVISION,
    BY_RUNTIME,
    BY_SERVICE,
    index_owned,
    index_pod,
    index_runtime,
)
from pyreconcile_controllers.inferenceservice.routes import RouteSource
from pyreconcile_controllers.inferenceservice.settings import Settings
from pyreconcile_controllers.inferenceservice.types import (
    ClusterServingRuntime,
    InferenceService,
    InferenceServiceSpec,
    InferenceServiceStatus,
    ServingRuntime,
    ServingRuntimeSpec,
)

if TYPE_CHECKING:
    from pyreconcile.manager import Manager

__all__ = [
    "MODELS",
    "ClusterServingRuntime",
    "InferenceService",
    "InferenceServiceSpec",
    "InferenceServiceStatus",
    "ServingRuntime",
    "ServingRuntimeSpec",
    "Settings",
    "setup",
]

MODELS = (InferenceService, ServingRuntime, ClusterServingRuntime)


def setup(manager: Manager, settings: Settings | None = None) -> None:
    """Register the controller ``inferenceservice``.

    Args:
        manager: runs it.
        settings: by default those that the environment gives; see `Settings.from_environment`.

    Raises:
        ValueError: the environment has a setting that cannot be used.
    """
    settings = settings or Settings.from_environment()
    cache = manager.cache
    for kind in (ControllerRevision, Deployment, Service):
        cache.add_index(kind, BY_SERVICE, index_owned)
    cache.add_index(Pod, BY_REVISION, index_pod)
    cache.add_index(InferenceService, BY_RUNTIME, index_runtime)

    routes = RouteSource(cache, manager.live_client, period=settings.discovery_period)
    changed = (ResourceVersionChanged(),)
    users = EnqueueMapped(_UsersOf(cache), raw=True)
    (
        Builder(manager)
        .for_(InferenceService)
        .owns(ControllerRevision)
        .owns(Deployment)
        .owns(Service)
        .watches(Pod, EnqueueMapped(_service_of, raw=True), predicates=changed)
        .watches(ServingRuntime, users, predicates=changed)
        .watches(ClusterServingRuntime, users, predicates=changed)
        .watches_source(routes)
        .complete(InferenceServiceReconciler(routes, settings))
    )


class _UsersOf:
    """Gives the services that use a runtime."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def __call__(self, raw: RawObject) -> Iterable[Request]:
        namespace = raw["metadata"].get("namespace", "")
        users = self._cache.informer(InferenceService).store.by_index(BY_RUNTIME, raw["metadata"]["name"])
        return [
            Request.for_object(user) for user in users if not namespace or user["metadata"]["namespace"] == namespace
        ]


def _service_of(raw: RawObject) -> Iterable[Request]:
    """Give the service that a pod serves for."""
    labels = raw["metadata"].get("labels") or {}
    name = labels.get(names.NAME_LABEL)
    return (Request(raw["metadata"]["namespace"], name),) if name and names.REVISION_LABEL in labels else ()
