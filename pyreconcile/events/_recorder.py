"""Recorders: what a component says about objects, in the form of either API (rules EV-1 to EV-3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol, TypeAlias

from pyreconcile.api import KubeObject, RawObject

EventsApi: TypeAlias = Literal["events.k8s.io/v1", "v1"]
"""The API that events are written in: the newer one, which makes series, or the older one of core, which counts."""

_COMPONENT: Final = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")

# The API server's limits (kubernetes pkg/apis/core/validation/events.go).
_NOTE_BYTES: Final = 1024
_NAME_CHARS: Final = 128


class Sink(Protocol):
    """Where recorders put their events; `EventBroadcaster` is one."""

    host: str
    """This machine's name."""
    wall: Callable[[], datetime]
    """The time of day."""

    def next_number(self) -> int:
        """Return a number that is another one each time."""
        ...

    def record(self, key: Hashable, event: RawObject) -> None:
        """Take in an event without waiting. ``key`` names the series it belongs to."""
        ...


class EventRecorder:
    """Records events about objects on behalf of one component."""

    def __init__(self, sink: Sink, component: str, *, api: EventsApi = "events.k8s.io/v1") -> None:
        if not _COMPONENT.match(component):
            raise ValueError(
                f"component: {component!r} must be a name of letters, digits, '-', '_' and '.', as in 'web', "
                "or have a domain in front, as in 'example.com/web'"
            )
        if api not in ("events.k8s.io/v1", "v1"):
            raise ValueError(f"api: must be 'events.k8s.io/v1' or 'v1', not {api!r}")
        self._sink = sink
        self._component = component
        self._form = self._new_form if api == "events.k8s.io/v1" else self._core_form

    def event(
        self,
        obj: KubeObject,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's own word
        reason: str,
        note: str,
        *,
        action: str,
        related: KubeObject | None = None,
    ) -> None:
        """Record that something happened to ``obj``. Never waits, and never fails for reasons of the server.

        With ``events.k8s.io/v1``, repeats about the same version of the object become one event with a count, whatever
        their notes. With ``v1``, repeats with the same note are counted, the tenth note of alike events and later ones
        share one event, and after 25 events about an object one more each 5 minutes is written. An event about a
        cluster-scoped object is kept in namespace ``default``.

        Args:
            obj: what the event is about.
            type: ``Normal`` or ``Warning``.
            reason: why, as one CamelCase word (at most 128 characters).
            note: the message for people; cut at 1 kB.
            action: what the component did or tried, as one CamelCase word (at most 128 characters).
            related: another object that plays a part.

        Raises:
            ValueError: type, reason or action is not usable.
        """
        if type not in ("Normal", "Warning"):
            raise ValueError(f"type: must be 'Normal' or 'Warning', not {type!r}")
        for field, value in (("reason", reason), ("action", action)):
            if not value or len(value) > _NAME_CHARS:
                raise ValueError(f"{field}: must have 1 to {_NAME_CHARS} characters, not {len(value)}")
        event = self._form(obj, _cut(note))
        event.update(type=type, reason=reason, action=action)
        if related is not None:
            event["related"] = _reference(related)
        key = (type, reason, action, self._component, _identity(obj), related and _identity(related))
        self._sink.record(key, event)

    def _new_form(self, obj: KubeObject, note: str) -> RawObject:
        now = self._sink.wall().astimezone(UTC)
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": self._metadata(obj, now),
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": self._component,
            "reportingInstance": f"{self._component}-{self._sink.host}"[:_NAME_CHARS],
            "regarding": _reference(obj),
            "note": note,
        }

    def _core_form(self, obj: KubeObject, note: str) -> RawObject:
        now = self._sink.wall().astimezone(UTC)
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": self._metadata(obj, now),
            "source": {"component": self._component, "host": self._sink.host},
            "reportingComponent": self._component,
            "reportingInstance": self._sink.host[:_NAME_CHARS],
            "involvedObject": _reference(obj),
            "message": note,
            "count": 1,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
        }

    def _metadata(self, obj: KubeObject, now: datetime) -> RawObject:
        # Time and a running number: two events of one object in one microsecond still differ.
        suffix = f".{int(now.timestamp() * 1_000_000):x}{self._sink.next_number() & 0xFFF:03x}"
        metadata = obj.metadata
        return {"name": metadata.name[: 253 - len(suffix)] + suffix, "namespace": metadata.namespace or "default"}


def _reference(obj: KubeObject) -> RawObject:
    resource, metadata = type(obj).resource, obj.metadata
    reference = {"apiVersion": resource.api_version, "kind": resource.kind, "name": metadata.name}
    if metadata.namespace:
        reference["namespace"] = metadata.namespace
    if metadata.uid:
        reference["uid"] = metadata.uid
    if metadata.resource_version:
        reference["resourceVersion"] = metadata.resource_version
    return reference


def _identity(obj: KubeObject) -> tuple[Any, ...]:
    # With the version, as client-go's key has it: what is said of another state of the object is news, not a repeat.
    return type(obj).resource.group_kind, obj.key, obj.metadata.uid, obj.metadata.resource_version


def _cut(note: str) -> str:
    raw = note.encode()
    return note if len(raw) <= _NOTE_BYTES else raw[: _NOTE_BYTES - 3].decode(errors="ignore") + "…"
