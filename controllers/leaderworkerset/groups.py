"""What the cluster shows of a set's groups: predicates on pods and StatefulSets, and the indexes to find them by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyreconcile.api import KubeObject, RawObject, object_key
from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import Pod
from pyreconcile_controllers.leaderworkerset import names
from pyreconcile_controllers.leaderworkerset.rollout import GroupState
from pyreconcile_controllers.leaderworkerset.status import Group

BY_SET = "leaderworkerset"
"""Index of StatefulSets and ControllerRevisions: key of the set that they belong to."""
LEADERS_BY_SET = "leaderworkerset-leaders"
"""Index of pods: for a leader, the key of its set."""
BY_GROUP = "leaderworkerset-group"
"""Index of pods: `group_of` their set and group."""


_SET_KIND = "LeaderWorkerSet"


def labels_of(raw: RawObject) -> dict[str, str]:
    """Return the labels of an object as parsed JSON; read only."""
    labels: dict[str, str] = raw["metadata"].get("labels") or {}
    return labels


def index_set(raw: RawObject) -> Iterable[str]:
    """Give the key of the set that an object is labelled with."""
    name = labels_of(raw).get(names.SET_NAME_LABEL)
    return (object_key(raw["metadata"].get("namespace", ""), name),) if name else ()


def index_revision(raw: RawObject) -> Iterable[str]:
    """Give the set of a revision, but not for those that its StatefulSets keep, which bear the same label."""
    owners = raw["metadata"].get("ownerReferences") or ()
    foreign = any(owner.get("controller") and owner["kind"] != _SET_KIND for owner in owners)
    return () if foreign else index_set(raw)


def index_leader(raw: RawObject) -> Iterable[str]:
    """Give the key of the set that a pod leads a group of."""
    return index_set(raw) if labels_of(raw).get(names.WORKER_INDEX_LABEL) == names.LEADER_INDEX else ()


def index_group(raw: RawObject) -> Iterable[str]:
    """Give the group that a pod is labelled with."""
    group = group_of(raw["metadata"].get("namespace", ""), labels_of(raw))
    return (group,) if group else ()


def group_of(namespace: str, labels: dict[str, str]) -> str:
    """Return one text for namespace, set and group of a pod; empty when a label is missing."""
    name, index = labels.get(names.SET_NAME_LABEL), labels.get(names.GROUP_INDEX_LABEL)
    return f"{namespace}/{name}/{index}" if name and index else ""


def revision_key(obj: KubeObject) -> str:
    """Return the revision that an object is labelled with; empty without one."""
    return obj.metadata.labels.get(names.REVISION_LABEL, "")


def is_leader(labels: dict[str, str]) -> bool:
    """Tell whether a pod with these labels leads its group."""
    return labels.get(names.WORKER_INDEX_LABEL) == names.LEADER_INDEX


def pod_ready(pod: Pod) -> bool:
    """Tell whether the pod's Ready condition is True, whatever its phase."""
    conditions = (pod.status.conditions if pod.status else None) or ()
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


def pod_running_and_ready(pod: Pod) -> bool:
    """Tell whether the pod runs and is ready."""
    return pod.status is not None and pod.status.phase == "Running" and pod_ready(pod)


def stateful_set_ready(workers: StatefulSet) -> bool:
    """Tell whether every pod of a StatefulSet is available and of its newest template."""
    status = workers.status
    if status is None:
        return workers.spec.replicas == 0
    return workers.spec.replicas == (status.available_replicas or 0) and (status.current_revision or "") == (
        status.update_revision or ""
    )


def group_states(
    set_name: str, total: int, size: int, key: str, leaders: Sequence[Pod], workers: Iterable[StatefulSet]
) -> list[GroupState]:
    """Return the states of the groups 0 to ``total`` - 1, as a rolling update looks at them (LWS §6.3)."""
    by_name = {item.metadata.name: item for item in workers}
    states = [GroupState()] * total
    for leader in leaders:
        index = names.group_index(leader.metadata.labels)
        name = leader.metadata.name
        if index is None or index >= total or name != names.group_name(set_name, index):
            continue
        updated, ready = revision_key(leader) == key, pod_running_and_ready(leader)
        old = not updated
        if size != 1:
            own = by_name.get(name)
            updated = own is not None and updated and revision_key(own) == key
            ready = own is not None and ready and stateful_set_ready(own)
        states[index] = GroupState(ready=ready, updated=updated, old=old)
    return states


def counted_groups(size: int, key: str, leaders: Sequence[Pod], workers: Iterable[StatefulSet]) -> list[Group]:
    """Return the groups that the status counts (LWS §6.6).

    Raises:
        ValueError: a leader has no group index, as when the pod webhook is missing.
    """
    by_name = {item.metadata.name: item for item in workers}
    groups = []
    for leader in leaders:
        index = names.group_index(leader.metadata.labels)
        if index is None:
            raise ValueError(f"pod {leader.key}: label {names.GROUP_INDEX_LABEL} is no number; is the pod webhook on?")
        updated, ready = revision_key(leader) == key, pod_running_and_ready(leader)
        if size != 1:
            own = by_name.get(leader.metadata.name)
            if own is None:
                continue
            updated = updated and revision_key(own) == key
            ready = ready and stateful_set_ready(own)
        groups.append(Group(index, ready, updated))
    return groups
