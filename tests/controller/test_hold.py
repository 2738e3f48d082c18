"""A key stays with its worker until the watch has shown what its reconcile wrote."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from pyreconcile.cache import PendingWrite, collect_own_writes
from pyreconcile.cache._consistency import PendingWrites
from pyreconcile.controller import Request
from pyreconcile.controller._hold import HOLD_LIMIT, release
from pyreconcile.workqueue import PriorityQueue, Queue

A = Request("ns", "a")


class Work:
    """Receives the seconds of work of a queue."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.unfinished = lambda: (0.0, 0.0)

    def done(self, seconds: float) -> None:
        self.seconds.append(round(seconds, 3))

    def watch(self, unfinished) -> None:
        self.unfinished = unfinished

    def added(self, priority: int) -> None: ...
    def retried(self) -> None: ...
    def depth(self, priority: int, delta: int) -> None: ...
    def got(self, wait_s: float) -> None: ...


def taken(kind, metrics=None):
    queue = kind(metrics=metrics)
    queue.add(A)
    assert queue.take()[0] == A
    return queue


@pytest.mark.looptime
@pytest.mark.parametrize("kind", [PriorityQueue, Queue])
async def test_events_that_come_before_the_writes_are_shown_make_one_more_pass(kind):
    work = Work()
    queue = taken(kind, work)
    first, second = PendingWrite("ns/a"), PendingWrite("ns/a-cfg")
    await asyncio.sleep(0.25)
    writes = [first, second]
    release(queue, A, writes)
    assert writes == []
    assert work.seconds == [0.25]
    assert work.unfinished() == (0, 0)
    queue.add(A)
    first.resolve()
    queue.add(A)
    await asyncio.sleep(0.1)
    assert queue.take() is None
    second.resolve()
    second.resolve()
    await asyncio.sleep(0)
    assert queue.take()[0] == A
    queue.done(A)
    await asyncio.sleep(2 * HOLD_LIMIT)
    assert queue.take() is None
    assert work.seconds == [0.25, 0.0]


@pytest.mark.looptime
async def test_a_write_that_is_not_shown_holds_the_key_no_longer_than_the_limit():
    queue = taken(PriorityQueue)
    write = PendingWrite("ns/a")
    release(queue, A, [write])
    queue.add(A)
    await asyncio.sleep(HOLD_LIMIT - 0.01)
    assert queue.take() is None
    await asyncio.sleep(0.02)
    assert queue.take()[0] == A
    write.resolve()
    await asyncio.sleep(0)
    queue.add(A)
    assert queue.take() is None  # the late write did not free the key from the worker that has it now


async def test_without_writes_to_be_shown_the_key_is_free_at_once():
    queue = taken(PriorityQueue)
    shown = PendingWrite("ns/a")
    shown.resolve()
    release(queue, A, [shown])
    queue.add(A)
    assert queue.take()[0] == A


async def test_each_task_collects_its_own_writes_and_those_of_the_tasks_it_starts():
    pending = PendingWrites()
    collected: dict[str, list[str]] = {}

    async def write(key: str) -> None:
        pending.written(key, "7", "3")

    async def work(name: str) -> None:
        writes = collect_own_writes()
        pending.written(f"ns/{name}", "5", "3")
        pending.written(f"ns/{name}-seen", "3", "3")
        pending.written(f"ns/{name}-doubtful", "6", "3", doubtful=True)
        async with anyio.create_task_group() as group:
            group.start_soon(write, f"ns/{name}-child")
        collected[name] = [pending_write.key for pending_write in writes]

    async with anyio.create_task_group() as group:
        for name in "ab":
            group.start_soon(work, name)
    assert collected == {"a": ["ns/a", "ns/a-child"], "b": ["ns/b", "ns/b-child"]}
