"""The admission request that handlers see, and reading it from and answering an AdmissionReview."""

from __future__ import annotations

import uuid
from base64 import b64decode, b64encode
from typing import Any, Literal

import orjson

from pyreconcile.api import GroupVersionKind, KubeObject, RawObject, copy_json, object_key, split_api_version
from pyreconcile.webhook._errors import Denied
from pyreconcile.webhook._jsonpatch import json_patch

REVIEW_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")


class AdmissionRequest:
    """One request to admit (``AdmissionReview.request``).

    ``object`` is the new object and ``old_object`` the stored one, as parsed JSON; None where the operation has none
    (CREATE has no old object, DELETE no new one). Mutating handlers that run before this one have already been at
    work on ``object``. Neither may be changed in place, except by a mutator that is handed its own copy.

    ``raw`` is the request as it came, ``original`` the object in it. ``audit_annotations`` filled by a handler go into
    the API server's audit log, under the webhook's name.
    """

    __slots__ = ("audit_annotations", "object", "old_object", "original", "raw", "warnings")

    def __init__(self, raw: RawObject) -> None:
        self.raw = raw
        self.object: RawObject | None = raw.get("object")
        self.old_object: RawObject | None = raw.get("oldObject")
        self.original = self.object
        self.warnings: list[str] = []
        self.audit_annotations: dict[str, str] = {}

    def warn(self, text: str) -> None:
        """Send the user a warning, whether the request is admitted or not (rule WH-7)."""
        self.warnings.append(text)

    @property
    def uid(self) -> str:
        """Identity of this request; the answer repeats it."""
        return str(self.raw.get("uid", ""))

    @property
    def operation(self) -> str:
        """``CREATE``, ``UPDATE``, ``DELETE`` or ``CONNECT``."""
        return str(self.raw.get("operation", ""))

    @property
    def kind(self) -> GroupVersionKind:
        """The kind of ``object``."""
        kind = self.raw.get("kind") or {}
        return GroupVersionKind(kind.get("group", ""), kind.get("version", ""), kind.get("kind", ""))

    @property
    def namespace(self) -> str:
        """Namespace of the request; empty for a cluster-scoped object."""
        return str(self.raw.get("namespace", ""))

    @property
    def name(self) -> str:
        """Name of the object; empty on CREATE when the server is to generate it."""
        return str(self.raw.get("name", ""))

    @property
    def key(self) -> str:
        """``namespace/name``, or ``name`` when cluster-scoped."""
        return object_key(self.namespace, self.name)

    @property
    def sub_resource(self) -> str:
        """The sub-resource that is written (``status``, ``scale``, …); empty for the object itself."""
        return str(self.raw.get("subResource", ""))

    @property
    def dry_run(self) -> bool:
        """Whether nothing will be stored; a handler with side effects must not have them then."""
        return bool(self.raw.get("dryRun", False))

    @property
    def user(self) -> str:
        """Name of the user who asks."""
        return str((self.raw.get("userInfo") or {}).get("username", ""))

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of the user who asks."""
        return tuple((self.raw.get("userInfo") or {}).get("groups") or ())


def admission_review(
    obj: KubeObject | RawObject,
    *,
    operation: Literal["CREATE", "UPDATE", "DELETE", "CONNECT"] = "CREATE",
    old: KubeObject | RawObject | None = None,
    sub_resource: str = "",
    dry_run: bool = False,
    user: str = "kubernetes-admin",
) -> RawObject:
    """Build the review that the API server would send, for tests with `WebhookServer.call`.

    On DELETE, ``obj`` is the object to be deleted; the review carries it as the old one, as the API server does.
    """
    new_raw = obj.to_dict() if isinstance(obj, KubeObject) else obj
    old_raw = old.to_dict() if isinstance(old, KubeObject) else old
    group, version = split_api_version(new_raw["apiVersion"])
    metadata = new_raw.get("metadata") or {}
    request: RawObject = {
        "uid": str(uuid.uuid4()),
        "operation": operation,
        "kind": {"group": group, "version": version, "kind": new_raw["kind"]},
        "name": metadata.get("name", ""),
        "namespace": metadata.get("namespace", ""),
        "userInfo": {"username": user, "groups": ["system:authenticated"]},
        "object": None if operation == "DELETE" else new_raw,
        "oldObject": new_raw if operation == "DELETE" else old_raw,
        "dryRun": dry_run,
    }
    if sub_resource:
        request["subResource"] = sub_resource
    return {"apiVersion": REVIEW_VERSIONS[0], "kind": "AdmissionReview", "request": request}


def apply_patch(review: RawObject, obj: RawObject) -> RawObject:
    """Return what the API server makes of an object once it has applied an answer's patch; ``obj`` stays as it is.

    Only the operations that this package sends (add, remove, replace) are known.

    Raises:
        Denied: the answer refuses the request.
    """
    response = review["response"]
    if not response["allowed"]:
        status = response["status"]
        raise Denied(status.get("message", ""), code=status["code"], reason=status.get("reason", ""))
    result: RawObject = copy_json(obj)
    for operation in orjson.loads(b64decode(response.get("patch", "W10="))):
        parts = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        target: Any = result
        for part in parts[:-1]:
            target = target[int(part) if isinstance(target, list) else part]
        place = int(parts[-1]) if isinstance(target, list) else parts[-1]
        if operation["op"] == "remove":
            del target[place]
        elif operation["op"] == "add" and isinstance(target, list):
            target.insert(place, operation["value"])
        else:
            target[place] = operation["value"]
    return result


def parse_review(review: Any) -> AdmissionRequest:
    """Take the request out of a parsed review.

    Raises:
        Denied: (400) it is no AdmissionReview of a version that we speak, or it holds no request.
    """
    if not isinstance(review, dict):
        raise Denied("the body must be an AdmissionReview object", code=400, reason="BadRequest")
    api_version, kind = review.get("apiVersion", ""), review.get("kind", "")
    if (api_version or kind) and (api_version not in REVIEW_VERSIONS or kind != "AdmissionReview"):
        raise Denied(
            f"the body must be an AdmissionReview of {' or '.join(REVIEW_VERSIONS)}, not {api_version!r} {kind!r}",
            code=400,
            reason="BadRequest",
        )
    request = review.get("request")
    if not isinstance(request, dict):
        raise Denied("the AdmissionReview holds no request", code=400, reason="BadRequest")
    return AdmissionRequest(request)


def answer(
    review: Any,
    request: AdmissionRequest | None,
    *,
    code: int = 200,
    message: str = "",
    reason: str = "",
    details: RawObject | None = None,
) -> RawObject:
    """Build the answering review; it repeats the version and UID of the one asked with (rules WH-3 and WH-4)."""
    status: RawObject = {"code": code}
    if message:
        status["message"] = message
    if reason:
        status["reason"] = reason
    if details:
        status["details"] = details
    response: RawObject = {"uid": _uid(review), "allowed": code < 400, "status": status}
    if request is not None:
        if request.warnings:
            response["warnings"] = request.warnings
        if request.audit_annotations:
            response["auditAnnotations"] = request.audit_annotations
        if code < 400 and request.object is not request.original:
            patch = json_patch(request.original, request.object)
            if patch:
                response["patch"] = b64encode(orjson.dumps(patch)).decode("ascii")
                response["patchType"] = "JSONPatch"
    api_version = review.get("apiVersion") if isinstance(review, dict) else None
    if api_version not in REVIEW_VERSIONS:
        api_version = REVIEW_VERSIONS[0]
    return {"apiVersion": api_version, "kind": "AdmissionReview", "response": response}


def _uid(review: Any) -> str:
    request = review.get("request") if isinstance(review, dict) else None
    uid = request.get("uid") if isinstance(request, dict) else None
    return uid if isinstance(uid, str) else ""
