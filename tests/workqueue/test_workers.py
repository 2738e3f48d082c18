"""Queues in the hands of real workers: any schedule, any cancellation, real time and virtual time."""

from __future__ import annotations

import asyncio
import time
import tracemalloc

import anyio
import looptime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreconcile.metrics import Metrics
from pyreconcile.workqueue import (
    ItemExponentialRateLimiter,
    PriorityQueue,
    Queue,
    ShutDown,
    WindowedExponentialRateLimiter,
    default_item_rate_limiter,
)

BOTH = pytest.mark.parametrize("kind", [PriorityQueue, Queue])


def in_virtual_time(main):
    """Run a coroutine function on a loop of its own whose sleeps cost nothing."""
    loop = looptime.new_event_loop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


ADDS = st.lists(
    st.tuples(
        st.floats(0, 3), st.sampled_from("abcd"), st.sampled_from(["now", "later", "limited"]), st.integers(-1, 1)
    ),
    max_size=25,
)


@BOTH
@settings(deadline=None, max_examples=60)
@given(ADDS, st.integers(1, 4), st.floats(0, 1), st.booleans())
@pytest.mark.rules("WQ-4", "PQ-8", "PQ-11", "WQ-5", "U-3", "U-10")
def test_u_16_any_schedule_of_workers_loses_no_add_and_never_shares_a_key(kind, adds, workers, work, drain):
    async def main():
        loop = asyncio.get_running_loop()
        queue = kind(rate_limiter=ItemExponentialRateLimiter(0.5, 4))
        promised: list[tuple[str, float]] = []  # key, and when a run must have begun if nothing else is in the way
        begun: list[tuple[str, float]] = []
        held: set[str] = set()

        async def worker():
            while True:
                try:
                    key = await queue.get()
                except ShutDown:
                    return
                assert key not in held
                held.add(key)
                begun.append((key, loop.time()))
                try:
                    await asyncio.sleep(work)
                finally:
                    held.discard(key)
                    queue.done(key)

        async with anyio.create_task_group() as tasks:
            for _ in range(workers):
                tasks.start_soon(worker)
            for pause, key, how, priority in adds:
                await asyncio.sleep(pause)
                promised.append((key, loop.time()))
                if how == "now":
                    queue.add(key, priority=priority)
                elif how == "later":
                    queue.add_after(key, 1.25, priority=priority)
                else:
                    queue.add_rate_limited(key, priority=priority)
            await asyncio.sleep(5)  # the longest delay is over
            if drain:
                await queue.shutdown_with_drain()
                assert not held
                assert len(queue) == 0
            else:
                await asyncio.sleep(100)
                assert len(queue) == 0
                queue.shutdown()
        for key, at in promised:
            assert any(done_key == key and began >= at for done_key, began in begun), (key, at, begun)
        assert len(begun) <= len(promised) * (2 if kind is Queue else 1)

    in_virtual_time(main)


@BOTH
async def test_px_1_cancel_of_a_woken_getter_loses_nothing(kind):
    for turns in range(4):
        queue = kind()
        got: list[str] = []

        async def getter(queue=queue, got=got) -> None:
            got.append(await queue.get())

        first = asyncio.ensure_future(getter())
        second = asyncio.ensure_future(getter())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        queue.add("a")
        for _ in range(turns):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        if not got:
            with anyio.fail_after(10):
                await second
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert got == ["a"]


@BOTH
async def test_px_1_a_getter_that_is_closed_loses_nothing(kind):
    queue = kind()
    waiting = queue.get()
    waiting.send(None)
    waiting.close()
    async with anyio.create_task_group() as tasks:

        async def getter():
            assert await queue.get() == "a"

        tasks.start_soon(getter)
        await anyio.wait_all_tasks_blocked()
        queue.add("a")


