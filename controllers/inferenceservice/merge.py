"""Laying one pod specification over another, as a strategic merge does (KServe §2.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyreconcile.api import RawObject, copy_json
from pyreconcile_controllers.inferenceservice.names import CONTAINER, TRANSFORMER_CONTAINER

# Lists whose items are told apart by fields; all others are replaced as a whole.
# https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/ names them as patch merge keys.
_CONTAINER_KEYS: Final[Mapping[str, str]] = {
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}
_POD_KEYS: Final[Mapping[str, str]] = {
    "volumes": "name",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "initContainers": "name",
}


def merge_container(base: RawObject, overlay: RawObject) -> RawObject:
    """Return ``base`` with ``overlay`` over it; arguments of both follow each other, and the name is the base's."""
    merged = _merge(base, overlay, _CONTAINER_KEYS)
    arguments = [*(base.get("args") or ()), *(overlay.get("args") or ())]
    if arguments:
        merged["args"] = arguments
    # A variable has one source, and the overlay's counts.
    sources = {item["name"]: item for item in overlay.get("env") or ()}
    for item in merged.get("env") or ():
        given = sources.get(item["name"], {})
        if "valueFrom" in given:
            item.pop("value", None)
        elif "value" in given:
            item.pop("valueFrom", None)
    if "name" in base:
        merged["name"] = base["name"]
    return merged


def merge_pod(base: RawObject, overlay: RawObject) -> RawObject:
    """Return the pod specification ``base`` with ``overlay`` over it; ``containers`` are left out."""
    return _merge(_without_containers(base), _without_containers(overlay), _POD_KEYS)


def order_containers(serving: RawObject, base: Sequence[RawObject], overlay: Sequence[RawObject]) -> list[RawObject]:
    """Return all containers: what serves, the transformer's, the base's others, the overlay's others (KServe §2.2)."""
    result = [serving]
    runtime, own = ({item["name"]: item for item in items} for items in (base, overlay))
    for name in dict.fromkeys([TRANSFORMER_CONTAINER, *runtime, *own]):
        if name == CONTAINER or name not in {**runtime, **own}:
            continue
        if name in runtime and name in own:
            result.append(merge_container(runtime[name], own[name]))
        else:
            result.append(copy_json(runtime.get(name) or own[name]))
    return result


def _without_containers(pod: RawObject) -> RawObject:
    return {field: value for field, value in pod.items() if field != "containers"}


def _merge(base: RawObject, overlay: RawObject, keys: Mapping[str, str]) -> RawObject:
    merged: RawObject = copy_json(base)
    for field, value in overlay.items():
        present = merged.get(field)
        key = keys.get(field)
        if isinstance(value, dict) and isinstance(present, dict):
            merged[field] = _merge(present, value, {})
        elif key is not None and isinstance(value, list) and isinstance(present, list):
            merged[field] = _merge_items(present, value, key)
        elif value is not None:
            merged[field] = copy_json(value)
    return merged


def _merge_items(base: list[RawObject], overlay: list[RawObject], key: str) -> list[RawObject]:
    items = {item.get(key): item for item in base}
    for item in overlay:
        present = items.get(item.get(key))
        items[item.get(key)] = _merge(present, item, {}) if present is not None else copy_json(item)
    return list(items.values())
