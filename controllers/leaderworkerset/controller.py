"""The ``leaderworkerset`` controller: a set's leader StatefulSet, service, revisions and status (LWS §6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from pyreconcile.api import RawObject
from pyreconcile.api.apps_v1 import ControllerRevision, StatefulSet
from pyreconcile.api.core_v1 import Pod, Service
from pyreconcile.client import AlreadyExistsError, ApiError, Client, ConflictError, NotFoundError
from pyreconcile.controller import DeleteEvent, Handler, Reconciler, Request, RequestQueue, Result, UpdateEvent
from pyreconcile.events import EventRecorder
from pyreconcile_controllers.leaderworkerset import groups, names
from pyreconcile_controllers.leaderworkerset.history import History
from pyreconcile_controllers.leaderworkerset.objects import (
    headless_service,
    is_unique_per_replica,
    leader_stateful_set,
    strategy_of,
)
from pyreconcile_controllers.leaderworkerset.revision import Revision, RevisionCache, differs
from pyreconcile_controllers.leaderworkerset.rollout import GroupState, Observed, Plan, Strategy, needs_states, plan
from pyreconcile_controllers.leaderworkerset.status import next_status
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

_TERMINATING_RETRY = 5.0
"""Seconds until another look at a leader StatefulSet that is going away (LWS §6.1)."""


class LeaderWorkerSetReconciler(Reconciler[LeaderWorkerSet]):
    """Makes one set's leader StatefulSet, shared service, revisions and status what its spec says."""

    def __init__(self, events: EventRecorder, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Emit events through ``events``; ``now`` gives the time for conditions."""
        self._events = events
        self._now = now
        self._revisions = RevisionCache()

    @cached_property
    def _writer(self) -> Client:
        return self.client.with_options(field_manager=names.FIELD_MANAGER)

    async def reconcile(self, request: Request) -> Result | None:
        """Bring one set forward; what follows from its groups comes in later passes, woken by their changes."""
        lws = await self.client.find(LeaderWorkerSet, request.key)
        if lws is None or lws.metadata.deletion_timestamp:
            return None  # The garbage collector does the rest.
        leader_set = await self.client.find(StatefulSet, request.key)
        if leader_set is not None and leader_set.metadata.deletion_timestamp:
            return Result(requeue_after=_TERMINATING_RETRY)

        history = await History.read(self._writer, lws)
        stored, changed = await self._revision(lws, leader_set, history)
        key = groups.revision_key(stored)

        leaders = await self.client.list(Pod, namespace=lws.metadata.namespace, index=(groups.LEADERS_BY_SET, lws.key))
        labelled = await self.client.list(StatefulSet, namespace=lws.metadata.namespace, index=(groups.BY_SET, lws.key))
        workers = [item for item in labelled if names.group_index(item.metadata.labels) is not None]
        size, strategy = lws.spec.leader_worker_template.size, strategy_of(lws)

        observed = _observed(leader_set)
        states: list[GroupState] = []
        if observed is not None and needs_states(strategy, observed, changed=changed):
            states = groups.group_states(lws.metadata.name, observed.replicas, size, key, leaders, workers)
        planned = plan(strategy, observed, states, changed=changed)
        applied = await self._apply(lws, leader_set, stored, planned, strategy)
        self._announce(lws, observed, planned, stored, changed=changed)
        await self._shared_service(lws)

        outcome = next_status(
            lws,
            strategy,
            groups.counted_groups(size, key, leaders, workers),
            applied.status.replicas if applied.status else 0,
            self._now(),
        )
        if outcome.news is not None:
            reason, note = outcome.news
            self._events.event(lws, "Normal", reason, note, action="Update")
        status = outcome.status
        try:
            await self._writer.update_status(
                lws,
                replicas=status.replicas,
                ready_replicas=status.ready_replicas,
                updated_replicas=status.updated_replicas,
                hpa_pod_selector=status.hpa_pod_selector,
                observed_generation=status.observed_generation,
                conditions=status.conditions,
            )
        except ConflictError:
            return Result(requeue=True)
        except NotFoundError:
            return None
        if outcome.complete:
            await history.truncate(key)
        return None

    def revision_of(self, lws: LeaderWorkerSet) -> Revision:
        """Return the revision of the current spec."""
        return self._revisions.get(lws.metadata.uid, lws.metadata.generation, lws.spec.to_dict)

    async def _revision(
        self, lws: LeaderWorkerSet, leader_set: StatefulSet | None, history: History
    ) -> tuple[ControllerRevision, bool]:
        """Return the stored revision to bring the set to, and whether it is another than the leaders' so far."""
        current = self.revision_of(lws)
        known = groups.revision_key(leader_set) if leader_set is not None else ""
        stored = history.find(known)
        if stored is None:
            # A new set; or one that a controller without revisions made: then its key goes on (LWS §15.2).
            stored, created = await history.create(current, known or current.key)
            if created:
                what = (
                    "Creating missing revision with key {} for existing LeaderWorkerSet"
                    if leader_set is not None
                    else "Creating revision with key {} for a newly created LeaderWorkerSet"
                )
                self._revision_event(lws, stored, what)
        if leader_set is None or not differs(current, stored.data, lws.spec.to_dict):
            return stored, False
        stored, created = await history.create(current, current.key)
        if created:
            self._revision_event(lws, stored, "Creating revision with key {} for updated LWS")
        return stored, True

    def _revision_event(self, lws: LeaderWorkerSet, stored: ControllerRevision, what: str) -> None:
        note = what.format(groups.revision_key(stored))
        self._events.event(lws, "Normal", "CreatingRevision", note, action="Create", related=stored)

    async def _apply(
        self,
        lws: LeaderWorkerSet,
        leader_set: StatefulSet | None,
        stored: ControllerRevision,
        planned: Plan,
        strategy: Strategy,
    ) -> StatefulSet:
        wanted = leader_stateful_set(lws, self.revision_of(lws), groups.revision_key(stored), planned, strategy)
        try:
            applied = await self._writer.apply(wanted)
        except ApiError as error:
            verb, reason = ("update", "FailedUpdate") if leader_set is not None else ("create", "FailedCreate")
            note = f"Failed to {verb} leader statefulset {lws.metadata.name}: {error}"
            self._events.event(lws, "Warning", reason, note, action=verb.capitalize())
            raise
        if leader_set is None:
            note = f"Created leader statefulset {lws.metadata.name}"
            self._events.event(lws, "Normal", "GroupsProgressing", note, action="Create", related=stored)
        return applied

    def _announce(
        self,
        lws: LeaderWorkerSet,
        observed: Observed | None,
        planned: Plan,
        stored: ControllerRevision,
        *,
        changed: bool,
    ) -> None:
        """Tell of surge groups that go, and of groups that are updated next (LWS §6.5)."""
        if observed is None:
            return
        if planned.reclaimed:
            first = names.group_name(lws.metadata.name, planned.replicas)
            last = names.group_name(lws.metadata.name, observed.replicas - 1)
            what = f"replica {first}" if first == last else f"replicas from {first} to {last}"
            self._events.event(lws, "Normal", "GroupsProgressing", f"deleting surge {what}", action="Delete")
        if not changed and planned.partition != observed.partition:
            low, high = planned.partition, observed.partition - 1
            what = f"replica {low}" if low == high else f"replicas {low} to {high} (inclusive)"
            self._events.event(lws, "Normal", "GroupsUpdating", f"Updating {what}", action="Update", related=stored)

    async def _shared_service(self, lws: LeaderWorkerSet) -> None:
        if is_unique_per_replica(lws):
            return
        try:
            await ensure_service(self._writer, headless_service(lws, lws, {names.SET_NAME_LABEL: lws.metadata.name}))
        except ApiError as error:
            note = f"Failed to create headless service for error: {error}"
            self._events.event(lws, "Warning", "FailedCreate", note, action="Create")
            raise


async def ensure_service(client: Client, service: Service) -> None:
    """Create a service unless there is one of its name; it is never changed (LWS §6.4)."""
    if await client.find(Service, service.key) is None:
        try:
            await client.create(service)
        except AlreadyExistsError:
            return


def requests_of(raw: RawObject) -> Iterable[Request]:
    """Give the set that an object is labelled with."""
    name = groups.labels_of(raw).get(names.SET_NAME_LABEL)
    return (Request(raw["metadata"].get("namespace", ""), name),) if name else ()


class LeaderEvents(Handler):
    """Enqueues the set of a leader whose readiness changed.

    The leader StatefulSet's status tells as well, but on another watch: a pass that it wakes may still read the pod as
    it was, and no later event would put that right.
    """

    def update(self, event: UpdateEvent[Any], queue: RequestQueue) -> None:
        """Look at a changed leader."""
        new = event.new_raw
        if groups.is_leader(groups.labels_of(new)) and _readiness(event.old_raw) != _readiness(new):
            for request in requests_of(new):
                queue.add(request, priority=event.priority)

    def delete(self, event: DeleteEvent[Any], queue: RequestQueue) -> None:
        """Look at a leader that is gone."""
        if groups.is_leader(groups.labels_of(event.raw)):
            for request in requests_of(event.raw):
                queue.add(request)


def _readiness(raw: RawObject) -> tuple[Any, ...]:
    status = raw.get("status") or {}
    ready = [item.get("status") for item in status.get("conditions") or () if item["type"] == "Ready"]
    return status.get("phase"), ready, raw["metadata"].get("labels"), raw["metadata"]["uid"]


def _observed(leader_set: StatefulSet | None) -> Observed | None:
    if leader_set is None:
        return None
    replicas = leader_set.spec.replicas
    update = leader_set.spec.update_strategy
    rolling = update.rolling_update if update else None
    applied = leader_set.metadata.annotations.get(names.REPLICAS_ANNOTATION, "")
    return Observed(
        1 if replicas is None else replicas,
        (rolling.partition or 0) if rolling else 0,
        int(applied) if applied.isascii() and applied.isdigit() else None,
    )
