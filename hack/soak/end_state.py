"""What has to be so of every set once trouble is over, told from lists of the objects. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hack.soak.facts import LeadersFact, PodFact, SetFact, WorkersFact, fact_of

Object = dict[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """All objects of a namespace by name, kind by kind."""

    sets: Mapping[str, Object]
    stateful_sets: Mapping[str, Object]
    pods: Mapping[str, Object]
    services: Mapping[str, Object]
    revisions: Mapping[str, Object]


@dataclass
class _Parts:
    """The objects of one set."""

    leaders: LeadersFact | None = None
    workers: dict[str, WorkersFact] = field(default_factory=dict)
    pods: dict[str, PodFact] = field(default_factory=dict)


def problems(snapshot: Snapshot) -> list[str]:
    """Return what is not as the sets' specs say; nothing when all is right."""
    parts: dict[str, _Parts] = {name: _Parts() for name in snapshot.sets}
    found = []
    for obj in (*snapshot.stateful_sets.values(), *snapshot.pods.values()):
        name, about = obj["metadata"]["name"], fact_of(obj)
        if about is None or isinstance(about, SetFact):
            continue
        own = parts.get(about.set_name)
        if own is None:
            found.append(f"{name} is left of a set that is gone")
        elif isinstance(about, LeadersFact):
            own.leaders = about
        elif isinstance(about, WorkersFact):
            own.workers[name] = about
        else:
            own.pods[name] = about
    for name, obj in snapshot.sets.items():
        found += [f"{name}: {problem}" for problem in _of_set(obj, parts[name], snapshot)]
    return found


def _of_set(obj: Object, parts: _Parts, snapshot: Snapshot) -> Iterator[str]:
    name = obj["metadata"]["name"]
    wish = fact_of(obj)
    assert isinstance(wish, SetFact)
    if parts.leaders is None:
        yield "no leader StatefulSet"
        return
    groups = parts.leaders.replicas
    # Surge groups stay while a partition between 1 and the replicas holds groups back.
    held_back = 0 < wish.partition < wish.replicas
    if not wish.replicas <= groups <= wish.replicas + (wish.surge if held_back else 0):
        yield f"{groups} groups for {wish.replicas} replicas"
    yield from _of_pods(obj, wish, parts)
    yield from _of_status(obj, wish, parts)
    yield from _of_services(obj, groups, snapshot)
    kept = [item for item in snapshot.revisions.values() if _owner_uid(item) == obj["metadata"]["uid"]]
    if not kept or (wish.partition == 0 and len(kept) > 1):
        yield f"{len(kept)} revisions of {name} are kept"


def _of_pods(obj: Object, wish: SetFact, parts: _Parts) -> Iterator[str]:
    template = obj["spec"]["leaderWorkerTemplate"]
    size, version = template["size"], template["workerTemplate"]["spec"]["containers"][0]["image"]
    assert parts.leaders is not None
    for group in range(parts.leaders.replicas):
        leader = parts.pods.get(f"{wish.name}-{group}")
        if leader is None:
            yield f"group {group} has no leader"
            continue
        updated = group >= wish.partition
        if updated and (leader.version, leader.size, leader.revision) != (version, size, parts.leaders.revision):
            yield f"group {group} is of {leader.version}, size {leader.size}"
        workers = [f"{leader.name}-{index}" for index in range(1, leader.size)]
        for name in (leader.name, *workers):
            pod = parts.pods.get(name)
            if pod is None or pod.terminating or not pod.ready:
                yield f"{name} is not ready"
            elif (pod.version, pod.size, pod.revision) != (leader.version, leader.size, leader.revision):
                yield f"{name} is of another revision than its leader"
            elif pod.worker:
                own = parts.workers.get(leader.name)
                if own is None or pod.owner != own.uid or own.leader != leader.uid:
                    yield f"{name} is of another group's StatefulSet"
    wanted = parts.leaders.replicas
    count = sum(pod.worker == 0 for pod in parts.pods.values())
    if count != wanted:
        yield f"{count} leaders for {wanted} groups"
    sizes = {pod.group: pod.size for pod in parts.pods.values() if pod.worker == 0}
    yield from (f"{pod.name} is one too many" for pod in parts.pods.values() if pod.worker >= sizes.get(pod.group, 0))


def _of_status(obj: Object, wish: SetFact, parts: _Parts) -> Iterator[str]:
    status = obj.get("status") or {}
    assert parts.leaders is not None
    revision = parts.leaders.revision
    updated = sum(pod.worker == 0 and pod.revision == revision for pod in parts.pods.values())
    expected = {
        "observedGeneration": obj["metadata"]["generation"],
        "replicas": parts.leaders.replicas,
        "readyReplicas": parts.leaders.replicas,
        "updatedReplicas": updated,
    }
    yield from (
        f"status.{key} is {status.get(key, 0)}, not {value}"
        for key, value in expected.items()
        if status.get(key, 0) != value
    )
    true = {item["type"] for item in status.get("conditions") or () if item["status"] == "True"}
    if true != {"Available"}:
        yield f"conditions {sorted(true)} are True"


def _of_services(obj: Object, groups: int, snapshot: Snapshot) -> Iterator[str]:
    name = obj["metadata"]["name"]
    unique = obj["spec"]["networkConfig"]["subdomainPolicy"] == "UniquePerReplica"
    partition = obj["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"].get("partition", 0)
    wanted = [f"{name}-{group}" for group in range(partition, groups)] if unique else [name]
    yield from (f"service {service} is missing" for service in wanted if service not in snapshot.services)


def _owner_uid(obj: Object) -> str:
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner["kind"] == "LeaderWorkerSet"), "")
