"""Keeps one copy of what cached objects, or their readers, have in common."""

from __future__ import annotations

from typing import Any, TypeVar

import orjson

from pyreconcile.api import KubeObject, RawObject
from pyreconcile.cache._store import key_of

T = TypeVar("T", bound=KubeObject)

LIMIT = 4096
"""Field sets kept at most; beyond that the table starts anew, which costs sharing and nothing else."""

VIEWS = 10_000
"""Decoded objects kept at most; beyond that they are decoded anew."""


class FieldSets:
    """Lets objects share the field sets in their ``metadata.managedFields``.

    The pods of one template all have the same, and they are nearly half of the memory of a parsed pod (21 kB with,
    13 kB without). Cached objects are never changed, so they can be shared.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}

    def share(self, obj: RawObject) -> None:
        """Replace the object's field sets by equal ones seen before."""
        entries = obj["metadata"].get("managedFields")
        if not entries:
            return
        known = self._known
        if len(known) > LIMIT:
            known.clear()
        for entry in entries:
            fields = entry.get("fieldsV1")
            if fields:
                entry["fieldsV1"] = known.setdefault(orjson.dumps(fields), fields)


class SharedViews:
    """Decodes an object once for all readers that do not want a copy of their own (rule CA-6)."""

    def __init__(self) -> None:
        self._views: dict[tuple[type[KubeObject], str], tuple[RawObject, Any]] = {}

    def of(self, kind: type[T], raw: RawObject) -> T:
        """Return the typed form of a cached object; the same one until the cache holds another."""
        place = kind, key_of(raw)
        known = self._views.get(place)
        if known is not None and known[0] is raw:
            shared: T = known[1]
            return shared
        view = kind.from_dict(raw)
        if len(self._views) >= VIEWS:
            self._views.clear()
        self._views[place] = raw, view
        return view
