"""A source whose map function may wait, such as for a cached read."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import structlog

from pyreconcile.api import KubeObject
from pyreconcile.controller._events import CreateEvent, DeleteEvent, UpdateEvent
from pyreconcile.controller._handlers import Handler, RequestQueue, checked_requests
from pyreconcile.controller._predicates import Predicate
from pyreconcile.controller._sources import InformerCache, KindSource
from pyreconcile.controller._types import Request
from pyreconcile.workqueue import LOW_PRIORITY

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

log = structlog.get_logger()

AsyncMapFunction: TypeAlias = Callable[[Any], Awaitable[Iterable[Request]]]
"""A map function that may wait, such as for a cached read."""


class MappedSource:
    """Events of all objects of a kind, mapped to requests by a coroutine function, one event after the other (SR-7).

    Args:
        cache: where the informer is.
        kind: the model.
        function: takes the object as its model and returns requests; an update asks for the old and the new one.
        predicates: all of them must let an event pass.
        low_priority: priority of the initial list and of resyncs (PQ-13).
    """

    def __init__(
        self,
        cache: InformerCache,
        kind: type[KubeObject],
        function: AsyncMapFunction,
        *,
        predicates: Sequence[Predicate] = (),
        low_priority: int = LOW_PRIORITY,
    ) -> None:
        self.name = f"kind {kind.resource.gvk}"
        self._function = function
        self._pending: deque[tuple[Any, ...]] = deque()
        self._wake = anyio.Event()
        self._source = KindSource(cache, kind, _Buffer(self._push), predicates=predicates, low_priority=low_priority)

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
