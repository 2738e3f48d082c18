from __future__ import annotations

import asyncio
import gc
import weakref

import anyio
import pytest

from pyreconcile.workqueue import ItemExponentialRateLimiter, PriorityQueue, Queue, ShutDown


@pytest.fixture
def queue(clock, metrics):
    return Queue(clock=clock, metrics=metrics, rate_limiter=ItemExponentialRateLimiter(1, 100), name="q")


@pytest.mark.rules("U-1")
def test_wq_2_same_key_added_many_times_runs_once(queue, metrics):
    for _ in range(5):
        queue.add("a")
    assert len(queue) == 1
    assert queue.take() == ("a", 0)
    assert queue.take() is None
    queue.done("a")
    assert queue.take() is None
    assert metrics.adds == 1


async def test_wq_2_an_add_wakes_one_getter_and_one_that_is_in_work_wakes_none():
    queue: Queue[str] = Queue()
    queue.add("held")
    assert await queue.get() == "held"
    getters = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.add("held")
    await asyncio.sleep(0)
    assert [getter.done() for getter in getters] == [False, False, False]
    queue.add("a")
    queue.add("a")
    assert len(queue._getters) == 2, "the others were not even woken"
    await asyncio.sleep(0)
    assert [getter.done() for getter in getters] == [True, False, False]
    queue.done("held")
    await asyncio.sleep(0)
    assert [getter.done() for getter in getters] == [True, True, False]
    queue.shutdown()
    await asyncio.gather(*getters, return_exceptions=True)


@pytest.mark.rules("U-2")
def test_wq_3_add_while_processing_runs_exactly_once_more_after_done(queue, metrics):
    queue.add("a")
    queue.take()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    assert queue.take() is None
    queue.done("a")
    assert len(queue) == 1
    assert queue.take() == ("a", 0)
    queue.done("a")
    assert queue.take() is None
    assert metrics.adds == 2


def test_wq_4_done_puts_a_dirty_key_at_the_tail(queue):
    queue.add("a")
    queue.add("b")
    queue.take()
    queue.add("a")
    queue.add("c")
    queue.done("a")
    assert [queue.take()[0] for _ in range(3)] == ["b", "c", "a"]


@pytest.mark.rules("U-3")
async def test_wq_4_two_workers_never_hold_one_key():
    queue: Queue[str] = Queue()
    held: set[str] = set()
    runs = 0
    enough = anyio.Event()

    async def worker() -> None:
        nonlocal runs
        while True:
            try:
                key = await queue.get()
            except ShutDown:
                return
            assert key not in held
            held.add(key)
            await asyncio.sleep(0)
            if runs < 594:
                queue.add(key)
                await asyncio.sleep(0)
            runs += 1
            if runs == 600:
                enough.set()
            held.discard(key)
            queue.done(key)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(worker)
        for key in "abcdef":
            queue.add(key)
        with anyio.fail_after(5):
            await enough.wait()
        queue.shutdown()


def test_wq_6_len_counts_listed_keys_only(queue):
    queue.add("a")
    queue.add("b")
    queue.add_after("c", 5)
    queue.take()
    assert len(queue) == 1


@pytest.mark.rules("WQ-2", "WQ-8")
async def test_wq_5_shutdown_hands_out_what_is_listed_then_ends(queue, metrics):
    queue.add("a")
    queue.add_after("delayed", 1)
    queue.shutdown()
    counts = metrics.adds, metrics.retries
    queue.add("b")
    queue.add_after("c", 0)
    queue.add_rate_limited("d")
    queue.add_with("e")
    assert (metrics.adds, metrics.retries) == counts, "ignored"
    assert queue.num_requeues("d") == 0
    assert await queue.get() == "a"
    with pytest.raises(ShutDown):
        await queue.get()


async def test_wq_5_shutdown_frees_getters_that_wait():
    queue: Queue[str] = Queue()
    getters = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.shutdown()
    with anyio.fail_after(10):
        ends = await asyncio.gather(*getters, return_exceptions=True)
    assert [type(end) for end in ends] == [ShutDown] * 3


@pytest.mark.rules("U-4")
async def test_wq_5_drain_waits_for_done_and_plain_shutdown_ends_the_wait(queue):
    for ending in ("done", "shutdown"):
        queue = Queue()
        queue.add("a")
        await queue.get()
        async with anyio.create_task_group() as tasks:
            drained = anyio.Event()

            async def drain(queue=queue, drained=drained) -> None:
                await queue.shutdown_with_drain()
                drained.set()

            tasks.start_soon(drain)
            await anyio.wait_all_tasks_blocked()
            assert not drained.is_set()
            queue.add("too late")
            assert len(queue) == 0
            queue.done("a") if ending == "done" else queue.shutdown()
            with anyio.fail_after(10):
                await drained.wait()


@pytest.mark.rules("U-5")
async def test_wq_5_drain_with_a_key_dirty_and_processing_completes():
    queue: Queue[str] = Queue()
    queue.add("a")
    await queue.get()
    queue.add("a")
    seen: list[str] = []

    async def worker() -> None:
        queue.done("a")
        try:
            while True:
                key = await queue.get()
                seen.append(key)
                queue.done(key)
        except ShutDown:
            return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.shutdown_with_drain)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(worker)
    assert seen == ["a"]