@BOTH
async def test_pq_9_get_tells_key_priority_and_shutdown(kind):
    queue = kind(name="q")
    queue.add("a", priority=7)
    queue.add("b", priority=7)
    assert await queue.get_with_priority() == ("a", 7 if kind is PriorityQueue else 0)
    assert await queue.get() == "b"
    queue.shutdown()
    with pytest.raises(ShutDown, match="q"):
        await queue.get_with_priority()
    with pytest.raises(ShutDown, match="q"):
        await queue.get()


@BOTH
@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 12), st.integers(1, 5))
@pytest.mark.rules("PQ-11")
def test_u_14_shutdown_frees_blocked_getters_whatever_adds_race_with_it(kind, turns, stop_at, getters):
    async def main():
        queue = kind()
        got: list[int] = []

        async def getter():
            try:
                while True:
                    key = await queue.get()
                    got.append(key)
                    queue.done(key)
            except ShutDown:
                pass

        async def adder():
            for number, pause in enumerate(turns):
                for _ in range(pause):
                    await asyncio.sleep(0)
                queue.add(number)

        async def stopper():
            for _ in range(stop_at):
                await asyncio.sleep(0)
            queue.shutdown()

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for task in [*[getter] * getters, adder, stopper]:
                    tasks.start_soon(task)
        assert len(got) == len(set(got))
        assert queue.take() is None

    in_virtual_time(main)


@BOTH
async def test_pq_14a_an_add_never_waits_and_is_seen_at_once(kind):
    queue = kind()
    queue.add("held")
    assert await queue.get() == "held"  # a worker is busy, and others wait
    getters = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    for key in "abcd":  # as an informer's handler does: in one go, without an await
        assert queue.add(key) is None
        assert queue.add("held") is None
    assert len(queue) == (5 if kind is PriorityQueue else 4)  # a held key counts as PQ-10 and WQ-6 say
    assert await asyncio.gather(*getters) == ["a", "b", "c"]
    assert await queue.get() == "d"
    queue.done("held")
    assert await queue.get() == "held"


@BOTH
def test_wq_1_a_key_is_waiting_in_need_of_work_or_handed_out(kind, clock):
    queue = kind(clock=clock)
    queue.add("a")
    queue.add("b")
    assert queue.take() == ("a", 0)  # in order
    queue.add("a")  # handed out, and in need of work: not in line
    assert queue.take() == ("b", 0)
    assert queue.take() is None
    queue.done("a")
    assert queue.take() == ("a", 0)


@BOTH
def test_wq_17_forget_ends_no_work_and_done_clears_no_failure(kind, clock):
    queue = kind(clock=clock, rate_limiter=ItemExponentialRateLimiter(1, 100))
    queue.add("a")
    queue.take()
    queue.add_rate_limited("a")
    queue.done("a")
    assert queue.num_requeues("a") == 1, "done cleared nothing"
    clock.advance(1)
    assert queue.take() == ("a", 0)
    queue.add("a")
    queue.forget("a")
    assert queue.num_requeues("a") == 0
    assert queue.take() is None, "forget ended nothing"
    queue.done("a")
    assert queue.take() == ("a", 0)


@BOTH
def test_wq_7_only_a_queue_with_a_handle_counts_and_unfinished_work_is_read_when_scraped(kind, clock):
    metrics = Metrics()
    nameless = kind(clock=clock)
    nameless.add("a")
    nameless.done(nameless.take()[0])
    assert b'name="' not in metrics.render()
    queue = kind(clock=clock, name="q", metrics=metrics.queue("q"))
    queue.add("a")
    queue.add("b")
    queue.take()
    clock.advance(0.25)
    queue.take()
    clock.advance(0.5)
    text = metrics.render().decode()  # newer than any refresh each 500 ms
    assert 'workqueue_unfinished_work_seconds{controller="q",name="q"} 1.25' in text
    assert 'workqueue_longest_running_processor_seconds{controller="q",name="q"} 0.75' in text
    assert 'workqueue_adds_total{controller="q",name="q"} 2.0' in text
    queue.done("a")
    queue.done("b")
    text = metrics.render().decode()
    assert 'workqueue_unfinished_work_seconds{controller="q",name="q"} 0.0' in text
    assert 'workqueue_depth{controller="q",name="q",priority="0"} 0.0' in text


