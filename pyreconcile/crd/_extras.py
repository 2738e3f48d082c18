"""What pydantic has no word for: CEL rules, list types, preserved fields, as values of ``json_schema_extra``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic.config import JsonDict

RULES = "x-kubernetes-validations"

Reason = Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"]


def cel(
    rule: str,
    message: str = "",
    *,
    message_expression: str = "",
    reason: Reason | None = None,
    field_path: str = "",
    optional_old_self: bool = False,
) -> JsonDict:
    """Return a CEL validation rule; ``self`` is the field, or the object when it is on a class.

    On a field: ``Field(json_schema_extra=cel("self.size() > 0", "must not be empty"))``; on a class:
    ``model_config = ConfigDict(json_schema_extra=cel("self.min <= self.max", "min is above max"))``.

    Args:
        rule: the CEL expression; one that names ``oldSelf`` is checked on updates only.
        message: what the user reads when the rule fails.
        message_expression: a CEL expression that gives the message; it wins over ``message``.
        reason: the cause's reason in the answer; the server's default is ``FieldValueInvalid``.
        field_path: the field to blame, relative to this one, as in ``.spec.replicas``.
        optional_old_self: check the rule on creation too, with ``oldSelf`` as an optional value.

    Raises:
        ValueError: the rule is empty, or a message contains a line break.
    """
    if not rule.strip():
        raise ValueError("cel: the rule is empty")
    if "\n" in message:
        raise ValueError(f"cel: the message of {rule!r} must be one line")
    entry: JsonDict = {"rule": rule}
    if message:
        entry["message"] = message
    if message_expression:
        entry["messageExpression"] = message_expression
    if reason:
        entry["reason"] = reason
    if field_path:
        entry["fieldPath"] = field_path
    if optional_old_self:
        entry["optionalOldSelf"] = True
    return {RULES: [entry]}


def list_type(kind: Literal["map", "set", "atomic"], *, keys: Sequence[str] = ()) -> JsonDict:
    """Say how server-side apply merges a list: by keys (``map``), by value (``set``) or as a whole (``atomic``).

    ``keys`` are wire names of fields of the items; each must be required or have a default.

    Raises:
        ValueError: ``map`` without keys, or keys without ``map``.
    """
    if (kind == "map") != bool(keys):
        raise ValueError("list_type: 'map' needs keys, as in list_type('map', keys=('name',)); the others take none")
    extra: JsonDict = {"x-kubernetes-list-type": kind}
    if keys:
        extra["x-kubernetes-list-map-keys"] = list(keys)
    return extra


def map_type(kind: Literal["granular", "atomic"]) -> JsonDict:
    """Say how server-side apply merges an object or map: field by field (the default), or as a whole."""
    return {"x-kubernetes-map-type": kind}


def nullable() -> JsonDict:
    """Let the server keep an explicit null, which it drops otherwise."""
    return {"nullable": True}


def preserve_unknown_fields() -> JsonDict:
    """Keep fields that the schema does not name; the server prunes them otherwise."""
    return {"x-kubernetes-preserve-unknown-fields": True}


def combine(*extras: JsonDict) -> JsonDict:
    """Join several extras into one; their CEL rules add up."""
    result: JsonDict = {}
    for extra in extras:
        for key, value in extra.items():
            known = result.get(key)
            if key == RULES and isinstance(known, list) and isinstance(value, list):
                result[key] = [*known, *value]
            else:
                result[key] = value
    return result
