"""The broadcaster, which writes in the background what recorders record (rules EV-1 to EV-3)."""

from __future__ import annotations

import asyncio
import itertools
import random as _random
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from datetime import UTC, datetime
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from pyreconcile.api import RawObject, unstructured
from pyreconcile.client import AlreadyExistsError, ApiError, Client, MergePatch, NotFoundError
from pyreconcile.events._correlator import EventCorrelator
from pyreconcile.events._recorder import EventRecorder, EventsApi
from pyreconcile.events._series import SeriesTracker
from pyreconcile.events._write import Write

log = structlog.get_logger()

_EVENT = unstructured("events.k8s.io/v1", "Event")
_CORE_EVENT = unstructured("v1", "Event")

# Rule EV-1: client-go tools/record/event.go, and tools/events/event_broadcaster.go for the newer API.
_QUEUE: Final = 1000
_TRIES: Final = 12
_TRY_PAUSE: Final = 10.0

_FLUSH: Final = 2.0


class EventBroadcaster:
    """Writes recorded events in the background.

    A write that the server could not take is tried 12 times, 10 s apart, the first time after a random part of that, so
    that not everybody comes back in the same moment; what it refuses is not tried again (rule EV-1).

    Args:
        client: writes them; not one whose writes are fenced by an election.
        clock: monotonic seconds.
        wall: the time of day.
        sleep: waits between tries.
        random: a number in [0, 1) that shortens the first wait.
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
        random: Callable[[], float] = _random.random,
        host: str = "",
        flush_timeout: float = _FLUSH,
    ) -> None:
        self._client = client
        self._clock = clock
        self.wall = wall
        self.host = host or socket.gethostname()
        self._sleep = sleep
        self._random = random
        self._flush_timeout = flush_timeout
        self._queue: deque[tuple[Hashable, RawObject]] = deque()
        self._series = SeriesTracker()
        self._correlator = EventCorrelator()
        self._wake = anyio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._closed = False
        self._closing = anyio.Event()
        self._dropping = False
        self._numbers = itertools.count(1)

    def recorder(self, component: str, *, api: EventsApi = "events.k8s.io/v1") -> EventRecorder:
        """Return the recorder of a component, whose name becomes the events' ``reportingController``.

        Args:
            component: names who reports.
            api: in which form: ``events.k8s.io/v1``, or ``v1`` for the older events of core.

        Raises:
            ValueError: the name is not of the form ``name`` or ``domain/name``, or there is no such API.
        """
        return EventRecorder(self, component, api=api)

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Write events until ``stop`` is set, then what is waiting, within the flush timeout and by one try each.

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
                self._closing.set()
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

    def next_number(self) -> int:
        """Return a number that is another one each time; part of the events' names."""
        return next(self._numbers)

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
            now = self._clock()
            core = event["apiVersion"] == "v1"
            for write in self._correlator.record(event, now) if core else self._series.record(key, event, now):
                await self._write(write)
        self._dropping = False

    async def _write(self, write: Write) -> None:
        for attempt in range(1, _TRIES + 1):
            try:
                await self._send(write)
                return
            except Exception as error:
                lasting = isinstance(error, ApiError) and 400 <= error.code < 500 and error.code != 429
                # At the end one that cannot be written must not take the time of the others.
                if lasting or attempt == _TRIES or self._closed:
                    log.warning("event_not_written", lost=write.event, error=repr(error))
                    return
            await self._pause(_TRY_PAUSE * self._random() if attempt == 1 else _TRY_PAUSE)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not beyond the stop."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_at_stop, tasks.cancel_scope)
            await self._sleep(seconds)
            tasks.cancel_scope.cancel()

    async def _end_at_stop(self, scope: anyio.CancelScope) -> None:
        await self._closing.wait()
        scope.cancel()

    async def _send(self, write: Write) -> None:
        event = write.event
        kind = _CORE_EVENT if event["apiVersion"] == "v1" else _EVENT
        if write.patch is None:
            try:
                await self._client.create(kind.from_dict(event))
            except AlreadyExistsError:
                log.debug("event_exists", name=event["metadata"]["name"])
            return
        key = f"{event['metadata']['namespace']}/{event['metadata']['name']}"
        try:
            await self._client.patch(kind, key, MergePatch(write.patch))
        except NotFoundError:
            # Events expire after an hour; a series may live longer.
            await self._client.create(kind.from_dict({**event, **write.patch}))
