"""When a group that failed may be recreated: keeps the groups' records on the leader StatefulSet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyreconcile.api import RawObject, object_key
from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.cache import Cache
from pyreconcile.client import Client, MergePatch
from pyreconcile.controller import CreateEvent, Handler, Request, RequestQueue, Result, UpdateEvent
from pyreconcile.events import EventRecorder
from pyreconcile_controllers.leaderworkerset import groups, names, restart_budget
from pyreconcile_controllers.leaderworkerset.reading import POD
from pyreconcile_controllers.leaderworkerset.restart_budget import Backoff, Record
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

FIELD_MANAGER = "lws-restart-budget"
"""Owner of the records: they are no part of what is applied to a leader StatefulSet, and outlive each apply."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a group's record asks for.

    Attributes:
        failed: name of a pod for whose failure the group is to be recreated now.
        again: seconds until another look; 0 for none.
    """

    failed: str = ""
    again: float = 0.0


def sooner(result: Result | None, seconds: float) -> Result | None:
    """Return a reconcile's result with another look in ``seconds`` at the latest; 0 asks for none."""
    if seconds <= 0 or (result is not None and (result.requeue or 0 < result.requeue_after <= seconds)):
        return result
    return Result(requeue_after=seconds)


class RestartBudget:
    """Admits the recreations of groups, one after the other, as far apart as their sets ask for."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        events: EventRecorder,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Write with ``client``, read from ``cache``, tell through ``events``; ``now`` gives the time."""
        self._client = client.with_options(field_manager=FIELD_MANAGER)
        self._cache = cache
        self._events = events
        self._now = now

    async def admit(self, lws: LeaderWorkerSet, leader: RawObject, pod: str) -> bool:
        """Tell whether the group of ``leader`` may be recreated now for the failure of ``pod``.

        What is decided is on record before this returns: a recreation that is admitted counts, and a failure that has
        to wait is brought up again by `PendingRecreations` and `look`, in the next process too.

        Raises:
            ApiError: the record could not be written; nothing was decided.
        """
        found = await self._record(lws, leader)
        if found is None:
            return True
        leader_set, group, record = found
        backoff, now = self._backoff(lws), self._now()
        if backoff is None:
            await self._keep(leader_set, group, None, None, now)
            return True
        uid = groups.uid_of(leader)
        decision = restart_budget.decide(
            backoff, record, leader=uid, revision=groups.revision_key(leader), pod=pod, now=now
        )
        await self._keep(leader_set, group, decision.record, backoff, now)
        if not decision.now and not (record is not None and record.waits_for(uid)):
            seconds = max(1, round(decision.wait.total_seconds()))
            note = (
                f"Pod {pod} failed: group {group} is recreated in {seconds} s, "
                f"after {restart_budget.recreated(decision.record.recreations)}"
            )
            self._events.event(lws, "Warning", "RestartBackoff", note, action="Wait", related=POD.from_dict(leader))
        return decision.now

    async def look(self, lws: LeaderWorkerSet, leader: RawObject, *, recreating: bool) -> Outlook:
        """Look whether a recreation of the group of ``leader`` is due, and drop a record of no more use.

        Args:
            lws: the set.
            leader: a leader that is not being deleted.
            recreating: whether the set's restart policy recreates groups.

        Raises:
            ApiError: a record could not be dropped.
        """
        found = await self._record(lws, leader)
        if found is None:
            return Outlook()
        leader_set, group, record = found
        if record is None:
            return Outlook()
        backoff, now = self._backoff(lws), self._now()
        if recreating and record.failure.leader == groups.uid_of(leader):
            # One that does not wait any more was admitted by a process that ended before it deleted the leader.
            left = timedelta()
            if backoff is not None and record.waits:
                left = restart_budget.due(backoff, record, record.failure, groups.revision_key(leader)) - now
            return Outlook(again=left.total_seconds()) if left > timedelta() else Outlook(failed=record.failure.pod)
        if not recreating or backoff is None or record.is_over(backoff, now):
            await self._keep(leader_set, group, None, backoff, now)
            return Outlook()
        return Outlook(again=(record.last + backoff.reset - now).total_seconds())

    async def _record(self, lws: LeaderWorkerSet, leader: RawObject) -> tuple[RawObject, int, Record | None] | None:
        leader_set = await self._cache.find_raw(StatefulSet, lws.key)
        group = names.group_index(groups.labels_of(leader))
        if leader_set is None or group is None:
            return None
        text = groups.annotations_of(leader_set).get(f"{restart_budget.RECORD_PREFIX}{group}")
        return leader_set, group, Record.from_text(text)

    def _backoff(self, lws: LeaderWorkerSet) -> Backoff | None:
        try:
            return Backoff.read(lws.metadata.annotations)
        except ValueError as error:  # the webhook refuses it, where there is one
            note = f"groups are recreated without delay: {error}"
            self._events.event(lws, "Warning", "InvalidRestartBackoff", note, action="Read")
            return None

    async def _keep(
        self, leader_set: RawObject, group: int, record: Record | None, backoff: Backoff | None, now: datetime
    ) -> None:
        changed = restart_budget.changes(groups.annotations_of(leader_set), group, record, backoff, now)
        if not changed:
            return
        key = object_key(groups.namespace_of(leader_set), groups.name_of(leader_set))
        metadata = {"uid": groups.uid_of(leader_set), "annotations": changed}
        await self._client.patch(StatefulSet, key, MergePatch({"metadata": metadata}))


class PendingRecreations(Handler):
    """Enqueues the leaders whose recreation waits, by the records on their StatefulSet.

    The set's own annotations stand there too: a delay that is changed or taken back is looked at at once.
    """

    def create(self, event: CreateEvent[Any], queue: RequestQueue) -> None:
        """Look at the records of a leader StatefulSet, as after a start of the manager."""
        self._look(event.raw, queue, event.priority)

    def update(self, event: UpdateEvent[Any], queue: RequestQueue) -> None:
        """Look at changed records and delays."""
        if groups.annotations_of(event.old_raw) != groups.annotations_of(event.new_raw):
            self._look(event.new_raw, queue, event.priority)

    def _look(self, leader_set: RawObject, queue: RequestQueue, priority: int) -> None:
        for group in restart_budget.records(groups.annotations_of(leader_set)):
            name = names.group_name(groups.name_of(leader_set), group)
            queue.add(Request(groups.namespace_of(leader_set), name), priority=priority)
