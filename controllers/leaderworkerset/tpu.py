"""Environment of pods that use TPUs: which hosts form the slice, and which of them this pod is (LWS §4.2). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyreconcile.api import RawObject
from pyreconcile_controllers.leaderworkerset.names import (
    LEADER_INDEX,
    LEADER_REQUESTS_TPUS_ANNOTATION,
    SUBGROUP_INDEX_LABEL,
    SUBGROUP_SIZE_ANNOTATION,
    WORKER_INDEX_LABEL,
    parent_and_ordinal,
    parse_number,
)

TPU_RESOURCE = "google.com/tpu"
DEFAULT_PORT = 8476

_PORT = "TPU_PROCESS_PORT"
_GIVEN = frozenset({"TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"})
_NUMBER = re.compile(r"[+-]?[0-9.]*", re.ASCII)


def requests_tpus(pod_spec: RawObject) -> bool:
    """Tell whether any container of a pod asks for TPUs: by its limit, or by its request where the limit is zero."""
    return next(_requesting(pod_spec), None) is not None


def add_tpu_variables(pod: RawObject, size: int) -> None:
    """Tell the containers that ask for TPUs about the hosts of their group (of ``size`` pods) or subgroup, in place.

    Nothing is added when the first of them names its hosts or its worker id itself.

    Raises:
        ValueError: a label or annotation that is needed is missing or no integer.
    """
    containers = list(_requesting(pod["spec"]))
    if not containers or any(entry["name"] in _GIVEN for entry in containers[0].get("env") or ()):
        return
    if SUBGROUP_SIZE_ANNOTATION in (pod["metadata"].get("annotations") or {}):
        # One container of a pod takes part in a subgroup.
        container = containers[0]
        leader, numbers, worker_id = _subgroup(pod)
        port = _port(container, DEFAULT_PORT)
        hosts = [_host(pod, leader, number) for number in numbers]
        _extend(container, hosts, [f"{host}:{port}" for host in hosts], worker_id, leader, port)
        return
    leader, numbers, index = _group(pod, size)
    ports = [_port(container, DEFAULT_PORT + i) for i, container in enumerate(containers)]
    hosts = [_host(pod, leader, number) for number in numbers for _ in ports]
    addresses = [f"{_host(pod, leader, number)}:{port}" for number in numbers for port in ports]
    for i, container in enumerate(containers):
        _extend(container, hosts, addresses, index * len(containers) + i, leader, ports[i])


def _group(pod: RawObject, size: int) -> tuple[str, list[int], int]:
    """Return the leader's name, the numbers of the pods with TPUs (0 is the leader) and this pod's place."""
    name = pod["metadata"]["name"]
    leader_takes_part = _leader_requests_tpus(pod)
    if _is_leader(pod):
        leader, index = name, 0
        leader_takes_part = True
    else:
        leader, worker = _parent(name)
        index = worker if leader_takes_part else worker - 1
    return leader, list(range(0 if leader_takes_part else 1, size)), index


def _subgroup(pod: RawObject) -> tuple[str, list[int], int]:
    """Return the leader's name, the numbers of the subgroup's pods (0 is the leader) and this pod's place."""
    metadata = pod["metadata"]
    labels = metadata["labels"]
    size = _integer(metadata["annotations"], SUBGROUP_SIZE_ANNOTATION, metadata["name"])
    if size < 1:
        raise ValueError(f"annotation {SUBGROUP_SIZE_ANNOTATION} of pod {metadata['name']} must be at least 1")
    group = _integer(labels, SUBGROUP_INDEX_LABEL, metadata["name"])
    worker = _integer(labels, WORKER_INDEX_LABEL, metadata["name"])
    leader_takes_part = _leader_requests_tpus(pod)
    worker_id = worker % size
    if worker != 0 and not leader_takes_part:
        group, worker_id = divmod(worker - 1, size)
    first = size * group + 1
    if _is_leader(pod):
        return metadata["name"], [0, *range(first, first + size - 1)], worker_id
    leader, _ = _parent(metadata["name"])
    if leader_takes_part:
        # The leader is the first host of subgroup 0, so every subgroup begins one pod earlier.
        first -= 1
    return leader, list(range(first, first + size)), worker_id


def _extend(container: RawObject, hosts: list[str], addresses: list[str], worker_id: int, name: str, port: str) -> None:
    variables = {
        "TPU_WORKER_HOSTNAMES": ",".join(hosts),
        "TPU_WORKER_ID": str(worker_id),
        "TPU_NAME": name,
        "TPU_PROCESS_ADDRESSES": ",".join(addresses),
    }
    env = list(container.get("env") or ())
    if all(entry["name"] != _PORT for entry in env):
        variables[_PORT] = port
    container["env"] = [*env, *({"name": variable, "value": value} for variable, value in variables.items())]


def _requesting(pod_spec: RawObject) -> Iterator[RawObject]:
    for container in (*(pod_spec.get("containers") or ()), *(pod_spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        if any(_is_some((resources.get(kind) or {}).get(TPU_RESOURCE)) for kind in ("limits", "requests")):
            yield container


def _is_some(quantity: str | int | None) -> bool:
    match = _NUMBER.match(str(quantity or 0))
    return match is not None and any(digit in "123456789" for digit in match[0])


def _port(container: RawObject, default: int) -> str:
    for entry in container.get("env") or ():
        if entry["name"] == _PORT:
            return str(entry.get("value", ""))
    return str(default)


def _host(pod: RawObject, leader: str, number: int) -> str:
    name = leader if number == 0 else f"{leader}-{number}"
    return f"{name}.{pod['spec'].get('subdomain', '')}"


def _is_leader(pod: RawObject) -> bool:
    return bool(pod["metadata"]["labels"].get(WORKER_INDEX_LABEL) == LEADER_INDEX)


def _leader_requests_tpus(pod: RawObject) -> bool:
    annotations = pod["metadata"].get("annotations") or {}
    return bool(annotations.get(LEADER_REQUESTS_TPUS_ANNOTATION) == "true")


def _parent(name: str) -> tuple[str, int]:
    parent = parent_and_ordinal(name)
    if parent is None:
        raise ValueError(f"parsing parent name from pod {name}: the name must end with a dash and a number")
    return parent


def _integer(values: dict[str, str], key: str, name: str) -> int:
    text = values.get(key, "")
    found = parse_number(text, signed=True)
    if found is None:
        raise ValueError(f"{key} of pod {name} must be an integer, not {text!r}: its TPU environment needs it")
    return found
