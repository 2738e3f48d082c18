"""A set as a tree of groups and pods, for people to read: what ``pyreconcile lws describe`` shows. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pyreconcile.api import RawObject
from pyreconcile_controllers.leaderworkerset import groups, names
from pyreconcile_controllers.leaderworkerset.objects import strategy_of
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet
from pyreconcile_controllers.leaderworkerset.wait_reporter import update_begun
from pyreconcile_controllers.leaderworkerset.waiting import (
    Trouble,
    Waiting,
    blocking_group,
    find_waiting,
    group_size,
    pod_trouble,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """What the cluster holds of one set, as parsed JSON: by the label of its name."""

    lws: LeaderWorkerSet
    leader_set: RawObject | None
    worker_sets: Sequence[RawObject]
    pods: Sequence[RawObject]
    revisions: Sequence[RawObject]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod; ``trouble`` is why it is not ready."""

    name: str
    phase: str
    node: str
    revision: str
    restarts: int
    trouble: Trouble | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One group; ``size`` is the number of pods that it has by its own revision."""

    index: int
    ready: bool
    updated: bool
    surge: bool
    held: bool
    revision: str
    size: int
    pods: Sequence[PodView]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionView:
    """A stored revision, and the groups that are of it."""

    key: str
    number: int
    current: bool
    groups: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """All that is shown of a set."""

    namespace: str
    name: str
    replicas: int
    size: int
    ready: int
    updated: int
    revision: str
    updating: bool
    partition: int
    held_below: int
    max_unavailable: int
    max_surge: int
    conditions: Sequence[tuple[str, str, str, str, datetime | None]]
    revisions: Sequence[RevisionView]
    groups: Sequence[GroupView]
    waiting: Waiting | None


def describe(objects: Objects) -> Description:
    """Return the tree of a set."""
    lws = objects.lws
    spec, status = lws.spec, lws.status
    name, size = lws.metadata.name, spec.leader_worker_template.size
    strategy = strategy_of(lws)
    leader_spec = (objects.leader_set or {}).get("spec") or {}
    key = groups.revision_key(objects.leader_set) if objects.leader_set is not None else ""
    total = leader_spec.get("replicas", 0)
    rolling = (leader_spec.get("updateStrategy") or {}).get("rollingUpdate") or {}
    partition = rolling.get("partition", 0)

    leaders = [pod for pod in objects.pods if groups.is_leader(pod)]
    workers = {groups.name_of(item): item for item in objects.worker_sets}
    members: dict[int, list[RawObject]] = {}
    for pod in objects.pods:
        index = names.group_index(groups.labels_of(pod))
        if index is not None:
            members.setdefault(index, []).append(pod)
    shown = max([total, *(index + 1 for index in members)])
    states = groups.group_states(name, shown, size, key, leaders, list(workers.values()))
    views = []
    for index in range(shown):
        own = workers.get(names.group_name(name, index))
        pods = sorted(members.get(index, ()), key=_worker_index)
        leader = next((pod for pod in pods if groups.is_leader(pod)), None)
        views.append(
            GroupView(
                index=index,
                ready=states[index].ready,
                updated=states[index].updated,
                surge=index >= strategy.replicas,
                held=index < strategy.floor,
                revision=groups.revision_key(leader) if leader is not None else "",
                size=group_size(leader, own, size),
                pods=[_pod(pod) for pod in pods],
            )
        )
    begun = update_begun(status)
    waiting = None
    if begun is not None and (group := blocking_group(states[:total], partition)) is not None:
        own = workers.get(names.group_name(name, group))
        waiting = find_waiting(name, group, key, members.get(group, ()), own, size=size, begun=begun)
    return Description(
        namespace=lws.metadata.namespace,
        name=name,
        replicas=strategy.replicas,
        size=size,
        ready=(status.ready_replicas if status else None) or 0,
        updated=(status.updated_replicas if status else None) or 0,
        revision=key,
        updating=begun is not None,
        partition=partition,
        held_below=strategy.floor,
        max_unavailable=strategy.max_unavailable,
        max_surge=strategy.max_surge,
        conditions=[
            (item.type, item.status, item.reason, item.message, item.last_transition_time)
            for item in (status.conditions if status else ())
        ],
        revisions=[
            RevisionView(
                key=groups.revision_key(item),
                number=item.get("revision", 0),
                current=groups.revision_key(item) == key,
                groups=[view.index for view in views if view.revision and view.revision == groups.revision_key(item)],
            )
            for item in sorted(objects.revisions, key=lambda item: -int(item.get("revision", 0)))
            if _is_own(item, lws.metadata.uid)
        ],
        groups=views,
        waiting=waiting,
    )


def _is_own(revision: RawObject, uid: str) -> bool:
    # StatefulSets keep revisions of their own, with the same label.
    owner = groups.controller_of(revision)
    return owner is None or owner["uid"] == uid


def _pod(pod: RawObject) -> PodView:
    status = pod.get("status") or {}
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return PodView(
        name=groups.name_of(pod),
        phase=groups.phase_of(pod) or "Pending",
        node=(pod.get("spec") or {}).get("nodeName", ""),
        revision=groups.revision_key(pod),
        restarts=sum(container.get("restartCount", 0) for container in containers),
        trouble=pod_trouble(pod),
    )


def _worker_index(pod: RawObject) -> int:
    return names.number_in(groups.labels_of(pod), names.WORKER_INDEX_LABEL) or 0
