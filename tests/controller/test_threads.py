"""Reconcilers that are plain functions, in real threads and real time: outcomes, time limits, threads left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.controller import (
    Builder,
    Controller,
    ControllerOptions,
    FunctionSource,
    Request,
    Result,
    SyncReconciler,
    current_reconcile_id,
    run_in_loop,
)
from pyreconcile.controller._threads import ThreadedReconcile
from pyreconcile.testing import eventually, running
from pyreconcile.workqueue import ItemExponentialRateLimiter

A, B, C = Request("ns", "a"), Request("ns", "b"), Request("ns", "c")
LIMIT = 100.0  # of a reconcile, seconds


def build(reconcile, counters, *requests, **options):
    async def feed(queue):
        for request in requests or (A,):
            queue.add(request)

    options = {"rate_limiter": ItemExponentialRateLimiter(0.02, 0.05), **options}
    return Controller(
        "threaded",
        reconcile,
        sources=[FunctionSource(feed)],
        options=ControllerOptions(**options),
        resource=ConfigMap.resource,
        metrics=counters,
    )


until = partial(eventually, timeout=30, interval=0.002)


@pytest.fixture
async def run_out(monkeypatch) -> Callable[[], None]:
    """End the time limits of the reconciles that run now, by moving the loop's clock ahead.

    They end when the test says, and not because a thread of a busy machine is slow to begin.
    """
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, 0.0

    def ahead_of_time() -> float:
        return real() + ahead

    def forward() -> None:
        nonlocal ahead
        ahead += LIMIT + 1

    monkeypatch.setattr(loop, "time", ahead_of_time)
    return forward


async def test_rc_6_a_plain_function_runs_in_a_thread_and_the_loop_goes_on(run, counters):
    loop_thread = threading.get_ident()
    release = threading.Event()
    seen: list[tuple[Request, str | None]] = []

    def reconcile(request: Request) -> Result | None:
        assert threading.get_ident() != loop_thread
        seen.append((request, current_reconcile_id()))
        assert release.wait(30)
        if request == B and len(seen) < 3:
            raise OSError("not yet")
        return Result(requeue_after=60) if request == A else None

    with capture_logs(processors=[merge_contextvars]) as logs:
        async with run(build(reconcile, counters, A, B, max_concurrent_reconciles=2)):
            await until(lambda: len(seen) == 2)  # both block, and the loop still runs this
            assert counters.busy == 2
            release.set()
            await until(lambda: counters.counts["success"] == 1)
    assert counters.counts == {"requeue_after": 1, "error": 1, "errors_total": 1, "success": 1}
    ids = [reconcile_id for _, reconcile_id in seen]
    assert None not in ids
    assert len(set(ids)) == 3
    assert [(line["event"], line["name"], line["reconcile_id"]) for line in logs] == [
        ("reconcile_failed", "b", next(found for request, found in seen if request == B))
    ]


async def test_rc_6_never_more_threads_than_workers(run, counters):
    lock, all_three = threading.Lock(), threading.Barrier(3)
    now, most, done = 0, 0, 0

    def reconcile(request: Request) -> None:
        nonlocal now, most, done
        with lock:
            now += 1
            most = max(most, now)
        all_three.wait(30)
        threading.Event().wait(0.005)  # time for a fourth to come, if there could be one
        with lock:
            now -= 1
            done += 1

    requests = [Request("ns", str(number)) for number in range(12)]
    async with run(build(reconcile, counters, *requests, max_concurrent_reconciles=3)):
        await until(lambda: done == 12)
    assert most == 3


async def test_rc_6_a_thread_that_ran_out_of_time_is_left_behind_and_its_object_waits_for_it(run, counters, run_out):
    release = threading.Event()
    calls: list[Request] = []
    inside = 0

    def reconcile(request: Request) -> None:
        nonlocal inside
        calls.append(request)
        inside += 1
        assert inside == 1, "one object is never in two threads"
        if len(calls) == 1:
            release.wait(30)
        inside -= 1

    with capture_logs(processors=[merge_contextvars]) as logs:
        async with run(build(reconcile, counters, reconciliation_timeout=LIMIT)):
            await until(lambda: calls)
            run_out()
            await until(lambda: counters.counts["error"] >= 3)
            assert calls == [A]
            assert counters.counts["timeout"] == 1
            assert counters.counts["panic"] == 0
            release.set()
            await until(lambda: counters.counts["success"] == 1)
    assert calls == [A, A]
    assert logs[0]["event"] == "reconcile_thread_left_behind"
    assert logs[0]["name"] == "a"
    assert "was given up on and still runs" in logs[2]["error"]


async def test_rc_6_threads_left_behind_count_against_the_limit(run, counters, run_out):
    release = threading.Event()
    calls: list[Request] = []

    def reconcile(request: Request) -> None:
        calls.append(request)
        if request != C:
            release.wait(30)

    options = {"max_concurrent_reconciles": 2, "reconciliation_timeout": LIMIT}
    controller = build(reconcile, counters, A, B, **options)
    async with run(controller):
        await until(lambda: len(calls) == 2)
        run_out()
        await until(lambda: counters.counts["timeout"] == 2)
        controller.queue.add(C)
        for _ in range(1000):  # C waits for a thread, in vain; the others do not get so far
            if counters.counts["timeout"] >= 4:
                break
            run_out()
            await anyio.sleep(0.002)
        assert counters.counts["timeout"] >= 4
        assert sorted(calls) == [A, B], "no third thread"
        release.set()
        await until(lambda: C in calls)


async def test_rc_6_the_call_into_the_loop_of_a_thread_left_behind_ends(run, counters, run_out):
    reading, left, ended = threading.Event(), threading.Event(), threading.Event()
    errors: list[Exception] = []
    cancelled: list[bool] = []
    go_on = threading.Event()

    async def long_read() -> None:
        reading.set()
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    def reconcile(request: Request) -> None:
        if ended.is_set():
            return
        try:
            run_in_loop(long_read)
        except TimeoutError as error:
            errors.append(error)
        left.set()
        go_on.wait(30)
        try:
            run_in_loop(anyio.sleep, 0)
        except TimeoutError as error:
            errors.append(error)
        ended.set()

    async with run(build(reconcile, counters, reconciliation_timeout=LIMIT)):
        await until(reading.is_set)
        run_out()
        await until(lambda: counters.counts["timeout"] == 1)
        await until(left.is_set)
        go_on.set()
        await until(ended.is_set)
        await until(lambda: counters.counts["success"] == 1)
    assert cancelled == [True]
    assert [str(error) for error in errors] == ["the reconcile of ns/a was given up on"] * 2


async def test_rc_6_a_hard_stop_does_not_wait_for_threads(counters):
    entered, release = threading.Event(), threading.Event()

    def reconcile(request: Request) -> None:
        entered.set()
        release.wait(10)

    controller = build(reconcile, counters)
    before = asyncio.all_tasks()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run, anyio.Event())
        await until(entered.is_set)
        tasks.cancel_scope.cancel()
    assert asyncio.all_tasks() == before
    assert counters.busy == 0
    assert "locked=0" in repr(controller.queue)
    release.set()


async def test_rc_14_a_stop_waits_for_the_thread_in_hand(run, counters):
    entered, release = threading.Event(), threading.Event()

    def reconcile(request: Request) -> None:
        entered.set()
        release.wait(10)

    async with run(build(reconcile, counters)) as stop:
        await until(entered.is_set)
        stop.set()
        await anyio.sleep(0.02)
        assert counters.counts == {}
        release.set()
    assert counters.counts == {"success": 1}


async def test_rc_5_what_a_plain_function_raises_and_returns_is_judged_alike(run, counters):
    outcomes = [KeyError("gone"), 30]

    def reconcile(request: Request):
        outcome = outcomes.pop(0) if outcomes else anyio.lowlevel.checkpoint()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with capture_logs() as logs:
        async with run(build(reconcile, counters)):
            await until(lambda: counters.counts["panic"] >= 3)
    assert [line["error"].partition(";")[0] for line in logs[:2]] == ["'gone'", "reconcile returned 30"]
    assert "reconcile is a plain function that returned <coroutine object checkpoint" in logs[2]["error"]


async def test_run_in_loop_outside_of_such_a_reconciler_says_what_to_do():
    with pytest.raises(RuntimeError, match="elsewhere, await the call"):
        run_in_loop(anyio.sleep, 0)


@pytest.mark.rules("PX-1")
async def test_px_1_a_call_cancelled_before_its_thread_begins_gives_its_place_back():
    calls = []

    def reconcile(request: Request) -> None:
        calls.append(request)

    threaded = ThreadedReconcile(reconcile, limit=1)
    for turns in range(6):
        task = asyncio.ensure_future(threaded(A))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        before = len(calls)
        with anyio.fail_after(10):
            while True:
                try:
                    await threaded(A)
                except TimeoutError:
                    await anyio.sleep(0.001)  # the thread of the call before has not ended yet
                else:
                    break
        assert len(calls) > before


@pytest.mark.plane
async def test_rc_6_a_sync_reconciler_reads_and_writes_through_the_loop(manager, client, namespace):
    class Stamp(SyncReconciler[ConfigMap]):
        def reconcile(self, request: Request) -> Result | None:
            config = run_in_loop(self.client.find, ConfigMap, request.key)
            if config is not None and "stamped" not in config.metadata.annotations:
                config.metadata.annotations = {**config.metadata.annotations, "stamped": "yes"}
                run_in_loop(self.client.update, config)
            self.log.debug("stamped")
            return None

    Builder(manager).for_(ConfigMap).complete(Stamp())
    async with running(manager):
        await client.create(ConfigMap(metadata={"namespace": namespace, "name": "a"}))

        async def stamped():
            return (await client.get(ConfigMap, f"{namespace}/a")).metadata.annotations.get("stamped") == "yes"

        await eventually(stamped)
