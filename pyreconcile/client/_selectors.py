"""Label and field selectors as query parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

LabelSelector: TypeAlias = str | Mapping[str, str | Sequence[str]]
"""Text as ``kubectl -l`` takes it, or label → value; a list of values means any of them. All must hold."""

FieldSelector: TypeAlias = str | Mapping[str, str]
"""Text as ``kubectl --field-selector`` takes it, or field path → value. All must hold."""


def label_selector(labels: LabelSelector | None) -> str:
    """Return the text form of a label selector, empty for none."""
    if not labels:
        return ""
    if isinstance(labels, str):
        return labels
    parts = []
    for name, value in labels.items():
        parts.append(f"{name}={value}" if isinstance(value, str) else f"{name} in ({','.join(value)})")
    return ",".join(parts)


def field_selector(fields: FieldSelector | None) -> str:
    """Return the text form of a field selector, empty for none."""
    if not fields:
        return ""
    if isinstance(fields, str):
        return fields
    return ",".join(f"{path}={_escape(value)}" for path, value in fields.items())


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")


def selection(labels: LabelSelector | None, fields: FieldSelector | None) -> dict[str, str]:
    """Return the query parameters for both selectors, leaving out empty ones."""
    query = {"labelSelector": label_selector(labels), "fieldSelector": field_selector(fields)}
    return {name: text for name, text in query.items() if text}
