"""What a rolling update waits for: which group, which of its pods, why, and since when. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from pyreconcile.api import RawObject
from pyreconcile_controllers.leaderworkerset import groups, names
from pyreconcile_controllers.leaderworkerset.rollout import GroupState

_STARTING = ("ContainerCreating", "PodInitializing")


class Weight(IntEnum):
    """How likely a trouble is the cause of the others in a group; the lowest is told."""

    CAUSE = 0
    STARTING = 1
    ABSENT = 2


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why one pod is not ready.

    Attributes:
        reason: one word, the same as long as it is the same trouble.
        text: the end of a sentence that begins with the pod's name.
        since: when that began; None when nothing tells.
    """

    reason: str
    text: str
    since: datetime | None = None
    weight: Weight = Weight.CAUSE


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a rolling update waits for.

    Attributes:
        revision: key of the revision that groups are brought to.
        group: ordinal of the group.
        pod: name of the pod; empty when all pods of the group are well.
        reason: one word for the trouble.
        text: the trouble, the end of a sentence that begins with the pod's name.
        since: when it began to wait for this.
    """

    revision: str
    group: int
    pod: str
    reason: str
    text: str
    since: datetime

    @property
    def cause(self) -> tuple[str, int, str, str]:
        """What makes it another wait; details in the text may change."""
        return self.revision, self.group, self.pod, self.reason

    @property
    def note(self) -> str:
        """The whole as one sentence."""
        subject = f"pod {self.pod}" if self.pod else "it"
        return (
            f"Rollout of revision {self.revision} waits for group {self.group} since {self.since:%Y-%m-%dT%H:%M:%SZ}: "
            f"{subject} {self.text}"
        )


def blocking_group(states: Sequence[GroupState], partition: int) -> int | None:
    """Return the ordinal of the group that a rolling update waits for; None when nothing is in its way.

    It is the highest one that is being updated and not done; else, since groups that are not ready use up what may be
    unavailable, the highest one below the partition that is not ready.
    """
    for index in range(len(states) - 1, -1, -1):
        state = states[index]
        if not state.ready or (index >= partition and not state.updated):
            return index
    return None


def find_waiting(
    set_name: str,
    group: int,
    revision: str,
    members: Iterable[RawObject],
    workers: RawObject | None,
    *,
    size: int,
    begun: datetime,
) -> Waiting:
    """Return what the rolling update waits for in a group.

    Args:
        set_name: the set's name.
        group: ordinal of the group; see `blocking_group`.
        revision: key of the revision that groups are brought to.
        members: the pods of the group that exist.
        workers: the group's worker StatefulSet; None when there is none.
        size: pods in a group by the set's spec; the group may have another by its own revision.
        begun: when the update began; it does not wait for longer than that.
    """
    leader_name = names.group_name(set_name, group)
    by_name = {groups.name_of(pod): pod for pod in members}
    count = group_size(by_name.get(leader_name), workers, size)
    wanted = [leader_name, *(f"{leader_name}-{number}" for number in range(1, count))]
    found = [(trouble, name) for name in wanted if (trouble := pod_trouble(by_name.get(name))) is not None]
    if found:
        trouble, name = min(found, key=lambda pair: pair[0].weight)
        return Waiting(revision, group, name, trouble.reason, trouble.text, _later(trouble.since, begun))
    leader = by_name[leader_name]
    if groups.revision_key(leader) != revision:
        text = f"is of revision {groups.revision_key(leader)} and was not replaced yet"
        return Waiting(revision, group, leader_name, "NotReplaced", text, begun)
    text = f"has all its pods ready, but StatefulSet {leader_name} does not say so yet"
    return Waiting(revision, group, "", "NotReported", text, begun)


def group_size(leader: RawObject | None, workers: RawObject | None, default: int) -> int:
    """Return how many pods a group has by its own revision, which may be another than that of the spec (LWS §16.3).

    Args:
        leader: the group's leader; None when there is none.
        workers: its worker StatefulSet; None when there is none.
        default: when neither tells: the size in the set's spec.
    """
    if workers is not None:
        default = workers["spec"].get("replicas", 0) + 1
    return default if leader is None else groups.size_of(leader, default)


def pod_trouble(pod: RawObject | None) -> Trouble | None:
    """Return why a pod is not running and ready; None when it is."""
    if pod is None:
        return Trouble("Missing", "does not exist", weight=Weight.ABSENT)
    metadata, status = pod["metadata"], pod.get("status") or {}
    if groups.is_terminating(pod):
        grace = timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
        ends = _time(metadata["deletionTimestamp"])
        return Trouble("Terminating", "is being deleted", None if ends is None else ends - grace)
    if groups.pod_running_and_ready(pod):
        return None
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    created = _time(metadata.get("creationTimestamp"))
    scheduled = conditions.get("PodScheduled")
    if scheduled is None or scheduled["status"] != "True":
        reason = (scheduled or {}).get("reason") or "Unscheduled"
        return Trouble(reason, _told("is not scheduled", scheduled), _since(scheduled) or created)
    ready = conditions.get("Ready")
    since = _since(ready) or created
    if groups.phase_of(pod) in ("Failed", "Succeeded"):
        reason = status.get("reason") or groups.phase_of(pod)
        return Trouble(reason, f"has ended ({reason}){_colon(status.get('message'))}", since)
    if (container := _container_trouble(status)) is not None:
        reason, text = container
        return Trouble(reason, text, since)
    if groups.phase_of(pod) == "Running":
        return Trouble("NotReady", _told("is not ready", ready), since, Weight.STARTING)
    return Trouble("Starting", "is starting", _since(scheduled) or created, Weight.STARTING)


def _container_trouble(status: RawObject) -> tuple[str, str] | None:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            state = container.get("state") or {}
            waiting, ended = state.get("waiting"), state.get("terminated")
            if waiting is not None and (reason := waiting.get("reason", "")) and reason not in _STARTING:
                return reason, f"has container {container['name']} in {reason}{_colon(waiting.get('message'))}"
            if ended is not None and ended.get("exitCode"):
                reason = ended.get("reason") or "Error"
                return reason, f"has container {container['name']} ended with exit code {ended['exitCode']} ({reason})"
    return None


def _told(text: str, condition: RawObject | None) -> str:
    return text + _colon((condition or {}).get("message"))


def _colon(message: object) -> str:
    return f": {message}" if message else ""


def _since(condition: RawObject | None) -> datetime | None:
    return _time((condition or {}).get("lastTransitionTime"))


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _later(since: datetime | None, begun: datetime) -> datetime:
    return begun if since is None else max(since, begun)
