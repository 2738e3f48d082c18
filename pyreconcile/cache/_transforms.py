"""Transforms that make cached objects smaller, for `KindOptions` and `CacheOptions` (rule CA-10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pyreconcile.api import RawObject

Transform: TypeAlias = Callable[[RawObject], RawObject]
"""Changes an object before it is stored, in place or by returning another; running it twice must do no harm."""

_NEEDED = ("apiVersion", "kind", "metadata")
_NEEDED_METADATA = ("name", "namespace", "uid", "resourceVersion")


def strip_managed_fields(obj: RawObject) -> RawObject:
    """Drop ``metadata.managedFields``, often a third of an object."""
    obj["metadata"].pop("managedFields", None)
    return obj


def drop_annotations(*names: str) -> Transform:
    """Return a transform that drops annotations, such as ``kubectl.kubernetes.io/last-applied-configuration``."""

    def transform(obj: RawObject) -> RawObject:
        annotations = obj["metadata"].get("annotations")
        if annotations:
            for name in names:
                annotations.pop(name, None)
        return obj

    return transform


def drop_fields(*paths: str) -> Transform:
    """Return a transform that drops fields, by their wire names: ``drop_fields("data", "status.images")``.

    An object read from the cache then lacks them, so change it by patch or apply: an update would erase them on the
    server.

    Raises:
        ValueError: the cache itself needs a field.
    """
    steps = [path.split(".") for path in paths]
    for path, (first, *rest) in zip(paths, steps, strict=True):
        needed = first in _NEEDED and (not rest or first != "metadata" or rest[0] in _NEEDED_METADATA)
        if needed or not all((first, *rest)):
            raise ValueError(f"drop_fields: {path!r} is needed by the cache, or is no path; name a field like 'status'")

    def transform(obj: RawObject) -> RawObject:
        for path in steps:
            _drop(obj, path)
        return obj

    return transform


def chain(*transforms: Transform) -> Transform:
    """Return a transform that runs others one after the other."""

    def transform(obj: RawObject) -> RawObject:
        for each in transforms:
            obj = each(obj)
        return obj

    return transform


def _drop(value: object, path: Sequence[str]) -> None:
    *parents, last = path
    for step in parents:
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, dict):
        value.pop(last, None)
