"""A key stays with its worker until the watch has shown what its reconcile wrote."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from itertools import pairwise

import anyio
import looptime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pyreconcile.cache import PendingWrite, collect_own_writes
from pyreconcile.cache._consistency import PendingWrites
from pyreconcile.controller import Controller, ControllerOptions, FunctionSource, Request, run_in_loop
from pyreconcile.controller._hold import HOLD_LIMIT, release
from pyreconcile.workqueue import PriorityQueue, Queue, ShutDown

A = Request("ns", "a")
BOTH = pytest.mark.parametrize("kind", [PriorityQueue, Queue])


def in_virtual_time(main):
    """Run a coroutine function on a loop of its own whose sleeps cost nothing."""
    loop = looptime.new_event_loop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def now() -> float:
    return asyncio.get_running_loop().time()


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


@BOTH
@pytest.mark.looptime
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
    assert collected == {name: [f"ns/{name}", f"ns/{name}-seen", f"ns/{name}-child"] for name in "ab"}


async def test_writes_of_a_task_that_nobody_waits_for_do_not_pile_up():
    pending = PendingWrites()
    writes = collect_own_writes()

    async def beat():
        for number in range(5000):
            pending.written("ns/heart", str(number + 1), "")

    await asyncio.ensure_future(beat())
    assert len(writes) == 1000
    pending.reached("5000")
    assert all(write.seen for write in writes), "the last ones, though each replaced the one before"


def test_a_write_that_another_replaced_is_let_go_when_the_watch_ends():
    pending = PendingWrites()
    writes = []
    for version in ("5", "6"):
        pending.written("ns/a", version, "1")
        writes += pending.on("ns/a")
    pending.deleted("ns/a", "uid", "uid")
    pending.deleted("ns/a", "uid", "uid")
    writes += pending.on("ns/a")
    pending.clear()
    assert all(write.seen for write in writes)


# -- any order of events, writes, answers of the watch, and ends ------------------------------------------------------

KEYS = st.sampled_from([Request("ns", name) for name in "abc"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS),
        st.tuples(st.just("add_after"), KEYS),
        st.tuples(st.just("work"), st.lists(st.sampled_from(["x", "y", "x gone"]), max_size=3)),
        st.tuples(st.just("work"), st.lists(st.sampled_from(["x", "y", "x gone"]), max_size=3)),
        st.tuples(st.sampled_from(["show", "clear", "gone", "late done"]), st.none()),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.31, 0.77, 1.6])),
        st.tuples(st.sampled_from(["shutdown", "drain"]), st.none()),
    ),
    max_size=40,
)


class Checked:
    """A queue whose keys are released by `release`, beside a plain account of what must hold."""

    def __init__(self, kind) -> None:
        self.work = Work()
        self.queue = kind(metrics=self.work)
        self.pending = PendingWrites()
        self.version = 0
        self.held: dict[Request, tuple[list[PendingWrite], float]] = {}
        self.owed: set[Request] = set()
        self.delayed: dict[Request, float] = {}
        self.takes = self.dones = 0
        self.closed = self.stopped = False
        real = self.queue.done

        def done(key):
            assert key in self.queue._held, "done for a key that nobody has"
            self.dones += 1
            real(key)

        self.queue.done = done

    def add(self, key):
        if not self.closed:
            self.owed.add(key)
        self.queue.add(key)

    def add_after(self, key):
        if not self.closed:
            self.delayed[key] = min(self.delayed.get(key, math.inf), now() + 0.5)
        self.queue.add_after(key, 0.5)

    def take(self):
        taken = self.queue.take()
        if taken is None:
            return None
        key = taken[0]
        assert key not in self.held, "one key, two workers"
        self.takes += 1
        self.owed.discard(key)
        if isinstance(self.queue, PriorityQueue) or self.delayed.get(key, math.inf) <= now():
            self.delayed.pop(key, None)
        return key

    def work_on(self, names):
        key = self.take()
        if key is None:
            return
        writes = collect_own_writes()
        for name in names:
            if name == "x gone":
                self.pending.deleted("ns/x", "uid-x", "uid-x")
            else:
                self.version += 1
                self.pending.written(f"ns/{name}", str(self.version), "")
        noted = list(writes)
        release(self.queue, key, writes)
        assert not writes
        if noted:
            self.held[key] = (noted, now() + HOLD_LIMIT)

    def end(self):
        self.closed = True
        self.delayed.clear()

    async def check(self):
        for _ in range(3):
            await asyncio.sleep(0)
        self.held = {
            key: (writes, until)
            for key, (writes, until) in self.held.items()
            if not all(write.seen for write in writes) and now() < until
        }
        assert self.queue._held.keys() == self.held.keys(), "held until the writes were seen, and no longer than 1 s"
        assert self.takes == self.dones + len(self.held), "each key is let go exactly once"
        assert len(self.work.seconds) == self.takes, "a key that is held is not worked on"
        assert self.work.unfinished() == (0, 0)


@BOTH
@settings(deadline=None, max_examples=400)
@given(STEPS)
@example([("add", A), ("work", ["x"]), ("add", A), ("drain", None), ("wait", 1.6)])
@example([("add", A), ("work", ["x", "x"]), ("add", A), ("clear", None)])
@example([("add", A), ("work", ["x"]), ("wait", 0.77), ("add", A), ("show", None), ("wait", 0.31), ("work", ["y"])])
@pytest.mark.rules("PQ-8", "U-3", "U-10", "U-16")
def test_wq_4_whatever_comes_a_held_key_is_let_go_once_and_no_add_is_lost(kind, steps):
    async def main():
        checked = Checked(kind)
        drains: list[asyncio.Task[None]] = []
        for step, value in steps:
            if step == "add":
                checked.add(value)
            elif step == "add_after":
                checked.add_after(value)
            elif step == "work":
                checked.work_on(value)
            elif step == "show":
                checked.pending.reached(str(checked.version))
            elif step == "clear":
                checked.pending.clear()
            elif step == "gone":
                checked.pending.gone("ns/x", "uid-x")
            elif step == "late done":
                for writes, _ in list(checked.held.values()):
                    writes[0].resolve()
                    writes[0].resolve()
            elif step == "wait":
                await asyncio.sleep(value)
            elif step == "drain":
                checked.end()
                drains.append(asyncio.ensure_future(checked.queue.shutdown_with_drain()))
            else:
                checked.end()
                checked.stopped = True
                checked.queue.shutdown()
            await checked.check()
        await asyncio.sleep(2 * HOLD_LIMIT)
        checked.held.clear()
        await checked.check()
        for key in [key for key, at in checked.delayed.items() if at <= now()]:
            checked.owed.add(key)
        while (key := checked.take()) is not None:
            checked.owed.discard(key)
            checked.queue.done(key)
        if not (checked.stopped and kind is PriorityQueue):
            assert checked.owed == set(), "an add was lost"
        if drains:
            await asyncio.wait_for(asyncio.gather(*drains), 1)
        checked.queue.shutdown()

    in_virtual_time(main)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.01, 0.2, 0.9, 1.3]),  # pause before it
        st.sampled_from("abc"),
        st.integers(0, 3),  # writes of the reconcile that follows
        st.sampled_from([0.0, 0.004, 0.3, 0.95, 3.0, None]),  # seconds until the watch shows them; None: never
        st.booleans(),  # whether that one fails
    ),
    min_size=1,
    max_size=20,
)


@BOTH
@settings(deadline=None, max_examples=80)
@given(EVENTS, st.integers(1, 3), st.sampled_from([None, 0.5, 2.1]), st.booleans())
@pytest.mark.rules("RC-14", "U-3", "U-31")
def test_wq_4_a_controller_reconciles_after_each_event_and_never_before_its_own_writes_were_seen(
    kind, events, workers, cut_at, cancel
):
    async def main():
        loop = asyncio.get_running_loop()
        pending = PendingWrites()
        version = 0
        shown: list[tuple[float, float]] = []  # when the watch came to which version
        plans: dict[str, list[tuple[int, float | None, bool]]] = {}
        told: list[tuple[str, float]] = []
        runs: list[tuple[str, float, float, int]] = []  # key, begin, end, last version written
        busy: set[str] = set()

        def show(name, number):
            controller.queue.add(Request("ns", name))
            told.append((name, loop.time()))
            pending.reached(str(number))
            shown.append((loop.time(), number))

        async def reconcile(request):
            nonlocal version
            assert request.name not in busy, "one key, two workers"
            busy.add(request.name)
            began, last = loop.time(), 0
            try:
                await asyncio.sleep(0.05)
                if plans.get(request.name):
                    writes, delay, fails = plans[request.name].pop(0)
                    for number in range(writes):
                        version += 1
                        last = version
                        pending.written(f"ns/{request.name}-{number % 2}", str(version), "")
                        if delay is not None:
                            loop.call_later(delay, show, request.name, version)
                    if fails:
                        raise OSError("not this time")
            finally:
                busy.discard(request.name)
                runs.append((request.name, began, loop.time(), last))

        controller = Controller(
            "held",
            reconcile,
            options=ControllerOptions(use_priority_queue=kind is PriorityQueue, max_concurrent_reconciles=workers),
        )
        before = asyncio.all_tasks()
        stop = anyio.Event()
        running = asyncio.ensure_future(controller.run(stop))
        await asyncio.sleep(0.001)
        for pause, name, *plan in events:
            await asyncio.sleep(pause)
            plans.setdefault(name, []).append(tuple(plan))
            controller.queue.add(Request("ns", name))
            told.append((name, loop.time()))
            if cut_at is not None and loop.time() > cut_at:
                pending.clear()
                shown.append((loop.time(), math.inf))
        await asyncio.sleep(40)
        for name, at in told:
            assert any(run == name and began >= at for run, began, _, _ in runs), "an event was lost"
        for name in "abc":
            own = [run for run in runs if run[0] == name]
            for (_, _, ended, last), (_, began, _, _) in pairwise(own):
                seen = min((at for at, number in shown if number >= last and at >= ended), default=math.inf)
                free = ended if last == 0 or any(n >= last and at <= ended for at, n in shown) else seen
                assert began >= min(free, ended + HOLD_LIMIT) - 1e-6, "before its own writes were seen"
        assert "locked=0" in repr(controller.queue) or "processing=0" in repr(controller.queue)
        # The end does not wait for a key that is held.
        plans["a"] = [(1, None, False)]
        controller.queue.add(A)
        await asyncio.sleep(0.2)
        assert A in controller.queue._held
        ends = loop.time()
        running.cancel() if cancel else stop.set()
        await asyncio.wait([running], timeout=1)
        assert running.done()
        assert loop.time() - ends < 0.01
        assert asyncio.all_tasks() == before
        await asyncio.sleep(1)
        assert not controller.queue._held

    with capture_logs():  # rendering tracebacks would take most of the time
        in_virtual_time(main)


@pytest.mark.looptime
@pytest.mark.parametrize("at", [0.01, 0.06, 0.09, 0.2])
@pytest.mark.rules("PX-1")
async def test_px_1_a_cancelled_reconcile_that_wrote_lets_its_key_go(at):
    pending = PendingWrites()

    async def reconcile(request):
        await asyncio.sleep(0.05)
        pending.written("ns/a", "5", "1")
        await asyncio.sleep(0.05)
        pending.deleted("ns/a", "uid", "uid")

    async def feed(queue):
        queue.add(A)

    controller = Controller("cancelled", reconcile, sources=[FunctionSource(feed)])
    with anyio.move_on_after(at):
        await controller.run(anyio.Event())
    held = A in controller.queue._held
    assert held == (at == 0.2), "only what ended by itself waits for the watch"
    await asyncio.sleep(HOLD_LIMIT)
    assert not controller.queue._held


async def test_a_loop_that_is_closed_leaves_nothing_behind():
    gone: list[weakref.ref[object]] = []

    async def main():
        queue = taken(PriorityQueue)
        release(queue, A, [PendingWrite("ns/a")])
        gone.append(weakref.ref(queue))

    def run():
        asyncio.run(main())

    await asyncio.to_thread(run)
    gc.collect()
    assert gone[0]() is None


async def test_a_plain_function_holds_its_key_too(monkeypatch):
    monkeypatch.setattr("pyreconcile.controller._hold.HOLD_LIMIT", 30.0)  # a busy machine may take its time
    pending = PendingWrites()
    calls: list[float] = []

    async def write():
        pending.written("ns/a", str(len(calls)), "")

    def reconcile(request):
        calls.append(now_in_thread())
        if len(calls) == 1:
            run_in_loop(write)

    async def feed(queue):
        queue.add(A)

    now_in_thread = asyncio.get_running_loop().time
    controller = Controller("threads", reconcile, sources=[FunctionSource(feed)])
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run, stop)
        with anyio.fail_after(10):
            while not pending or "ready=1" in repr(controller.queue):
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            controller.queue.add(A)
            await asyncio.sleep(0.05)
            assert len(calls) == 1
            pending.reached("1")
            while len(calls) < 2:
                await asyncio.sleep(0.001)
        stop.set()


@BOTH
@pytest.mark.looptime
async def test_wq_5_a_drain_hands_out_a_held_key_that_was_added_again(kind):
    queue = taken(kind)
    release(queue, A, [PendingWrite("ns/a")])
    queue.add(A)
    seen: list[Request] = []
    ended = 0

    async def worker():
        nonlocal ended
        try:
            while True:
                seen.append(await queue.get())
                await asyncio.sleep(0.1)
                queue.done(seen[-1])
        except ShutDown:
            ended += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(worker)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            await queue.shutdown_with_drain()
    assert seen == [A]
    assert ended == 3
