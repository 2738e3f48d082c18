"""Sources: where a controller's events come from."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio
import structlog
from anyio.streams.memory import MemoryObjectSendStream

from pyreconcile.api import KubeObject, RawObject
from pyreconcile.controller._events import CreateEvent, DeleteEvent, GenericEvent, UpdateEvent
from pyreconcile.controller._filters import report_late_filter
from pyreconcile.controller._handlers import Handler, RequestQueue, checked_handler, has_metadata
from pyreconcile.controller._own_events import OwnEvents
from pyreconcile.controller._predicates import Predicate
from pyreconcile.workqueue import LOW_PRIORITY

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

log = structlog.get_logger()

INFORMER_RETRY = 10.0
"""Seconds between two tries to get an informer (SR-1)."""

CHANNEL_BUFFER = 1024
"""Events that wait in a channel before its sender does (SR-2)."""


class Source(Protocol):
    """Feeds a controller's queue.

    ``run`` calls ``task_status.started()`` once it has delivered everything that was there at the start; workers
    begin when all sources have (RC-12). It may then return, or go on until it is cancelled.
    """

    @property
    def name(self) -> str:
        """Names the source in logs and errors."""
        ...

    async def run(self, queue: RequestQueue, *, task_status: TaskStatus[None]) -> None:
        """Feed the queue."""
        ...


class InformerRegistration(Protocol):
    """A handler's place at an informer."""

    @property
    def in_bulk(self) -> bool:
        """Whether the call that is being made is one of a full list or of a resync."""
        ...

    async def wait_synced(self) -> None:
        """Wait until the handler has been told the whole initial list."""

    def remove(self) -> None:
        """Stop the deliveries."""


class EventInformer(Protocol):
    """What a kind source needs of an informer."""

    def add_handler(self, handler: Any, *, name: str = "") -> InformerRegistration:
        """Register a handler."""


class InformerCache(Protocol):
    """What a kind source needs of the cache."""

    def informer(self, kind: type[KubeObject]) -> EventInformer:
        """Return the kind's informer."""


class _Dispatch:
    """An informer's event handler: builds events, asks the predicates and calls the handler."""

    def __init__(
        self,
        kind: type[KubeObject],
        handler: Handler,
        predicates: Sequence[Predicate],
        queue: RequestQueue,
        low_priority: int,
    ) -> None:
        self._kind = kind
        self._handler = handler
        self._predicates = tuple(predicates)
        self._queue = queue
        self._low_priority = low_priority
        self._own = queue if isinstance(queue, OwnEvents) else None
        self.registration: InformerRegistration | None = None

    def on_add(self, obj: RawObject, *, initial: bool) -> None:
        if not obj.get("metadata") and not has_metadata(obj, "create"):
            return
        event = CreateEvent(obj, self._kind, is_initial=initial, low_priority=self._low_priority)
        for predicate in self._predicates:
            if not predicate.create(event):
                return
        self._handle(self._handler.create, event, obj)

    def on_update(self, old: RawObject, new: RawObject) -> None:
        if not new.get("metadata") and not has_metadata(new, "update"):
            return
        event = UpdateEvent(old, new, self._kind, low_priority=self._low_priority)
        for predicate in self._predicates:
            if not predicate.update(event):
                return
        self._handle(self._handler.update, event, new)

    def on_delete(self, obj: RawObject, *, state_unknown: bool) -> None:
        if not obj.get("metadata") and not has_metadata(obj, "delete"):
            return
        event = DeleteEvent(obj, self._kind, state_unknown=state_unknown)
        for predicate in self._predicates:
            if not predicate.delete(event):
                return
        self._handler.delete(event, self._queue)

    def _handle(self, method: Callable[[Any, RequestQueue], None], event: Any, obj: RawObject) -> None:
        own = self._own
        if own is None:
            method(event, self._queue)
            return
        own.showing(obj, self.registration)
        try:
            method(event, own)
        finally:
            own.shown()


