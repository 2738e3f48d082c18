from __future__ import annotations

import asyncio

import anyio
import pytest

from pyreconcile.workqueue import ItemExponentialRateLimiter, PriorityQueue, ShutDown


@pytest.fixture
def queue(clock, metrics):
    return PriorityQueue(clock=clock, metrics=metrics, rate_limiter=ItemExponentialRateLimiter(1, 100), name="q")


def take_all(queue) -> list[str]:
    keys = []
    while (taken := queue.take()) is not None:
        keys.append(taken[0])
    return keys


# -- the state table of section 2.1, row by row --------------------------------------------------------------------


@pytest.mark.rules("PQ-2", "PQ-12", "U-15")
def test_row_absent(queue, metrics, clock):
    queue.add("now")
    assert (metrics.adds, metrics.retries, len(queue)) == (1, 0, 1)
    queue.add_after("later", 2)
    assert (metrics.adds, metrics.retries, len(queue)) == (1, 1, 1)
    queue.done("unknown")
    assert take_all(queue) == ["now"]


@pytest.mark.rules("PQ-4", "PQ-12", "U-11", "U-15")
def test_pq_6_row_waiting(queue, metrics, clock):
    queue.add_after("a", 5)
    queue.add("a")
    assert (metrics.adds, metrics.retries) == (1, 1)
    queue.done(queue.take()[0])
    clock.advance(10)
    assert queue.take() is None, "PQ-6: the wait is gone, one run, not two"
    queue.add_after("b", 5)
    queue.add_after("b", 2)
    queue.add_after("b", 9)
    assert metrics.retries == 4
    clock.advance(1.9)
    assert queue.take() is None
    clock.advance(0.1)
    assert take_all(queue) == ["b"]
    assert metrics.adds == 2


@pytest.mark.rules("PQ-4")
def test_pq_6_row_ready(queue, metrics, clock):
    queue.add("a")
    queue.add("a", priority=3)
    queue.add_after("a", 5, priority=1)
    assert (metrics.adds, metrics.retries, len(queue)) == (1, 1, 1)
    assert queue.take() == ("a", 3)
    queue.done("a")
    clock.advance(10)
    assert queue.take() is None


@pytest.mark.rules("PQ-10", "U-10")
def test_pq_8_row_locked(queue, metrics, clock):
    queue.add("a")
    queue.take()
    queue.add("a")
    assert (metrics.adds, len(queue)) == (2, 1)
    assert queue.take() is None
    queue.done("a")
    assert queue.take() == ("a", 0)
    queue.add_after("a", 3)
    assert len(queue) == 0
    queue.done("a")
    assert queue.take() is None
    clock.advance(3)
    assert queue.take() == ("a", 0)
    queue.done("a")
    assert repr(queue) == "<PriorityQueue 'q' ready=0 waiting=0 locked=0>"


@pytest.mark.rules("U-10")
def test_pq_8_row_locked_ready(queue, metrics, clock):
    queue.add("a")
    queue.take()
    queue.add("a")
    queue.add("a")
    queue.add_after("a", 4)
    assert (metrics.adds, metrics.retries, len(queue)) == (2, 1, 1)
    assert queue.take() is None
    queue.done("a")
    queue.done("a")
    assert queue.take() == ("a", 0)
    queue.done("a")
    clock.advance(5)
    assert queue.take() is None


@pytest.mark.rules("PQ-4", "U-10")
def test_pq_8_row_locked_waiting(queue, metrics, clock):
    def lock_and_wait(key):
        queue.add(key)
        assert queue.take() == (key, 0)
        queue.add_after(key, 5)

    lock_and_wait("plain")
    queue.add("plain")
    assert len(queue) == 1
    queue.done("plain")
    assert queue.take() == ("plain", 0)

    lock_and_wait("min")
    queue.add_after("min", 1)
    queue.done("min")
    clock.advance(1)
    assert queue.take() == ("min", 0)

    lock_and_wait("timer")
    clock.advance(5)
    assert len(queue) == 1
    assert queue.take() is None
    queue.done("timer")
    assert queue.take() == ("timer", 0)

    lock_and_wait("done")
    queue.done("done")
    assert queue.take() is None
    clock.advance(5)
    assert queue.take() == ("done", 0)


# -- order ----------------------------------------------------------------------------------------------------------


def test_pq_2_high_priority_first_then_first_in_first_out(queue):
    for key, priority in [("a", 0), ("b", -100), ("c", 7), ("d", 0), ("e", 7)]:
        queue.add(key, priority=priority)
    assert take_all(queue) == ["c", "e", "a", "d", "b"]


