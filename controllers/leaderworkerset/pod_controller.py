"""The ``pod`` controller: a worker StatefulSet per leader, and groups that fail as one (LWS §7)."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from pyreconcile.api import RawObject
from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import Node, Pod
from pyreconcile.client import AlreadyExistsError, ApiError, Client
from pyreconcile.controller import (
    CreateEvent,
    DeleteEvent,
    Handler,
    Reconciler,
    Request,
    RequestQueue,
    Result,
    TerminalError,
    UpdateEvent,
    controller_of,
)
from pyreconcile.events import EventRecorder
from pyreconcile_controllers.leaderworkerset import groups, names
from pyreconcile_controllers.leaderworkerset.controller import ensure_service
from pyreconcile_controllers.leaderworkerset.history import History
from pyreconcile_controllers.leaderworkerset.objects import (
    headless_service,
    is_unique_per_replica,
    worker_stateful_set,
)
from pyreconcile_controllers.leaderworkerset.revision import restore
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

_REVISION_RETRY = 1.0
"""Seconds until another look for a leader's revision that is not stored yet (LWS §7.1)."""
_RECREATING = ("RecreateGroupOnPodRestart", "RecreateGroupAfterStart")


class TopologyError(Exception):
    """The node of a leader does not tell where its workers have to go."""


class LostPods:
    """Workers that went away or were replaced under their name, as last seen, until their group was looked at.

    A pod without a grace period is gone within a millisecond of its deletion, and its StatefulSet may have made
    another of the same name before a reconcile reads the cache: the event's own object is all that tells (LWS §15.30).
    """

    def __init__(self) -> None:
        self._lost: dict[str, dict[str, RawObject]] = {}

    def add(self, raw: RawObject) -> None:
        """Remember a pod that is gone."""
        self._lost.setdefault(Request.for_object(raw).key, {})[raw["metadata"]["uid"]] = raw

    def of(self, key: str) -> list[Pod]:
        """Return the pods that were lost under a name."""
        return [Pod.from_dict(raw) for raw in self._lost.get(key, {}).values()]

    def of_group(self, group: str) -> list[Pod]:
        """Return the pods that a group lost."""
        raws = [raw for by_uid in self._lost.values() for raw in by_uid.values()]
        return [Pod.from_dict(raw) for raw in raws if group in groups.index_group(raw)]

    def discard(self, pod: Pod) -> None:
        """Forget a pod: its loss has been dealt with."""
        by_uid = self._lost.get(pod.key, {})
        by_uid.pop(pod.metadata.uid, None)
        if not by_uid:
            self._lost.pop(pod.key, None)


class PodEvents(Handler):
    """Enqueues leaders and pods that failed; nothing follows from a worker that is well. Remembers lost workers."""

    def __init__(self, lost: LostPods) -> None:
        self._lost = lost

    def create(self, event: CreateEvent[Any], queue: RequestQueue) -> None:
        """Look at a new pod."""
        self._seen(event.raw, queue, event.priority)

    def update(self, event: UpdateEvent[Any], queue: RequestQueue) -> None:
        """Look at a changed pod; another UID means that the old one is gone and its deletion was missed."""
        old, new = event.old_raw, event.new_raw
        if old["metadata"]["uid"] != new["metadata"]["uid"]:
            self._gone(old, queue)
        self._seen(new, queue, event.priority)

    def delete(self, event: DeleteEvent[Any], queue: RequestQueue) -> None:
        """Look at a pod that is gone."""
        self._gone(event.raw, queue)

    def _seen(self, raw: RawObject, queue: RequestQueue, priority: int) -> None:
        labels = groups.labels_of(raw)
        if names.SET_NAME_LABEL not in labels:
            return
        worker = not groups.is_leader(labels) and names.WORKER_INDEX_LABEL in labels
        if not worker or "deletionTimestamp" in raw["metadata"] or _raw_restarted(raw):
            queue.add(Request.for_object(raw), priority=priority)

    def _gone(self, raw: RawObject, queue: RequestQueue) -> None:
        labels = groups.labels_of(raw)
        # The leader StatefulSet makes up for a leader, and the garbage collector takes its workers.
        if names.SET_NAME_LABEL in labels and not groups.is_leader(labels):
            self._lost.add(raw)
            queue.add(Request.for_object(raw))


