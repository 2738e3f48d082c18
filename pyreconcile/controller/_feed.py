"""A controller's sources: started side by side, once, and awaited until they have synced."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from pyreconcile.controller._handlers import RequestQueue
from pyreconcile.controller._sources import Source

if TYPE_CHECKING:
    from anyio.abc import TaskGroup


class Feed:
    """Runs the sources of one controller.

    Args:
        controller: names it in errors.
        sources: what to run.
        timeout: seconds that starting and syncing may take together; 0 is no limit (RC-11).
    """

    def __init__(self, controller: str, sources: Iterable[Source], *, timeout: float) -> None:
        self._controller = controller
        self._sources = list(sources)
        self._timeout = timeout
        self._tasks: TaskGroup | None = None
        self._queue: RequestQueue | None = None
        self.begun = False
        """Whether the sources run or ran: they are started once."""
        self.synced = anyio.Event()
        """Set when all initial lists were handled."""

    def add(self, source: Source) -> None:
        """Add a source; when the others run, it begins at once (RC-13)."""
        if self._tasks is not None and self._queue is not None:
            self._tasks.start_soon(_run, source, self._queue)
        else:
            self._sources.append(source)

    @asynccontextmanager
    async def running(self, queue: RequestQueue, stop: anyio.Event) -> AsyncIterator[bool]:
        """Run the sources while the block runs; the value tells whether they synced before the stop.

        Raises:
            TimeoutError: a source had not synced in time; the message names it.
            Exception: what a source raised, in groups.
        """
        self.begun = True
        async with anyio.create_task_group() as tasks:
            self._tasks, self._queue = tasks, queue
            try:
                synced = await self._sync(tasks, queue, stop)
                if synced:
                    self.synced.set()
                yield synced
            finally:
                self._tasks = self._queue = None
            tasks.cancel_scope.cancel()

    async def _sync(self, tasks: TaskGroup, queue: RequestQueue, stop: anyio.Event) -> bool:
        sources, self._sources = self._sources, []
        waiting = {id(source): source.name for source in sources}
        synced = False

        async def start(source: Source) -> None:
            await tasks.start(source.run, queue, name=f"{self._controller} {source.name}")
            del waiting[id(source)]

        async def watch_stop() -> None:
            await stop.wait()
            starting.cancel_scope.cancel()

        with anyio.move_on_after(self._timeout or None) as limit:
            async with anyio.create_task_group() as starting:
                starting.start_soon(watch_stop)
                async with anyio.create_task_group() as starts:
                    for source in sources:
                        starts.start_soon(start, source)
                synced = not waiting
                starting.cancel_scope.cancel()
        if limit.cancelled_caught and not synced and not stop.is_set():
            raise TimeoutError(
                f"controller {self._controller}: no sync within {self._timeout:g} s of "
                f"{', '.join(sorted(waiting.values()))}; is the CRD installed, and may this account list and watch "
                "the kind?"
            )
        return synced


async def _run(source: Source, queue: RequestQueue) -> None:
    await source.run(queue, task_status=anyio.TASK_STATUS_IGNORED)


async def wait_for_any(*events: anyio.Event) -> None:
    """Wait until one of the events is set."""

    async def wait(event: anyio.Event) -> None:
        await event.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for event in events:
            tasks.start_soon(wait, event)
