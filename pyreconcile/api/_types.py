"""Types of fields beside the plain ones: timestamps, integers with a width, quantities, lists that are never null."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import GetCoreSchemaHandler, PlainSerializer
from pydantic_core import CoreSchema, core_schema

T = TypeVar("T")


def _write_time(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="seconds")[:19] + "Z"


def _write_micro_time(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"


@dataclass(frozen=True, slots=True)
class Format:
    """Marks an annotated type with the format that its CRD schema shows; validation does not change."""

    name: str


@dataclass(frozen=True, slots=True)
class EmptyForNull:
    """Reads null as an empty list or map, for fields that Go writes as null when they are empty."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Wrap the container's schema; the inner validation stays native."""
        schema = handler(source)
        empty: type = dict if schema["type"] == "dict" else list
        return core_schema.no_info_after_validator_function(
            lambda value: empty() if value is None else value, core_schema.nullable_schema(schema)
        )


Time: TypeAlias = Annotated[datetime, Format("date-time"), PlainSerializer(_write_time, return_type=str)]
"""A timestamp in UTC with whole seconds, as ``metav1.Time`` writes it; a naive value counts as local time."""

MicroTime: TypeAlias = Annotated[datetime, Format("micro-time"), PlainSerializer(_write_micro_time, return_type=str)]
"""A timestamp in UTC with six digits after the second, as ``metav1.MicroTime`` writes it."""

Int32: TypeAlias = Annotated[int, Format("int32")]
"""An integer whose CRD schema says ``format: int32``."""

Int64: TypeAlias = Annotated[int, Format("int64")]
"""An integer whose CRD schema says ``format: int64``."""

Base64: TypeAlias = Annotated[str, Format("byte")]
"""Bytes as base64 text, as they stand on the wire."""

IntOrString: TypeAlias = Annotated[int | str, Format("int-or-string")]
"""A number or a string, such as a port or ``25%``; see `pyreconcile.api.quantity.resolve`."""

Quantity: TypeAlias = Annotated[str | int | float, Format("quantity")]
"""An amount such as ``500m`` or ``2Gi``, kept as it was written; see `pyreconcile.api.quantity`."""

Items: TypeAlias = Annotated[list[T], EmptyForNull()]
"""A list that reads null as empty."""

Entries: TypeAlias = Annotated[dict[str, T], EmptyForNull()]
"""A map from strings that reads null as empty."""
