"""Setting fields of an object's status on a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pyreconcile.api import Model, Unstructured
from pyreconcile.client._core import T


def with_status(obj: T, changes: Mapping[str, Any]) -> T:
    """Return a copy of ``obj`` with these fields of its status set; the status is made when there is none.

    Raises:
        TypeError: the kind has no status, or its status has no such field.
        pydantic.ValidationError: a value has the wrong type.
    """
    copy = obj.deep_copy()
    if isinstance(copy, Unstructured):
        copy["status"] = {**(copy.get("status") or {}), **changes}
        return copy
    model = _status_model(type(copy))
    for name in changes:
        if name not in model.model_fields:
            known = ", ".join(sorted(model.model_fields))
            raise TypeError(f"status.{name}: {model.__name__} has no such field; it has {known}")
    status: Model | None = getattr(copy, "status", None)
    if status is None:
        copy.__setattr__("status", model.model_validate(dict(changes)))
        return copy
    for name, value in changes.items():
        model.__pydantic_validator__.validate_assignment(status, name, value)
    return copy


def _status_model(kind: type[Model]) -> type[Model]:
    field = kind.model_fields.get("status")
    annotation = field.annotation if field is not None else None
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Model):
            return candidate
    raise TypeError(f"{kind.__name__} has no status")
