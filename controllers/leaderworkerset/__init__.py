"""LeaderWorkerSet: groups of pods, each a leader with its workers, that start, fail and are updated as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyreconcile.api.apps_v1 import ControllerRevision, StatefulSet
from pyreconcile.api.core_v1 import Pod, Service
from pyreconcile.controller import Builder, EnqueueMapped, EnqueueOwner, KindSource
from pyreconcile_controllers.leaderworkerset import groups, node_loss
from pyreconcile_controllers.leaderworkerset.controller import LeaderEvents, LeaderWorkerSetReconciler, requests_of
from pyreconcile_controllers.leaderworkerset.gang_support import SupportedSource
from pyreconcile_controllers.leaderworkerset.gangs import gangs_for
from pyreconcile_controllers.leaderworkerset.lost_pods import LostPods, PodEvents
from pyreconcile_controllers.leaderworkerset.pod_controller import PodReconciler
from pyreconcile_controllers.leaderworkerset.reading import SetReader
from pyreconcile_controllers.leaderworkerset.recreation import PendingRecreations
from pyreconcile_controllers.leaderworkerset.settings import SchedulerProvider, Settings
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet, LeaderWorkerSetSpec, LeaderWorkerSetStatus
from pyreconcile_controllers.leaderworkerset.webhook import register, webhook_configurations

if TYPE_CHECKING:
    from pyreconcile.manager import Manager

__all__ = [
    "MODELS",
    "LeaderWorkerSet",
    "LeaderWorkerSetSpec",
    "LeaderWorkerSetStatus",
    "SchedulerProvider",
    "Settings",
    "setup",
    "webhook_configurations",
]

MODELS = (LeaderWorkerSet,)


def setup(manager: Manager, settings: Settings | None = None) -> None:
    """Register the controllers ``leaderworkerset`` and ``pod``, and the webhooks if the manager serves any.

    Args:
        manager: runs them.
        settings: by default those that the environment gives; see `Settings.from_environment`.

    Raises:
        ValueError: the environment has a setting that cannot be used.
    """
    settings = settings or Settings.from_environment()
    cache = manager.cache
    cache.add_index(StatefulSet, groups.BY_SET, groups.index_set)
    cache.add_index(ControllerRevision, groups.BY_SET, groups.index_revision)
    cache.add_index(Pod, groups.LEADERS_BY_SET, groups.index_leader)
    cache.add_index(Pod, groups.BY_GROUP, groups.index_group)

    # Both report as one component, as the Go controllers do (LWS §6.5).
    events = manager.recorder("leaderworkerset")
    sets = SetReader()
    gangs = gangs_for(
        settings,
        live=manager.unfenced_client.live,
        cache=cache,
        client=manager.client,
        events=events,
        namespace=next(iter(manager.options.cache.namespaces), ""),
    )
    (
        Builder(manager)
        .for_(LeaderWorkerSet)
        .owns(Service)
        .watches(StatefulSet, EnqueueMapped(requests_of, raw=True))
        .watches(Pod, LeaderEvents())
        .complete(LeaderWorkerSetReconciler(events, sets, settings=settings, gangs=gangs))
    )
    lost = LostPods()
    pods = Builder(manager).named("pod").watches(Pod, PodEvents(lost)).watches(StatefulSet, EnqueueOwner(Pod))
    pods.watches(StatefulSet, PendingRecreations())
    if gangs is not None:
        pods.watches_source(SupportedSource(gangs.support, KindSource(cache, gangs.kind, EnqueueOwner(Pod))))
    pods.complete(PodReconciler(events, sets, lost, settings=settings, gangs=gangs))
    node_loss.register(manager, events)
    if manager.webhooks is not None:
        register(manager.webhooks, settings, gangs)
