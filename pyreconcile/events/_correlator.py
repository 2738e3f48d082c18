"""Events of core/v1: what is written, counted, combined or dropped: pure (rule EV-1).

Three steps, each with a memory of 4096 entries that forgets the one unused longest (client-go
``tools/record/events_cache.go``): alike events with many messages are combined, repeats become a count, and an object
that too much is said about is not written about any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from pyreconcile.api import RawObject
from pyreconcile.events._write import Write

V = TypeVar("V")

REMEMBERED: Final = 4096
ALIKE_MAX: Final = 10
ALIKE_SECONDS: Final = 600.0
BURST: Final = 25
REFILL_SECONDS: Final = 300.0
COMBINED: Final = "(combined from similar events): "


class _Memory(Generic[V]):
    """A table that forgets the entry unused longest when it is full."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> V | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Hashable, value: V) -> V:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > REMEMBERED:
            self._values.popitem(last=False)
        return value


@dataclass(slots=True)
class _Alike:
    """Events that differ in their messages only."""

    seen_at: float
    messages: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Written:
    """An event that is in the server, as far as we know."""

    name: str
    first_timestamp: str
    count: int = 0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float

    def take(self, now: float) -> bool:
        self.tokens = min(BURST, self.tokens + (now - self.filled_at) / REFILL_SECONDS)
        self.filled_at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class EventCorrelator:
    """Decides for each event of core/v1 what to write. ``now`` is monotonic seconds."""

    def __init__(self) -> None:
        self._alike: _Memory[_Alike] = _Memory()
        self._written: _Memory[_Written] = _Memory()
        self._buckets: _Memory[_Bucket] = _Memory()

    def record(self, event: RawObject, now: float) -> list[Write]:
        """Take in one event; return what to write, which is nothing when it is spam."""
        subject = _subject(event)
        group = (subject, event["type"], event["reason"])
        combined = self._combine(group, event["message"], now)
        if combined:
            event = {**event, "message": COMBINED + event["message"]}
        write = self._count(group if combined else (group, event["message"]), event)
        bucket = self._buckets.get(subject) or self._buckets.put(subject, _Bucket(BURST, now))
        return [write] if bucket.take(now) else []

    def _combine(self, group: Hashable, message: str, now: float) -> bool:
        """Tell whether this is the tenth message or a later one of alike events that come close to each other."""
        alike = self._alike.get(group)
        if alike is None or now - alike.seen_at > ALIKE_SECONDS:
            alike = self._alike.put(group, _Alike(now))
        alike.seen_at = now
        alike.messages.add(message)
        if len(alike.messages) < ALIKE_MAX:
            return False
        alike.messages.pop()  # whichever: the set stays at one less than the bound
        return True

    def _count(self, key: Hashable, event: RawObject) -> Write:
        written = self._written.get(key)
        if written is None:
            metadata: Any = event["metadata"]
            written = self._written.put(key, _Written(metadata["name"], event["firstTimestamp"]))
        written.count += 1
        if written.count == 1:
            return Write(event)
        whole = {
            **event,
            "metadata": {**event["metadata"], "name": written.name},
            "firstTimestamp": written.first_timestamp,
        }
        changed = {"count": written.count, "lastTimestamp": event["lastTimestamp"], "message": event["message"]}
        return Write(whole, changed)


def _subject(event: RawObject) -> Hashable:
    """Return who says something about what; the version of the object does not matter."""
    source, about = event["source"], event["involvedObject"]
    return (
        source["component"],
        source["host"],
        *(about.get(part) for part in ("apiVersion", "kind", "namespace", "name", "uid")),
    )
