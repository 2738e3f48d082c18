"""What the API server said of the objects of a soak, cut down to what the checker looks at. No I/O.

Resource versions order the changes of all kinds (they are comparable numbers), whatever watch brought them first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from hack.soak.plan import PREFIX

Object = dict[str, Any]

_PERCENT = re.compile(r"(\d+)%")
_NAME, _GROUP, _WORKER = PREFIX + "name", PREFIX + "group-index", PREFIX + "worker-index"
_REVISION, _SIZE = PREFIX + "template-revision-hash", PREFIX + "size"


@dataclass(frozen=True, slots=True)
class SetFact:
    """A LeaderWorkerSet: what its user asks for, percentages resolved."""

    name: str
    uid: str
    replicas: int
    unavailable: int
    surge: int
    partition: int
    policy: str
    terminating: bool = False


@dataclass(frozen=True, slots=True)
class LeadersFact:
    """The StatefulSet of a set's leaders."""

    set_name: str
    uid: str
    replicas: int
    partition: int
    revision: str


@dataclass(frozen=True, slots=True)
class WorkersFact:
    """The StatefulSet of one group's workers; ``leader`` is the UID of the pod that owns it."""

    set_name: str
    uid: str
    leader: str
    revision: str


@dataclass(frozen=True, slots=True)
class PodFact:
    """A pod of a set.

    Attributes:
        worker: 0 for the leader.
        owner: the UID of its StatefulSet.
        version: the image of its first container.
        size: of its group, as it was told.
    """

    set_name: str
    name: str
    uid: str
    group: int
    worker: int
    owner: str
    revision: str
    version: str
    size: int
    node: str = ""
    ready: bool = False
    restarted: bool = False
    terminating: bool = False


About: TypeAlias = SetFact | LeadersFact | WorkersFact | PodFact


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one object.

    Attributes:
        order: its resource version.
        time: when the watch brought it, in the seconds of ``time.monotonic``.
        gone: whether the object is no more.
        about: the object after it, or as it last was.
    """

    order: int
    time: float
    gone: bool
    about: About


def change_of(event: str, time: float, obj: Object) -> Change | None:
    """Return a watch event's change; None for objects that are of no set."""
    about = fact_of(obj)
    if about is None:
        return None
    return Change(int(obj["metadata"]["resourceVersion"]), time, event == "DELETED", about)


def fact_of(obj: Object) -> About | None:
    """Return what an object says; None for one that is of no set."""
    spec = obj["spec"]
    if "leaderWorkerTemplate" in spec:
        return _set(obj)
    labels = obj["metadata"].get("labels") or {}
    if _NAME not in labels:
        return None
    if "containers" in spec:
        return _pod(obj, labels)
    owner = _owner(obj)
    if _GROUP in labels:
        return WorkersFact(labels[_NAME], obj["metadata"]["uid"], owner, labels.get(_REVISION, ""))
    partition = ((spec.get("updateStrategy") or {}).get("rollingUpdate") or {}).get("partition", 0)
    return LeadersFact(
        labels[_NAME], obj["metadata"]["uid"], spec.get("replicas", 1), partition, labels.get(_REVISION, "")
    )


def _set(obj: Object) -> SetFact:
    spec, metadata = obj["spec"], obj["metadata"]
    replicas: int = spec.get("replicas", 1)
    limits = (spec.get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
    return SetFact(
        name=metadata["name"],
        uid=metadata["uid"],
        replicas=replicas,
        unavailable=resolve(limits.get("maxUnavailable", 1), replicas, up=False),
        surge=min(replicas, resolve(limits.get("maxSurge", 0), replicas, up=True)),
        partition=limits.get("partition", 0),
        policy=spec["leaderWorkerTemplate"].get("restartPolicy", ""),
        terminating="deletionTimestamp" in metadata,
    )


def resolve(value: int | str, total: int, *, up: bool) -> int:
    """Return a number of groups from a number or a percentage of ``total``."""
    if isinstance(value, int):
        return value
    match = _PERCENT.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is neither a number nor a percentage")
    whole, rest = divmod(int(match[1]) * total, 100)
    return whole + (1 if up and rest else 0)


def _pod(obj: Object, labels: dict[str, str]) -> PodFact:
    metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    conditions = status.get("conditions") or ()
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    counts = [container.get("restartCount", 0) for container in status.get("containerStatuses") or ()]
    return PodFact(
        set_name=labels[_NAME],
        name=metadata["name"],
        uid=metadata["uid"],
        group=int(labels.get(_GROUP, -1)),
        worker=int(labels.get(_WORKER, -1)),
        owner=_owner(obj),
        revision=labels.get(_REVISION, ""),
        version=spec["containers"][0].get("image", ""),
        size=int((metadata.get("annotations") or {}).get(_SIZE, 1)),
        node=spec.get("nodeName", ""),
        ready=ready and status.get("phase") == "Running",
        restarted=any(counts),
        terminating="deletionTimestamp" in metadata,
    )


def _owner(obj: Object) -> str:
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")
