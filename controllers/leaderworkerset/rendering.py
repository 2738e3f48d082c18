"""A description of a set as text, and as JSON. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from pyreconcile_controllers.leaderworkerset import gang
from pyreconcile_controllers.leaderworkerset.description import Description, GroupView, PodView


def render(description: Description, now: datetime) -> str:
    """Return the tree as text; ``now`` is what times are measured against."""
    return "\n".join(_lines(description, now))


def _lines(found: Description, now: datetime) -> Iterator[str]:
    yield f"LeaderWorkerSet {found.namespace}/{found.name}"
    size = f"{_count(found.replicas, 'group')} of {_count(found.size, 'pod')}"
    yield f"  {size}, {found.ready} ready, {found.updated} up to date"
    for kind, status, reason, message, since in found.conditions:
        if status == "True":
            yield f"  {kind}{_ago(since, now)}: {message} ({reason})"
        elif kind == gang.CONDITION:
            yield f"  no {kind}{_ago(since, now)}: {message} ({reason})"
    limits = f"at most {found.max_unavailable} unavailable, {found.max_surge} surge"
    if found.updating:
        yield f"Rollout to revision {found.revision}: from group {found.partition} on, {limits}"
    else:
        yield f"No rollout; the next may have {limits}"
    if found.held_below:
        yield f"  spec.partition {found.held_below} keeps the groups below at their revision"
    if found.waiting is not None:
        waiting = found.waiting
        subject = f"pod {waiting.pod}" if waiting.pod else "it"
        yield f"  waits for group {waiting.group}{_ago(waiting.since, now)}: {subject} {waiting.text}"
    if found.revisions:
        yield "Revisions"
        for revision in found.revisions:
            mark = " (current)" if revision.current else ""
            yield f"  {revision.number}  {revision.key}{mark}: {_of_groups(revision.groups)}"
    yield "Groups" if found.groups else "No groups"
    for group in found.groups:
        last = group is found.groups[-1]
        yield f"{'└─' if last else '├─'} {_group(group)}"
        for pod in group.pods:
            yield f"{'   ' if last else '│  '}{'└─' if pod is group.pods[-1] else '├─'} {_pod(pod, group, now)}"


def _group(group: GroupView) -> str:
    words = ["ready" if group.ready else "not ready"]
    if not group.pods:
        words = ["no pods"]
    elif len(group.pods) != group.size:
        words.append(f"{len(group.pods)} of {group.size} pods")
    words.append(f"revision {group.revision}" if group.revision else "no leader")
    if group.pods and not group.updated:
        words.append("held by the partition" if group.held else "to be updated")
    if group.surge:
        words.append("surge")
    return f"{group.index}  {', '.join(words)}"


def _pod(pod: PodView, group: GroupView, now: datetime) -> str:
    words = [pod.phase if pod.trouble is not None or pod.phase != "Running" else "Ready"]
    words.append(f"on {pod.node}" if pod.node else "on no node")
    if pod.restarts:
        words.append(_count(pod.restarts, "restart"))
    if pod.revision != group.revision:
        words.append(f"revision {pod.revision}")
    trouble = ""
    if pod.trouble is not None:
        trouble = f"; {pod.trouble.text}{_ago(pod.trouble.since, now)}"
    return f"{pod.name}  {', '.join(words)}{trouble}"


def _ago(since: datetime | None, now: datetime) -> str:
    return "" if since is None else f" for {age((now - since).total_seconds())}"


def age(seconds: float) -> str:
    """Return a time span in its two largest units: ``42s``, ``3m5s``, ``2h``, ``5d3h``."""
    left = max(0, int(seconds))
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        number, left = divmod(left, length)
        parts.append((number, unit))
    first = next((index for index, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return "".join(f"{number}{unit}" for number, unit in parts[first : first + 2] if number) or "0s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _of_groups(indexes: Sequence[int]) -> str:
    if not indexes:
        return "no group"
    return f"{'group' if len(indexes) == 1 else 'groups'} {', '.join(map(str, indexes))}"


def to_json(found: Description) -> dict[str, Any]:
    """Return the tree for programs: names as on the wire, times in RFC 3339."""
    waiting = found.waiting
    return {
        "namespace": found.namespace,
        "name": found.name,
        "replicas": found.replicas,
        "size": found.size,
        "readyReplicas": found.ready,
        "updatedReplicas": found.updated,
        "revision": found.revision,
        "rollout": {
            "inProgress": found.updating,
            "partition": found.partition,
            "heldBelow": found.held_below,
            "maxUnavailable": found.max_unavailable,
            "maxSurge": found.max_surge,
            "waitsFor": None
            if waiting is None
            else {
                "group": waiting.group,
                "pod": waiting.pod or None,
                "reason": waiting.reason,
                "message": waiting.text,
                "since": _wire(waiting.since),
            },
        },
        "conditions": [
            {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": _wire(since)}
            for kind, status, reason, message, since in found.conditions
        ],
        "revisions": [
            {"key": item.key, "revision": item.number, "current": item.current, "groups": list(item.groups)}
            for item in found.revisions
        ],
        "groups": [
            {
                "index": group.index,
                "ready": group.ready,
                "updated": group.updated,
                "surge": group.surge,
                "held": group.held,
                "revision": group.revision or None,
                "size": group.size,
                "pods": [
                    {
                        "name": pod.name,
                        "phase": pod.phase,
                        "node": pod.node or None,
                        "revision": pod.revision,
                        "restarts": pod.restarts,
                        "ready": pod.trouble is None,
                        "reason": pod.trouble.reason if pod.trouble else None,
                        "message": pod.trouble.text if pod.trouble else None,
                        "since": _wire(pod.trouble.since) if pod.trouble else None,
                    }
                    for pod in group.pods
                ],
            }
            for group in found.groups
        ],
    }


def _wire(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}"
