"""Gang scheduling of groups: what is done to their pods when they are admitted, and the PodGroups made for them.

One provider of a manager serves all its sets; `gangs_for` gives the one that the settings name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final, Protocol, TypeAlias

from pyreconcile.api import KubeObject, RawObject, Unstructured, object_key
from pyreconcile.api.core_v1 import Pod
from pyreconcile.cache import Cache
from pyreconcile.client import AlreadyExistsError, ApiError, Client, MergePatch, NotFoundError
from pyreconcile.events import EventRecorder
from pyreconcile.webhook import AdmissionRequest, Denied
from pyreconcile_controllers.leaderworkerset import gang, groups, names, volcano
from pyreconcile_controllers.leaderworkerset.gang_support import Support
from pyreconcile_controllers.leaderworkerset.reading import POD
from pyreconcile_controllers.leaderworkerset.revision import Revision
from pyreconcile_controllers.leaderworkerset.settings import Settings
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

RevisionReader: TypeAlias = Callable[[], Awaitable[Revision | None]]
"""Reads the revision of a leader's group; None while it is not stored."""

RETRY: Final = 5.0
"""Seconds until another look at a group that is not placed, or cannot be."""
_SPOKEN_RETRY: Final = 60.0
"""Seconds until another look at a group of which kube-scheduler has spoken: its PodGroup wakes us when that changes."""
_REVISION_RETRY: Final = 1.0
_DROPPED_AFTER: Final = 30.0
"""Seconds after which a leader that lost its PodGroup to a server without the gate is made anew."""
_REMEMBERED: Final = 4096


class Gangs(Protocol):
    """Has groups placed whole or not at all."""

    @property
    def kind(self) -> type[KubeObject]:
        """The kind of PodGroup, owned by the leaders."""
        ...

    @property
    def support(self) -> Support:
        """Tells whether PodGroups can be used."""
        ...

    async def admit(self, pod: RawObject, request: AdmissionRequest) -> None:
        """Name the group in a pod of a set whose labels are complete, in place.

        Raises:
            Denied: the group could not be placed whole.
        """

    async def ensure(
        self, lws: LeaderWorkerSet, leader: RawObject, *, workers_exist: bool, revision: RevisionReader
    ) -> tuple[bool, float]:
        """Make the PodGroup of a leader's group what it has to be.

        Returns:
            Whether the workers may be made, and seconds until the next look at the group; 0 for none.
        """


class _Provider:
    """What both providers have in common."""

    def __init__(
        self, kind: type[KubeObject], support: Support, cache: Cache, client: Client, events: EventRecorder
    ) -> None:
        self.kind = kind
        self.support = support
        self._cache = cache
        self._client = client.with_options(field_manager=names.FIELD_MANAGER)
        self._events = events

    async def _create(self, lws: LeaderWorkerSet, leader: RawObject, group: Unstructured) -> bool:
        """Create a PodGroup; false when the kind is no longer served."""
        try:
            await self._client.create(group)
        except AlreadyExistsError:
            return True
        except ApiError as error:
            if isinstance(error, NotFoundError):
                self.support.doubt()
            note = f"Failed to create PodGroup for leader pod {groups.name_of(leader)}: {error}"
            self._warn(lws, leader, "FailedCreate", note, "Create")
            if isinstance(error, NotFoundError):
                return False
            raise
        return True

    def _warn(self, lws: LeaderWorkerSet, leader: RawObject, reason: str, note: str, action: str) -> None:
        self._events.event(lws, "Warning", reason, note, action=action, related=POD.from_dict(leader))


class VolcanoGangs(_Provider):
    """PodGroups of Volcano, as the Go controller makes them (LWS §9)."""

    async def admit(self, pod: RawObject, _request: AdmissionRequest) -> None:
        """Name the group in the pod's annotations."""
        volcano.annotate(pod)

    async def ensure(
        self, lws: LeaderWorkerSet, leader: RawObject, *, workers_exist: bool, revision: RevisionReader
    ) -> tuple[bool, float]:
        """Create the PodGroup unless there is one of its name; it is never changed."""
        name = volcano.named_in(leader)
        if not name or await self.support.problem():
            return True, RETRY if name else 0.0
        if await self._cache.find_raw(self.kind, object_key(groups.namespace_of(leader), name)) is not None:
            return True, 0.0  # that of an earlier leader goes by garbage collection, and wakes us
        stored = await revision()
        if stored is None:
            return True, _REVISION_RETRY
        group = volcano.pod_group(lws, leader, stored, groups.size_of(leader, lws.spec.leader_worker_template.size))
        return True, 0.0 if await self._create(lws, leader, group) else RETRY


