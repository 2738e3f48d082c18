"""One handler of an informer, with its own buffer (rules IN-9 to IN-13)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic
from typing import Literal, Protocol, TypeAlias

import anyio
import anyio.lowlevel
import structlog

from pyreconcile.api import RawObject

BATCH = 100
"""Calls of a handler before other tasks get their turn."""

log = structlog.get_logger()


class InformerStoppedError(RuntimeError):
    """The informer has stopped, so nothing will come from it any more."""


class EventHandler(Protocol):
    """Hears of changes. Plain functions, called in order, one at a time; the objects are shared: read only."""

    def on_add(self, obj: RawObject, *, initial: bool) -> None:
        """An object is new, or was there when the handler was added (``initial``, rule IN-5)."""

    def on_update(self, old: RawObject, new: RawObject) -> None:
        """An object changed; the same object twice is a resync."""

    def on_delete(self, obj: RawObject, *, state_unknown: bool) -> None:
        """An object is gone. With ``state_unknown`` the deletion itself was missed and ``obj`` is the last known."""


Change = Literal["initial", "add", "update", "unchanged", "delete", "vanished", "synced"]
"""What a buffered call is about; ``synced`` marks the end of what was there at the start."""

Call: TypeAlias = tuple[Change, RawObject, RawObject]
"""A change, and the object before and after it."""

NOTHING: RawObject = {}
"""Stands for the side of a change that does not exist."""


class Burst:
    """Many calls that go into a buffer in one step, however many they are.

    Attributes:
        left: how many are still to be made.
    """

    __slots__ = ("_calls", "left")

    def __init__(self, calls: Iterable[Call], count: int) -> None:
        self._calls = iter(calls)
        self.left = count

    def take(self, count: int) -> Iterator[Call]:
        """Return the next calls."""
        self.left = max(self.left - count, 0)
        return islice(self._calls, count)


class Registration:
    """A handler's place at an informer, from `Informer.add_handler`.

    Attributes:
        name: names the handler in logs.
        resync: seconds between resyncs, 0 for none.
        errors: how many of its calls raised (rule IN-12).
        failing: whether the last call raised.
        in_bulk: whether the call that is being made is one of a full list or of a resync.
    """

    def __init__(
        self,
        handler: EventHandler,
        *,
        name: str,
        resync: float,
        wants_unchanged: bool,
        snapshot: Callable[[], list[RawObject]],
        forget: Callable[[Registration], None],
    ) -> None:
        self.name = name
        self.resync = resync
        self.wants_unchanged = wants_unchanged
        self.errors = 0
        self.failing = False
        self.in_bulk = False
        self._handler = handler
        self._snapshot = snapshot
        self._forget = forget
        self._buffer: deque[Call | Burst] = deque()
        self._behind_since = monotonic()
        self._wake: asyncio.Future[None] | None = None
        self._settled = anyio.Event()
        self._synced = False
        self._removed = False
        self._scopes: list[anyio.CancelScope] = []

    @property
    def has_synced(self) -> bool:
        """Whether the handler has been told everything that was there when it was added (rules IN-4, IN-10)."""
        return self._synced

    @property
    def backlog(self) -> int:
        """How many calls are waiting in the buffer."""
        return sum(entry.left if isinstance(entry, Burst) else 1 for entry in self._buffer)

    @property
    def behind_for(self) -> float:
        """Seconds since the buffer was empty last: no waiting call is older."""
        return monotonic() - self._behind_since if self._buffer else 0.0

    async def wait_synced(self) -> None:
        """Wait for `has_synced`; bound it with ``anyio.fail_after``.

        Raises:
            InformerStoppedError: the handler was removed, or the informer stopped, before that.
        """
        await self._settled.wait()
        if not self._synced:
            raise InformerStoppedError(f"handler {self.name}: the informer stopped before its first list was delivered")

    def remove(self) -> None:
        """Stop the deliveries. Calls that are buffered are dropped; removing twice is fine (rule IN-11)."""
        if not self._removed:
            self._removed = True
            self._buffer.clear()
            self._forget(self)
            self.close()

    def close(self) -> None:
        """Let the waiters go and end the deliveries. For the informer alone."""
        self._settled.set()
        for scope in self._scopes:
            scope.cancel()

    def push(self, change: Change, old: RawObject, new: RawObject) -> None:
        """Buffer one call. For the informer alone."""
        self._append((change, old, new))

    def push_initial(self, objects: Sequence[RawObject]) -> None:
        """Buffer an add for each object that is there already. For the informer alone."""
        self._append(Burst((("initial", NOTHING, obj) for obj in objects), len(objects)))

    def push_all(self, calls: Sequence[Call]) -> None:
        """Buffer many calls in one step. For the informer alone."""
        self._append(Burst(calls, len(calls)))

    def _append(self, entry: Call | Burst) -> None:
        self._buffer.append(entry)
        if self._wake is not None:
            self._behind_since = monotonic()
            if not self._wake.done():  # else the one who waited is being cancelled
                self._wake.set_result(None)
            self._wake = None

    async def deliver(self) -> None:
        """Make the buffered calls until cancelled or removed. For the informer alone."""
        buffer = self._buffer
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:
            self._scopes.append(scope)
            while not self._removed:
                for _ in range(min(BATCH, len(buffer))):
                    entry = buffer.popleft()
                    if isinstance(entry, tuple):
                        self._call(*entry)
                    elif not self._deliver_some(entry):
                        break
                    if self._removed:
                        return
                if buffer:
                    await anyio.lowlevel.checkpoint()
                else:
                    # One for each time it falls idle: an anyio.Event would cost several times as much.
                    self._wake = wake = loop.create_future()
                    await wake

    async def deliver_resyncs(self) -> None:
        """Buffer an update for each object once per period (rule IN-13). For the informer alone."""
        with anyio.CancelScope() as scope:
            self._scopes.append(scope)
            while not self._removed:
                await anyio.sleep(self.resync)
                objects = self._snapshot()
                self._append(Burst((("update", obj, obj) for obj in objects), len(objects)))

    def _deliver_some(self, burst: Burst) -> bool:
        """Make some calls of a burst; True when that was the last of them."""
        self.in_bulk = True
        for call in burst.take(BATCH):
            self._call(*call)
            if self._removed:
                return True
        self.in_bulk = False
        if burst.left:
            self._buffer.appendleft(burst)
        return not burst.left

    def _call(self, change: Change, old: RawObject, new: RawObject) -> None:
        handler = self._handler
        try:
            if change == "update":
                handler.on_update(old, new)
            elif change == "add" or change == "initial":
                handler.on_add(new, initial=change == "initial")
            elif change == "delete" or change == "vanished":
                handler.on_delete(old, state_unknown=change == "vanished")
            elif change == "unchanged":
                if self.wants_unchanged:
                    handler.on_update(old, new)
            else:
                self._synced = True
                self._settled.set()
            self.failing = False
        except Exception:
            self.errors += 1
            self.failing = True
            metadata = (new or old)["metadata"]
            log.exception(
                "event_handler_failed",
                handler=self.name,
                change=change,
                namespace=metadata.get("namespace", ""),
                name=metadata["name"],
            )
