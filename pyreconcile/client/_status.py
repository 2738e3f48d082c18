"""Setting fields of an object's status on a copy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from pyreconcile.api import KubeObject, Model, RawObject, Unstructured
from pyreconcile.client._core import T


def with_status(obj: T, changes: Mapping[str, Any]) -> T:
    """Return a copy of ``obj`` with these fields of its status set; the status is made when there is none.

    The copy shares everything but the fields set with ``obj``: it is for sending, not for keeping.

    Raises:
        TypeError: the kind has no status, or its status has no such field.
        pydantic.ValidationError: a value has the wrong type.
    """
    if isinstance(obj, Unstructured):
        changed = obj.deep_copy()
        changed["status"] = {**(changed.get("status") or {}), **changes}
        return changed
    copy = obj.model_copy()
    model = _status_model(type(copy))
    for name in changes:
        if name not in model.__pydantic_fields__:
            known = ", ".join(sorted(model.model_fields))
            raise TypeError(f"status.{name}: {model.__name__} has no such field; it has {known}")
    status: Model | None = getattr(copy, "status", None)
    if status is None:
        status = model.model_validate(dict(changes))
    else:
        status = status.model_copy()
        for name, value in changes.items():
            model.__pydantic_validator__.validate_assignment(status, name, value)
    copy.__dict__["status"] = status
    copy.__pydantic_fields_set__.add("status")
    return copy


def status_update(obj: KubeObject, status: Any) -> RawObject:
    """Return what tells the server to replace the status of the custom resource ``obj``."""
    metadata = obj.metadata
    identity = {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid}
    raw: RawObject = {"apiVersion": obj.api_version, "kind": obj.kind}
    raw["metadata"] = {name: value for name, value in identity.items() if value}
    if metadata.resource_version:
        raw["metadata"]["resourceVersion"] = metadata.resource_version
    if status is not None:
        raw["status"] = status
    return raw


def status_of(obj: KubeObject) -> Any:
    """Return an object's status as parsed JSON; None when it has none."""
    status = obj.get("status") if isinstance(obj, Unstructured) else getattr(obj, "status", None)
    return status.to_dict() if isinstance(status, Model) else status


@cache
def _status_model(kind: type[Model]) -> type[Model]:
    field = kind.model_fields.get("status")
    annotation = field.annotation if field is not None else None
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Model):
            return candidate
    raise TypeError(f"{kind.__name__} has no status")
