"""The ``pod`` controller: a worker StatefulSet per leader, and groups that fail as one (LWS §7)."""

from __future__ import annotations

from functools import cached_property, partial

from pyreconcile.api import RawObject, object_key
from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import Node, Pod
from pyreconcile.client import AlreadyExistsError, ApiError, Client
from pyreconcile.controller import ReconcileError, Reconciler, Request, Result, TerminalError
from pyreconcile.events import EventRecorder
from pyreconcile_controllers.leaderworkerset import groups, names
from pyreconcile_controllers.leaderworkerset.gangs import Gangs
from pyreconcile_controllers.leaderworkerset.history import History
from pyreconcile_controllers.leaderworkerset.lost_pods import LostPods
from pyreconcile_controllers.leaderworkerset.objects import (
    UNIQUE_PER_REPLICA,
    headless_service,
    is_unique_per_replica,
    worker_stateful_set,
)
from pyreconcile_controllers.leaderworkerset.reading import POD, SetReader, ensure_service
from pyreconcile_controllers.leaderworkerset.recreation import RestartBudget, sooner
from pyreconcile_controllers.leaderworkerset.revision import Revision, restore
from pyreconcile_controllers.leaderworkerset.settings import Settings
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

_REVISION_RETRY = 1.0
"""Seconds until another look for a leader's revision that is not stored yet (LWS §7.1)."""
_RECREATING = ("RecreateGroupOnPodRestart", "RecreateGroupAfterStart")


class TopologyError(ReconcileError):
    """The node of a leader does not tell where its workers have to go."""


