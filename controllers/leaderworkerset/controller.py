"""The ``leaderworkerset`` controller: a set's leader StatefulSet, service, revisions and status (LWS §6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

from pyreconcile.api import KubeObject, RawObject, Unstructured
from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import Pod
from pyreconcile.client import ApiError, Client, ConflictError, NotFoundError
from pyreconcile.controller import DeleteEvent, Handler, Reconciler, Request, RequestQueue, Result, UpdateEvent
from pyreconcile.events import EventRecorder
from pyreconcile_controllers.leaderworkerset import gang, groups, names, restart_budget
from pyreconcile_controllers.leaderworkerset.gangs import RETRY, Gangs
from pyreconcile_controllers.leaderworkerset.history import History
from pyreconcile_controllers.leaderworkerset.objects import (
    headless_service,
    is_unique_per_replica,
    leader_stateful_set,
    strategy_of,
)
from pyreconcile_controllers.leaderworkerset.reading import REVISION, SetReader, ensure_service
from pyreconcile_controllers.leaderworkerset.revision import Revision, RevisionCache, differs
from pyreconcile_controllers.leaderworkerset.rollout import GroupState, Observed, Plan, Strategy, needs_states, plan
from pyreconcile_controllers.leaderworkerset.settings import Settings
from pyreconcile_controllers.leaderworkerset.status import Outcome, next_status
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet
from pyreconcile_controllers.leaderworkerset.wait_reporter import WaitReporter

_TERMINATING_RETRY = 5.0
"""Seconds until another look at a leader StatefulSet that is going away (LWS §6.1)."""


class LeaderWorkerSetReconciler(Reconciler[LeaderWorkerSet]):
    """Makes one set's leader StatefulSet, shared service, revisions and status what its spec says."""

    def __init__(
        self,
        events: EventRecorder,
        sets: SetReader,
        *,
        settings: Settings | None = None,
        gangs: Gangs | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Emit events through ``events`` and read sets through ``sets``; ``now`` gives the time for conditions.

        ``gangs`` has groups placed whole or not at all.
        """
        self._gangs = gangs
        self._events = events
        self._sets = sets
        self._settings = settings or Settings()
        self._waits = WaitReporter(events, self._settings.waiting_event_after)
        self._now = now
        self._revisions = RevisionCache()

    @cached_property
    def _writer(self) -> Client:
        return self.client.with_options(field_manager=names.FIELD_MANAGER)

    async def reconcile(self, request: Request) -> Result | None:
        """Bring one set forward; what follows from its groups comes in later passes, woken by their changes."""
        lws = await self._sets.find(self.cache, request.key)
        if lws is None:
            return None  # The garbage collector does the rest.
        leader_set = await self.cache.find_raw(StatefulSet, request.key)
        if leader_set is not None and groups.is_terminating(leader_set):
            return Result(requeue_after=_TERMINATING_RETRY)

        history = await History.read(self.cache, lws)
        stored, changed = await self._revision(lws, leader_set, history)
        key = groups.revision_key(stored)

        leaders = await self._labelled(Pod, lws, groups.LEADERS_BY_SET)
        labelled = await self._labelled(StatefulSet, lws, groups.BY_SET)
        workers = [item for item in labelled if names.group_index(groups.labels_of(item)) is not None]
        size = lws.spec.leader_worker_template.size
        strategy = strategy_of(lws, upstream_surge=self._settings.upstream_surge)

        observed = _observed(leader_set)
        states: list[GroupState] = []
        if observed is not None and needs_states(strategy, observed, changed=changed):
            states = groups.group_states(
                lws.metadata.name,
                observed.replicas,
                size,
                key,
                leaders,
                workers,
                as_upstream=self._settings.upstream_surge,
            )
        planned = plan(strategy, observed, states, changed=changed)
        applied = await self._apply(lws, leader_set, stored, planned, strategy)
        self._announce(lws, observed, planned, stored, changed=changed)
        await self._shared_service(lws)

        counted = groups.counted_groups(size, key, leaders, workers)
        replicas = (applied.get("status") or {}).get("replicas", 0)
        outcome = next_status(lws, strategy, counted, replicas, self._now())
        unplaceable = await self._mark_gangs(lws, outcome)
        self._show_waiting(lws, leader_set, leaders, outcome)
        if not await self._write_status(lws, outcome):
            return Result(requeue=True)
        again = await self._waits.report(
            self.cache,
            lws,
            outcome.status,
            key,
            partition=planned.partition,
            replicas=planned.replicas,
            leaders=leaders,
            workers=workers,
            now=self._now(),
        )
        if outcome.complete:
            await history.truncate(self._writer, key)
        return _look_again(again, RETRY if unplaceable else None)

    async def _mark_gangs(self, lws: LeaderWorkerSet, outcome: Outcome) -> bool:
        """Tell in the status, and once by an event, when groups cannot be placed whole; true while that is so."""
        problem = None if self._gangs is None else await self._gangs.support.problem()
        if gang.mark(outcome.status.conditions, problem, lws.metadata.generation, self._now()):
            self._events.event(lws, "Warning", "GangSchedulingUnavailable", problem or "", action="Schedule")
        return bool(problem)

    def _show_waiting(
        self, lws: LeaderWorkerSet, leader_set: RawObject | None, leaders: Iterable[RawObject], outcome: Outcome
    ) -> None:
        """Tell in the status which groups wait to be recreated, on a set that asks for delays."""
        try:
            backoff = restart_budget.Backoff.read(lws.metadata.annotations)
        except ValueError:
            backoff = None  # the pod controller tells so
        restart_budget.set_condition(
            outcome.status.conditions,
            backoff,
            {} if leader_set is None else groups.annotations_of(leader_set),
            {groups.uid_of(leader): groups.revision_key(leader) for leader in leaders},
            generation=lws.metadata.generation,
            now=self._now(),
        )

    async def _labelled(self, kind: type[KubeObject], lws: LeaderWorkerSet, index: str) -> list[RawObject]:
        return await self.cache.list_raw(kind, namespace=lws.metadata.namespace, index=(index, lws.key))

    async def _write_status(self, lws: LeaderWorkerSet, outcome: Outcome) -> bool:
        """Write the status if it differs, and emit its news; false when the set was changed meanwhile."""
        status = outcome.status
        if lws.status is not None and status.to_dict() == lws.status.to_dict():
            return True
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
            return False
        except NotFoundError:
            return True
        if outcome.news is not None:
            reason, note = outcome.news
            self._tell(lws, reason, note, "Update")
        return True

    def _tell(self, lws: LeaderWorkerSet, reason: str, note: str, action: str, stored: RawObject | None = None) -> None:
        related = None if stored is None else REVISION.from_dict(stored)
        kind: Literal["Normal", "Warning"] = "Warning" if reason.startswith("Failed") else "Normal"
        self._events.event(lws, kind, reason, note, action=action, related=related)

    def revision_of(self, lws: LeaderWorkerSet) -> Revision:
        """Return the revision of the current spec."""
        return self._revisions.get(lws.metadata.uid, lws.metadata.generation, lws.spec.to_dict)

    async def _revision(
        self, lws: LeaderWorkerSet, leader_set: RawObject | None, history: History
    ) -> tuple[RawObject, bool]:
        """Return the stored revision to bring the set to, and whether it is another than the leaders' so far."""
        current = self.revision_of(lws)
        known = groups.revision_key(leader_set) if leader_set is not None else ""
        stored = history.find(known)
        if stored is None:
            # A new set; or one that a controller without revisions made: then its key goes on (LWS §15.2).
            stored, created = await history.create(self._writer, current, known or current.key)
            if created:
                note = f"Creating revision with key {groups.revision_key(stored)} for a newly created LeaderWorkerSet"
                if known:
                    note = f"Creating missing revision with key {known} for existing LeaderWorkerSet"
                self._tell(lws, "CreatingRevision", note, "Create", stored)
        if leader_set is None or not differs(current, stored.get("data") or {}, lws.spec.to_dict):
            return stored, False
        stored, created = await history.create(self._writer, current, current.key)
        if created:
            note = f"Creating revision with key {current.key} for updated LWS"
            self._tell(lws, "CreatingRevision", note, "Create", stored)
        return stored, True

    async def _apply(
        self,
        lws: LeaderWorkerSet,
        leader_set: RawObject | None,
        stored: RawObject,
        planned: Plan,
        strategy: Strategy,
    ) -> Unstructured:
        wanted = leader_stateful_set(lws, self.revision_of(lws), groups.revision_key(stored), planned, strategy)
        try:
            applied = await self._writer.apply(wanted)
        except ApiError as error:
            verb, reason = ("update", "FailedUpdate") if leader_set is not None else ("create", "FailedCreate")
            note = f"Failed to {verb} leader statefulset {lws.metadata.name}: {error}"
            self._tell(lws, reason, note, verb.capitalize())
            raise
        if leader_set is None:
            note = f"Created leader statefulset {lws.metadata.name}"
            self._tell(lws, "GroupsProgressing", note, "Create", stored)
        return applied

    def _announce(
        self,
        lws: LeaderWorkerSet,
        observed: Observed | None,
        planned: Plan,
        stored: RawObject,
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
            self._tell(lws, "GroupsProgressing", f"deleting surge {what}", "Delete")
        if not changed and planned.partition != observed.partition:
            low, high = planned.partition, observed.partition - 1
            what = f"replica {low}" if low == high else f"replicas {low} to {high} (inclusive)"
            self._tell(lws, "GroupsUpdating", f"Updating {what}", "Update", stored)

    async def _shared_service(self, lws: LeaderWorkerSet) -> None:
        if is_unique_per_replica(lws):
            return
        service = headless_service(lws, lws, {names.SET_NAME_LABEL: lws.metadata.name})
        try:
            await ensure_service(self.cache, self._writer, service)
        except ApiError as error:
            self._tell(lws, "FailedCreate", f"Failed to create headless service for error: {error}", "Create")
            raise


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
        if groups.is_leader(new) and _readiness(event.old_raw) != _readiness(new):
            for request in requests_of(new):
                queue.add(request, priority=event.priority)

    def delete(self, event: DeleteEvent[Any], queue: RequestQueue) -> None:
        """Look at a leader that is gone."""
        if groups.is_leader(event.raw):
            for request in requests_of(event.raw):
                queue.add(request)


def _look_again(*seconds: float | None) -> Result | None:
    known = [one for one in seconds if one is not None]
    return Result(requeue_after=min(known)) if known else None


def _readiness(leader: RawObject) -> tuple[Any, ...]:
    return groups.pod_running_and_ready(leader), groups.labels_of(leader), groups.uid_of(leader)


def _observed(leader_set: RawObject | None) -> Observed | None:
    if leader_set is None:
        return None
    spec = leader_set["spec"]
    rolling = (spec.get("updateStrategy") or {}).get("rollingUpdate") or {}
    applied = names.number_in(groups.annotations_of(leader_set), names.REPLICAS_ANNOTATION)
    return Observed(spec.get("replicas", 1), rolling.get("partition", 0), applied)