@pytest.mark.rules("U-6")
@pytest.mark.parametrize("kind", [Queue, PriorityQueue])
def test_wq_1_keys_taken_are_not_kept_in_memory(kind, clock):
    class Key:
        pass

    queue = kind(clock=clock)
    keys = [Key() for _ in range(20)]
    gone = [weakref.ref(key) for key in keys]
    for number, key in enumerate(keys):
        queue.add(key)
        queue.add(key, priority=number % 3)
        queue.add_after(key, 1)
        queue.add_rate_limited(key)
        queue.forget(key)
    clock.advance(5)
    while (taken := queue.take()) is not None:
        queue.done(taken[0])
    del keys, key, taken
    gc.collect()
    assert [reference() for reference in gone] == [None] * 20


def test_wq_8_delayed_add_counts_a_retry_even_without_delay(queue, metrics, clock):
    queue.add_after("a", 0)
    queue.add_after("b", -1)
    assert len(queue) == 2
    queue.add_after("c", 2)
    assert (metrics.retries, metrics.adds) == (3, 2)
    clock.advance(2)
    assert [queue.take()[0] for _ in range(3)] == ["a", "b", "c"]
    assert metrics.adds == 3


@pytest.mark.rules("U-7")
def test_wq_9_earlier_of_two_delays_holds_and_fires_once(queue, clock, metrics):
    queue.add_after("a", 5)
    queue.add_after("a", 1)
    queue.add_after("a", 3)
    clock.advance(0.9)
    assert queue.take() is None
    clock.advance(0.1)
    assert queue.take() == ("a", 0)
    queue.done("a")
    clock.advance(60)
    assert queue.take() is None
    assert metrics.adds == 1


@pytest.mark.rules("U-8")
def test_wq_9_many_delays_come_out_in_time_order(queue, clock):
    for n in (7, 3, 9, 1, 5, 2, 8, 4, 6):
        queue.add_after(n, float(n))
    clock.advance(20)
    assert [queue.take()[0] for _ in range(9)] == list(range(1, 10))


def test_wq_10_plain_add_does_not_cancel_a_delayed_one(queue, clock):
    queue.add_after("a", 1)
    queue.add("a")
    queue.done(queue.take()[0])
    assert queue.take() is None
    clock.advance(1)
    assert queue.take() == ("a", 0)


@pytest.mark.parametrize("kind", [Queue, PriorityQueue])
def test_wq_11_one_timer_serves_all_delays_and_looks_again_within_10_s(kind, clock):
    queue = kind(clock=clock)
    sleeps: list[float] = []
    real = clock.call_later

    def call_later(delay, callback):
        sleeps.append(delay)
        return real(delay, callback)

    clock.call_later = call_later
    for n in range(1000):
        queue.add_after(n, 1000.0 - n % 500)
    assert clock.armed == 1
    clock.advance(95)
    assert clock.armed == 1
    assert len(sleeps) >= 10
    assert max(sleeps) == 10, "no timer sleeps longer, although nothing is due for minutes"
    sleeps.clear()
    clock.advance(1000)
    assert clock.armed == 0
    assert max(sleeps) == 10
    assert min(sleeps) <= 6, "the timer is set for what is due first"
    assert len(queue) == 1000


@pytest.mark.rules("WQ-17")
def test_wq_12_rate_limited_adds_back_off_and_forget_is_not_done(queue, clock, metrics):
    queue.add("a")
    queue.take()
    queue.add_rate_limited("a")
    assert queue.num_requeues("a") == 1
    queue.forget("a")
    assert queue.num_requeues("a") == 0
    clock.advance(1)
    assert queue.take() is None  # WQ-17: still in work
    queue.done("a")
    assert queue.take() == ("a", 0)


def test_wq_15_each_key_of_one_call_has_its_own_delay(queue, clock):
    queue.add_rate_limited("b")
    clock.advance(1)
    queue.done(queue.take()[0])
    queue.add_with("a", "b", rate_limited=True)
    queue.add_with("c", after=0.5, rate_limited=True)
    queue.add_with("d")
    assert queue.take() == ("d", 0)
    clock.advance(0.5)
    assert queue.take() == ("c", 0)
    clock.advance(0.5)
    assert queue.take() == ("a", 0)
    assert queue.take() is None
    clock.advance(1)
    assert queue.take() == ("b", 0)


def test_wq_7_metrics_of_depth_wait_and_work(queue, clock, metrics):
    queue.add("a")
    queue.add("b")
    assert metrics.depths[0] == 2
    clock.advance(2)
    queue.take()
    clock.advance(3)
    queue.take()
    clock.advance(1)
    assert metrics.depths[0] == 0
    assert metrics.waits == [2, 5]
    assert metrics.unfinished() == (5, 4)
    queue.done("a")
    queue.done("a")
    queue.done("b")
    assert metrics.works == [4, 1]
    assert metrics.unfinished() == (0, 0)


def test_a_queue_outside_of_a_loop_says_what_to_do():
    with pytest.raises(RuntimeError, match="inside a running event loop, or pass clock="):
        Queue()


def test_repr_names_the_queue(queue):
    queue.add("a")
    assert repr(queue) == "<Queue 'q' listed=1 waiting=0 processing=0>"
