"""Running things in the background of a test.

pytest-asyncio sets a fixture up in one task and tears it down in another, and a task group must be left by the task
that entered it. So what runs in the background of a fixture has a task of its own here, which never outlives its block.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from pyreconcile.manager import Manager

__all__ = ["in_own_task", "running"]

T = TypeVar("T")


class _Started:
    """Takes the call that says a manager is up."""

    def __init__(self) -> None:
        self.event = anyio.Event()

    def started(self, value: None = None) -> None:
        self.event.set()


class _Interrupt:
    """Cancels the task of the block when the background task fails, as `asyncio.timeout` does when time is up."""

    def __init__(self, host: asyncio.Task[object] | None) -> None:
        self._host = host
        self.fired = False

    def __call__(self, task: asyncio.Task[None]) -> None:
        failed = not task.cancelled() and task.exception() is not None
        # The host of a fixture ends with the fixture's set-up: then the failure is raised at the tear-down.
        if failed and self._host is not None and not self._host.done():
            self.fired = True
            self._host.cancel()

    def forgive(self) -> None:
        """Take back the cancellation."""
        if self._host is not None:
            self._host.uncancel()


async def _run(manager: Manager, stop: anyio.Event, status: _Started) -> None:
    try:
        await manager.run(stop, task_status=status)
    finally:
        status.event.set()


@asynccontextmanager
async def running(manager: Manager, *, timeout: float = 30.0) -> AsyncIterator[None]:
    """Run a manager while the block runs; entered once its caches have synced and its controllers have started.

    Works in a test and in an async fixture. Leaving stops the manager in order, also after a failure of the block.
    If the manager fails, the block is cancelled and the manager's failure raised (in a fixture: at its end).
    Cancellation of the block cuts the manager short too.

    Args:
        manager: An opened manager that has not run yet.
        timeout: Seconds the start may take.

    Raises:
        TimeoutError: It did not start in time.
    """
    stop = anyio.Event()
    status = _Started()
    interrupt = _Interrupt(asyncio.current_task())
    problem: BaseException | None = None
    task = asyncio.get_running_loop().create_task(_run(manager, stop, status), name="pyreconcile-running")
    try:
        with anyio.fail_after(timeout):
            await status.event.wait()
        if task.done():
            await task
        task.add_done_callback(interrupt)
        yield
    except asyncio.CancelledError as error:
        if interrupt.fired:
            interrupt.forgive()
        else:
            problem = error
            task.cancel()
    except BaseException as error:  # raised again below, once the manager has ended
        problem = error
        if not status.event.is_set():
            task.cancel()
    task.remove_done_callback(interrupt)
    stop.set()
    with anyio.CancelScope(shield=True):
        await asyncio.wait([task])
    failure = None if task.cancelled() else task.exception()
    if problem is not None:
        raise problem
    if failure is not None:
        raise failure


@asynccontextmanager
async def in_own_task(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a context manager in one task, for use in a fixture."""
    entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    leave = anyio.Event()

    async def hold() -> None:
        try:
            async with context as value:
                entered.set_result(value)
                await leave.wait()
        except Exception as error:
            if entered.done():
                raise
            entered.set_exception(error)

    task = asyncio.get_running_loop().create_task(hold(), name="pyreconcile-fixture")
    try:
        yield await entered
    finally:
        leave.set()
        await task
