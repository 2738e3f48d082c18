"""Recorders for controllers, and the broadcaster that writes what they record (rules EV-2, EV-3)."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from datetime import UTC, datetime
from typing import Any, Final, Literal

import anyio
import structlog
from anyio.abc import TaskStatus

from pyreconcile.api import KubeObject, RawObject, unstructured
from pyreconcile.client import AlreadyExistsError, ApiError, Client, MergePatch, NotFoundError
from pyreconcile.events._series import SeriesTracker, Write

log = structlog.get_logger()

_EVENT = unstructured("events.k8s.io/v1", "Event")
_COMPONENT: Final = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")

# The API server's limits (kubernetes pkg/apis/core/validation/events.go).
_NOTE_BYTES: Final = 1024
_NAME_CHARS: Final = 128

_QUEUE: Final = 1000  # rule EV-1
_TRIES: Final = 3
_TRY_PAUSE: Final = 1.0
_FLUSH: Final = 2.0


class EventBroadcaster:
    """Writes recorded events in the background, as events of ``events.k8s.io/v1``.

    Args:
        client: writes them; not one whose writes are fenced by an election.
        clock: monotonic seconds.
        wall: the time of day.
        sleep: waits between tries.
        host: this machine's name, for ``reportingInstance``.
        flush_timeout: seconds that waiting events have at the end.
    """

    name = "event recorder"
    needs_leader_election = False

    def __init__(
        self,
        client: Client,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        host: str = "",
        flush_timeout: float = _FLUSH,
    ) -> None:
        self._client = client
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        self._host = host or socket.gethostname()
        self._flush_timeout = flush_timeout
        self._queue: deque[tuple[Hashable, RawObject]] = deque()
        self._series = SeriesTracker()
        self._wake = anyio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._closed = False
        self._dropping = False
        self._sequence = 0

    def recorder(self, component: str) -> EventRecorder:
        """Return the recorder of a component, whose name becomes the events' ``reportingController``.

        Raises:
            ValueError: the name is not of the form ``name`` or ``domain/name``.
        """
        return EventRecorder(self, component)

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Write events until ``stop`` is set, then what is waiting, within the flush timeout.

        Cancelling drops what is waiting. Afterwards recording does nothing.
        """
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        task_status.started()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write_all)
                await stop.wait()
                self._closed = True
                self._wake.set()
                tasks.cancel_scope.deadline = anyio.current_time() + self._flush_timeout
        finally:
            self._closed = True
            if self._queue:
                log.warning("events_dropped_at_stop", events=len(self._queue))
            self._queue.clear()

    def record(self, key: Hashable, event: RawObject) -> None:
        """Take in an event without waiting; drop it when 1000 are waiting, or after the end. Safe from any thread."""
        if self._closed:
            return
        if len(self._queue) >= _QUEUE:
            if not self._dropping:
                self._dropping = True
                log.warning("events_dropped", waiting=_QUEUE)
            return
        self._queue.append((key, event))
        if threading.get_ident() == self._thread:
            self._wake.set()
        elif (loop := self._loop) is not None:
            loop.call_soon_threadsafe(lambda: self._wake.set())

    def describe(self, component: str, regarding: KubeObject) -> RawObject:
        """Return the parts of an event that the broadcaster knows."""
        now = self._wall().astimezone(UTC)
        self._sequence += 1
        metadata = regarding.metadata
        # Time and a running number: two events of one object in one microsecond still differ.
        suffix = f".{int(now.timestamp() * 1_000_000):x}{self._sequence & 0xFFF:03x}"
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": metadata.name[: 253 - len(suffix)] + suffix,
                "namespace": metadata.namespace or "default",
            },
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": component,
            "reportingInstance": f"{component}-{self._host}"[:_NAME_CHARS],
            "regarding": _reference(regarding),
        }

    async def _write_all(self) -> None:
        while not self._closed:
            self._wake = anyio.Event()
            if not self._queue:
                due = self._series.next_due()
                with anyio.move_on_after(float("inf") if due is None else max(0.0, due - self._clock())):
                    await self._wake.wait()
            await self._drain()
            for write in self._series.due(self._clock()):
                await self._write(write)
        await self._drain()
        for write in self._series.close_all():
            await self._write(write)

    async def _drain(self) -> None:
        while self._queue:
            key, event = self._queue.popleft()
            for write in self._series.record(key, event, self._clock()):
                await self._write(write)
        self._dropping = False

    async def _write(self, write: Write) -> None:
        for attempt in range(1, _TRIES + 1):
            try:
                await self._send(write)
                return
            except Exception as error:
                lasting = isinstance(error, ApiError) and 400 <= error.code < 500 and error.code != 429
                if lasting or attempt == _TRIES:
                    log.warning("event_not_written", lost=write.event, error=repr(error))
                    return
            await self._sleep(_TRY_PAUSE * attempt)

    async def _send(self, write: Write) -> None:
        event = write.event
        if write.series is None:
            try:
                await self._client.create(_EVENT.from_dict(event))
            except AlreadyExistsError:
                log.debug("event_exists", name=event["metadata"]["name"])
            return
        key = f"{event['metadata']['namespace']}/{event['metadata']['name']}"
        try:
            await self._client.patch(_EVENT, key, MergePatch({"series": write.series}))
        except NotFoundError:
            # Events expire after an hour; a series may live longer.
            await self._client.create(_EVENT.from_dict({**event, "series": write.series}))


class EventRecorder:
    """Records events about objects on behalf of one component."""

    def __init__(self, broadcaster: EventBroadcaster, component: str) -> None:
        if not _COMPONENT.match(component):
            raise ValueError(
                f"component: {component!r} must be a name of letters, digits, '-', '_' and '.', as in 'web', "
                "or have a domain in front, as in 'example.com/web'"
            )
        self._broadcaster = broadcaster
        self._component = component

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

        Repeats about the same version of the object become one event with a count, whatever their notes. An event
        about a cluster-scoped object is kept in namespace ``default``.

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
        event = self._broadcaster.describe(self._component, obj)
        event.update(type=type, reason=reason, action=action, note=_cut(note))
        if related is not None:
            event["related"] = _reference(related)
        key = (type, reason, action, self._component, _identity(obj), related and _identity(related))
        self._broadcaster.record(key, event)


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
