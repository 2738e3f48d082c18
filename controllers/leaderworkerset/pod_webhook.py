"""Admission of a set's pods: labels, exclusive placement and environment (LWS §2.3 and §4.1). Pure functions."""

from __future__ import annotations

from pyreconcile.api import RawObject
from pyreconcile.webhook import AdmissionRequest, Denied
from pyreconcile_controllers.leaderworkerset.gang import join
from pyreconcile_controllers.leaderworkerset.names import (
    EXCLUSIVE_TOPOLOGY_ANNOTATION,
    GROUP_INDEX_LABEL,
    GROUP_KEY_LABEL,
    LEADER_INDEX,
    LEADER_NAME_ANNOTATION,
    POD_GROUP_ANNOTATION,
    SET_NAME_LABEL,
    SIZE_ANNOTATION,
    SUBDOMAIN_POLICY_ANNOTATION,
    SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION,
    SUBGROUP_INDEX_LABEL,
    SUBGROUP_KEY_LABEL,
    SUBGROUP_POLICY_TYPE_ANNOTATION,
    SUBGROUP_SIZE_ANNOTATION,
    WORKER_INDEX_LABEL,
    group_key,
    parent_and_ordinal,
    parse_number,
    sha1_key,
)
from pyreconcile_controllers.leaderworkerset.tpu import add_tpu_variables


def draft_of(pod: RawObject) -> RawObject:
    """Return a copy of a pod for `mutate_pod`, which shares with the pod whatever that leaves alone.

    Apart from these are the pod itself, its metadata, labels, annotations and spec, and the containers; what is below
    them is replaced, not changed.
    """
    metadata, spec = {**pod["metadata"]}, {**pod["spec"]}
    for field in ("labels", "annotations"):
        if metadata.get(field):
            metadata[field] = {**metadata[field]}
    for field in ("containers", "initContainers"):
        if spec.get(field):
            spec[field] = [{**container} for container in spec[field]]
    return {**pod, "metadata": metadata, "spec": spec}


def mutate_pod(pod: RawObject, request: AdmissionRequest | None = None) -> None:
    """Give a set's pod its labels, placement and environment, in place; other pods stay as they are.

    Raises:
        Denied: a label or annotation that the controllers put there is missing or malformed.
    """
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    if SET_NAME_LABEL not in labels:
        return
    namespace = metadata.get("namespace") or (request.namespace if request is not None else "")
    name = metadata.get("name", "")
    annotations = metadata.get("annotations") or {}
    if SIZE_ANNOTATION not in annotations:
        raise Denied(f"size annotation is unexpectedly missing for pod {name}: expected {SIZE_ANNOTATION}")
    size = _integer(annotations, SIZE_ANNOTATION, name)
    if labels.get(WORKER_INDEX_LABEL) == LEADER_INDEX:
        _label_leader(pod, namespace, name)
    else:
        _label_worker(pod, name, size)
        if pod_group := annotations.get(POD_GROUP_ANNOTATION):
            join(pod, pod_group)  # whatever the settings are now: its leader waits for it
    try:
        add_tpu_variables(pod, size)
    except ValueError as error:
        raise Denied(str(error)) from error
    _add_set_variables(pod, namespace, name)


def subgroup_index(size: int, subgroup_size: int, worker: int) -> int:
    """Return the subgroup of a worker; when the leader is one pod too many, it joins the first subgroup (LWS §2.3)."""
    leader_is_extra = (size - 1) % subgroup_size == 0 and size % subgroup_size != 0
    return (worker - 1 if leader_is_extra else worker) // subgroup_size


def add_exclusive_affinity(pod_spec: RawObject, topology: str, label: str, value: str) -> None:
    """Bind a pod to the topology domain of the pods with the same label value, and keep all others out of it.

    Nothing is added when the pod has required affinity and anti-affinity for this topology already, whatever their
    labels (LWS §15, edge 22). Terms of the user stay and come first.
    """
    kinds = ("podAffinity", "podAntiAffinity")
    affinity = {**(pod_spec.get("affinity") or {})}
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    if all(
        any(term.get("topologyKey") == topology for term in (affinity.get(kind) or {}).get(field) or ())
        for kind in kinds
    ):
        return
    same = [{"key": label, "operator": "In", "values": [value]}]
    others = [{"key": label, "operator": "Exists"}, {"key": label, "operator": "NotIn", "values": [value]}]
    for kind, expressions in zip(kinds, (same, others), strict=True):
        rules = affinity[kind] = {**(affinity.get(kind) or {})}
        term = {"labelSelector": {"matchExpressions": expressions}, "topologyKey": topology}
        rules[field] = [*(rules.get(field) or ()), term]
    pod_spec["affinity"] = affinity