class PodReconciler(Reconciler[Pod]):
    """Looks after one pod of a set: gives a leader its workers, and recreates the group that a pod failed."""

    def __init__(
        self,
        events: EventRecorder,
        sets: SetReader,
        lost: LostPods,
        *,
        settings: Settings | None = None,
        gangs: Gangs | None = None,
    ) -> None:
        """Emit events through ``events`` and read sets through ``sets``; `PodEvents` fills ``lost``.

        ``gangs`` has groups placed whole or not at all.
        """
        self._gangs = gangs
        self._settings = settings or Settings()
        self._events = events
        self._sets = sets
        self._lost = lost

    @cached_property
    def _writer(self) -> Client:
        return self.client.with_options(field_manager=names.FIELD_MANAGER)

    @cached_property
    def _budget(self) -> RestartBudget:
        return RestartBudget(self.client, self.cache, self._events)

    async def reconcile(self, request: Request) -> Result | None:
        """Look at what became of one pod."""
        for lost in self._lost.of(request.key):
            lws = await self._set_of(lost)
            if lws is not None:
                await self._recreate_group(lws, lost, lost=True)
            self._lost.discard(lost)
        pod = await self.cache.find_raw(Pod, request.key)
        if pod is None or names.SET_NAME_LABEL not in groups.labels_of(pod):
            return None
        if names.WORKER_INDEX_LABEL not in groups.labels_of(pod):
            raise TerminalError(f"pod {request.key} has no label {names.WORKER_INDEX_LABEL}; is the pod webhook on?")
        lws = await self._set_of(pod)
        if lws is None or await self._recreate_group(lws, pod, lost=False):
            return None
        if not groups.is_leader(pod) or groups.is_terminating(pod):
            return None
        recreating = lws.spec.leader_worker_template.restart_policy in _RECREATING
        outlook = await self._budget.look(lws, pod, recreating=recreating)
        if outlook.failed and await self._budget.admit(lws, pod, outlook.failed):
            await self._delete_leader(lws, pod, outlook.failed)
            return None
        return sooner(await self._reconcile_leader(lws, pod), outlook.again)

    async def _set_of(self, pod: RawObject) -> LeaderWorkerSet | None:
        name = groups.labels_of(pod)[names.SET_NAME_LABEL]
        return await self._sets.find(self.cache, object_key(groups.namespace_of(pod), name))

    async def _reconcile_leader(self, lws: LeaderWorkerSet, pod: RawObject) -> Result | None:
        key = object_key(groups.namespace_of(pod), groups.name_of(pod))
        if groups.annotations_of(pod).get(names.LEADER_NAME_ANNOTATION):
            note = (
                f"leader pod {key} contains mistake annotation '{names.LEADER_NAME_ANNOTATION}': "
                "requires Kubernetes ≥v1.27 or v1.26 with StatefulSetStartOrdinal feature"
            )
            self._events.event(lws, "Warning", "FailedCreate", note, action="Create", related=POD.from_dict(pod))
            return None
        unique = groups.annotations_of(pod).get(names.SUBDOMAIN_POLICY_ANNOTATION) == UNIQUE_PER_REPLICA
        if unique or is_unique_per_replica(lws):  # a group of an older revision keeps its own policy
            selector = {
                names.SET_NAME_LABEL: lws.metadata.name,
                names.GROUP_INDEX_LABEL: groups.labels_of(pod).get(names.GROUP_INDEX_LABEL, ""),
            }
            service = headless_service(POD.from_dict(pod), lws, selector)
            await ensure_service(self.cache, self._writer, service)
        workers = await self.cache.find_raw(StatefulSet, key)
        again = 0.0
        if self._gangs is not None:
            exist = workers is not None and groups.owner_uid(workers) == groups.uid_of(pod)
            revision = partial(self._revision, lws, groups.revision_key(pod))
            whole, again = await self._gangs.ensure(lws, pod, workers_exist=exist, revision=revision)
            if not whole:
                return Result(requeue_after=again)
        if groups.size_of(pod, lws.spec.leader_worker_template.size) == 1:
            return sooner(None, again)
        if lws.spec.startup_policy == "LeaderReady" and not groups.pod_ready(pod):
            return sooner(None, again)
        if workers is not None:
            # It is never changed; one of an earlier leader goes by garbage collection, and wakes us.
            return sooner(None, again)
        return sooner(await self._create_workers(lws, key), again)

    async def _create_workers(self, lws: LeaderWorkerSet, key: str) -> Result | None:
        # Read live: a cached leader may still show the key of an older revision, which its workers would keep (§16.1).
        leader = await self.client.live.find(Pod, key)
        if leader is None or leader.metadata.deletion_timestamp:
            return None
        revision = await self._revision(lws, leader.metadata.labels.get(names.REVISION_LABEL, ""))
        if revision is None:
            return Result(requeue_after=_REVISION_RETRY)
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

    async def _revision(self, lws: LeaderWorkerSet, key: str) -> Revision | None:
        """Return the stored revision with a key, laid over the live set; None when there is none yet."""
        stored = (await History.read(self.cache, lws)).find(key)
        return None if stored is None else restore(stored.get("data") or {}, lws.spec.to_dict())

    async def _topology_value(self, node_name: str, topology: str) -> str:
        node = await self.client.live.get(Node, node_name)
        value = node.metadata.labels.get(topology)
        if value is None:
            raise TopologyError(f"node {node_name} has no label {topology}, the set's exclusive topology")
        return value

    async def _recreate_group(self, lws: LeaderWorkerSet, pod: RawObject, *, lost: bool) -> bool:
        """Delete the leader of a pod that failed; true when the group is on its way out (LWS §7.2)."""
        policy = lws.spec.leader_worker_template.restart_policy
        if policy not in _RECREATING or not (lost or groups.is_terminating(pod) or groups.pod_restarted(pod)):
            return False
        annotated = names.RECREATE_AFTER_START_ANNOTATION in lws.metadata.annotations
        if (annotated or policy == "RecreateGroupAfterStart") and await self._group_pending(lws, pod):
            return False
        leader = pod if groups.is_leader(pod) else await self._leader_of(pod)
        if leader is None:
            return False
        if groups.is_terminating(leader):
            return True
        if not await self._budget.admit(lws, leader, groups.name_of(pod)):
            return False
        await self._delete_leader(lws, leader, groups.name_of(pod))
        return True

    async def _delete_leader(self, lws: LeaderWorkerSet, leader: RawObject, failed: str) -> None:
        name = groups.name_of(leader)
        key = object_key(groups.namespace_of(leader), name)
        await self._writer.delete(Pod, key, propagation="Foreground", uid=groups.uid_of(leader), missing_ok=True)
        note = (
            f"Worker pod {failed} failed, deleted leader pod {name} "
            f"to recreate group {groups.labels_of(leader).get(names.GROUP_INDEX_LABEL, '')}"
        )
        self._events.event(lws, "Normal", "RecreateGroup", note, action="Delete", related=POD.from_dict(leader))

    async def _group_pending(self, lws: LeaderWorkerSet, pod: RawObject) -> bool:
        """Tell whether the group was incomplete, or not started, when the pod failed."""
        group = groups.group_of(pod)
        listed = await self.cache.list_raw(Pod, namespace=groups.namespace_of(pod), index=(groups.BY_GROUP, group))
        # Pods that are gone count as they were, not as whatever has taken their names since.
        members = {groups.name_of(member): member for member in (*listed, *self._lost.of_group(group), pod)}
        if len(members) != groups.size_of(pod, lws.spec.leader_worker_template.size):
            return True
        return any(groups.phase_of(member) in ("", "Pending") for member in members.values())

    async def _leader_of(self, worker: RawObject) -> RawObject | None:
        """Return the leader whose group the worker is of now; None for a worker of an earlier group or revision."""
        namespace, name = groups.namespace_of(worker), groups.name_of(worker)
        split = names.parent_and_ordinal(name)
        if split is None:
            raise TerminalError(f"pod {object_key(namespace, name)}: its name does not end in its number in the group")
        leader = await self.cache.find_raw(Pod, object_key(namespace, split[0]))
        if leader is None or groups.revision_key(leader) != groups.revision_key(worker):
            return None
        owner = groups.controller_of(worker)
        if owner is not None and owner["kind"] == "StatefulSet":
            workers = await self.cache.find_raw(StatefulSet, object_key(namespace, owner["name"]))
            if workers is None or groups.uid_of(workers) != owner["uid"]:
                return None
            owner = groups.controller_of(workers)
        if owner is None or owner["kind"] != "Pod":
            return None
        same = (owner["name"], owner["uid"]) == (groups.name_of(leader), groups.uid_of(leader))
        return leader if same else None
