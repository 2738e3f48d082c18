"""Metadata that every object carries: ObjectMeta, OwnerReference, Condition, and the bases for spec and status."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from pyreconcile.api._model import Model


def _write_time(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _write_micro_time(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


Time = Annotated[datetime, PlainSerializer(_write_time, return_type=str)]
"""A timestamp in UTC with whole seconds, as ``metav1.Time`` writes it."""

MicroTime = Annotated[datetime, PlainSerializer(_write_micro_time, return_type=str)]
"""A timestamp in UTC with six digits after the second, as ``metav1.MicroTime`` writes it."""


def _null_is_empty(value: Any) -> Any:
    return {} if value is None else value


def _null_is_empty_list(value: Any) -> Any:
    return [] if value is None else value


_StringMap = Annotated[dict[str, str], BeforeValidator(_null_is_empty)]


class OwnerReference(Model):
    """A link from a child to its owner; the garbage collector follows it."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Model):
    """Name, identity and bookkeeping of an object.

    ``labels``, ``annotations``, ``finalizers`` and ``owner_references`` are never None, so they can be read and
    changed in place; an empty one that was never set is not written.
    """

    name: str = ""
    generate_name: str | None = None
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    deletion_grace_period_seconds: int | None = None
    labels: _StringMap = Field(default_factory=dict)
    annotations: _StringMap = Field(default_factory=dict)
    finalizers: Annotated[list[str], BeforeValidator(_null_is_empty_list)] = Field(default_factory=list)
    owner_references: Annotated[list[OwnerReference], BeforeValidator(_null_is_empty_list)] = Field(
        default_factory=list
    )
    managed_fields: list[dict[str, Any]] | None = None
    self_link: str | None = None


class Condition(Model):
    """One observed aspect of an object's state (``metav1.Condition``)."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    last_transition_time: Time | None = None
    observed_generation: int | None = None


class Spec(Model):
    """Base for the ``spec`` of a custom resource: what the user wants."""


class Status(Model):
    """Base for the ``status`` of a custom resource: what the controller last saw."""

    observed_generation: int | None = None
    conditions: list[Condition] = Field(default_factory=list)
