"""The objects a set is made of: StatefulSets, headless services, revisions (LWS §3, §6.2, §6.4, §7.1). No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from pyreconcile.api import KubeObject, RawObject, Unstructured, unstructured
from pyreconcile.api.apps_v1 import ControllerRevision
from pyreconcile.api.core_v1 import Pod, Service
from pyreconcile_controllers.leaderworkerset import names
from pyreconcile_controllers.leaderworkerset.revision import Revision, revision_name
from pyreconcile_controllers.leaderworkerset.rollout import Plan, Strategy
from pyreconcile_controllers.leaderworkerset.tpu import requests_tpus
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet, RollingUpdateConfiguration

# Built from parsed JSON and compared as such: the pod template in it need not pass through its model each time.
STATEFUL_SET = unstructured("apps/v1", "StatefulSet")

UNIQUE_PER_REPLICA = "UniquePerReplica"


def strategy_of(lws: LeaderWorkerSet, *, upstream_surge: bool = False) -> Strategy:
    """Return what a set asks of its updates; a part that the webhook would have filled takes its default (LWS §2.1).

    Raises:
        ValueError: a percentage does not read as one.
    """
    rollout = lws.spec.rollout_strategy
    limits = rollout.rolling_update_configuration if rollout else None
    if limits is None:
        limits = RollingUpdateConfiguration()
    strategy = Strategy.resolve(lws.spec.replicas, limits.max_unavailable, limits.max_surge, limits.partition)
    return replace(strategy, upstream_surge=upstream_surge)


def is_unique_per_replica(lws: LeaderWorkerSet) -> bool:
    """Tell whether every group of the set has a headless service of its own."""
    network = lws.spec.network_config
    return network is not None and network.subdomain_policy == UNIQUE_PER_REPLICA


def owner_reference(owner: KubeObject) -> RawObject:
    """Return the reference that makes ``owner`` the controller of an object."""
    return {
        "apiVersion": owner.resource.api_version,
        "kind": owner.resource.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def leader_stateful_set(
    lws: LeaderWorkerSet, revision: Revision, key: str, plan: Plan, strategy: Strategy
) -> Unstructured:
    """Return every field of the leader StatefulSet that the controller applies (LWS §6.2).

    ``key`` is the revision's label, which differs from the hash of its content after a take-over.
    """
    name = lws.metadata.name
    labels = {names.SET_NAME_LABEL: name, names.REVISION_LABEL: key}
    template = _pod_template(
        revision.template.get("leaderTemplate") or revision.template["workerTemplate"],
        labels={**labels, names.WORKER_INDEX_LABEL: names.LEADER_INDEX},
        annotations={
            **_group_annotations(lws, revision),
            **({names.SUBDOMAIN_POLICY_ANNOTATION: UNIQUE_PER_REPLICA} if _is_unique(revision) else {}),
        },
    )
    return STATEFUL_SET.from_dict(
        {
            "metadata": {
                "name": name,
                "namespace": lws.metadata.namespace,
                "labels": {**lws.metadata.labels, **labels},
                "annotations": {**lws.metadata.annotations, names.REPLICAS_ANNOTATION: str(lws.spec.replicas)},
                "ownerReferences": [owner_reference(lws)],
            },
            "spec": {
                "serviceName": name,
                "replicas": plan.replicas,
                "podManagementPolicy": "Parallel",
                "updateStrategy": {
                    "type": lws.spec.rollout_strategy.type if lws.spec.rollout_strategy else "RollingUpdate",
                    "rollingUpdate": {
                        "partition": plan.partition,
                        "maxUnavailable": strategy.leader_max_unavailable,
                    },
                },
                "selector": {"matchLabels": {names.SET_NAME_LABEL: name, names.WORKER_INDEX_LABEL: names.LEADER_INDEX}},
                "template": template,
                **_claims(revision, lws.metadata.namespace),
            },
        }
    )


def worker_stateful_set(
    lws: LeaderWorkerSet, leader: Pod, revision: Revision, node_selector: Mapping[str, str] | None = None
) -> Unstructured:
    """Return the StatefulSet of the workers of ``leader``'s group (LWS §7.1).

    Everything that makes a revision comes from ``revision``, so that a group of an older revision is rebuilt as it
    was; labels and annotations of the set come from the live object. ``node_selector`` pins the workers.
    """
    name = leader.metadata.name
    group = {
        label: leader.metadata.labels.get(label, "")
        for label in (names.GROUP_INDEX_LABEL, names.GROUP_KEY_LABEL, names.REVISION_LABEL)
    }
    selector = {
        names.SET_NAME_LABEL: lws.metadata.name,
        names.GROUP_INDEX_LABEL: group[names.GROUP_INDEX_LABEL],
        names.GROUP_KEY_LABEL: group[names.GROUP_KEY_LABEL],
    }
    labels = {**selector, **group}
    annotations = {**_group_annotations(lws, revision), names.LEADER_NAME_ANNOTATION: name}
    if leader.spec is not None and requests_tpus(leader.spec.to_dict()):
        annotations[names.LEADER_REQUESTS_TPUS_ANNOTATION] = "true"
    if pod_group := leader.metadata.annotations.get(names.POD_GROUP_ANNOTATION):
        annotations[names.POD_GROUP_ANNOTATION] = pod_group
    template = _pod_template(revision.template["workerTemplate"], labels=labels, annotations=annotations)
    if node_selector:
        template["spec"]["nodeSelector"] = {**template["spec"].get("nodeSelector", {}), **node_selector}
    return STATEFUL_SET.from_dict(
        {
            "metadata": {
                "name": name,
                "namespace": leader.metadata.namespace,
                "labels": {**lws.metadata.labels, **labels},
                "annotations": dict(lws.metadata.annotations),
                "ownerReferences": [owner_reference(leader)],
            },
            "spec": {
                "serviceName": name if _is_unique(revision) else lws.metadata.name,
                "replicas": group_size(revision) - 1,
                "podManagementPolicy": "Parallel",
                "ordinals": {"start": 1},
                "selector": {"matchLabels": selector},
                "template": template,
                **_claims(revision, leader.metadata.namespace),
            },
        }
    )


def headless_service(owner: KubeObject, lws: LeaderWorkerSet, selector: Mapping[str, str]) -> Service:
    """Return the service, named like its owner, that gives pods their names before they are ready (LWS §6.4)."""
    return Service.from_dict(
        {
            "metadata": {
                "name": owner.metadata.name,
                "namespace": owner.metadata.namespace,
                "labels": {names.SET_NAME_LABEL: lws.metadata.name},
                "ownerReferences": [owner_reference(owner)],
            },
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": dict(selector)},
        }
    )


class ExactRevision(ControllerRevision):
    """A ControllerRevision to create, whose ``data`` goes out in exactly the bytes that were hashed (LWS §5)."""

    _exact: bytes = b""

    def to_json(self, *, exclude: Mapping[str, Any] | None = None) -> bytes:
        """Return the wire form."""
        text = super().to_json(exclude=exclude)
        if not self._exact:
            return text
        raw = orjson.loads(text)
        raw["data"] = orjson.Fragment(self._exact)
        return orjson.dumps(raw)


def controller_revision(lws: LeaderWorkerSet, revision: Revision, key: str, number: int) -> ExactRevision:
    """Return the object that stores a revision under a number, labelled with ``key``."""
    stored = ExactRevision.from_dict(
        {
            "metadata": {
                "name": revision_name(lws.metadata.name, revision, number),
                "namespace": lws.metadata.namespace,
                "labels": {names.SET_NAME_LABEL: lws.metadata.name, names.REVISION_LABEL: key},
                "ownerReferences": [owner_reference(lws)],
            },
            "data": orjson.loads(revision.data),
            "revision": number,
        }
    )
    stored._exact = revision.data
    return stored


def group_size(revision: Revision) -> int:
    """Pods in a group of this revision."""
    size: int = revision.template.get("size", 1)
    return size


def _is_unique(revision: Revision) -> bool:
    return revision.network.get("subdomainPolicy") == UNIQUE_PER_REPLICA


def _group_annotations(lws: LeaderWorkerSet, revision: Revision) -> dict[str, str]:
    """Annotations that leaders and workers share (LWS §3)."""
    annotations = {names.SIZE_ANNOTATION: str(group_size(revision))}
    if topology := lws.metadata.annotations.get(names.EXCLUSIVE_TOPOLOGY_ANNOTATION):
        annotations[names.EXCLUSIVE_TOPOLOGY_ANNOTATION] = topology
    policy: RawObject | None = revision.template.get("subGroupPolicy")
    if policy is not None:
        annotations[names.SUBGROUP_POLICY_TYPE_ANNOTATION] = policy.get("subGroupPolicyType", "LeaderWorker")
        annotations[names.SUBGROUP_SIZE_ANNOTATION] = str(policy.get("subGroupSize", ""))
        if topology := lws.metadata.annotations.get(names.SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION):
            annotations[names.SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION] = topology
    return annotations


def _pod_template(template: RawObject, *, labels: Mapping[str, str], annotations: Mapping[str, str]) -> RawObject:
    metadata = template["metadata"]
    return {
        "metadata": {
            **metadata,
            "labels": {**metadata.get("labels", {}), **labels},
            "annotations": {**metadata.get("annotations", {}), **annotations},
        },
        "spec": dict(template["spec"]),
    }


def _claims(revision: Revision, namespace: str) -> dict[str, Any]:
    """Claim templates and their retention: only the parts that the Go controller hands on (LWS §6.2).

    A claim template's namespace is part of an immutable field, so it has to be there as the Go controller writes it.
    """
    result: dict[str, Any] = {}
    if claims := revision.template.get("volumeClaimTemplates"):
        result["volumeClaimTemplates"] = [_claim(claim, namespace) for claim in claims]
    if retention := revision.template.get("persistentVolumeClaimRetentionPolicy"):
        result["persistentVolumeClaimRetentionPolicy"] = retention
    return result


def _claim(claim: RawObject, namespace: str) -> RawObject:
    spec = claim["spec"]
    kept = {name: spec[name] for name in ("accessModes", "storageClassName", "volumeMode") if name in spec}
    resources = {name: spec["resources"][name] for name in ("requests", "limits") if name in spec["resources"]}
    if resources:
        kept["resources"] = resources
    metadata = {"name": claim["metadata"].get("name", ""), "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        # The server's defaults, so that the list, which is owned whole, is seen to be in place already.
        "spec": {"volumeMode": "Filesystem"} | kept,
        "status": {"phase": "Pending"},
    }
