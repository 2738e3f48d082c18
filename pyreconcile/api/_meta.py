"""Metadata that every object carries: ObjectMeta, OwnerReference, Condition, and the bases for spec and status."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pyreconcile.api._model import Model
from pyreconcile.api._types import Entries, Int64, Items, Time


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
    labels: Entries[str] = Field(default_factory=dict)
    annotations: Entries[str] = Field(default_factory=dict)
    finalizers: Items[str] = Field(default_factory=list)
    owner_references: Items[OwnerReference] = Field(default_factory=list)
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

    observed_generation: Int64 | None = None
    conditions: Items[Condition] = Field(
        default_factory=list,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
