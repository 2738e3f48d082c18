"""What the fake holds: objects, one counter of versions, and a history for watches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import anyio

from pyreconcile.api import RawObject, Resource, object_key

Table: TypeAlias = tuple[str, str]
"""Group and plural: the versions of a kind share their objects."""
Selects: TypeAlias = Callable[[RawObject], bool]


def table_of(resource: Resource) -> Table:
    """Return where a kind's objects are."""
    return resource.group, resource.plural


def key_of(obj: RawObject) -> str:
    """Return an object's key."""
    metadata = obj["metadata"]
    return object_key(metadata.get("namespace") or "", metadata["name"])


class Event(NamedTuple):
    """One change, with the object before it (None when it is new) and after it (as it was last, when deleted)."""

    version: int
    type: str
    old: RawObject | None
    new: RawObject

    def seen_by(self, selects: Selects) -> tuple[str, RawObject] | None:
        """Return what a watch of a part of the objects sees of it."""
        was = self.old is not None and selects(self.old)
        if self.type == "DELETED":
            return ("DELETED", self.new) if was else None
        if selects(self.new):
            return ("MODIFIED" if was else "ADDED"), self.new
        return ("DELETED", self.new) if was else None


@dataclass(eq=False)
class Follower:
    """Gets the events of one table as they happen."""

    waiting: deque[Event] = field(default_factory=deque)
    _news: anyio.Event | None = None

    def tell(self, event: Event) -> None:
        """Add an event."""
        self.waiting.append(event)
        if self._news is not None:
            self._news.set()

    async def wait(self) -> None:
        """Wait for events."""
        self._news = anyio.Event()
        if not self.waiting:
            await self._news.wait()
        self._news = None


class Store:
    """Objects as parsed JSON, which nobody changes in place.

    Attributes:
        version: of the last write.
        oldest: the oldest version from which a watch can begin.
    """

    def __init__(self) -> None:
        self.version = 0
        self.oldest = 0
        self._tables: dict[Table, dict[str, RawObject]] = {}
        self._history: dict[Table, list[Event]] = {}
        self._followers: dict[Table, list[Follower]] = {}
        self._written = False  # the history may have been forgotten

    def get(self, table: Table, key: str) -> RawObject | None:
        """Return an object, or None."""
        return self._tables.get(table, {}).get(key)

    def objects(self, table: Table, namespace: str = "") -> list[RawObject]:
        """Return the objects of a table in the order of their keys."""
        objects = self._tables.get(table, {})
        return [objects[key] for key in sorted(objects) if not namespace or key.startswith(f"{namespace}/")]

    def load(self, table: Table, obj: RawObject, version: int) -> None:
        """Put an object that was there before the first write; once there was one, it is written now."""
        if self._written or any(self._followers.values()):
            self.write(table, obj)
            return
        self.version = self.oldest = max(self.version, version)
        self._tables.setdefault(table, {})[key_of(obj)] = obj

    def write(self, table: Table, obj: RawObject) -> RawObject:
        """Store an object under a new version and return it."""
        old = self.get(table, key_of(obj))
        stored = self._stamped(obj)
        self._tables.setdefault(table, {})[key_of(obj)] = stored
        self._record(table, "ADDED" if old is None else "MODIFIED", old, stored)
        return stored

    def remove(self, table: Table, obj: RawObject) -> RawObject:
        """Remove an object; return it with the version of its removal."""
        old = self._tables[table].pop(key_of(obj))
        gone = self._stamped(obj)
        self._record(table, "DELETED", old, gone)
        return gone

    def since(self, table: Table, version: int) -> list[Event]:
        """Return the events after a version."""
        return [event for event in self._history.get(table, ()) if event.version > version]

    def follow(self, table: Table) -> Follower:
        """Return what gets the events from now on."""
        follower = Follower()
        self._followers.setdefault(table, []).append(follower)
        return follower

    def unfollow(self, table: Table, follower: Follower) -> None:
        """Give it no more events."""
        self._followers[table].remove(follower)

    def compact(self) -> None:
        """Forget the history: watches cannot begin before the present version any more."""
        self.oldest = self.version
        self._history.clear()

    def _stamped(self, obj: RawObject) -> RawObject:
        self.version += 1
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}

    def _record(self, table: Table, change: str, old: RawObject | None, new: RawObject) -> None:
        self._written = True
        event = Event(self.version, change, old, new)
        self._history.setdefault(table, []).append(event)
        for follower in self._followers.get(table, ()):
            follower.tell(event)
