"""Native PodGroups: groups that kube-scheduler itself places whole or not at all (scheduling.k8s.io/v1beta1). No I/O.

A leader is given the name of a PodGroup when it is admitted, another one each time: pods that are going away count as
placed for the PodGroup that they name, so one that is used again would let its first new pod be placed alone. The
leader carries the name in an annotation too, from where it reaches the workers through their StatefulSet, which is made
anew with each leader. The leaders' own template never holds a name: it is what revisions are made of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pyreconcile.api import Condition, RawObject, Unstructured, unstructured
from pyreconcile.controller import find_condition, remove_condition, set_condition
from pyreconcile_controllers.leaderworkerset import groups, names
from pyreconcile_controllers.leaderworkerset.objects import owner_reference

POD_GROUP = unstructured("scheduling.k8s.io/v1beta1", "PodGroup")
_POD = unstructured("v1", "Pod")

PLACED = "PodGroupInitiallyScheduled"
"""Condition of a PodGroup, the only one that kube-scheduler writes: True once the group was placed."""

CONDITION = "GangScheduling"
"""Type of a set's condition that is False while PodGroups cannot be used."""

SILENT_AFTER = 5.0
"""Seconds that a leader may wait without a word of the scheduler before we say what it waits for."""
_UNTRIED_AFTER = 10.0
"""Seconds after a leader was placed by which its PodGroup must say so; if not, something else placed the pod."""
_TOKEN = 10  # hexadecimal digits of 40 bits: two tries of a group that exist at once never share a name

HOW = (
    "native gang scheduling needs the feature gate GenericWorkload=true on kube-apiserver, kube-scheduler and "
    "kube-controller-manager, and --runtime-config=scheduling.k8s.io/v1beta1=true on kube-apiserver"
)


def group_name(leader_name: str, request_uid: str) -> str:
    """Return the name of the PodGroup for one leader: of its own for each admission request that a pod comes from.

    It has at most 82 characters for a set whose pods can be made at all; a PodGroup's name may have 253.
    """
    token = hashlib.sha256(request_uid.encode()).hexdigest()[:_TOKEN]
    return f"{leader_name}-{token}"


def join(pod: RawObject, name: str) -> None:
    """Put a pod into a PodGroup, in place, and note that we did; the template's own group is left alone."""
    if pod["spec"].get("schedulingGroup"):
        return
    pod["metadata"].setdefault("annotations", {})[names.POD_GROUP_ANNOTATION] = name
    pod["spec"]["schedulingGroup"] = {"podGroupName": name}


def named_in(pod: RawObject) -> str:
    """Return the name of the PodGroup that we put a pod into; empty when we did not."""
    name: str = groups.annotations_of(pod).get(names.POD_GROUP_ANNOTATION, "")
    return name


def was_dropped(pod: RawObject) -> bool:
    """Tell whether we put a pod into a PodGroup and the API server stored it without: its gate is off."""
    return bool(named_in(pod)) and not pod["spec"].get("schedulingGroup")


def is_bound(pod: RawObject) -> bool:
    """Tell whether a pod has a node."""
    return bool(pod["spec"].get("nodeName"))


def min_count(*, pods: int, bound: bool, workers_exist: bool, workers_wait_for_leader: bool) -> int:
    """Return how many pods of a group must be placed together.

    All of them; only where the workers are not made before their leader has a node (startup policy LeaderReady,
    exclusive topology), the leader comes first and alone, and then its workers together.

    Args:
        pods: how many the group has.
        bound: the leader has a node.
        workers_exist: the workers' StatefulSet is there.
        workers_wait_for_leader: it is made only once the leader has a node, or is ready.
    """
    alone_first = workers_wait_for_leader and not workers_exist and not bound
    return 1 if alone_first else pods


def pod_group(leader: RawObject, count: int) -> Unstructured:
    """Return the PodGroup of a leader's group, of which ``count`` pods must be placed together.

    It is owned by the leader without blocking its deletion: PodGroups have a finalizer that waits until no pod names
    them, so a leader that is deleted in the foreground would wait for itself.
    """
    metadata, spec = leader["metadata"], leader["spec"]
    wanted: RawObject = {
        "schedulingPolicy": {"gang": {"minCount": count}},
        "disruptionMode": {"all": {}},  # the rest of a group is of no use without the pod that was preempted
    }
    if priority := spec.get("priorityClassName"):
        wanted["priorityClassName"] = priority  # the scheduler refuses a group whose pods have another priority
    return POD_GROUP.from_dict(
        {
            "metadata": {
                "name": named_in(leader),
                "namespace": metadata["namespace"],
                "labels": groups.group_labels(leader),
                "ownerReferences": [{**owner_reference(_POD.from_dict(leader)), "blockOwnerDeletion": False}],
            },
            "spec": wanted,
        }
    )


def count_of(group: RawObject) -> int:
    """Return the ``minCount`` of a PodGroup; 0 when it is no gang."""
    gang: Mapping[str, Any] = (group["spec"].get("schedulingPolicy") or {}).get("gang") or {}
    count: int = gang.get("minCount", 0)
    return count