class NativeGangs(_Provider):
    """PodGroups of Kubernetes itself, by which kube-scheduler places a group whole or not at all."""

    def __init__(
        self,
        support: Support,
        cache: Cache,
        client: Client,
        events: EventRecorder,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Make PodGroups through ``client``; ``now`` gives the time that waits are measured by."""
        super().__init__(gang.POD_GROUP, support, cache, client, events)
        self._now = now
        self._told: OrderedDict[str, str] = OrderedDict()

    async def admit(self, pod: RawObject, request: AdmissionRequest) -> None:
        """Put a leader into a PodGroup of its own; `gang.join` has put workers into their leader's already.

        Raises:
            Denied: the API server does not serve PodGroups: it would drop the pod's group, or leave it waiting.
        """
        leader = groups.is_leader(pod)
        if leader and not pod["spec"].get("schedulingGroup"):
            gang.join(pod, gang.group_name(groups.name_of(pod), request.uid))
        if gang.named_in(pod) and (problem := await self.support.problem()):
            raise Denied(f"pod {groups.name_of(pod)} must be placed with its whole group, but {problem}")

    async def ensure(
        self, lws: LeaderWorkerSet, leader: RawObject, *, workers_exist: bool, revision: RevisionReader
    ) -> tuple[bool, float]:
        """Create the PodGroup that the leader names, or raise its count; say what an unplaced group waits for."""
        if not gang.named_in(leader):
            return True, 0.0  # made before gang scheduling was on, or with a group of the user's own
        if gang.was_dropped(leader):
            await self._replace_dropped(lws, leader)
            return False, RETRY
        if await self.support.problem():
            return False, RETRY  # said on the set
        count = gang.min_count(
            pods=groups.size_of(leader, lws.spec.leader_worker_template.size),
            bound=gang.is_bound(leader),
            workers_exist=workers_exist,
            workers_wait_for_leader=_workers_wait(lws, leader),
        )
        key = object_key(groups.namespace_of(leader), gang.named_in(leader))
        group = await self._cache.find_raw(self.kind, key)
        if group is None:
            return await self._create(lws, leader, gang.pod_group(leader, count)), RETRY
        if gang.count_of(group) != count:
            patch = MergePatch({"spec": {"schedulingPolicy": {"gang": {"minCount": count}}}})
            await self._client.patch(self.kind, key, patch)
        return True, await self._watch_over(lws, leader, group)

    async def _watch_over(self, lws: LeaderWorkerSet, leader: RawObject, group: RawObject) -> float:
        listed = await self._cache.list_raw(
            Pod, namespace=groups.namespace_of(leader), index=(groups.BY_GROUP, groups.group_of(leader))
        )
        if gang.is_bound(leader):
            why = gang.why_not_whole(leader, group, self._now())
            if why:
                self._say(lws, leader, "GroupNotPlacedWhole", why)
            lacking = gang.why_workers_wait(leader, group, listed, self._now())
            if lacking:
                self._say_waiting(lws, leader, lacking)
            return 0.0 if why is not None and lacking == "" else RETRY
        if why := gang.why_waiting(leader, group, listed, self._now()):
            self._say_waiting(lws, leader, why)
        return RETRY if gang.is_silent(leader) else _SPOKEN_RETRY

    async def _replace_dropped(self, lws: LeaderWorkerSet, leader: RawObject) -> None:
        """Say that a leader came without its PodGroup, and have it made anew, or refused when it is admitted."""
        name = groups.name_of(leader)
        note = f"The API server dropped spec.schedulingGroup of leader pod {name}; its group is not made: {gang.HOW}"
        self._say(lws, leader, "GangSchedulingUnavailable", note)
        self.support.doubt()
        # Where PodGroups are served all the same, another API server has the gate off: not too often, then.
        if await self.support.problem() or gang.age(leader, self._now()) >= _DROPPED_AFTER:
            key = object_key(groups.namespace_of(leader), name)
            await self._client.delete(Pod, key, uid=groups.uid_of(leader), missing_ok=True)

    def _say_waiting(self, lws: LeaderWorkerSet, leader: RawObject, why: str) -> None:
        index = groups.labels_of(leader).get(names.GROUP_INDEX_LABEL, "")
        self._say(lws, leader, "GroupWaiting", f"Group {index} waits: {why}")

    def _say(self, lws: LeaderWorkerSet, leader: RawObject, reason: str, note: str) -> None:
        """Emit a warning once for each leader, and again when the text is another."""
        uid = groups.uid_of(leader)
        if self._told.get(uid) == note:
            return
        self._told[uid] = note
        self._told.move_to_end(uid)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        self._warn(lws, leader, reason, note, "Schedule")


def _workers_wait(lws: LeaderWorkerSet, leader: RawObject) -> bool:
    if lws.spec.startup_policy == "LeaderReady" and not groups.pod_ready(leader):
        return True
    return bool(lws.metadata.annotations.get(names.EXCLUSIVE_TOPOLOGY_ANNOTATION))


def gangs_for(
    settings: Settings, *, live: Client, cache: Cache, client: Client, events: EventRecorder, namespace: str = ""
) -> VolcanoGangs | NativeGangs | None:
    """Return the provider that the settings name; None for none.

    Args:
        settings: those of the controllers.
        live: reads from the server, on every replica.
        cache: where PodGroups and pods are read.
        client: writes PodGroups, on the leading replica.
        events: takes what is said about groups.
        namespace: where to look whether PodGroups are served; empty for everywhere.
    """
    if settings.scheduler_provider == "volcano":
        support = Support(live, volcano.POD_GROUP, namespace=namespace, advice=volcano.HOW)
        return VolcanoGangs(volcano.POD_GROUP, support, cache, client, events)
    if settings.scheduler_provider == "kubernetes":
        return NativeGangs(Support(live, gang.POD_GROUP, namespace=namespace, advice=gang.HOW), cache, client, events)
    return None
