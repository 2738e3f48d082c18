"""The worker loop, with virtual time: outcomes, backoff, time limits, cancellation."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import aiohttp
import anyio
import pytest
import structlog
from structlog.contextvars import get_contextvars, merge_contextvars
from structlog.testing import capture_logs

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.client import ConflictError, ConnectionLostError
from pyreconcile.controller import (
    Controller,
    ControllerOptions,
    FunctionSource,
    OwnerError,
    ReconcileError,
    Request,
    Result,
    TerminalError,
    current_reconcile_id,
)
from pyreconcile.election import NotLeaderError
from pyreconcile.workqueue import ItemExponentialRateLimiter

A, B = Request("ns", "a"), Request("ns", "b")

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


class Script:
    """A reconciler that returns, raises or calls what it was given, one item a call; then None."""

    def __init__(self, *outcomes) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[tuple[Request, float]] = []
        self.ids: list[str | None] = []

    async def reconcile(self, request: Request) -> Result | None:
        self.calls.append((request, now()))
        self.ids.append(current_reconcile_id())
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if callable(outcome):
            outcome = await outcome()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def times(self, request: Request = A) -> list[float]:
        return [round(at - self.calls[0][1], 3) for called, at in self.calls if called == request]


def build(script, counters, *requests, priority=0, **options):
    async def feed(queue):
        for request in requests or (A,):
            queue.add(request, priority=priority)

    return Controller(
        "test",
        script.reconcile,
        sources=[FunctionSource(feed)],
        options=ControllerOptions(rate_limiter=ItemExponentialRateLimiter(1, 100), **options),
        resource=ConfigMap.resource,
        metrics=counters,
    )


@pytest.mark.rules("RC-2", "U-17", "U-19")
async def test_rc_1_ordinary_errors_back_off_and_success_resets(run, counters):
    script = Script(ReconcileError("x"), OSError("y"), ConflictError("z"), None)
    controller = build(script, counters, A, B)
    async with run(controller):
        await anyio.sleep(50)
        controller.queue.add(A)
        script.outcomes = [TimeoutError("again")]
        await anyio.sleep(50)
    # A and B shared the first outcomes: A failed at 0 and 1, B at 0.
    assert script.times(A)[:2] == [0, 1]
    assert script.times(B) == [0, 1]
    assert script.times(A)[-2:] == [pytest.approx(50, abs=0.01), pytest.approx(51, abs=0.01)]
    assert counters.counts["error"] == counters.counts["errors_total"] == 4
    assert counters.counts["panic"] == 0
    assert controller.queue.num_requeues(A) == 0
    assert counters.busy == 0


@pytest.mark.rules("U-18")
async def test_rc_1_terminal_error_is_not_queued_again_and_not_forgotten(run, counters):
    def wrapped():
        try:
            raise TerminalError("inner")
        except TerminalError as inner:
            try:
                raise RuntimeError("outer") from inner
            except RuntimeError as outer:
                return outer

    script = Script(OSError("first"), wrapped())
    controller = build(script, counters)
    async with run(controller):
        await anyio.sleep(1000)
    assert script.times() == [0, 1]
    assert controller.queue.num_requeues(A) == 1
    assert {k: v for k, v in counters.counts.items() if v} == {"error": 2, "errors_total": 2, "terminal": 1}


async def test_rc_1_a_group_is_terminal_only_when_all_of_it_is(run, counters):
    script = Script(
        ExceptionGroup("g", [TerminalError("a"), ValueError("b")]),
        ExceptionGroup("g", [TerminalError("a"), ExceptionGroup("h", [TerminalError("b")])]),
    )
    async with run(build(script, counters)):
        await anyio.sleep(100)
    assert script.times() == [0, 1]
    assert counters.counts["terminal"] == 1


@pytest.mark.rules("RC-1", "U-19", "U-20")
async def test_rc_2_requeue_after_forgets_and_is_not_rate_limited(run, counters):
    script = Script(
        ValueError(), ValueError(), Result(requeue_after=7), ValueError(), Result(requeue_after=30, requeue=True)
    )
    async with run(build(script, counters)):
        await anyio.sleep(100)
    assert script.times() == [0, 1, 3, 10, 11, 41]
    assert counters.counts["requeue_after"] == 2
    assert counters.counts["success"] == 1


@pytest.mark.rules("RC-1")
async def test_u_21_an_error_beats_the_requeue_that_was_meant(run, counters):
    async def fail_after_choosing():
        result = Result(requeue_after=30, priority=5)
        raise OSError(f"instead of {result}")  # in Python the error is all that comes back

    script = Script(fail_after_choosing)
    controller = build(script, counters)
    async with run(controller):
        await anyio.sleep(20)
    assert script.times() == [0, 1], "backoff, not 30 s"
    assert counters.counts == {"error": 1, "errors_total": 1, "success": 1}


@pytest.mark.rules("U-19")
async def test_rc_2_requeue_keeps_counting_and_no_delay_means_none(run, counters):
    script = Script(Result(requeue=True), Result(requeue=True), Result(requeue=True), Result(requeue_after=-3))
    async with run(build(script, counters)):
        await anyio.sleep(100)
    assert script.times() == [0, 1, 3, 7]
    assert counters.counts == {"requeue": 3, "success": 1}


@pytest.mark.rules("U-22")
async def test_rc_3_priority_is_kept_on_every_requeue_unless_result_sets_one(run, counters):
    script = Script(
        ValueError(), Result(requeue=True), Result(requeue_after=1), Result(requeue_after=1, priority=-7), OSError()
    )
    controller = build(script, counters, priority=42)
    taken: list[int] = []
    async with run(controller):
        take = controller.queue.take

        def note_take():
            found = take()
            if found is not None:
                taken.append(found[1])
            return found

        controller.queue.take = note_take
        await anyio.sleep(20)
    assert len(script.calls) == 6
    assert taken == [42, 42, 42, 42, -7, -7]


@pytest.mark.rules("U-18", "U-19")
async def test_rc_1_a_terminal_error_comes_before_all_else_and_keeps_the_failures(run, counters):
    script = Script(OSError("1"), OSError("2"), TerminalError("3"), Result(requeue=True), OSError("5"))
    controller = build(script, counters)
    async with run(controller):
        await anyio.sleep(10)
        assert script.times() == [0, 1, 3], "not tried again"
        assert controller.queue.num_requeues(A) == 2, "not forgotten"
        controller.queue.add(A)
        await anyio.sleep(20)
    assert script.times()[3:] == [pytest.approx(step, abs=0.01) for step in (10, 14, 22)], "the backoff went on"
    assert counters.counts == {"error": 4, "errors_total": 4, "terminal": 1, "requeue": 1, "success": 1}


async def test_rc_4_every_reconcile_has_its_own_id_bound_to_log_lines(run, counters):
    bound = []

    async def look():
        bound.append(get_contextvars())
        structlog.get_logger().info("looked")
        if len(bound) == 2:
            raise OSError("x")

    script = Script(look, look)
    with capture_logs(processors=[merge_contextvars]) as logs:
        async with run(build(script, counters, A, B)):
            await anyio.sleep(0.5)
    assert current_reconcile_id() is None
    assert len(set(script.ids)) == 2
    assert {uuid.UUID(found).version for found in script.ids} == {4}
    assert [(line["event"], line["reconcile_id"]) for line in logs] == [
        ("looked", script.ids[0]),
        ("looked", script.ids[1]),
        ("reconcile_failed", script.ids[1]),
    ]
    for line in logs[1:]:
        assert {name: line[name] for name in bound[1]} == bound[1], "the controller's own lines have them too"
    assert bound[0] == {
        "controller": "test",
        "group": "",
        "kind": "ConfigMap",
        "namespace": "ns",
        "name": "a",
        "reconcile_id": script.ids[0],
    }
    assert bound[1]["name"] == "b"


async def test_rc_4_no_log_line_for_a_reconcile_that_went_well(run, counters):
    with capture_logs() as logs:
        async with run(build(Script(), counters)):
            await anyio.sleep(1)
    assert logs == []


class FromALibrary(Exception):
    """No relative of what reconcilers are expected to raise."""


class OfOurs(ReconcileError):
    """Raised on purpose."""


@pytest.mark.rules("U-23")
@pytest.mark.parametrize(
    "error",
    [
        TypeError("x"),
        KeyError("x"),
        ValueError("x"),
        RuntimeError("x"),
        FromALibrary("x"),
        ExceptionGroup("g", [OSError("x"), AttributeError("y")]),
    ],
    ids=repr,
)
async def test_rc_5_any_exception_that_is_not_expected_is_a_panic_and_is_retried(run, counters, error):
    script = Script(error)
    with capture_logs() as logs:
        async with run(build(script, counters)):  # recovery is the default
            await anyio.sleep(5)
    assert script.times() == [0, 1]
    assert counters.counts == {"panic": 1, "error": 1, "errors_total": 1, "success": 1}
    assert (logs[0]["event"], logs[0]["panic"]) == ("reconcile_failed", True)
    assert logs[0]["exc_info"] is error


@pytest.mark.parametrize("recover", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        ConflictError("x"),
        ConnectionLostError("x"),
        TimeoutError("x"),
        ConnectionRefusedError("x"),
        OfOurs("x"),
        aiohttp.ServerDisconnectedError(),
        OwnerError("x"),
        NotLeaderError("x"),
        FromALibrary("x"),
        ExceptionGroup("g", [OSError("x"), ExceptionGroup("h", [ConflictError("y")])]),
    ],
    ids=repr,
)
async def test_rc_5_expected_errors_are_no_panics_whether_those_are_recovered_or_not(run, counters, error, recover):
    options = {"recover_panic": recover}
    if isinstance(error, FromALibrary):
        options["expected_errors"] = (FromALibrary,)
    script = Script(error)
    async with run(build(script, counters, **options)):
        await anyio.sleep(5)
    assert script.times() == [0, 1]
    assert counters.counts == {"error": 1, "errors_total": 1, "success": 1}


async def test_rc_5_an_error_from_a_terminal_one_is_meant_and_no_panic(run, counters):
    async def give_up():
        try:
            int("x")
        except ValueError as error:
            raise TerminalError("the field is no number") from error

    async with run(build(Script(give_up), counters, recover_panic=False)):
        await anyio.sleep(5)
    assert counters.counts == {"error": 1, "errors_total": 1, "terminal": 1}


def test_rc_5_expected_errors_are_classes():
    with pytest.raises(TypeError, match="expected_errors: 'OSError' is no exception class"):
        ControllerOptions(expected_errors=("OSError",))


@pytest.mark.rules("U-23")
async def test_rc_5_without_recovery_a_bug_ends_the_controller(run, counters):
    with pytest.raises(ExceptionGroup) as caught:
        async with run(build(Script(OSError(), KeyError("gone")), counters, recover_panic=False)):
            await anyio.sleep(50)
    assert caught.group_contains(KeyError, match="gone")
    assert counters.counts["panic"] == 1
    assert counters.busy == 0


async def test_rc_5_a_wrong_result_says_what_to_return(run, counters):
    with capture_logs() as logs:
        async with run(build(Script(30.0), counters)):
            await anyio.sleep(5)
    assert "return Result(requeue_after=seconds), or None" in logs[0]["error"]


async def test_rc_5_a_cancelled_task_that_was_awaited_does_not_end_the_worker(run, counters):
    async def await_cancelled():
        task = asyncio.ensure_future(anyio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await task

    script = Script(await_cancelled)
    with capture_logs() as logs:
        async with run(build(script, counters)):
            await anyio.sleep(5)
    assert script.times() == [0, 1]
    assert logs[0]["error"] == "a task that the reconciler awaited was cancelled"
    assert counters.counts == {"error": 1, "errors_total": 1, "success": 1}


async def test_a_key_that_is_no_request_fails_alone(run, counters):
    script = Script()
    with capture_logs() as logs:
        async with run(build(script, counters, "ns/text", A)):
            await anyio.sleep(0.5)
    assert [request for request, _ in script.calls] == [A]
    assert "'str' object has no attribute 'namespace'" in logs[0]["error"]


def test_requeue_after_takes_seconds():
    with pytest.raises(TypeError, match="give seconds, as in 30"):
        Result(requeue_after=timedelta(seconds=3))


# RC-6: the timeout counter in the five cases.


@pytest.mark.rules("U-24")
async def test_rc_6_our_deadline_counts_and_is_an_error(run, counters):
    script = Script(lambda: anyio.sleep(60))
    async with run(build(script, counters, reconciliation_timeout=10)):
        await anyio.sleep(30)
    assert script.times() == [0, 11]
    assert counters.counts == {"timeout": 1, "error": 1, "errors_total": 1, "success": 1}


@pytest.mark.rules("U-24")
async def test_rc_6_a_call_that_ends_in_time_does_not_count(run, counters):
    async with run(build(Script(lambda: anyio.sleep(9)), counters, reconciliation_timeout=10)):
        await anyio.sleep(30)
    assert counters.counts == {"success": 1}


@pytest.mark.rules("U-24")
async def test_rc_6_a_scope_of_the_reconciler_does_not_count(run, counters):
    async def own_scope():
        with anyio.move_on_after(1):
            await anyio.sleep(60)
        with anyio.fail_after(1):
            await anyio.sleep(60)

    async with run(build(Script(own_scope), counters, reconciliation_timeout=10)):
        await anyio.sleep(30)
    assert counters.counts["timeout"] == 0
    assert counters.counts["error"] == 1


@pytest.mark.rules("U-24")
@pytest.mark.parametrize("how", ["deadline", "unlimited"])
async def test_rc_6_without_a_limit_or_within_it_nothing_counts(run, counters, how):
    limit = {} if how == "unlimited" else {"reconciliation_timeout": 3601}
    async with run(build(Script(lambda: anyio.sleep(3600)), counters, **limit)):
        await anyio.sleep(3610)
    assert counters.counts == {"success": 1}


@pytest.mark.rules("U-24", "RC-5")
async def test_rc_6_cancellation_from_outside_does_not_count(counters):
    script = Script(lambda: anyio.sleep(60))
    controller = build(script, counters, reconciliation_timeout=10)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run, anyio.Event())
        await anyio.sleep(5)
        tasks.cancel_scope.cancel()
    assert len(script.calls) == 1
    assert counters.counts == {}, "neither a timeout nor a panic nor an error"
    assert counters.busy == 0


@pytest.mark.rules("U-24")
async def test_rc_6_a_reconciler_that_makes_the_best_of_its_deadline_counts_but_succeeds(run, counters):
    async def swallow():
        try:
            await anyio.sleep(60)
        except asyncio.CancelledError:
            return Result(requeue_after=5)

    async with run(build(Script(swallow), counters, reconciliation_timeout=10)):
        await anyio.sleep(12)
    assert counters.counts == {"timeout": 1, "requeue_after": 1}


@pytest.mark.rules("WQ-5")
async def test_rc_14_without_the_priority_queue_a_stop_also_works_off_what_is_listed(run, counters):
    script = Script(lambda: anyio.sleep(20), Result(requeue_after=1), Result(requeue=True))
    controller = build(script, counters, A, B, Request("ns", "c"), use_priority_queue=False)
    before = asyncio.all_tasks()
    async with run(controller) as stop:
        await anyio.sleep(1)
        controller.queue.add_after(Request("ns", "delayed"), 2)
        stop.set()
    assert [request.name for request, _ in script.calls] == ["a", "b", "c"]
    assert asyncio.all_tasks() == before
    assert repr(controller.queue) == "<Queue 'test' listed=0 waiting=0 processing=0>"


@pytest.mark.rules("U-31")
async def test_rc_14_stop_lets_workers_finish_what_they_hold(run, counters):
    ended = []

    async def slow():
        await anyio.sleep(20)
        ended.append(now())

    script = Script(slow)
    controller = build(script, counters, A, B)
    before = asyncio.all_tasks()
    async with run(controller) as stop:
        await anyio.sleep(1)
        stop.set()
    assert len(ended) == 1
    assert len(script.calls) == 1, "nothing new is begun after the stop"
    assert counters.counts == {"success": 1}
    assert asyncio.all_tasks() == before


@pytest.mark.rules("U-3")
async def test_wq_4_many_workers_never_hold_one_key(run, counters):
    held: set[Request] = set()
    runs = 0

    async def reconcile(request):
        nonlocal runs
        assert request not in held
        held.add(request)
        runs += 1
        await anyio.sleep(0.3)
        held.discard(request)

    async def feed(queue):
        for _ in range(100):
            for name in "abc":
                queue.add(Request("ns", name))
            await anyio.sleep(0.1)

    controller = Controller(
        "many",
        reconcile,
        sources=[FunctionSource(feed)],
        options=ControllerOptions(max_concurrent_reconciles=8),
        metrics=counters,
    )
    async with run(controller):
        await anyio.sleep(20)
    assert counters.workers == 8
    assert counters.most_busy == 3
    assert 80 < runs < 120
    assert counters.counts["error"] == 0


async def test_le_11_the_fence_is_asked_before_every_reconcile(counters):
    class NotLeader(Exception):
        pass

    leading = True
    calls = []

    async def reconcile(request):
        calls.append(request)

    def fence():
        if not leading:
            raise NotLeader("the lease ran out")

    async def feed(queue):
        nonlocal leading
        queue.add(A)
        await anyio.sleep(1)
        leading = False
        queue.add(B)

    controller = Controller("fenced", reconcile, sources=[FunctionSource(feed)], fence=fence, metrics=counters)
    with pytest.raises(NotLeader):
        await controller.run(anyio.Event())
    assert calls == [A]


async def test_px_1_cancel_at_any_await_leaves_the_key_done_and_the_counters_level(counters):
    """The reconciler waits at several places; cancel at every one of them in turn."""
    for turns in range(25):
        counters.counts.clear()
        entered = 0
        left = 0

        async def reconcile(request):
            nonlocal entered, left
            entered += 1
            try:
                await asyncio.sleep(0)
                async with anyio.create_task_group() as inner:
                    inner.start_soon(anyio.lowlevel.checkpoint)
                    await anyio.lowlevel.checkpoint()
                with anyio.move_on_after(5):
                    await anyio.lowlevel.checkpoint()
                return Result(requeue=entered % 2 == 0)
            finally:
                left += 1

        async def feed(queue):
            for name in "abcdef":
                queue.add(Request("ns", name))

        controller = Controller(
            "px",
            reconcile,
            sources=[FunctionSource(feed)],
            options=ControllerOptions(max_concurrent_reconciles=2, reconciliation_timeout=60),
            metrics=counters,
        )
        before = asyncio.all_tasks()
        task = asyncio.ensure_future(controller.run(anyio.Event()))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert entered == left
        assert counters.busy == 0
        assert sum(counters.counts.values()) <= entered
        assert asyncio.all_tasks() == before
        if controller.queue is not None:
            assert "locked=0" in repr(controller.queue)


async def test_workers_give_others_their_turn_when_reconciles_never_wait(run):
    ticks = 0
    clock = 0.0

    def time():
        nonlocal clock
        clock += 0.001
        return clock

    async def reconcile(request):
        if len(seen) < 500:
            controller.queue.add(request)
        seen.append(request)

    async def feed(queue):
        nonlocal ticks
        queue.add(A)
        while len(seen) < 500:
            ticks += 1
            await asyncio.sleep(0)

    seen: list[Request] = []
    controller = Controller("busy", reconcile, sources=[FunctionSource(feed)], time=time)
    async with run(controller):
        await anyio.sleep(1)
    assert ticks > 50


@pytest.mark.rules("PX-3")
@pytest.mark.parametrize("workers", [1, 8, 32])
async def test_many_workers_together_keep_the_loop_no_longer_than_one(run, workers):
    clock = 0.0
    gaps: list[float] = []

    async def reconcile(request):
        nonlocal clock
        clock += 0.001
        done.append(request)

    async def feed(queue):
        last = clock
        for number in range(500):
            queue.add(Request("ns", f"o{number}"))
        while len(done) < 500:
            await asyncio.sleep(0)
            gaps.append(clock - last)
            last = clock

    done: list[Request] = []
    options = ControllerOptions(max_concurrent_reconciles=workers)
    source = FunctionSource(feed)
    async with run(Controller("busy", reconcile, options=options, sources=[source], time=lambda: clock)):
        with anyio.fail_after(10):
            while len(done) < 500:
                await anyio.sleep(0.01)
    # 5 ms together, and one more key of each worker.
    assert max(gaps) <= 0.005 + 0.001 * (workers + 1) + 1e-9


@pytest.mark.rules("RC-6")
async def test_a_reconcile_that_blocks_the_loop_is_reported_with_its_key(run, counters):
    clock = 0.0

    async def reconcile(request):
        nonlocal clock
        bound.append(get_contextvars()["name"])
        await asyncio.sleep(0)
        clock += 2.5 if request == B else 0.4  # blocks, by this clock
        await asyncio.sleep(0)

    async def feed(queue):
        queue.add(A)
        queue.add(B)

    bound: list[str] = []
    controller = Controller("slow", reconcile, sources=[FunctionSource(feed)], metrics=counters, time=lambda: clock)
    with capture_logs(processors=[merge_contextvars]) as logs:
        async with run(controller):
            await anyio.sleep(1)
    assert bound == ["a", "b"]
    assert [(line["event"], line["name"], line["seconds"]) for line in logs] == [
        ("reconcile_blocked_event_loop", "b", 2.5)
    ]
    assert counters.counts == {"success": 2, "stalled": 1}


async def test_a_watched_coroutine_behaves_as_if_it_were_not():
    from pyreconcile.controller._stall import watched

    def watch(coroutine):
        return watched(coroutine, limit=9, time=now, stalled=lambda seconds: None)

    async def value():
        await asyncio.sleep(1)
        return 3

    async def handles_cancel():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            return "handled"

    async def raises():
        await asyncio.sleep(1)
        raise KeyError("x")

    assert await watch(value()) == 3
    with pytest.raises(KeyError):
        await watch(raises())
    with anyio.move_on_after(1) as scope:
        await watch(value())
        await watch(asyncio.sleep(60))
    assert scope.cancelled_caught

    async def outer():
        return await watch(handles_cancel())

    task = asyncio.ensure_future(outer())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "handled"
    closed = value()
    generator = watch(closed)
    generator.send(None)
    generator.close()
    assert closed.cr_frame is None