def is_silent(leader: RawObject) -> bool:
    """Tell whether kube-scheduler has said nothing of an unplaced leader yet."""
    return groups.condition_of(leader, "PodScheduled") is None


def why_waiting(leader: RawObject, group: RawObject, members: Sequence[RawObject], now: datetime) -> str:
    """Return what the group of an unplaced leader waits for; empty while there is nothing to say.

    kube-scheduler is silent on two of the reasons: a group of which not all pods exist, and one that it never looks at.

    Args:
        leader: the leader pod.
        group: its PodGroup.
        members: the pods of the group that exist, the leader included.
        now: the time.
    """
    joined = _named(leader, members)
    if dropped := sorted(groups.name_of(pod) for pod in joined if was_dropped(pod)):
        return f"the API server dropped spec.schedulingGroup of {', '.join(dropped)}: {HOW}"
    given_time = age(leader, now) >= SILENT_AFTER
    if given_time and (lacking := _lacking(group, members, joined)):
        return lacking
    condition = groups.condition_of(group, PLACED)
    if condition is not None and condition["status"] == "False":
        return f"kube-scheduler cannot place the group: {condition.get('message') or condition['reason']}"
    if given_time and is_silent(leader):
        return f"all its pods exist, but kube-scheduler has not looked at PodGroup {named_in(leader)}: {HOW}"
    return ""


def why_workers_wait(leader: RawObject, group: RawObject, members: Sequence[RawObject], now: datetime) -> str | None:
    """Return what workers wait for whose leader was placed before them; empty for nothing, None when it is too early.

    kube-scheduler is silent on workers that exist while others do not.

    Args:
        leader: the leader pod, which has a node.
        group: its PodGroup.
        members: the pods of the group that exist, the leader included.
        now: the time.
    """
    joined = _named(leader, members)
    waiting = [age(pod, now) for pod in joined if not is_bound(pod)]
    lacking = _lacking(group, members, joined)
    if not waiting or not lacking:
        return ""
    return lacking if max(waiting) >= SILENT_AFTER else None


def why_not_whole(leader: RawObject, group: RawObject, now: datetime) -> str | None:
    """Tell whether a placed leader's group was not placed by the PodGroup; None while that cannot be told yet."""
    if groups.condition_of(group, PLACED) is not None:
        return ""
    placed = groups.condition_of(leader, "PodScheduled")
    since = None if placed is None else _time(placed.get("lastTransitionTime"))
    if since is None or (now - since).total_seconds() < _UNTRIED_AFTER:
        return None
    made = _time(group["metadata"].get("creationTimestamp"))
    if made is not None and (made - since).total_seconds() >= _UNTRIED_AFTER:
        return ""  # made again in the place of one that was taken away
    name = groups.name_of(leader)
    return f"pod {name} was placed, but PodGroup {named_in(leader)} was not: is this scheduler without the gate? {HOW}"


def _named(leader: RawObject, members: Iterable[RawObject]) -> list[RawObject]:
    """Return the pods that name the PodGroup of a leader, but for those that are going away."""
    return [pod for pod in members if named_in(pod) == named_in(leader) and not groups.is_terminating(pod)]


def _lacking(group: RawObject, members: Iterable[RawObject], joined: Sequence[RawObject]) -> str:
    """Tell how many pods of a group exist, and what keeps the others away; empty when all do."""
    wanted = count_of(group)
    if len(joined) >= wanted:
        return ""
    left = sorted(groups.name_of(pod) for pod in members if pod not in joined)
    leaving = f"; pods of an earlier try are still there: {', '.join(left)}" if left else ""
    return f"{len(joined)} of its {wanted} pods exist{leaving}"


def age(pod: RawObject, now: datetime) -> float:
    """Return for how many seconds a pod has existed."""
    created = _time(pod["metadata"].get("creationTimestamp"))
    return 0.0 if created is None else (now - created).total_seconds()


def _time(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def mark(conditions: list[Condition], problem: str | None, generation: int | None, now: datetime) -> bool:
    """Tell in a set's conditions whether its groups can be placed whole, in place; true when that is bad news.

    The condition comes with the first problem; a set that never had one is without, and so is one whose controllers
    have no provider.

    Args:
        conditions: those of the set.
        problem: what stands against it, "" for nothing; None without a provider.
        generation: that of the set.
        now: the time.
    """
    if problem is None:
        remove_condition(conditions, CONDITION)
        return False
    found = find_condition(conditions, CONDITION)
    if found is None and not problem:
        return False
    said = None if found is None else found.message
    wanted = Condition(
        type=CONDITION,
        status="False" if problem else "True",
        reason="PodGroupsNotServed" if problem else "PodGroupsServed",
        message=problem or "Groups are placed whole or not at all",
        last_transition_time=now,
        observed_generation=generation,
    )
    set_condition(conditions, wanted)
    return bool(problem) and said != wanted.message
