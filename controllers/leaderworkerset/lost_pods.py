"""Pod events: which of them wake the ``pod`` controller, and pods that are gone before it can look (LWS §7.2)."""

from __future__ import annotations

from typing import Any

from pyreconcile.api import RawObject
from pyreconcile.controller import CreateEvent, DeleteEvent, Handler, Request, RequestQueue, UpdateEvent
from pyreconcile_controllers.leaderworkerset import groups, names


class LostPods:
    """Workers that went away or were replaced under their name, as last seen, until their group was looked at.

    A pod without a grace period is gone within a millisecond of its deletion, and its StatefulSet may have made
    another of the same name before a reconcile reads the cache: the event's own object is all that tells (LWS §15.30).
    """

    def __init__(self) -> None:
        self._lost: dict[str, dict[str, RawObject]] = {}

    def add(self, pod: RawObject) -> None:
        """Remember a pod that is gone."""
        self._lost.setdefault(Request.for_object(pod).key, {})[groups.uid_of(pod)] = pod

    def of(self, key: str) -> list[RawObject]:
        """Return the pods that were lost under a name."""
        return list(self._lost.get(key, {}).values())

    def of_group(self, group: str) -> list[RawObject]:
        """Return the pods that a group lost."""
        pods = [pod for by_uid in self._lost.values() for pod in by_uid.values()]
        return [pod for pod in pods if groups.group_of(pod) == group]

    def discard(self, pod: RawObject) -> None:
        """Forget a pod: its loss has been dealt with."""
        key = Request.for_object(pod).key
        by_uid = self._lost.get(key, {})
        by_uid.pop(groups.uid_of(pod), None)
        if not by_uid:
            self._lost.pop(key, None)


class PodEvents(Handler):
    """Enqueues leaders and pods that failed; nothing follows from a worker that is well. Remembers lost workers."""

    def __init__(self, lost: LostPods) -> None:
        self._lost = lost

    def create(self, event: CreateEvent[Any], queue: RequestQueue) -> None:
        """Look at a new pod."""
        self._seen(event.raw, queue, event.priority)

    def update(self, event: UpdateEvent[Any], queue: RequestQueue) -> None:
        """Look at a changed pod; another UID means that the old one is gone and its deletion was missed."""
        if groups.uid_of(event.old_raw) != groups.uid_of(event.new_raw):
            self._gone(event.old_raw, queue)
        self._seen(event.new_raw, queue, event.priority)

    def delete(self, event: DeleteEvent[Any], queue: RequestQueue) -> None:
        """Look at a pod that is gone."""
        self._gone(event.raw, queue)

    def _seen(self, pod: RawObject, queue: RequestQueue, priority: int) -> None:
        labels = groups.labels_of(pod)
        if names.SET_NAME_LABEL not in labels:
            return
        worker = names.WORKER_INDEX_LABEL in labels and not groups.is_leader(pod)
        if not worker or groups.is_terminating(pod) or groups.pod_restarted(pod):
            queue.add(Request.for_object(pod), priority=priority)

    def _gone(self, pod: RawObject, queue: RequestQueue) -> None:
        # The leader StatefulSet makes up for a leader, and the garbage collector takes its workers.
        if names.SET_NAME_LABEL in groups.labels_of(pod) and not groups.is_leader(pod):
            self._lost.add(pod)
            queue.add(Request.for_object(pod))
