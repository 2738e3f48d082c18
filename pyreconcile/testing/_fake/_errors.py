"""What the API server says when it refuses, as far as the fake refuses too."""

from __future__ import annotations

from pyreconcile.api import Resource
from pyreconcile.client import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    MethodNotAllowedError,
    NotFoundError,
    UnsupportedMediaTypeError,
)

_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def qualified(resource: Resource) -> str:
    """Return the plural with its group, as in ``deployments.apps``."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _details(resource: Resource, name: str) -> dict[str, str]:
    return {"name": name, "group": resource.group, "kind": resource.plural}


def exists(resource: Resource, name: str) -> AlreadyExistsError:
    """Return the error for a create of what is there."""
    return AlreadyExistsError(f'{qualified(resource)} "{name}" already exists', details=_details(resource, name))


def conflict(resource: Resource, name: str, why: str = _MODIFIED) -> ConflictError:
    """Return the error for a write that is based on another version."""
    message = f'Operation cannot be fulfilled on {qualified(resource)} "{name}": {why}'
    return ConflictError(message, details=_details(resource, name))


def invalid(resource: Resource, name: str, field: str, why: str, reason: str = "FieldValueInvalid") -> InvalidError:
    """Return the error for a field that breaks a rule."""
    cause = {"reason": reason, "message": why, "field": field}
    message = f'{resource.kind} "{name}" is invalid: {field}: {why}'
    return InvalidError(message, details={**_details(resource, name), "causes": [cause]})


def no_such_path() -> NotFoundError:
    """Return the error for a kind or sub-resource that is not served."""
    return NotFoundError("the server could not find the requested resource")


def not_allowed(what: str) -> MethodNotAllowedError:
    """Return the error for a verb that a resource does not have."""
    return MethodNotAllowedError(f"the server does not allow this method on the requested resource: {what}")


def wrong_media_type(given: str, taken: tuple[str, ...]) -> UnsupportedMediaTypeError:
    """Return the error for a body of a form that a resource does not take."""
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(taken)}"
    return UnsupportedMediaTypeError(f"{message} (it was {given})")
