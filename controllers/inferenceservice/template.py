"""The pod template that a service asks for, and its hash: what makes two revisions the same (KServe §1.9 item 1)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Final

import orjson

from pyreconcile.api import ObjectMeta, RawObject, copy_json, quantity
from pyreconcile.api.core_v1 import Container, PodSpec
from pyreconcile_controllers.inferenceservice.merge import merge_container, merge_pod, order_containers
from pyreconcile_controllers.inferenceservice.names import CONTAINER, STORAGE_INITIALIZER
from pyreconcile_controllers.inferenceservice.types import InferenceService, PredictorSpec, ServingRuntimeSpec

MODEL_PATH: Final = "/mnt/models"
DEFAULT_PORT: Final = 8080
FETCHED: Final = ("gs", "s3", "http", "https", "hf", "hdfs", "webhdfs")
"""Schemes of a storage URI that the storage initializer fetches."""

_SERVICE_NAME = "INFERENCE_SERVICE_NAME"
_VOLUME = "kserve-provision-location"
_CLAIM_VOLUME = "kserve-pvc-source"
_SCHEME = re.compile(r"([a-z0-9+]+)://(.+)")
_PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}")
_FIELD = re.compile(r"\s*\.(?:(Name|Namespace)|(Labels|Annotations)\.([A-Za-z0-9_]+))\s*")
_INITIALIZER_RESOURCES = {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}


def _wire_names(model: type[PodSpec] | type[Container]) -> frozenset[str]:
    return frozenset(field.serialization_alias or name for name, field in model.model_fields.items())


_POD_FIELDS = _wire_names(PodSpec)
_CONTAINER_FIELDS = _wire_names(Container) - {"name"}


class InvalidPredictorError(Exception):
    """No pod template can be made of the spec; ``reason`` is a condition's reason, and the text says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Template:
    """A pod template without the labels of its revision, and its hash."""

    raw: RawObject
    hash: str

    @classmethod
    def of(cls, raw: RawObject) -> Template:
        """Hash a template."""
        text = orjson.dumps(_canonical(raw), option=orjson.OPT_SORT_KEYS)
        return cls(raw, hashlib.sha256(text).hexdigest()[:16])


def render(service: InferenceService, runtime: ServingRuntimeSpec | None, *, storage_initializer: str) -> Template:
    """Return the template of a service.

    Scale, traffic and the service's own metadata have no part in it, so that editing them makes no revision.

    Args:
        service: what to serve.
        runtime: the runtime that ``model`` names; None without ``model``.
        storage_initializer: image that fetches models.

    Raises:
        InvalidPredictorError: the spec cannot be served.
    """
    predictor = service.spec.predictor
    raw = predictor.to_dict()
    own = {field: value for field, value in raw.items() if field in _POD_FIELDS}
    metadata: RawObject = {"labels": {}, "annotations": {}}
    if predictor.model is None:
        pod = copy_json(own)
        if not pod.get("containers"):
            raise InvalidPredictorError("InvalidPredictorSpec", "spec.predictor: give model, or containers")
    else:
        assert runtime is not None
        base = runtime.to_dict()
        pod = _merged_pod(predictor, own, base, service.metadata)
        for part in metadata:
            metadata[part].update(base.get(part) or {})
        if predictor.model.storage_uri:
            _add_storage(pod, predictor.model.storage_uri, storage_initializer)
    metadata["labels"].update(predictor.labels or {})
    metadata["annotations"].update(predictor.annotations or {})
    _check_images(pod)
    for container in pod["containers"]:
        if all(item["name"] != _SERVICE_NAME for item in container.get("env") or ()):
            _add(container, "env", {"name": _SERVICE_NAME, "value": service.metadata.name})
    _add_probe(serving_container({"spec": pod}))
    return Template.of({"metadata": {part: value for part, value in metadata.items() if value}, "spec": pod})


def serving_container(template: RawObject) -> RawObject:
    """Return the container that serves: the one called kserve-container, else the first."""
    containers: list[RawObject] = template["spec"]["containers"]
    return next((item for item in containers if item.get("name") == CONTAINER), containers[0])


def _merged_pod(predictor: PredictorSpec, own: RawObject, runtime: RawObject, metadata: ObjectMeta) -> RawObject:
    assert predictor.model is not None
    base = {field: value for field, value in runtime.items() if field in _POD_FIELDS}
    containers = base["containers"]
    serving = next((item for item in containers if item["name"] == CONTAINER), None)
    if serving is None:
        raise InvalidPredictorError(
            "InvalidPredictorSpec", f"the runtime {predictor.model.runtime!r} has no container called {CONTAINER}"
        )
    overlay = {field: value for field, value in predictor.model.to_dict().items() if field in _CONTAINER_FIELDS}
    serving = merge_container(serving, overlay)
    if predictor.model.runtime_version and "@" not in serving.get("image", ""):
        serving["image"] = _with_tag(serving.get("image", ""), predictor.model.runtime_version)
    pod = merge_pod(base, own)
    ordered = order_containers(serving, containers, own.get("containers") or [])
    pod["containers"] = [_filled(item, metadata) for item in ordered]
    return pod


