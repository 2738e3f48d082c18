"""A worker cancelled at each of its awaits in turn: its key is done, the counters balance, nothing is left over."""

from __future__ import annotations

import asyncio
import itertools
import threading
import types

import anyio
import pytest
from structlog.testing import capture_logs

from pyreconcile.controller import Controller, ControllerOptions, Request, Result, TerminalError, run_in_loop

pytestmark = pytest.mark.rules("PX-1")


@pytest.fixture(autouse=True)
def logs():
    """Keep the tracebacks of all these failures from being rendered: that would take most of the time."""
    with capture_logs() as captured:
        yield captured


class Queue:
    """Counts what a queue tells, to see that it balances."""

    def __init__(self) -> None:
        self.adds = self.taken = self.finished = self.depth_now = 0
        self.unfinished = None

    def added(self, priority):
        self.adds += 1

    def retried(self): ...

    def depth(self, priority, delta):
        self.depth_now += delta

    def got(self, wait_s):
        self.taken += 1

    def done(self, work_s):
        self.finished += 1

    def watch(self, unfinished):
        self.unfinished = unfinished


@types.coroutine
def cancelled_at(coroutine, at, steps):
    """Await a coroutine and cancel the task that does when it waits for the ``at``-th time; counts into ``steps``."""
    thrown = None
    while True:
        try:
            waited_for = coroutine.send(None) if thrown is None else coroutine.throw(thrown)
        except StopIteration as end:
            return end.value
        thrown = None
        if len(steps) == at:
            asyncio.current_task().cancel()
        steps.append(waited_for)
        try:
            yield waited_for
        except BaseException as error:
            thrown = error


async def quiet(request: Request) -> Result | None:
    await anyio.lowlevel.checkpoint()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asyncio.sleep, 0)
        await asyncio.sleep(0)
    with anyio.move_on_after(5):
        await anyio.lowlevel.checkpoint()
    event = anyio.Event()
    asyncio.get_running_loop().call_soon(event.set)
    await event.wait()
    return None


async def requeueing(request: Request) -> Result | None:
    await asyncio.sleep(0)
    return Result(requeue_after=60) if request.name == "a" else Result(requeue=True)


async def failing(request: Request) -> None:
    try:
        await asyncio.sleep(0)
        raise TerminalError("x") if request.name == "a" else OSError("x")
    finally:
        with anyio.CancelScope(shield=True):
            await asyncio.sleep(0)


async def bounded(request: Request) -> None:
    with anyio.move_on_after(0):
        await anyio.sleep(1)
    await anyio.to_thread.run_sync(int, abandon_on_cancel=True)


def threaded(request: Request) -> None:
    run_in_loop(anyio.lowlevel.checkpoint)


@pytest.mark.parametrize("priorities", [True, False], ids=["PriorityQueue", "Queue"])
@pytest.mark.parametrize("timeout", [0, 30], ids=["unlimited", "limited"])
@pytest.mark.parametrize("function", [quiet, requeueing, failing, bounded, threaded])
async def test_px_1_cancel_at_every_await_of_a_worker(counters, function, timeout, priorities):
    entered = left = 0

    if function is threaded:

        def reconcile(request):
            nonlocal entered, left
            entered += 1
            try:
                return function(request)
            finally:
                left += 1
    else:

        async def reconcile(request):
            nonlocal entered, left
            entered += 1
            try:
                return await function(request)
            finally:
                left += 1

    async def run(at: int) -> int:
        nonlocal entered, left
        entered = left = 0
        counters.counts.clear()
        told = Queue()
        controller = Controller(
            "px",
            reconcile,
            options=ControllerOptions(use_priority_queue=priorities, reconciliation_timeout=timeout),
            metrics=counters,
            queue_metrics=told,
            # Each reconcile uses up its worker's turn, so every run has the same awaits, however fast the machine is.
            time=itertools.count(step=0.1).__next__,
        )
        queue = controller._open_queue()
        for name in "abc":
            queue.add(Request("ns", name))
        steps: list[object] = []
        before = asyncio.all_tasks()

        async def worker():
            await cancelled_at(controller._work(queue), at, steps)

        task = asyncio.ensure_future(worker())
        if at < 0:
            while told.finished < 3:
                await asyncio.sleep(0)
            queue.shutdown()
        with anyio.fail_after(10):
            ended = (await asyncio.gather(task, return_exceptions=True))[0]
        assert isinstance(ended, asyncio.CancelledError if at >= 0 else type(None)), ended
        with anyio.fail_after(10):
            while entered != left or asyncio.all_tasks() != before:  # a thread, or its call, that was given up on
                await asyncio.sleep(0.001)
        assert counters.busy == 0
        assert told.taken == told.finished
        assert told.unfinished() == (0, 0)
        assert told.depth_now == len(queue)
        assert "locked=0" in repr(queue) or "processing=0" in repr(queue)
        outcomes = sum(counters.counts[result] for result in ("success", "error", "requeue", "requeue_after"))
        assert told.finished - (at >= 0) <= outcomes <= told.finished
        assert counters.counts["timeout"] == 0
        # What the cancelled worker left can be taken by another one.
        if at >= 0:
            rest = 0
            while (taken := queue.take()) is not None:
                queue.done(taken[0])
                rest += 1
            assert told.finished >= 3
            assert rest <= 3
        return len(steps)

    total = await run(-1)
    assert total >= 3
    for at in range(total):  # the shutdown comes while the worker gives others their turn: it does not wait for a key
        await run(at)
    assert threading.active_count() < 20
