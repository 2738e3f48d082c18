"""The ``disaggregatedset`` controller: a set's LeaderWorkerSets, Services and status (DS §5 to §10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cached_property

from pyreconcile.api import KubeObject, RawObject
from pyreconcile.api.core_v1 import Service
from pyreconcile.client import AlreadyExistsError, ApiError, Client, ConflictError, MergePatch, NotFoundError
from pyreconcile.controller import ReconcileError, Reconciler, Request, Result
from pyreconcile_controllers.disaggregatedset import names
from pyreconcile_controllers.disaggregatedset.children import (
    BY_OWNER,
    Child,
    Family,
    controller_uid,
    is_ready,
    labels_of,
)
from pyreconcile_controllers.disaggregatedset.objects import headless_service, leader_worker_set
from pyreconcile_controllers.disaggregatedset.revision import revision_of
from pyreconcile_controllers.disaggregatedset.rollout import Scaling, is_stable, plan
from pyreconcile_controllers.disaggregatedset.status import next_status
from pyreconcile_controllers.disaggregatedset.types import DisaggregatedSet, Role
from pyreconcile_controllers.disaggregatedset.webhook import unsupported
from pyreconcile_controllers.leaderworkerset import LeaderWorkerSet

_LOOK_AGAIN = Result(requeue_after=1.0)
"""While a rollout begins or waits for groups to become ready (DS §12)."""


class NameTakenError(ReconcileError):
    """A LeaderWorkerSet that a set needs exists already and belongs to something else."""


class DisaggregatedSetReconciler(Reconciler[DisaggregatedSet]):
    """Brings one set forward by at most one step of a rollout; everything is read from its children and its spec."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: datetime.now(UTC).replace(microsecond=0)) -> None:
        """``now`` gives the time for conditions, in whole seconds as Kubernetes writes them."""
        self._now = now

    @cached_property
    def _writer(self) -> Client:
        return self.client.with_options(field_manager=names.FIELD_MANAGER)

    async def reconcile(self, request: Request) -> Result | None:
        """Bring one set forward; what follows from its groups comes in later passes, woken by their changes."""
        owner = await self.client.find(DisaggregatedSet, request.key)
        if owner is None or owner.metadata.deletion_timestamp:
            return None  # The garbage collector does the rest.
        if problems := unsupported(owner.to_dict()):
            # Only without the webhook. Half of what such a set asks for would be worse than none.
            self._warn(owner, "NotSupported", "Left as it is: " + "; ".join(map(str, problems)), "Reconcile")
            return None
        revision = revision_of(owner.spec.roles)
        family = Family.of(await self._owned(LeaderWorkerSet, owner), revision)
        try:
            result = await self._advance(owner, family, revision)
            await self._services(owner, family)
        except Exception:
            await self._write_status(owner, family)  # It tells what there is, also when something failed (DS §5.8).
            raise
        written = await self._write_status(owner, family)
        return result if written else Result(requeue=True)

    async def _owned(self, kind: type[KubeObject], owner: DisaggregatedSet) -> list[RawObject]:
        found = await self.cache.list_raw(
            kind, namespace=owner.metadata.namespace, index=(BY_OWNER, owner.metadata.uid)
        )
        return [raw for raw in found if "deletionTimestamp" not in raw["metadata"]]

    async def _advance(self, owner: DisaggregatedSet, family: Family, revision: str) -> Result | None:
        """Do the one thing that is next: nothing, replicas in place, or a step of a rollout (DS §6)."""
        for child in family.surplus:
            await self._delete(owner, child, f"slice {child.slice} is gone")
        drained = [group for group in family.old if not any(child.replicas for child in group.values())]
        for group in drained:
            for child in group.values():
                await self._delete(owner, child, f"revision {child.revision} is drained")
        if len(drained) < len(family.old):
            rolling = Family(family.target, [group for group in family.old if group not in drained], ())
            return await self._roll(owner, rolling, revision)
        if drained and family.target:
            self._tell(owner, "RollingUpdateCompleted", f"Revision {revision} has replaced all others", "Update")
        for role in owner.spec.roles:
            present = family.target.get(role.name)
            if present is None:
                await self._create(owner, role, revision, role.spec.replicas)
            else:
                await self._scale(present, role.spec.replicas)
        return None

    async def _roll(self, owner: DisaggregatedSet, family: Family, revision: str) -> Result | None:
        """Take one step of a rollout, or what must be there before one can be taken (DS §7.1)."""
        # A current revision with a noted baseline was an old one: the user went back to it, and the others are now
        # the old ones.
        returned = any(child.initial is not None for child in family.target.values())
        if not family.target or returned:
            await self._begin(owner, family, revision)
            return _LOOK_AGAIN
        missing = [role for role in owner.spec.roles if role.name not in family.target]
        for role in missing:
            await self._create(owner, role, revision, 0)
        if missing or not is_stable(family, owner.spec.roles):
            return _LOOK_AGAIN
        for scaling in plan(family, owner.spec.roles):
            child, replicas = scaling.child, scaling.replicas
            reason = "ScalingUp" if replicas > child.replicas else "ScalingDown"
            await self._scale(child, replicas)
            self._tell(owner, reason, _note(scaling), "Update")
        return None  # The status of the LeaderWorkerSets wakes us.

    async def _begin(self, owner: DisaggregatedSet, family: Family, revision: str) -> None:
        """Note what every old LeaderWorkerSet has now, against which it is drained, and make the new ones, empty."""
        before = ", ".join(f"{child.name} ({child.replicas})" for child in family.old_children)
        self._tell(owner, "RollingUpdateStarted", f"Rolling from {before} to revision {revision}", "Update")
        for child in family.old_children:
            await self._note_initial(child, child.replicas)
        for role in owner.spec.roles:
            if role.name not in family.target:
                await self._create(owner, role, revision, 0)
        for child in family.target.values():
            await self._note_initial(child, None)

    async def _note_initial(self, child: Child, replicas: int | None) -> None:
        if child.initial != replicas:
            value = None if replicas is None else str(replicas)
            await self._patch(child, {"metadata": {"annotations": {names.INITIAL_REPLICAS_ANNOTATION: value}}})

    async def _scale(self, child: Child, replicas: int) -> None:
        if child.replicas != replicas:
            await self._patch(child, {"spec": {"replicas": replicas}})

    async def _patch(self, child: Child, patch: RawObject) -> None:
        # With the UID the server refuses if the object was replaced by another of the same name.
        metadata = {**patch.get("metadata", {}), "uid": child.uid}
        await self._writer.patch(LeaderWorkerSet, child.key, MergePatch({**patch, "metadata": metadata}))

    async def _create(self, owner: DisaggregatedSet, role: Role, revision: str, replicas: int) -> None:
        wanted = leader_worker_set(owner, role, revision, replicas)
        try:
            await self._writer.create(wanted)
        except AlreadyExistsError as error:
            present = await self.client.live.find(LeaderWorkerSet, wanted.key)
            if present is None or controller_uid(present.to_dict()) == owner.metadata.uid:
                return  # The next pass sees it, or that it is gone.
            note = f"LeaderWorkerSet {wanted.metadata.name} is needed but belongs to something else"
            self._warn(owner, "LWSConflict", note, "Conflict")
            raise NameTakenError(note) from error
        except ApiError as error:
            note = f"Failed to create LeaderWorkerSet {wanted.metadata.name}: {error}"
            self._warn(owner, "FailedCreate", note, "Create")
            raise

    async def _delete(self, owner: DisaggregatedSet, child: Child, because: str) -> None:
        await self._writer.delete(LeaderWorkerSet, child.key, uid=child.uid, missing_ok=True)
        self._tell(owner, "LWSDeleted", f"Deleted LeaderWorkerSet {child.name}: {because}", "Delete")

    async def _services(self, owner: DisaggregatedSet, family: Family) -> None:
        """Once all roles of the current revision are ready, give each ready revision its Services, no other (DS §8)."""
        if not is_ready(family.target, [role.name for role in owner.spec.roles]):
            return
        wanted = {
            service.metadata.name: service
            for group in (family.target, *filter(is_ready, family.old))
            for service in (headless_service(owner, child) for child in group.values())
        }
        for raw in await self._owned(Service, owner):
            name = raw["metadata"]["name"]
            if wanted.pop(name, None) is None and names.REVISION_LABEL in labels_of(raw):
                key = f"{owner.metadata.namespace}/{name}"
                await self._writer.delete(Service, key, uid=raw["metadata"]["uid"], missing_ok=True)
        await self._create_services(owner, list(wanted.values()))

    async def _create_services(self, owner: DisaggregatedSet, services: Sequence[Service]) -> None:
        for service in services:
            present = await self.cache.find_raw(Service, service.key)
            if present is not None:
                if controller_uid(present) != owner.metadata.uid:
                    note = f"Service {service.metadata.name} is needed but belongs to something else"
                    self._warn(owner, "ServiceConflict", note, "Conflict")
                continue
            try:
                await self._writer.create(service)
            except AlreadyExistsError:
                continue  # The cache shows it soon; its event brings us back if it is ours.

    async def _write_status(self, owner: DisaggregatedSet, family: Family) -> bool:
        """Write the status if it differs; false when the set was changed meanwhile."""
        status = next_status(owner, family, self._now())
        try:
            await self._writer.update_status(
                owner,
                observed_generation=status.observed_generation,
                role_statuses=status.role_statuses,
                conditions=status.conditions,
            )
        except ConflictError:
            return False
        except NotFoundError:
            return True
        return True

    def _tell(self, owner: DisaggregatedSet, reason: str, note: str, action: str) -> None:
        self.recorder.event(owner, "Normal", reason, note, action=action)

    def _warn(self, owner: DisaggregatedSet, reason: str, note: str, action: str) -> None:
        self.recorder.event(owner, "Warning", reason, note, action=action)


def _note(scaling: Scaling) -> str:
    child = scaling.child
    return f"Scaling {child.role} of revision {child.revision} from {child.replicas} to {scaling.replicas}"