def test_pq_12_depth_has_one_shared_label_after_25_priorities(clock):
    metrics = Metrics()
    queue: PriorityQueue[int] = PriorityQueue(clock=clock, name="q", metrics=metrics.queue("q"))
    for number in range(40):
        queue.add(number, priority=number)
    queue.add_after(100, 5, priority=3)  # waiting: no depth

    def depths() -> dict[str, float]:
        lines = [line for line in metrics.render().decode().splitlines() if line.startswith("workqueue_depth{")]
        return {line.split('priority="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}

    assert len(depths()) == 26
    assert sum(depths().values()) == 40
    assert depths()["3"] == 1
    while queue.take() is not None:
        pass
    assert set(depths().values()) == {0}


async def test_wq_16_defaults_of_both_queues_and_the_item_based_one(clock):
    classic: Queue[int] = Queue(clock=clock)
    for number in range(101):
        classic.add_rate_limited(number)
    clock.advance(0.006)
    assert len(classic) == 100, "the bucket of 100 is empty"
    clock.advance(0.1)
    assert len(classic) == 101
    by_priority: PriorityQueue[int] = PriorityQueue(clock=clock)
    for number in range(1000):
        by_priority.add_rate_limited(number)
    clock.advance(0.006)
    assert len(by_priority) == 1000, "per key only"
    limiter = default_item_rate_limiter()
    assert [limiter.when("a") for _ in range(3)] == [0.001, 0.002, 0.004]
    assert [limiter.when("a") for _ in range(30)][-1] == 1000.0


# -- the backoff of a key whose events do not stop --------------------------------------------------------------------


def fail_with_events(queue, clock, *, seconds: float, every: float) -> tuple[int, float]:
    """Fail a key on each run while events for it keep coming; return the runs, and the delay promised after the last.

    That delay is how long the key waits when the events end.
    """
    queue.add("a")
    runs = 0
    for _ in range(round(seconds / every)):
        if queue.take() is not None:
            runs += 1
            queue.add_rate_limited("a")
            queue.done("a")
        clock.advance(every)
        queue.add("a")
    queue.take()
    queue.done("a")  # the last event's run; what is left is the retry
    queue.add_rate_limited("a")
    waited = 0.0
    while queue.take() is None:
        clock.advance(every)
        waited += every
    return runs, waited


@BOTH
def test_wq_18_a_stream_of_events_does_not_blow_up_the_backoff(kind, clock):
    runs, waited = fail_with_events(kind(clock=clock), clock, seconds=2.0, every=0.01)
    assert runs > 100
    # Windows of 5, 10, 20 … 640 ms fill 1.3 s: the retry is due within the window that is open then.
    assert waited <= 1.3
    # What counting each run does, as upstream: a thousand seconds after a hundred runs.
    naive = PriorityQueue(clock=clock, rate_limiter=ItemExponentialRateLimiter())
    _, waited = fail_with_events(naive, clock, seconds=2.0, every=0.01)
    assert waited > 900


@given(st.lists(st.floats(0.0005, 0.4), min_size=1, max_size=40))
@settings(deadline=None)
def test_wq_18_a_retry_comes_when_it_was_first_promised_however_events_fall(manual_clock_type, gaps):
    clock = manual_clock_type()
    limiter = WindowedExponentialRateLimiter(0.005, 1000.0, time=clock.time)
    opened = clock.now
    failures, promised = 0, None
    for gap in gaps:
        delay = limiter.when("a")
        if promised is not None and clock.now < promised - 1e-5:
            assert clock.now + delay == pytest.approx(promised), "inside a window the promise stands"
            assert limiter.num_requeues("a") == failures
        else:
            assert delay == pytest.approx(0.005 * 2**failures), "each window is twice the last"
            failures += 1
            promised = clock.now + delay
        assert limiter.num_requeues("a") == failures
        assert 0.005 * (2 ** (failures - 1) - 1) <= clock.now - opened + 1e-4, "no more failures than windows elapsed"
        clock.advance(gap)


def test_pq_16_an_event_during_a_failing_run_retries_at_once_and_the_failure_counts(clock, metrics):
    queue: PriorityQueue[str] = PriorityQueue(
        clock=clock, metrics=metrics, rate_limiter=ItemExponentialRateLimiter(1, 100)
    )
    queue.add("a")
    queue.take()
    queue.add("a")  # the watch fires during the run
    queue.add_rate_limited("a")  # and the run fails
    queue.done("a")
    assert queue.num_requeues("a") == 1
    assert queue.take() == ("a", 0), "at once"
    queue.done("a")
    clock.advance(100)
    assert queue.take() is None, "the delay is lost"
    queue.add_rate_limited("a")
    clock.advance(1.9)
    assert queue.take() is None
    clock.advance(0.1)
    assert queue.take() == ("a", 0), "the failure counted"


# -- order under load -------------------------------------------------------------------------------------------------


@pytest.mark.looptime
async def test_u_72_high_goes_before_low_under_load_and_delayed_high_too_once_due():
    queue: PriorityQueue[str] = PriorityQueue(ageing=0)
    order: list[str] = []

    async def worker():
        while True:
            try:
                key = await queue.get()
            except ShutDown:
                return
            await asyncio.sleep(0.1)
            order.append(key)
            queue.done(key)

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            queue.add(f"low-{number}", priority=-100)
        queue.add_after("delayed", 2.05, priority=10)
        for _ in range(2):
            tasks.start_soon(worker)
        for number in range(30):  # news, at a rate that one of two workers can do
            queue.add(f"new-{number}")
            await asyncio.sleep(0.1)
        await asyncio.sleep(10)
        queue.shutdown()
    assert len(order) == 131
    place = {key: number for number, key in enumerate(order)}
    for number in range(30):
        assert place[f"new-{number}"] <= 2 * number + 3, "news does not wait for the backlog"
    assert place["delayed"] <= 45
    lows = [key for key in order if key.startswith("low")]
    assert lows == [f"low-{number}" for number in range(100)]


# -- scale and time ---------------------------------------------------------------------------------------------------


@BOTH
def test_px_3_100k_waiting_keys_cost_little_memory_and_one_timer(kind, clock):
    keys = [f"namespace/name-{n}" for n in range(100_000)]
    queue = kind(clock=clock)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for n, key in enumerate(keys):
            queue.add_after(key, 100.0 + n % 977)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / len(keys) < 300
    assert clock.armed == 1
    clock.advance(2000)
    assert len(queue) == len(keys)
    assert clock.armed == 0


@BOTH
@pytest.mark.looptime
async def test_px_6_the_longest_backoff_takes_no_real_time(kind):
    began, loop = time.monotonic(), asyncio.get_running_loop()
    queue = kind(rate_limiter=ItemExponentialRateLimiter())
    start = loop.time()
    for _ in range(20):
        queue.add_rate_limited("a")
        queue.done(await queue.get())
    assert loop.time() - start == pytest.approx(sum(min(1000.0, 0.005 * 2**n) for n in range(20)), rel=0.01)
    assert time.monotonic() - began < 20


@BOTH
async def test_px_6_delays_hold_on_the_real_clock(kind):
    queue = kind(rate_limiter=ItemExponentialRateLimiter(0.02, 1))
    began = time.monotonic()
    queue.add_rate_limited("early")
    queue.add_after("late", 0.06)
    with anyio.fail_after(10):
        assert await queue.get() == "early"
        assert time.monotonic() - began >= 0.019
        assert await queue.get() == "late"
    assert time.monotonic() - began >= 0.059
