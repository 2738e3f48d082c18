"""What the cluster shows of a set's groups: predicates on pods and StatefulSets, and the indexes to find them by.

Objects are parsed JSON here, as the cache holds them: every pass looks at all groups of a set, and decoding them into
models would be most of its work. They are shared with the cache: read only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyreconcile.api import RawObject, object_key
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
    """Return the labels of an object."""
    labels: dict[str, str] = raw["metadata"].get("labels") or {}
    return labels


def annotations_of(raw: RawObject) -> dict[str, str]:
    """Return the annotations of an object."""
    annotations: dict[str, str] = raw["metadata"].get("annotations") or {}
    return annotations


def namespace_of(raw: RawObject) -> str:
    """Return the namespace of an object."""
    namespace: str = raw["metadata"].get("namespace", "")
    return namespace


def name_of(raw: RawObject) -> str:
    """Return the name of an object."""
    name: str = raw["metadata"]["name"]
    return name


def uid_of(raw: RawObject) -> str:
    """Return the UID of an object."""
    uid: str = raw["metadata"]["uid"]
    return uid


def controller_of(raw: RawObject) -> RawObject | None:
    """Return the owner reference of an object's controller."""
    owners: list[RawObject] = raw["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def owner_uid(raw: RawObject) -> str:
    """Return the UID of an object's controller; empty without one."""
    owner = controller_of(raw)
    return "" if owner is None else str(owner["uid"])


def is_terminating(raw: RawObject) -> bool:
    """Tell whether an object is being deleted."""
    return "deletionTimestamp" in raw["metadata"]


def revision_key(raw: RawObject) -> str:
    """Return the revision that an object is labelled with; empty without one."""
    return labels_of(raw).get(names.REVISION_LABEL, "")


def index_set(raw: RawObject) -> Iterable[str]:
    """Give the key of the set that an object is labelled with."""
    name = labels_of(raw).get(names.SET_NAME_LABEL)
    return (object_key(namespace_of(raw), name),) if name else ()


def index_revision(raw: RawObject) -> Iterable[str]:
    """Give the set of a revision, but not for those that its StatefulSets keep, which bear the same label."""
    owner = controller_of(raw)
    return index_set(raw) if owner is None or owner["kind"] == _SET_KIND else ()


def index_leader(raw: RawObject) -> Iterable[str]:
    """Give the key of the set that a pod leads a group of."""
    return index_set(raw) if is_leader(raw) else ()


def index_group(raw: RawObject) -> Iterable[str]:
    """Give the group that a pod is labelled with."""
    group = group_of(raw)
    return (group,) if group else ()


def group_of(pod: RawObject) -> str:
    """Return one text for namespace, set and group of a pod; empty when a label is missing."""
    labels = labels_of(pod)
    name, index = labels.get(names.SET_NAME_LABEL), labels.get(names.GROUP_INDEX_LABEL)
    return f"{namespace_of(pod)}/{name}/{index}" if name and index else ""


def is_leader(pod: RawObject) -> bool:
    """Tell whether a pod leads its group."""
    return labels_of(pod).get(names.WORKER_INDEX_LABEL) == names.LEADER_INDEX


def phase_of(pod: RawObject) -> str:
    """Return the phase of a pod; empty when it has none yet."""
    phase: str = _status(pod).get("phase", "")
    return phase


def size_of(pod: RawObject, default: int) -> int:
    """Return how many pods the pod's group has by its own revision; ``default`` when the pod does not tell (§16.3)."""
    size = names.number_in(annotations_of(pod), names.SIZE_ANNOTATION)
    return default if size is None else size


def pod_ready(pod: RawObject) -> bool:
    """Tell whether the pod's Ready condition is True, whatever its phase."""
    return any(item["type"] == "Ready" and item["status"] == "True" for item in _status(pod).get("conditions") or ())


def pod_running_and_ready(pod: RawObject) -> bool:
    """Tell whether the pod runs and is ready."""
    return phase_of(pod) == "Running" and pod_ready(pod)


def pod_restarted(pod: RawObject) -> bool:
    """Tell whether any container of a pod that has not ended was started again (LWS §7.2)."""
    if phase_of(pod) not in ("Running", "Pending"):
        return False
    status = _status(pod)
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return any(container.get("restartCount", 0) > 0 for container in containers)


def condition_of(raw: RawObject, kind: str) -> dict[str, Any] | None:
    """Return the condition of one type; None when the object has none."""
    return next((item for item in _status(raw).get("conditions") or () if item["type"] == kind), None)


def group_labels(leader: RawObject) -> dict[str, str]:
    """Return the labels that tell of which set, group and revision an object of a leader's group is."""
    labels = labels_of(leader)
    wanted = (names.SET_NAME_LABEL, names.GROUP_INDEX_LABEL, names.REVISION_LABEL)
    return {label: labels[label] for label in wanted if label in labels}


def stateful_set_ready(workers: RawObject) -> bool:
    """Tell whether every pod of a StatefulSet is available and of its newest template."""
    status = _status(workers)
    available: bool = workers["spec"].get("replicas") == status.get("availableReplicas", 0)
    return available and status.get("currentRevision") == status.get("updateRevision")


def group_states(
    set_name: str,
    total: int,
    size: int,
    key: str,
    leaders: Sequence[RawObject],
    workers: Iterable[RawObject],
    *,
    as_upstream: bool = False,
) -> list[GroupState]:
    """Return the states of the groups 0 to ``total`` - 1, as a rolling update looks at them (LWS §6.3).

    ``size`` is the set's; a group of an older revision may have another, see `size_of`. A group whose leader is being
    deleted is not ready, even where its pods still say so: no other may go on its account. ``as_upstream`` believes
    them.
    """
    by_name = {name_of(item): item for item in workers}
    states = [GroupState()] * total
    for leader in leaders:
        index, name = names.group_index(labels_of(leader)), name_of(leader)
        if index is None or index >= total or name != names.group_name(set_name, index):
            continue
        current = revision_key(leader) == key
        ready, updated = _ready_and_updated(leader, by_name.get(name), size_of(leader, size), key)
        leaving = is_terminating(leader) and not as_upstream
        states[index] = GroupState(ready=ready and not leaving, updated=updated, old=not current)
    return states


def counted_groups(size: int, key: str, leaders: Sequence[RawObject], workers: Iterable[RawObject]) -> list[Group]:
    """Return the groups that the status counts (LWS §6.6); ``size`` is the set's, as for `group_states`.

    Raises:
        ValueError: a leader has no group index, as when the pod webhook is missing.
    """
    by_name = {name_of(item): item for item in workers}
    groups = []
    for leader in leaders:
        index = names.group_index(labels_of(leader))
        if index is None:
            name = object_key(namespace_of(leader), name_of(leader))
            raise ValueError(f"pod {name}: label {names.GROUP_INDEX_LABEL} is no number; is the pod webhook on?")
        own, pods = by_name.get(name_of(leader)), size_of(leader, size)
        if pods == 1 or own is not None:
            ready, updated = _ready_and_updated(leader, own, pods, key)
            groups.append(Group(index, ready, updated))
    return groups


def _ready_and_updated(leader: RawObject, workers: RawObject | None, size: int, key: str) -> tuple[bool, bool]:
    ready, updated = pod_running_and_ready(leader), revision_key(leader) == key
    if size == 1:
        return ready, updated
    if workers is None:
        return False, False
    return ready and stateful_set_ready(workers), updated and revision_key(workers) == key


def _status(raw: RawObject) -> dict[str, Any]:
    status: dict[str, Any] = raw.get("status") or {}
    return status