def test_pq_3_smaller_of_delay_and_backoff_wins_and_the_limiter_counts(queue, clock):
    queue.add_with("a", after=10, rate_limited=True)
    queue.add_with("b", after=0.5, rate_limited=True, priority=4)
    assert queue.num_requeues("a") == queue.num_requeues("b") == 1
    clock.advance(0.5)
    assert queue.take() == ("b", 4)
    clock.advance(0.5)
    assert queue.take() == ("a", 0)
    queue.forget("a")
    assert queue.num_requeues("a") == 0


@pytest.mark.rules("U-73")
def test_pq_3_keys_of_one_rate_limited_call_do_not_share_a_delay(queue, clock):
    queue.add_rate_limited("b")
    clock.advance(1)
    queue.done(queue.take()[0])
    queue.add_with("a", "b", rate_limited=True)
    clock.advance(1)
    assert take_all(queue) == ["a"]
    clock.advance(1)
    assert take_all(queue) == ["b"]


@pytest.mark.rules("U-11")
def test_pq_4_priority_only_rises_and_delay_only_falls(queue, clock):
    queue.add_after("a", 5, priority=10)
    queue.add_after("a", 8, priority=2)
    queue.add_after("a", 3, priority=11)
    queue.add_after("a", 4, priority=-5)
    clock.advance(3)
    assert queue.take() == ("a", 11)


@pytest.mark.rules("U-12")
def test_pq_5_raised_priority_goes_behind_its_new_peers(queue, metrics):
    queue.add("a")
    queue.add("b")
    queue.add("c", priority=5)
    queue.add("b", priority=5)
    assert dict(metrics.depths) == {0: 1, 5: 2}
    queue.add("a", priority=0)
    assert take_all(queue) == ["c", "b", "a"]
    assert set(metrics.depths.values()) == {0}


def test_pq_5_a_raised_entry_is_behind_its_peers_however_long_it_has_waited_and_loses_nothing(clock):
    queue: PriorityQueue[str] = PriorityQueue(clock=clock, ageing=1)
    queue.add("old")
    clock.advance(3)
    queue.add("peer", priority=5)
    clock.advance(1)
    queue.add("old", priority=5)
    assert take_all(queue) == ["peer", "old"]
    queue.add("low", priority=-100)
    clock.advance(99)
    queue.add("low", priority=-99)  # its age stands for more than the raise
    clock.advance(2)
    queue.add("new")
    assert take_all(queue) == ["low", "new"]


def test_pq_2_entries_due_at_one_time_go_by_priority_then_first_come_first_served(queue, clock):
    queue.add_after("a", 9)
    queue.add_after("b", 5)
    queue.add_after("high", 5, priority=1)
    queue.add_after("c", 5)
    queue.add_after("a", 5)  # brought forward; it came first
    clock.advance(5)
    assert take_all(queue) == ["high", "a", "b", "c"]


def test_pq_7_order_is_by_when_the_wait_ended(queue, clock):
    queue.add_after("late", 2)
    queue.add_after("early", 1)
    clock.advance(1.5)
    queue.add("plain")
    clock.advance(1)
    assert take_all(queue) == ["early", "plain", "late"]


def test_pq_8_priority_of_a_locked_key_is_that_of_the_new_add(queue):
    queue.add("a", priority=9)
    queue.take()
    queue.add("a", priority=1)
    queue.done("a")
    assert queue.take() == ("a", 1)


@pytest.mark.rules("U-13")
def test_pq_10_len_counts_ready_and_locked_ready_never_waiting(queue, clock):
    queue.add("a")
    queue.take()
    queue.add("a")
    queue.add("b")
    queue.add_after("c", 1)
    assert len(queue) == 2
    clock.now += 1  # the timer is late: len looks at the clock itself
    assert len(queue) == 3


@pytest.mark.rules("U-15")
def test_pq_12_depth_adds_and_retries_when_a_plain_add_ends_a_wait(queue, metrics):
    queue.add_after("a", 5, priority=-100)
    assert (metrics.adds, metrics.retries, dict(metrics.depths)) == (0, 1, {})
    queue.add_after("b", 0)
    queue.add("a", priority=2)
    assert (metrics.adds, metrics.retries, dict(metrics.depths)) == (2, 1, {0: 1, 2: 1})


