"""Pods that hang on a lost node: removed, where their set asks for it, so that their group can start elsewhere.

A pod on a node that does not answer any more is deleted some minutes later, but goes only when its kubelet says so.
Kubernetes waits for that, as the pod may well run on behind the fault, until somebody vouches for the node: by deleting
it, or by the taint ``node.kubernetes.io/out-of-service``. Even then its pod collector lets up to 20 or 80 s pass.
"""

from __future__ import annotations

import time as _time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import anyio

from pyreconcile.api import KubeObject, RawObject, object_key, unstructured
from pyreconcile.api.core_v1 import Node, Pod
from pyreconcile.cache import Cache
from pyreconcile.client import Client
from pyreconcile.controller import (
    Builder,
    CreateEvent,
    DeleteEvent,
    Handler,
    KindSource,
    Reconciler,
    Request,
    RequestQueue,
    Result,
    UpdateEvent,
)
from pyreconcile.events import EventRecorder
from pyreconcile_controllers.leaderworkerset import groups, names
from pyreconcile_controllers.leaderworkerset.reading import POD
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from pyreconcile.manager import Manager

SET = unstructured("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
"""A class for the set that an event is about, of which only the metadata matters."""

ANNOTATION: Final = names.OWN_PREFIX + "node-loss"
"""On a set: `FORCE` or `WAIT`."""
FORCE: Final = "Force"
"""Remove pods that hang on a node which is gone, or out of service, at once."""
WAIT: Final = "Wait"
"""Leave it to Kubernetes, as without the annotation."""

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Taint by which an administrator vouches that nothing runs on a node (KEP-2268); it counts while that is not ready."""

SETTLE: Final = 2.0
"""Seconds after the out-of-service taint was seen before pods are removed.

The taint makes Kubernetes' taint eviction delete the pods there once more, by name and with no UID: pods that have
taken their names by then would go as well (tainteviction/taint_eviction.go, addConditionAndDeletePod).
"""


def forces(lws: RawObject) -> bool:
    """Tell whether a set wants its pods on lost nodes removed."""
    return groups.annotations_of(lws).get(ANNOTATION) == FORCE


def problem(annotations: Mapping[str, str]) -> str | None:
    """Say what is wrong with a set's annotation; None when nothing is."""
    if annotations.get(ANNOTATION, WAIT) in (FORCE, WAIT):
        return None
    return f"must be {FORCE} or {WAIT}"


def node_name_of(pod: RawObject) -> str:
    """Return the node that a pod is bound to; empty when it is not."""
    name: str = (pod.get("spec") or {}).get("nodeName") or ""
    return name


def is_ready(node: RawObject) -> bool:
    """Tell whether a node says that it is ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def is_out_of_service(node: RawObject) -> bool:
    """Tell whether somebody vouched that nothing runs on a node that is not ready."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return not is_ready(node) and any(taint["key"] == OUT_OF_SERVICE for taint in taints)


def removable(pod: RawObject, node: RawObject | None) -> bool:
    """Tell whether a pod may be removed now, given its node (None: it is gone).

    On a node that is gone every pod is lost; on one that is out of service those that are being deleted: a pod may
    tolerate the taint. One that was removed already and is kept by finalizers needs no second time.
    """
    if was_removed(pod):
        return False
    return node is None or (groups.is_terminating(pod) and is_out_of_service(node))


def was_removed(pod: RawObject) -> bool:
    """Tell whether a pod was removed, and only finalizers keep its object."""
    return groups.is_terminating(pod) and pod["metadata"].get("deletionGracePeriodSeconds") == 0


class NodeLossReconciler(Reconciler[LeaderWorkerSet]):
    """Looks after the nodes of one set: removes its pods that hang on a lost one, if the set asks for it.

    What follows for their groups is for the ``pod`` controller.
    """

    def __init__(self, events: EventRecorder, *, time: Callable[[], float] = _time.monotonic) -> None:
        """Emit events through ``events``; ``time`` gives seconds."""
        self._events = events
        self._time = time
        self._out_of_service: dict[str, float] = {}

    @cached_property
    def _writer(self) -> Client:
        return self.client.with_options(field_manager=names.FIELD_MANAGER)

    async def reconcile(self, request: Request) -> Result | None:
        """Remove the pods of one set that may be removed."""
        lws = await self.cache.find_raw(LeaderWorkerSet, request.key)
        if lws is None or not forces(lws):
            return None
        labels = {names.SET_NAME_LABEL: request.name}
        by_node: dict[str, list[RawObject]] = {}
        for pod in await self.cache.list_raw(Pod, namespace=request.namespace, labels=labels):
            if name := node_name_of(pod):
                by_node.setdefault(name, []).append(pod)
        found = [await self._look_at(SET.from_dict(lws), name, pods) for name, pods in sorted(by_node.items())]
        lost = [pod for pods, _ in found for pod in pods]
        # Leaders last: a new one that has to be near the pods of its group (exclusive topology) would be held to the
        # lost node by its old workers, and kube-scheduler does not try it again when these go.
        for pod, why in sorted(lost, key=lambda item: groups.is_leader(item[0])):
            await self._remove(SET.from_dict(lws), pod, why)
        return Result(requeue_after=min((wait for _, wait in found if wait > 0), default=0.0))

    async def _look_at(
        self, lws: KubeObject, name: str, pods: Sequence[RawObject]
    ) -> tuple[list[tuple[RawObject, str]], float]:
        """Return the pods on one node that may be removed, each with why, and the seconds until another look."""
        node = await self.cache.find_raw(Node, name)
        settling = self._settling(name, node)
        if node is not None and not is_out_of_service(node):
            if not is_ready(node):
                self._tell_waiting(lws, name, pods)
            return [], 0.0
        lost = [pod for pod in pods if removable(pod, node)]
        if not lost or settling > 0:
            return [], settling if lost else 0.0
        # What the cache holds of the node may be old, and this cannot be taken back.
        live = await self.client.live.find_raw(Node, name)
        why = "is gone" if live is None else "is out of service"
        return [(pod, f"its node {name} {why}") for pod in lost if removable(pod, live)], 0.0

    def _settling(self, name: str, node: RawObject | None) -> float:
        if node is None or not is_out_of_service(node):
            self._out_of_service.pop(name, None)
            return 0.0
        now = self._time()
        return self._out_of_service.setdefault(name, now) + SETTLE - now

    async def _remove(self, lws: KubeObject, pod: RawObject, why: str) -> None:
        key = object_key(groups.namespace_of(pod), groups.name_of(pod))
        await self._writer.delete(Pod, key, grace_period_seconds=0, uid=groups.uid_of(pod), missing_ok=True)
        note = f"Removed pod {groups.name_of(pod)}: {why}"
        self._events.event(lws, "Normal", "RemovedLostPod", note, action="Delete", related=POD.from_dict(pod))

    def _tell_waiting(self, lws: KubeObject, name: str, pods: Sequence[RawObject]) -> None:
        for pod in pods:
            if groups.is_terminating(pod) and not was_removed(pod):
                note = (
                    f"Pod {groups.name_of(pod)} cannot end on node {name}, which is not ready: once nothing runs there,"
                    f" delete the node or give it the taint {OUT_OF_SERVICE}=nodeshutdown:NoExecute"
                )
                self._events.event(lws, "Warning", "PodOnLostNode", note, action="Wait", related=POD.from_dict(pod))


class _Seeing(Handler, ABC):
    """Looks at an object in the same way whether it is new, was there at the start, or changed."""

    def create(self, event: CreateEvent[Any], queue: RequestQueue) -> None:
        """Look at an object that is new, or was there at the start."""
        self._seen(event.raw, queue, event.priority)

    def update(self, event: UpdateEvent[Any], queue: RequestQueue) -> None:
        """Look at a changed object."""
        self._seen(event.new_raw, queue, event.priority)

    @abstractmethod
    def _seen(self, obj: RawObject, queue: RequestQueue, priority: int) -> None: ...


class AskingSets(_Seeing):
    """Knows which sets ask for their pods on lost nodes to be removed, from their events, and enqueues new ones.

    Kept in memory, as it follows from what the first list of sets shows.
    """

    def __init__(self) -> None:
        """Know none yet."""
        self._keys: dict[str, Request] = {}
        self.some = anyio.Event()
        """Set with the first one: until then no node is watched, and no right to do so is needed."""

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def requests(self) -> list[Request]:
        """Return the sets that ask."""
        return list(self._keys.values())

    def delete(self, event: DeleteEvent[Any], queue: RequestQueue) -> None:
        """Forget a set."""
        self._keys.pop(Request.for_object(event.raw).key, None)

    def _seen(self, obj: RawObject, queue: RequestQueue, priority: int) -> None:
        request = Request.for_object(obj)
        if not forces(obj):
            self._keys.pop(request.key, None)
        elif request.key not in self._keys:
            self._keys[request.key] = request
            self.some.set()
            queue.add(request, priority=priority)


class HangingPods(_Seeing):
    """Enqueues the set of a bound pod that is being deleted, if it asks."""

    def __init__(self, asking: AskingSets) -> None:
        """Ask ``asking``. A set that asks only later is looked at then, with all its pods."""
        self._asking = asking

    def _seen(self, obj: RawObject, queue: RequestQueue, priority: int) -> None:
        if groups.is_terminating(obj) and node_name_of(obj):
            for key in groups.index_set(obj):
                if key in self._asking:
                    queue.add(Request.from_key(key), priority=priority)


class NodeEvents(_Seeing):
    """Enqueues the sets that ask when a node is not ready, or gone."""

    def __init__(self, asking: AskingSets) -> None:
        """Enqueue those of ``asking``."""
        self._asking = asking

    def delete(self, event: DeleteEvent[Any], queue: RequestQueue) -> None:
        """Look at a node that is gone."""
        for request in self._asking.requests():
            queue.add(request)

    def _seen(self, obj: RawObject, queue: RequestQueue, priority: int) -> None:
        if not is_ready(obj):
            for request in self._asking.requests():
                queue.add(request, priority=priority)


class NodeSource:
    """Events of nodes, from the first set on that asks."""

    name = "nodes, once a set asks"

    def __init__(self, cache: Cache, asking: AskingSets) -> None:
        """Take the events from ``cache``, for the sets of ``asking``."""
        self._asking = asking
        self._source = KindSource(cache, Node, NodeEvents(asking))

    async def run(self, queue: RequestQueue, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Feed the queue until cancelled."""
        task_status.started()
        await self._asking.some.wait()
        await self._source.run(queue)


def register(manager: Manager, events: EventRecorder) -> None:
    """Register the controller ``node-loss``."""
    asking = AskingSets()
    (
        Builder(manager)
        .named("node-loss")
        .watches(LeaderWorkerSet, asking)
        .watches(Pod, HangingPods(asking))
        .watches_source(NodeSource(manager.cache, asking))
        .complete(NodeLossReconciler(events))
    )
