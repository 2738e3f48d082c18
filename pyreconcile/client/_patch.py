"""Patches: JSON patch, JSON merge patch, strategic merge patch (rule CL-5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import orjson

from pyreconcile.api import KubeObject, RawObject


@dataclass(frozen=True)
class JsonPatch:
    """A list of operations on paths (RFC 6902), such as ``{"op": "remove", "path": "/spec/paused"}``."""

    content_type: ClassVar[str] = "application/json-patch+json"

    operations: Sequence[Mapping[str, Any]]

    def to_json(self) -> bytes:
        """Return the patch as it is sent."""
        return orjson.dumps(list(self.operations), default=dict)

    def __bool__(self) -> bool:
        return bool(self.operations)


@dataclass(frozen=True)
class MergePatch:
    """The fields to change (RFC 7386): null removes a field, a list replaces the whole list."""

    content_type: ClassVar[str] = "application/merge-patch+json"

    fields: Mapping[str, Any]

    def to_json(self) -> bytes:
        """Return the patch as it is sent."""
        return orjson.dumps(self.fields, default=dict)

    def __bool__(self) -> bool:
        return bool(self.fields)

    @classmethod
    def between(
        cls, base: KubeObject | RawObject, changed: KubeObject | RawObject, *, optimistic_lock: bool = False
    ) -> MergePatch:
        """Return the patch that turns ``base`` into ``changed``; it is falsy when nothing differs.

        A field that ``base`` has and ``changed`` lacks becomes null. A field that ``changed`` sets to None becomes
        null as well, unless ``base`` holds the same None. The resource version is not compared.

        Args:
            base: the object as it was read.
            changed: a copy of it with the changes.
            optimistic_lock: add the base's resource version, so that the server refuses the patch with a Conflict
                when the object has changed since.

        Raises:
            ValueError: ``optimistic_lock`` is asked for and ``base`` has no resource version.
        """
        old, new = _without_version(base), _without_version(changed)
        fields = _difference(old, new)
        if optimistic_lock:
            version = _raw(base).get("metadata", {}).get("resourceVersion")
            if not version:
                raise ValueError("optimistic_lock needs a base with metadata.resourceVersion: pass one read before")
            fields = {**fields, "metadata": {**fields.get("metadata", {}), "resourceVersion": version}}
        return cls(fields)


@dataclass(frozen=True)
class StrategicMergePatch:
    """The fields to change, where lists of a built-in kind merge by their keys.

    Custom resources do not take it: the server answers with UnsupportedMediaTypeError.
    """

    content_type: ClassVar[str] = "application/strategic-merge-patch+json"

    fields: Mapping[str, Any]

    def to_json(self) -> bytes:
        """Return the patch as it is sent."""
        return orjson.dumps(self.fields, default=dict)

    def __bool__(self) -> bool:
        return bool(self.fields)


Patch: TypeAlias = JsonPatch | MergePatch | StrategicMergePatch


def _raw(obj: KubeObject | RawObject) -> RawObject:
    return obj.to_dict() if isinstance(obj, KubeObject) else obj


def _without_version(obj: KubeObject | RawObject) -> RawObject:
    raw = _raw(obj)
    metadata = {name: value for name, value in raw.get("metadata", {}).items() if name != "resourceVersion"}
    return {**raw, "metadata": metadata}


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> RawObject:
    changes: RawObject = {name: None for name, value in old.items() if name not in new and value is not None}
    for name, value in new.items():
        if name not in old:
            changes[name] = value
            continue
        before = old[name]
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := _difference(before, value):
                changes[name] = inner
        elif not _same(before, value):
            changes[name] = value
    return changes


def _same(a: Any, b: Any) -> bool:
    # Python takes True for 1 and 1.0 for 1; JSON tells the first pair apart.
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
