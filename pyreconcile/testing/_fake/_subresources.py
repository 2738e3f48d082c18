"""Sub-resources with a body of their own: scale, eviction and token (rule TE-10)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import orjson

from pyreconcile.api import RawObject, copy_json
from pyreconcile.api.selectors import LabelSelector
from pyreconcile.client import BadRequestError, InternalServerError, TooManyRequestsError
from pyreconcile.testing._fake._kinds import Served
from pyreconcile.testing._fake._store import Store, key_of
from pyreconcile.testing._fake._writes import Request, Writes

SCALE: RawObject = {
    "type": "object",
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
"""The schema of a Scale."""
_BUDGETS = ("policy", "poddisruptionbudgets")
_TOKEN_SECONDS = 3600


def scale_of(served: Served, obj: RawObject) -> RawObject:
    """Return an object's scale."""
    assert served.scale is not None
    metadata = obj["metadata"]
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: RawObject = {"replicas": _at(obj, served.scale.status_replicas_path) or 0}
    selector = _at(obj, served.scale.label_selector_path) if served.scale.label_selector_path else None
    if selector:
        status["selector"] = selector if isinstance(selector, str) else str(_selector(selector))
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "spec": {"replicas": _at(obj, served.scale.spec_replicas_path) or 0},
        "status": status,
    }


def _selector(raw: RawObject) -> LabelSelector:
    # A ReplicationController's selector is a plain map of labels.
    structured = raw if raw.keys() <= {"matchLabels", "matchExpressions"} else {"matchLabels": raw}
    selector = LabelSelector.from_dict(structured)
    assert selector is not None
    return selector


def with_replicas(served: Served, obj: RawObject, scale: RawObject) -> RawObject:
    """Return the object with the number of replicas that its changed scale has."""
    assert served.scale is not None
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        raise BadRequestError(f"spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0")
    changed: RawObject = copy_json(obj)
    *steps, last = served.scale.spec_replicas_path.lstrip(".").split(".")
    node = changed
    for step in steps:
        node = node.setdefault(step, {})
    node[last] = replicas
    version = (scale.get("metadata") or {}).get("resourceVersion")
    changed["metadata"] = {**changed["metadata"], "resourceVersion": version}
    return changed


def replicas_config(served: Served, obj: RawObject, scale: RawObject) -> RawObject:
    """Return the configuration of the whole object that an applied scale stands for."""
    assert served.scale is not None
    config: RawObject = {
        "apiVersion": served.resource.api_version,
        "kind": served.resource.kind,
        "metadata": {"name": obj["metadata"]["name"]},
    }
    return with_replicas(served, config, {**scale, "metadata": {}})


def _at(obj: Any, path: str) -> Any:
    for step in path.lstrip(".").split("."):
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def evict(store: Store, writes: Writes, pods: Served, key: str, body: RawObject, request: Request) -> RawObject:
    """Delete a pod unless a disruption budget is used up.

    A budget's ``status.disruptionsAllowed`` says how many pods may go; the test sets it, for the fake has no
    controller that would.

    Raises:
        TooManyRequestsError: the budget allows no disruption.
        InternalServerError: more than one budget names the pod.
    """
    pod = writes.stored(pods, key)
    budgets = _budgets_of(store, pod)
    if len(budgets) > 1:
        # As the API server does (pkg/registry/core/pod/storage/eviction.go).
        raise InternalServerError(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            reason="",
        )
    for budget in budgets:
        allowed = (budget.get("status") or {}).get("disruptionsAllowed", 0)
        if allowed < 1:
            name = budget["metadata"]["name"]
            cause = {"reason": "DisruptionBudget", "message": f"The disruption budget {name} allows no disruption"}
            raise TooManyRequestsError(
                "Cannot evict pod as it would violate the pod's disruption budget.", details={"causes": [cause]}
            )
        if not request.dry_run:
            store.write(_BUDGETS, {**budget, "status": {**budget["status"], "disruptionsAllowed": allowed - 1}})
    writes.delete(pods, key_of(pod), body.get("deleteOptions") or {}, request)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _budgets_of(store: Store, pod: RawObject) -> list[RawObject]:
    labels = pod["metadata"].get("labels") or {}
    budgets = []
    for budget in store.objects(_BUDGETS, pod["metadata"].get("namespace", "")):
        selector = LabelSelector.from_dict((budget.get("spec") or {}).get("selector"))
        if selector is not None and selector.matches(labels):
            budgets.append(budget)
    return budgets


def token(account: RawObject, body: RawObject, now: Callable[[], datetime]) -> RawObject:
    """Return a TokenRequest with a token that looks like one and is good for nothing."""
    spec = body.get("spec") or {}
    seconds = spec.get("expirationSeconds") or _TOKEN_SECONDS
    audiences = spec.get("audiences") or ["https://kubernetes.default.svc"]
    ends = now() + timedelta(seconds=seconds)
    name = f"{account['metadata']['namespace']}:{account['metadata']['name']}"
    claims = {"sub": f"system:serviceaccount:{name}", "aud": audiences, "exp": int(ends.timestamp())}
    parts = [base64.urlsafe_b64encode(orjson.dumps(part)).rstrip(b"=").decode() for part in ({"alg": "none"}, claims)]
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": {name: account["metadata"][name] for name in ("name", "namespace")},
        "spec": {**spec, "audiences": audiences, "expirationSeconds": seconds},
        "status": {"token": ".".join((*parts, "unsigned")), "expirationTimestamp": ends.strftime("%Y-%m-%dT%H:%M:%SZ")},
    }