def _with_tag(image: str, tag: str) -> str:
    path, slash, name = image.rpartition("/")
    return f"{path}{slash}{name.partition(':')[0]}:{tag}"


def _filled(value: Any, metadata: ObjectMeta) -> Any:
    """Put the service's metadata in for placeholders such as ``{{.Name}}``."""
    if isinstance(value, dict):
        return {field: _filled(item, metadata) for field, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, metadata) for item in value]
    if not isinstance(value, str) or "{{" not in value:
        return value

    def fill(match: re.Match[str]) -> str:
        field = _FIELD.fullmatch(match[1])
        if field is None:
            raise InvalidPredictorError(
                "InvalidPredictorSpec",
                f"{match[0]} cannot be filled in: use .Name, .Namespace, .Labels.x or .Annotations.x",
            )
        if field[1]:
            return metadata.name if field[1] == "Name" else metadata.namespace
        values = metadata.labels if field[2] == "Labels" else metadata.annotations
        if field[3] not in values:
            raise InvalidPredictorError("InvalidPredictorSpec", f"{match[0]}: the service has none of this name")
        return values[field[3]]

    return _PLACEHOLDER.sub(fill, value)


def _add_storage(pod: RawObject, uri: str, image: str) -> None:
    """Have the model at `MODEL_PATH` before the server starts (KServe §2.3)."""
    match = _SCHEME.fullmatch(uri)
    scheme = match[1] if match else ""
    serving = serving_container({"spec": pod})
    if match and scheme == "pvc":
        claim, _, path = match[2].partition("/")
        mount = {"name": _CLAIM_VOLUME, "mountPath": MODEL_PATH, "readOnly": True}
        if path.strip("/"):
            mount["subPath"] = path.strip("/")
        source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        _add(pod, "volumes", {"name": _CLAIM_VOLUME, **source})
        _add(serving, "volumeMounts", mount)
        return
    if scheme not in FETCHED:
        known = ", ".join(f"{name}://" for name in (*FETCHED, "pvc"))
        raise InvalidPredictorError(
            "InvalidPredictorSpec", f"spec.predictor.model.storageUri: {uri!r} is not supported: use one of {known}"
        )
    _add(pod, "volumes", {"name": _VOLUME, "emptyDir": {}})
    initializer = {
        "name": STORAGE_INITIALIZER,
        "image": image,
        "args": [uri, MODEL_PATH],
        "resources": copy_json(_INITIALIZER_RESOURCES),
        "volumeMounts": [{"name": _VOLUME, "mountPath": MODEL_PATH}],
    }
    _add(pod, "initContainers", initializer)
    _add(serving, "volumeMounts", {"name": _VOLUME, "mountPath": MODEL_PATH, "readOnly": True})


def _add(parent: RawObject, field: str, item: RawObject) -> None:
    parent[field] = [*(parent.get(field) or ()), item]


def _add_probe(serving: RawObject) -> None:
    """Without a probe a pod would count as ready before its server listens (KServe §3.3)."""
    if "readinessProbe" not in serving:
        serving["readinessProbe"] = {
            "tcpSocket": {"port": (serving.get("ports") or [{"containerPort": DEFAULT_PORT}])[0]["containerPort"]},
            "timeoutSeconds": 1,
            "periodSeconds": 10,
            "successThreshold": 1,
            "failureThreshold": 3,
        }


def _check_images(pod: RawObject) -> None:
    for container in pod["containers"]:
        if not container.get("image"):
            raise InvalidPredictorError(
                "InvalidPredictorSpec",
                f"container {container.get('name')!r} has no image: give one in the predictor, or use a runtime",
            )


def _canonical(value: Any, *, of_resources: bool = False) -> Any:
    """Return what a template means: nothing for what is empty, one spelling for each quantity."""
    if isinstance(value, dict):
        inner = {
            field: _canonical(item, of_resources=of_resources or field in ("requests", "limits"))
            for field, item in value.items()
        }
        return {field: item for field, item in inner.items() if item not in (None, {}, [], "")}
    if isinstance(value, list):
        return [_canonical(item, of_resources=of_resources) for item in value]
    if of_resources and isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return quantity.canonical(str(value))
        except ValueError:
            return value
    return value