def _label_leader(pod: RawObject, namespace: str, name: str) -> None:
    labels, annotations, spec = pod["metadata"]["labels"], pod["metadata"]["annotations"], pod["spec"]
    if GROUP_INDEX_LABEL not in labels:
        labels[GROUP_INDEX_LABEL] = str(_ordinal(name))
    if annotations.get(SUBDOMAIN_POLICY_ANNOTATION) == "UniquePerReplica":
        spec["subdomain"] = name
    key = labels.setdefault(GROUP_KEY_LABEL, group_key(namespace, name))
    if EXCLUSIVE_TOPOLOGY_ANNOTATION in annotations:
        add_exclusive_affinity(spec, annotations[EXCLUSIVE_TOPOLOGY_ANNOTATION], GROUP_KEY_LABEL, key)
    if (
        SUBGROUP_SIZE_ANNOTATION in annotations
        and not labels.get(SUBGROUP_INDEX_LABEL)
        and annotations.get(SUBGROUP_POLICY_TYPE_ANNOTATION) != "LeaderExcluded"
    ):
        _join_subgroup(pod, name, 0)


def _label_worker(pod: RawObject, name: str, size: int) -> None:
    labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
    worker = _ordinal(name)
    labels[WORKER_INDEX_LABEL] = str(worker)
    if SUBGROUP_SIZE_ANNOTATION in annotations and not labels.get(SUBGROUP_INDEX_LABEL):
        subgroup_size = _integer(annotations, SUBGROUP_SIZE_ANNOTATION, name)
        if subgroup_size < 1:
            raise Denied(f"annotation {SUBGROUP_SIZE_ANNOTATION} of pod {name} must be at least 1")
        index = subgroup_index(size, subgroup_size, worker)
        _join_subgroup(pod, annotations.get(LEADER_NAME_ANNOTATION, ""), index)


def _join_subgroup(pod: RawObject, leader_name: str, index: int) -> None:
    labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
    key = sha1_key(leader_name, str(index))
    labels[SUBGROUP_INDEX_LABEL] = str(index)
    labels[SUBGROUP_KEY_LABEL] = key
    if SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION in annotations:
        topology = annotations[SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION]
        add_exclusive_affinity(pod["spec"], topology, SUBGROUP_KEY_LABEL, key)


def _add_set_variables(pod: RawObject, namespace: str, name: str) -> None:
    """Put the set's three variables in front of every container's own, so that those can refer to them (LWS §4.1)."""
    labels, annotations, spec = pod["metadata"]["labels"], pod["metadata"]["annotations"], pod["spec"]
    if GROUP_INDEX_LABEL not in labels:
        raise Denied(f"label {GROUP_INDEX_LABEL} of pod {name} is missing: its environment cannot be made")
    leader = f"{labels[SET_NAME_LABEL]}-{labels[GROUP_INDEX_LABEL]}"
    ours = {
        "LWS_LEADER_ADDRESS": f"{leader}.{spec.get('subdomain', '')}.{namespace}",
        "LWS_GROUP_SIZE": annotations[SIZE_ANNOTATION],
        "LWS_WORKER_INDEX": labels[WORKER_INDEX_LABEL],
    }
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        variables = {variable: {"name": variable, "value": value} for variable, value in ours.items()}
        for entry in container.get("env") or ():
            variables.setdefault(entry["name"], entry)
        container["env"] = list(variables.values())


def _ordinal(name: str) -> int:
    parent = parent_and_ordinal(name)
    if parent is None:
        raise Denied(f"parsing pod ordinal for pod {name}: the name must end with a dash and a number")
    return parent[1]


def _integer(annotations: dict[str, str], key: str, name: str) -> int:
    found = parse_number(annotations[key], signed=True)
    if found is None:
        raise Denied(f"annotation {key} of pod {name} must be an integer, not {annotations[key]!r}")
    return found