class PodReconciler(Reconciler[Pod]):
    """Looks after one pod of a set: gives a leader its workers, and recreates the group that a pod failed."""

    def __init__(self, events: EventRecorder, lost: LostPods) -> None:
        """Emit events through ``events``; `PodEvents` fills ``lost``."""
        self._events = events
        self._lost = lost

    @cached_property
    def _writer(self) -> Client:
        return self.client.with_options(field_manager=names.FIELD_MANAGER)

    async def reconcile(self, request: Request) -> Result | None:
        """Look at what became of one pod."""
        for lost in self._lost.of(request.key):
            lws = await self._set_of(lost)
            if lws is not None:
                await self._recreate_group(lws, lost, lost=True)
            self._lost.discard(lost)
        pod = await self.client.find(Pod, request.key)
        if pod is None or names.SET_NAME_LABEL not in pod.metadata.labels:
            return None
        if names.WORKER_INDEX_LABEL not in pod.metadata.labels:
            raise TerminalError(f"pod {pod.key} has no label {names.WORKER_INDEX_LABEL}; is the pod webhook on?")
        lws = await self._set_of(pod)
        if lws is None or await self._recreate_group(lws, pod, lost=False):
            return None
        if not groups.is_leader(pod.metadata.labels):
            return None
        return await self._reconcile_leader(lws, pod)

    async def _set_of(self, pod: Pod) -> LeaderWorkerSet | None:
        """Return a pod's set, None when it is gone or going."""
        name = pod.metadata.labels.get(names.SET_NAME_LABEL, "")
        lws = await self.client.find(LeaderWorkerSet, f"{pod.metadata.namespace}/{name}")
        return None if lws is None or lws.metadata.deletion_timestamp else lws

    async def _reconcile_leader(self, lws: LeaderWorkerSet, leader: Pod) -> Result | None:
        if leader.metadata.annotations.get(names.LEADER_NAME_ANNOTATION):
            note = (
                f"leader pod {leader.key} contains mistake annotation '{names.LEADER_NAME_ANNOTATION}': "
                "requires Kubernetes ≥v1.27 or v1.26 with StatefulSetStartOrdinal feature"
            )
            self._events.event(lws, "Warning", "FailedCreate", note, action="Create", related=leader)
            return None
        if leader.metadata.deletion_timestamp:
            return None
        if is_unique_per_replica(lws):
            selector = {
                names.SET_NAME_LABEL: lws.metadata.name,
                names.GROUP_INDEX_LABEL: leader.metadata.labels.get(names.GROUP_INDEX_LABEL, ""),
            }
            await ensure_service(self._writer, headless_service(leader, lws, selector))
        if lws.spec.leader_worker_template.size == 1:
            return None
        if lws.spec.startup_policy == "LeaderReady" and not groups.pod_ready(leader):
            return None
        if await self.client.find(StatefulSet, leader.key) is not None:
            return None  # It is never changed; one of an earlier leader goes by garbage collection, and wakes us.
        return await self._create_workers(lws, leader.key)

    async def _create_workers(self, lws: LeaderWorkerSet, key: str) -> Result | None:
        # Read live: a cached leader may still show the key of an older revision, which its workers would keep (§16.1).
        leader = await self.client.live.find(Pod, key)
        if leader is None or leader.metadata.deletion_timestamp:
            return None
        history = await History.read(self.client, lws)
        stored = history.find(groups.revision_key(leader))
        if stored is None:
            return Result(requeue_after=_REVISION_RETRY)
        revision = restore(stored.data, lws.spec.to_dict())
        node_selector = None
        if topology := lws.metadata.annotations.get(names.EXCLUSIVE_TOPOLOGY_ANNOTATION):
            node_name = leader.spec.node_name if leader.spec else None
            if not node_name:
                return None
            node_selector = {topology: await self._topology_value(node_name, topology)}
        try:
            await self._writer.create(worker_stateful_set(lws, leader, revision, node_selector))
        except AlreadyExistsError:
            return None
        except ApiError as error:
            note = f"Failed to create worker statefulset for leader pod {leader.metadata.name}: {error}"
            self._events.event(lws, "Warning", "FailedCreate", note, action="Create", related=leader)
            raise
        note = f"Created worker statefulset for leader pod {leader.metadata.name}"
        self._events.event(lws, "Normal", "GroupsProgressing", note, action="Create", related=leader)
        return None

    async def _topology_value(self, node_name: str, topology: str) -> str:
        node = await self.client.live.get(Node, node_name)
        value = node.metadata.labels.get(topology)
        if value is None:
            raise TopologyError(f"node {node_name} has no label {topology}, the set's exclusive topology")
        return value

    async def _recreate_group(self, lws: LeaderWorkerSet, pod: Pod, *, lost: bool) -> bool:
        """Delete the leader of a pod that failed; true when the group is on its way out (LWS §7.2)."""
        policy = lws.spec.leader_worker_template.restart_policy
        if policy not in _RECREATING or not (lost or pod.metadata.deletion_timestamp or _restarted(pod)):
            return False
        patient = (
            policy == "RecreateGroupAfterStart" or names.RECREATE_AFTER_START_ANNOTATION in lws.metadata.annotations
        )
        if patient and await self._group_pending(lws, pod):
            return False
        leader: Pod | None = pod
        if not groups.is_leader(pod.metadata.labels):
            leader = await self._leader_of(pod)
        if leader is None:
            return False
        if leader.metadata.deletion_timestamp:
            return True
        await self._writer.delete(leader, propagation="Foreground", uid=leader.metadata.uid, missing_ok=True)
        note = (
            f"Worker pod {pod.metadata.name} failed, deleted leader pod {leader.metadata.name} "
            f"to recreate group {leader.metadata.labels.get(names.GROUP_INDEX_LABEL, '')}"
        )
        self._events.event(lws, "Normal", "RecreateGroup", note, action="Delete", related=leader)
        return True

    async def _group_pending(self, lws: LeaderWorkerSet, pod: Pod) -> bool:
        """Tell whether the group was incomplete, or not started, when the pod failed."""
        group = groups.group_of(pod.metadata.namespace, pod.metadata.labels)
        members = {
            member.metadata.name: member
            for member in await self.client.list(Pod, namespace=pod.metadata.namespace, index=(groups.BY_GROUP, group))
        }
        # Pods that are gone count as they were, not as whatever has taken their names since.
        members |= {gone.metadata.name: gone for gone in (*self._lost.of_group(group), pod)}
        if len(members) != lws.spec.leader_worker_template.size:
            return True
        return any(member.status is None or member.status.phase == "Pending" for member in members.values())

    async def _leader_of(self, worker: Pod) -> Pod | None:
        """Return the leader whose group the worker is of now; None for a worker of an earlier group or revision."""
        split = names.parent_and_ordinal(worker.metadata.name)
        if split is None:
            raise TerminalError(f"pod {worker.key}: its name does not end in its number in the group")
        leader = await self.client.find(Pod, f"{worker.metadata.namespace}/{split[0]}")
        if leader is None or groups.revision_key(leader) != groups.revision_key(worker):
            return None
        owner = controller_of(worker)
        if owner is not None and owner.kind == "StatefulSet":
            workers = await self.client.find(StatefulSet, f"{worker.metadata.namespace}/{owner.name}")
            if workers is None or workers.metadata.uid != owner.uid:
                return None
            owner = controller_of(workers)
        if owner is None or owner.kind != "Pod":
            return None
        return leader if (owner.name, owner.uid) == (leader.metadata.name, leader.metadata.uid) else None


def _raw_restarted(raw: RawObject) -> bool:
    status = raw.get("status") or {}
    if status.get("phase") not in ("Running", "Pending"):
        return False
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return any(container.get("restartCount", 0) > 0 for container in containers)


def _restarted(pod: Pod) -> bool:
    status = pod.status
    if status is None or status.phase not in ("Running", "Pending"):
        return False
    containers = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    return any((container.restart_count or 0) > 0 for container in containers)
