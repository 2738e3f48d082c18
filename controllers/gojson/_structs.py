"""Parsed JSON in the form that Go's typed structs give it, and its text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

import orjson

from pyreconcile.api import RawObject
from pyreconcile_controllers.gojson._quantity import canonical_quantity

_Write = Callable[[Any], Any]
_DROP: Any = object()
_ZEROS: dict[str, Any] = {"string": "", "bool": False, "int": 0, "float": 0, "intstr": 0, "quantity": "0"}
# Go's omitempty never drops a struct; these kinds are structs although JSON shows a scalar.
_STRUCT_SCALARS = ("quantity", "intstr", "time")
_ESCAPES = ((b"&", b"\\u0026"), (b"<", b"\\u003c"), (b">", b"\\u003e"))
_SEPARATORS = (("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"))


def go_text(value: Any, *, sort_keys: bool = True) -> bytes:
    """Return compact JSON with Go's HTML escapes.

    Args:
        value: parsed JSON.
        sort_keys: as Go writes maps. False keeps the order, which `go_struct` makes that of Go's structs.
    """
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    for char, escape in (*_ESCAPES, *_SEPARATORS):
        if char in text:
            text = text.replace(char, escape)
    return text


def go_struct(type_name: str, value: RawObject | None) -> RawObject:
    """Return ``value`` as the Go struct ``type_name`` (such as ``v1.PodTemplateSpec``) would be written.

    Unknown fields and empty optional ones vanish, mandatory ones appear, quantities become canonical. Fields stand in
    the order of their declaration, the keys of maps in their own. The result may share scalars with ``value`` but no
    containers.

    Raises:
        ValueError: a quantity is none.
    """
    fields = _writers(type_name)
    given = value or {}
    result = {}
    for name, write in fields:
        written = write(given.get(name))
        if written is not _DROP:
            result[name] = written
    return result


@cache
def _shape() -> dict[str, dict[str, tuple[str, str]]]:
    text = resources.files(__package__).joinpath("shape.json").read_bytes()
    shape: dict[str, dict[str, tuple[str, str]]] = orjson.loads(text)["types"]
    return shape


@cache
def _writers(type_name: str) -> tuple[tuple[str, _Write], ...]:
    return tuple((name, _field(kind, mode)) for name, (kind, mode) in _shape()[type_name].items())


def _field(kind: str, mode: str) -> _Write:
    """Return the writer of a field: it takes the given value (None when absent) and may answer `_DROP`."""
    if kind.startswith("*"):
        write = _value(kind[1:])
        absent = None if mode == "always" else _DROP
        return lambda value: absent if value is None else write(value)
    write = _value(kind)
    if kind.startswith("{"):
        return write
    if kind.startswith(("[", "map<")):
        if mode == "always":
            return lambda value: None if value is None else write(value)
        return lambda value: write(value) if value else _DROP
    zero = _ZEROS.get(kind)
    if kind == "time" and mode == "omitzero":
        return lambda value: _DROP if value is None else write(value)
    if mode == "always" or kind in _STRUCT_SCALARS:
        return lambda value: zero if value is None else write(value)

    def scalar(value: Any) -> Any:
        return write(value) if value else _DROP

    return scalar


def _value(kind: str) -> _Write:
    """Return the writer of a value that is there."""
    if kind.startswith("{"):
        type_name = kind[1:-1]
        return lambda value: go_struct(type_name, value)
    if kind.startswith("["):
        item = _item(kind[1:-1])
        return lambda value: [item(one) for one in value]
    if kind.startswith("map<"):
        item = _item(kind[4:-1])
        return lambda value: {key: item(one) for key, one in sorted(value.items())}
    return _SCALARS.get(kind, _same)


def _item(kind: str) -> _Write:
    write, zero = _value(kind), _ZEROS.get(kind)
    return lambda value: zero if value is None and zero is not None else write(value)


def _same(value: Any) -> Any:
    return value


def _time(value: str) -> str:
    moment = datetime.fromisoformat(value).astimezone(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


_SCALARS: dict[str, _Write] = {"quantity": canonical_quantity, "time": _time}
