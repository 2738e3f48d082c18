"""Sources: where a controller's events come from."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import anyio
import anyio.lowlevel
import structlog

from pyreconcile.api import KubeObject, RawObject
from pyreconcile.controller._events import CreateEvent, DeleteEvent, GenericEvent, UpdateEvent
from pyreconcile.controller._handlers import Handler, RequestQueue, checked_requests
from pyreconcile.controller._predicates import Predicate
from pyreconcile.controller._types import Request

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

log = structlog.get_logger()

INFORMER_RETRY = 10.0
"""Seconds between two tries to get an informer (SR-1)."""


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
        self, kind: type[KubeObject], handler: Handler, predicates: Sequence[Predicate], queue: RequestQueue
    ) -> None:
        self._kind = kind
        self._handler = handler
        self._predicates = tuple(predicates)
        self._queue = queue

    def on_add(self, obj: RawObject, *, initial: bool) -> None:
        event = CreateEvent(obj, self._kind, is_initial=initial)
        for predicate in self._predicates:
            if not predicate.create(event):
                return
        self._handler.create(event, self._queue)

    def on_update(self, old: RawObject, new: RawObject) -> None:
        event = UpdateEvent(old, new, self._kind)
        for predicate in self._predicates:
            if not predicate.update(event):
                return
        self._handler.update(event, self._queue)

    def on_delete(self, obj: RawObject, *, state_unknown: bool) -> None:
        event = DeleteEvent(obj, self._kind, state_unknown=state_unknown)
        for predicate in self._predicates:
            if not predicate.delete(event):
                return
        self._handler.delete(event, self._queue)


class KindSource:
    """Events of all objects of a kind, from the cache's informer (SR-1).

    Args:
        cache: where the informer is.
        kind: the model.
        handler: turns events into requests.
        predicates: all of them must let an event pass.
    """

    def __init__(
        self, cache: InformerCache, kind: type[KubeObject], handler: Handler, *, predicates: Sequence[Predicate] = ()
    ) -> None:
        self.name = f"kind {kind.resource.gvk}"
        self._cache = cache
        self._kind = kind
        self._handler = handler
        self._predicates = predicates

    async def run(self, queue: RequestQueue, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Register with the informer, wait until the initial list was handled, and stay until cancelled."""
        registration = await self._register(_Dispatch(self._kind, self._handler, self._predicates, queue))
        try:
            await registration.wait_synced()
            task_status.started()
            await anyio.sleep_forever()
        finally:
            registration.remove()

    async def _register(self, dispatch: _Dispatch) -> InformerRegistration:
        while True:
            try:
                return self._cache.informer(self._kind).add_handler(dispatch, name=self.name)
            except Exception as error:
                log.warning("informer_unavailable", source=self.name, error=repr(error), retry_in=INFORMER_RETRY)
                await anyio.sleep(INFORMER_RETRY)


AsyncMapFunction: TypeAlias = Callable[[Any], Awaitable[Iterable[Request]]]
"""A map function that may wait, such as for a cached read."""


class MappedSource:
    """Events of all objects of a kind, mapped to requests by a coroutine function, one event after the other (SR-7).

    Args:
        cache: where the informer is.
        kind: the model.
        function: takes the object as its model and returns requests; an update asks for the old and the new one.
        predicates: all of them must let an event pass.
    """

    def __init__(
        self,
        cache: InformerCache,
        kind: type[KubeObject],
        function: AsyncMapFunction,
        *,
        predicates: Sequence[Predicate] = (),
    ) -> None:
        self.name = f"kind {kind.resource.gvk}"
        self._function = function
        self._pending: deque[tuple[Any, ...]] = deque()
        self._wake = anyio.Event()
        self._source = KindSource(cache, kind, _Buffer(self._push), predicates=predicates)

    async def run(self, queue: RequestQueue, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Map events until cancelled; started once the initial list was mapped."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._pump, queue)
            await tasks.start(self._source.run, queue)
            settled = anyio.Event()
            self._push(settled)
            await settled.wait()
            task_status.started()

    def _push(self, *item: Any) -> None:
        self._pending.append(item)
        self._wake.set()

    async def _pump(self, queue: RequestQueue) -> None:
        while True:
            while self._pending:
                item = self._pending.popleft()
                if isinstance(item[0], anyio.Event):
                    item[0].set()
                    continue
                try:
                    await self._map(item[0], queue)
                except Exception:
                    log.exception("map_function_failed", source=self.name)
            self._wake = anyio.Event()
            await self._wake.wait()

    async def _map(self, event: Any, queue: RequestQueue) -> None:
        objects = [event.old, event.new] if isinstance(event, UpdateEvent) else [event.object]
        requests: dict[Request, None] = {}
        for obj in objects:
            requests.update(dict.fromkeys(checked_requests(await self._function(obj), self._function)))
        for request in requests:
            queue.add(request, priority=event.priority)


class _Buffer(Handler):
    """Hands events on without looking at them."""

    def __init__(self, push: Callable[[Any], None]) -> None:
        self._push = push

    def create(self, event: CreateEvent[Any], queue: RequestQueue) -> None:
        self._push(event)

    def update(self, event: UpdateEvent[Any], queue: RequestQueue) -> None:
        self._push(event)

    def delete(self, event: DeleteEvent[Any], queue: RequestQueue) -> None:
        self._push(event)


class ChannelSource:
    """Events from outside of the cluster, sent by your own code (SR-2).

    Make the channel with ``anyio.create_memory_object_stream[GenericEvent](1024)`` and give the receiving end here.
    What is sent before the start is kept; a sender waits while the channel is full; closing it ends the source.

    Args:
        events: the receiving end, or any async iterable of `GenericEvent`.
        handler: turns events into requests; only its ``generic`` is called.
        predicates: all of them must let an event pass.
        name: names the source in logs and errors.
    """

    def __init__(
        self,
        events: AsyncIterable[GenericEvent[Any]],
        handler: Handler,
        *,
        predicates: Sequence[Predicate] = (),
        name: str = "channel",
    ) -> None:
        self.name = name
        self._events = events
        self._handler = handler
        self._predicates = tuple(predicates)

    async def run(self, queue: RequestQueue, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Deliver events until the channel is closed, or until cancelled."""
        task_status.started()
        async for event in self._events:
            try:
                if all(predicate.generic(event) for predicate in self._predicates):
                    self._handler.generic(event, queue)
            except Exception:
                log.exception("event_handler_failed", source=self.name)


class FunctionSource:
    """A coroutine function that feeds the queue as it likes (SR-3): ``async def feed(queue): …``.

    It counts as synced at once. It runs until it returns or the controller ends; what it raises ends the controller.
    """

    def __init__(self, function: Callable[[RequestQueue], Awaitable[None]], *, name: str = "") -> None:
        self.name = name or f"function {getattr(function, '__qualname__', function)!s}"
        self._function = function

    async def run(self, queue: RequestQueue, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run the function."""
        task_status.started()
        await self._function(queue)
