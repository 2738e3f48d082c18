"""Tells by an event what a rolling update waits for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyreconcile.api import RawObject
from pyreconcile.api.core_v1 import Pod
from pyreconcile.cache import Cache
from pyreconcile.events import EventRecorder
from pyreconcile_controllers.leaderworkerset import groups, names
from pyreconcile_controllers.leaderworkerset.reading import POD
from pyreconcile_controllers.leaderworkerset.status import UPDATE_IN_PROGRESS
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet, LeaderWorkerSetStatus
from pyreconcile_controllers.leaderworkerset.waiting import Waiting, blocking_group, find_waiting
from pyreconcile_controllers.leaderworkerset.waiting_events import REASON, WaitingEvents


def update_begun(status: LeaderWorkerSetStatus | None) -> datetime | None:
    """Return since when a rolling update is on; None when none is."""
    for condition in status.conditions if status is not None else ():
        if condition.type == UPDATE_IN_PROGRESS and condition.status == "True":
            return condition.last_transition_time
    return None


class WaitReporter:
    """Emits the events, with the words of `Waiting.note`.

    Args:
        events: emits.
        after: seconds that an update has to wait before an event says so; 0 emits none.
    """

    def __init__(self, events: EventRecorder, after: float) -> None:
        self._events = events
        self._after = after
        self._told = WaitingEvents(after)

    async def report(
        self,
        cache: Cache,
        lws: LeaderWorkerSet,
        status: LeaderWorkerSetStatus,
        key: str,
        *,
        partition: int,
        replicas: int,
        leaders: Sequence[RawObject],
        workers: Sequence[RawObject],
        now: datetime,
    ) -> float | None:
        """Look at a set, and emit an event when it is time for one.

        Args:
            cache: has the pods by group.
            lws: the set.
            status: its new status.
            key: of the revision that groups are brought to.
            partition, replicas: those of the leader StatefulSet.
            leaders: the leader pods.
            workers: the worker StatefulSets.
            now: the time of day.

        Returns:
            Seconds until it has to be called again; None while nothing waits.
        """
        begun = update_begun(status)
        waiting = None
        if begun is not None and self._after:
            waiting = await self._find(cache, lws, key, begun, partition, replicas, leaders, workers)
        if waiting is None:
            self._told.forget(lws.metadata.uid)
            return None
        verdict = self._told.look(lws.metadata.uid, waiting, now)
        if verdict.tell:
            pod = None
            if waiting.pod:
                metadata = {"name": waiting.pod, "namespace": lws.metadata.namespace}
                pod = POD.from_dict({"metadata": metadata})
            self._events.event(lws, "Normal", REASON, waiting.note, action="Update", related=pod)
        return verdict.look_again

    async def _find(
        self,
        cache: Cache,
        lws: LeaderWorkerSet,
        key: str,
        begun: datetime,
        partition: int,
        replicas: int,
        leaders: Sequence[RawObject],
        workers: Sequence[RawObject],
    ) -> Waiting | None:
        name, size = lws.metadata.name, lws.spec.leader_worker_template.size
        group = blocking_group(groups.group_states(name, replicas, size, key, leaders, workers), partition)
        if group is None:
            return None
        labels = {names.SET_NAME_LABEL: name, names.GROUP_INDEX_LABEL: str(group)}
        index = groups.group_of({"metadata": {"namespace": lws.metadata.namespace, "labels": labels}})
        members = await cache.list_raw(Pod, namespace=lws.metadata.namespace, index=(groups.BY_GROUP, index))
        own = next((item for item in workers if groups.name_of(item) == names.group_name(name, group)), None)
        return find_waiting(name, group, key, members, own, size=size, begun=begun)