class KindSource:
    """Events of all objects of a kind, from the cache's informer (SR-1).

    Args:
        cache: where the informer is.
        kind: the model; one made by `pyreconcile.api.metadata_only` watches nothing but metadata.
        handler: turns events into requests.
        predicates: all of them must let an event pass.
        low_priority: priority of the initial list and of resyncs (PQ-13).

    Raises:
        TypeError: cache, kind or handler is missing (SR-3).
    """

    def __init__(
        self,
        cache: InformerCache,
        kind: type[KubeObject],
        handler: Handler,
        *,
        predicates: Sequence[Predicate] = (),
        low_priority: int = LOW_PRIORITY,
    ) -> None:
        if not hasattr(cache, "informer"):
            raise TypeError(f"KindSource: cache is {cache!r}; give the manager's cache")
        if not hasattr(kind, "resource"):
            raise TypeError(f"KindSource: kind is {kind!r}; give a model class, such as ConfigMap")
        self.name = f"kind {kind.resource.gvk}"
        self._cache = cache
        self._kind = kind
        self._handler = checked_handler("KindSource", handler)
        self._predicates = predicates
        self._low_priority = low_priority

    async def run(self, queue: RequestQueue, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Register with the informer, wait until the initial list was handled, and stay until cancelled."""
        dispatch = _Dispatch(self._kind, self._handler, self._predicates, queue, self._low_priority)
        await _deliver(await self._register(dispatch), task_status)

    async def _register(self, dispatch: _Dispatch) -> InformerRegistration:
        while True:
            try:
                informer = self._cache.informer(self._kind)
                registration = dispatch.registration = informer.add_handler(dispatch, name=self.name)
            except Exception as error:
                log.warning("informer_unavailable", source=self.name, error=repr(error), retry_in=INFORMER_RETRY)
                await anyio.sleep(INFORMER_RETRY)
            else:
                report_late_filter(self._kind, self._predicates, informer)
                return registration


class InformerSource:
    """Events of an informer that you have already, such as one of another cache (SR-3).

    Args:
        informer: where the events come from; it runs, or will.
        kind: the model of its objects.
        handler: turns events into requests.
        predicates: all of them must let an event pass.
        name: names the source in logs and errors.
        low_priority: priority of the initial list and of resyncs (PQ-13).

    Raises:
        TypeError: informer, kind or handler is missing.
    """

    def __init__(
        self,
        informer: EventInformer,
        kind: type[KubeObject],
        handler: Handler,
        *,
        predicates: Sequence[Predicate] = (),
        name: str = "",
        low_priority: int = LOW_PRIORITY,
    ) -> None:
        if not hasattr(informer, "add_handler"):
            raise TypeError(f"InformerSource: informer is {informer!r}; give one, as cache.informer(Kind) returns it")
        if not hasattr(kind, "resource"):
            raise TypeError(f"InformerSource: kind is {kind!r}; give a model class, such as ConfigMap")
        self.name = name or f"informer {kind.resource.gvk}"
        self._informer = informer
        self._kind = kind
        self._handler = checked_handler("InformerSource", handler)
        self._predicates = predicates
        self._low_priority = low_priority

    async def run(self, queue: RequestQueue, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Register with the informer, wait until the initial list was handled, and stay until cancelled."""
        dispatch = _Dispatch(self._kind, self._handler, self._predicates, queue, self._low_priority)
        dispatch.registration = self._informer.add_handler(dispatch, name=self.name)
        await _deliver(dispatch.registration, task_status)


async def _deliver(registration: InformerRegistration, task_status: TaskStatus[None]) -> None:
    try:
        await registration.wait_synced()
        task_status.started()
        await anyio.sleep_forever()
    finally:
        registration.remove()


class ChannelSource:
    """Events from outside of the cluster, sent by your own code (SR-2).

    `ChannelSource.open` makes the channel too. What is sent before the start is kept; a sender waits while the channel
    is full; closing it ends the source.

    Args:
        events: the receiving end of ``anyio.create_memory_object_stream[GenericEvent](1024)``, or any async iterable
            of `GenericEvent`.
        handler: turns events into requests; only its ``generic`` is called.
        predicates: all of them must let an event pass.
        name: names the source in logs and errors.

    Raises:
        TypeError: the channel or the handler is missing.
    """

    def __init__(
        self,
        events: AsyncIterable[GenericEvent[Any]],
        handler: Handler,
        *,
        predicates: Sequence[Predicate] = (),
        name: str = "channel",
    ) -> None:
        if not hasattr(events, "__aiter__"):
            raise TypeError(f"ChannelSource: events is {events!r}; give the receiving end of a memory object stream")
        self.name = name
        self._events = events
        self._handler = checked_handler("ChannelSource", handler)
        self._predicates = tuple(predicates)

    @classmethod
    def open(
        cls,
        handler: Handler,
        *,
        predicates: Sequence[Predicate] = (),
        name: str = "channel",
        buffer: int = CHANNEL_BUFFER,
    ) -> tuple[MemoryObjectSendStream[GenericEvent[Any]], Self]:
        """Return the sending end of a new channel, and its source.

        Args:
            handler: turns events into requests; only its ``generic`` is called.
            predicates: all of them must let an event pass.
            name: names the source in logs and errors.
            buffer: how many events wait in the channel before a sender does.
        """
        send, receive = anyio.create_memory_object_stream[GenericEvent[Any]](buffer)
        return send, cls(receive, handler, predicates=predicates, name=name)

    async def run(self, queue: RequestQueue, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Deliver events until the channel is closed, or until cancelled."""
        task_status.started()
        async for event in self._events:
            try:
                if has_metadata(event.raw, "generic") and all(
                    predicate.generic(event) for predicate in self._predicates
                ):
                    self._handler.generic(event, queue)
            except Exception:
                log.exception("event_handler_failed", source=self.name)


class FunctionSource:
    """A function that feeds the queue as it likes (SR-3): ``async def feed(queue): …``, or a plain one.

    A coroutine function counts as synced at once, and runs until it returns or the controller ends. A plain function
    is called once, in the event loop, before workers begin. What either raises ends the controller.
    """

    def __init__(self, function: Callable[[RequestQueue], Awaitable[None] | None], *, name: str = "") -> None:
        if not callable(function):
            raise TypeError(f"FunctionSource: {function!r} cannot be called; give a function that takes the queue")
        self.name = name or f"function {getattr(function, '__qualname__', function)!s}"
        self._function = function

    async def run(self, queue: RequestQueue, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run the function."""
        feeding = self._function(queue)
        task_status.started()
        if feeding is not None:
            await feeding
