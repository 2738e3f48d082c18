"""Running things in the background of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from pyreconcile.manager import Manager

__all__ = ["in_own_task", "running"]

T = TypeVar("T")


@asynccontextmanager
async def running(manager: Manager, *, timeout: float = 30.0) -> AsyncIterator[None]:
    """Run a manager while the block runs; entered once its caches have synced and its controllers have started.

    Leaving stops the manager in order. If the manager fails, the block is cancelled and the failure raised.

    Args:
        manager: An opened manager that has not run yet.
        timeout: Seconds the start may take.

    Raises:
        TimeoutError: It did not start in time.
    """
    stop = anyio.Event()
    failure: BaseException | None = None

    async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        nonlocal failure
        try:
            await manager.run(stop, task_status=task_status)
        except Exception as error:
            failure = failure or error
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        try:
            with anyio.fail_after(timeout):
                await group.start(run)
            yield
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # raised below as it is, not in an exception group
            failure = error
        stop.set()
    if failure is not None:
        raise failure


@asynccontextmanager
async def in_own_task(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a context manager in one task: pytest-asyncio sets fixtures up and tears them down in two."""
    import asyncio

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

    # Not a task group, which has the same rule: whoever enters it must leave it. The task never outlives the block.
    task = asyncio.get_running_loop().create_task(hold())
    try:
        yield await entered
    finally:
        leave.set()
        await task