def test_pq_12_wait_and_work_seconds(queue, metrics, clock):
    queue.add_after("a", 5)
    clock.advance(7)
    queue.take()
    clock.advance(3)
    assert metrics.unfinished() == (3, 3)
    queue.done("a")
    assert (metrics.waits, metrics.works, metrics.unfinished()) == ([2], [3], (0, 0))


def test_pq_15_ageing_lets_low_work_pass_new_high_work(clock):
    queue: PriorityQueue[str] = PriorityQueue(clock=clock, ageing=1.0)
    queue.add("low", priority=-100)
    clock.advance(99)
    queue.add("new", priority=0)
    assert queue.take() == ("new", 0)
    clock.advance(2)
    queue.add("newer", priority=0)
    assert queue.take() == ("low", -100)


def test_pq_15_without_ageing_order_is_strict(clock):
    queue: PriorityQueue[str] = PriorityQueue(clock=clock, ageing=0)
    queue.add("low", priority=-1)
    clock.advance(1e6)
    queue.add("new")
    assert take_all(queue) == ["new", "low"]
    with pytest.raises(ValueError, match="ageing"):
        PriorityQueue(clock=clock, ageing=-1)


@pytest.mark.rules("U-72")
def test_pq_2_delayed_high_comes_before_ready_low_once_due(queue, clock):
    for n in range(20):
        queue.add(f"low-{n}", priority=-10)
    queue.add_after("high", 1, priority=10)
    assert queue.take()[0] == "low-0"
    clock.now += 1  # due, though the timer has not run yet
    assert queue.take()[0] == "high"


# -- getters and shutdown ------------------------------------------------------------------------------------------


@pytest.mark.looptime
async def test_px_6_get_waits_half_a_minute_of_virtual_time(request):
    queue: PriorityQueue[str] = PriorityQueue()
    started = asyncio.get_running_loop().time()
    queue.add_after("a", 30)
    assert await queue.get() == "a"
    assert asyncio.get_running_loop().time() - started == pytest.approx(30, abs=0.01)
    queue.done("a")


@pytest.mark.rules("U-14")
async def test_pq_11_shutdown_frees_blocked_getters_and_drains_nothing():
    queue: PriorityQueue[str] = PriorityQueue()
    ended = 0

    async def getter() -> None:
        nonlocal ended
        try:
            while True:
                queue.done(await queue.get())
        except ShutDown:
            ended += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(getter)
        await anyio.wait_all_tasks_blocked()
        for n in range(50):
            queue.add(str(n))
        queue.shutdown()
        queue.add("too late")
        queue.add_with("too late")
        queue.add_after("too late", 1)
        queue.add_rate_limited("too late")
    assert ended == 8
    assert len(queue) > 0, "what was ready is not handed out"
    with pytest.raises(ShutDown):
        await queue.get()


async def test_pq_11_drain_hands_out_what_is_ready_and_waits_for_done():
    queue: PriorityQueue[str] = PriorityQueue()
    seen: list[str] = []

    async def worker() -> None:
        try:
            while True:
                key = await queue.get()
                await asyncio.sleep(0)
                seen.append(key)
                queue.done(key)
        except ShutDown:
            pass

    queue.add("held")
    await queue.get()
    queue.add("held")
    for n in range(10):
        queue.add(str(n))
    queue.add_after("never", 0.01)
    async with anyio.create_task_group() as tasks:
        drained = anyio.Event()

        async def drain() -> None:
            await queue.shutdown_with_drain()
            drained.set()

        tasks.start_soon(drain)
        await anyio.wait_all_tasks_blocked()
        queue.add("too late")
        for _ in range(3):
            tasks.start_soon(worker)
        await anyio.wait_all_tasks_blocked()
        assert not drained.is_set()
        assert len(queue) == 1
        queue.done("held")
        with anyio.fail_after(10):
            await drained.wait()
    assert sorted(seen) == sorted(["held", *map(str, range(10))])


async def test_pq_11_shutdown_ends_a_drain():
    queue: PriorityQueue[str] = PriorityQueue()
    queue.add("a")
    await queue.get()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.shutdown_with_drain)
        await anyio.wait_all_tasks_blocked()
        queue.shutdown()


def test_stale_delays_are_swept_out(queue, clock):
    for _ in range(5000):
        queue.add_after("a", 3600)
        queue.add("a")
        queue.done(queue.take()[0])
    assert len(queue._delays) < 200


def test_stale_ready_entries_are_swept_out(queue):
    for priority in range(5000):
        queue.add("a", priority=priority)
    assert len(queue._heap) < 200
    assert queue.take() == ("a", 4999)
    assert queue.take() is None
