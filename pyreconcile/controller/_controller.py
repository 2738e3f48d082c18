"""The controller: sources fill its queue, workers call the reconciler and act on what it says."""

from __future__ import annotations

import asyncio
import random as _random
import time as _time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Protocol, TypeAlias

import anyio
import anyio.lowlevel
import structlog
from structlog.contextvars import bind_contextvars, get_contextvars

from pyreconcile.api import Resource
from pyreconcile.cache import collect_own_writes
from pyreconcile.client import ApiError
from pyreconcile.controller._feed import Feed, wait_for_any
from pyreconcile.controller._hold import release
from pyreconcile.controller._options import ControllerOptions
from pyreconcile.controller._own_events import OwnEvents
from pyreconcile.controller._sources import Source
from pyreconcile.controller._stall import STALL, watched
from pyreconcile.controller._threads import ReconcileFunction, SyncReconcileFunction, as_coroutine_function
from pyreconcile.controller._types import (
    EXPECTED_ERRORS,
    ReconcileError,
    ReconcileTimeoutError,
    Request,
    Result,
    is_panic,
    is_terminal,
)
from pyreconcile.workqueue import PriorityQueue, Queue, QueueMetrics, ShutDown

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

log = structlog.get_logger()

WorkQueue: TypeAlias = PriorityQueue[Request] | Queue[Request]
"""The queue of a controller."""

_LONGEST_TURN = 0.005
"""Seconds that the workers may go without giving other tasks their turn, when reconciles never wait (PX-3)."""

_NOTHING = Result()


def new_reconcile_id() -> str:
    """Return a random UUID (RFC 9562, version 4). The uuid module takes four times as long, for each reconcile."""
    text = f"{_random.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{'89ab'[int(text[16], 16) & 3]}{text[17:20]}-{text[20:]}"


class ControllerMetrics(Protocol):
    """Receives the counts of one controller (names in runtime.md section 16)."""

    def reconciled(self, result: str, seconds: float, /) -> None:
        """Count one reconcile by result: success, error, requeue or requeue_after."""

    def error(self) -> None:
        """Count one failed reconcile."""

    def terminal_error(self) -> None:
        """Count one reconcile that failed for good."""

    def panic(self) -> None:
        """Count one exception that is none of the expected ones."""

    def timeout(self) -> None:
        """Count one reconcile that ran into its time limit."""

    def stalled(self, seconds: float, /) -> None:
        """Count one reconcile that kept the event loop from everything else for that long."""

    def max_concurrent(self, n: int, /) -> None:
        """Tell the number of workers."""

    def worker_busy(self, delta: int, /) -> None:
        """Change the number of workers at work."""


class Controller:
    """Reconciles requests from its sources, one worker per object at a time. The manager runs it.

    Made by `Builder.complete`; constructing one by hand is for sources and queues of your own.

    Args:
        name: names it in metrics and logs.
        reconcile: called for each request; a plain function runs in a worker thread.
        sources: fill the queue.
        options: concurrency, time limits, backoff.
        resource: the kind it is for, shown in logs.
        metrics: receives the counts of the controller.
        queue_metrics: receives the counts of the queue.
        fence: called before each reconcile; raises when this process must not act any more, which ends the
            controller with that error (LE-11).
        time: monotonic clock in seconds, for durations.
        new_id: makes the id of a reconcile.

    Raises:
        ValueError: the name is empty.
        TypeError: the reconciler cannot be called.
    """

    def __init__(
        self,
        name: str,
        reconcile: ReconcileFunction | SyncReconcileFunction,
        *,
        sources: tuple[Source, ...] | list[Source] = (),
        options: ControllerOptions | None = None,
        resource: Resource | None = None,
        metrics: ControllerMetrics | None = None,
        queue_metrics: QueueMetrics | None = None,
        fence: Callable[[], None] | None = None,
        time: Callable[[], float] = _time.perf_counter,
        new_id: Callable[[], object] = new_reconcile_id,
    ) -> None:
        if not name:
            raise ValueError("name: a controller needs one, for its metrics and logs")
        if not callable(reconcile):
            raise TypeError(f"reconcile: give a function that takes a Request, not {reconcile!r}")
        self.name = name
        self.options = options or ControllerOptions()
        self._reconcile = as_coroutine_function(reconcile, limit=self.concurrency)
        self._expected = EXPECTED_ERRORS + self.options.expected_errors
        self._feed = Feed(name, sources, timeout=self.options.cache_sync_timeout)
        self._resource = resource
        self._metrics = metrics or _NoMetrics()
        self._queue_metrics = queue_metrics
        self._fence = fence
        self._time = time
        self._new_id = new_id
        self._queue: WorkQueue | None = None
        self._own_events: OwnEvents | None = None
        self._started = False
        self._turn = 0.0  # when the workers' turn of the event loop began
        self._next_turn_is_due = False
        self._metrics.max_concurrent(self.concurrency)

    def __repr__(self) -> str:
        return f"<Controller {self.name!r}>"

    @property
    def needs_leader_election(self) -> bool:
        """Whether the manager runs it on the leader only."""
        return self.options.needs_leader_election

    @property
    def needs_warmup(self) -> bool:
        """Whether the manager runs `warm_up` before the election (RC-15)."""
        return self.options.enable_warmup and self.options.needs_leader_election

    @property
    def concurrency(self) -> int:
        """How many objects it reconciles at once."""
        return self.options.max_concurrent_reconciles or 1

    @property
    def queue(self) -> WorkQueue | None:
        """The work queue; None before the controller runs."""
        return self._queue

    def watch(self, source: Source) -> None:
        """Add a source; on a running controller it begins at once (RC-13)."""
        self._feed.add(source)

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Start the sources, then the workers; after ``stop`` let every worker finish the object in hand (RC-14).

        ``task_status.started()`` is called when all sources have synced and the workers begin. Cancellation ends
        reconciles where they wait; their keys are marked done all the same.

        Raises:
            RuntimeError: it ran before (RC-10).
            TimeoutError: a source had not synced after ``cache_sync_timeout``; the message names it (RC-11).
            Exception: from a source, the fence, or, with ``recover_panic=False``, a reconcile.
        """
        if self._started:
            raise RuntimeError(f"controller {self.name} was started before; build another one")
        self._started = True
        queue = self._open_queue()
        try:
            if self._feed.begun:
                await wait_for_any(self._feed.synced, stop)
                if self._feed.synced.is_set():
                    await self._work_until(stop, queue, task_status)
            else:
                async with self._feed.running(self._own_events or queue, stop) as synced:
                    if synced:
                        await self._work_until(stop, queue, task_status)
        except ExceptionGroup as group:
            raise _only(group) from None
        finally:
            queue.shutdown()

    async def warm_up(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Start the sources ahead of `run`, and keep them going until ``stop``: what happens piles up (RC-15).

        A standby that is elected then begins with the first reconcile. Sources start once, whichever of the two
        comes first.

        Raises:
            TimeoutError: as for `run`.
            Exception: from a source.
        """
        if self._feed.begun:
            task_status.started()
            await stop.wait()
            return
        queue = self._open_queue()
        try:
            async with self._feed.running(self._own_events or queue, stop) as synced:
                if synced:
                    task_status.started()
                    await stop.wait()
        except ExceptionGroup as group:
            raise _only(group) from None
        finally:
            queue.shutdown()

    def _open_queue(self) -> WorkQueue:
        if self._queue is None:
            options, metrics = self.options, self._queue_metrics
            if options.use_priority_queue:
                self._queue = PriorityQueue(
                    rate_limiter=options.rate_limiter, metrics=metrics, name=self.name, ageing=options.ageing
                )
            else:
                self._queue = Queue(rate_limiter=options.rate_limiter, metrics=metrics, name=self.name)
            if options.skip_own_writes:
                self._own_events = OwnEvents(self._queue)
        return self._queue

    # -- workers ---------------------------------------------------------------------------------------------------

    async def _work_until(self, stop: anyio.Event, queue: WorkQueue, task_status: TaskStatus[None]) -> None:
        task_status.started()
        async with anyio.create_task_group() as workers:
            for number in range(self.concurrency):
                workers.start_soon(self._work, queue, name=f"{self.name} worker {number}")
            await stop.wait()
            queue.shutdown()

    async def _work(self, queue: WorkQueue) -> None:
        # A task has its own context, so what is bound here reaches this worker's log lines only.
        resource = self._resource
        bind_contextvars(controller=self.name)
        if resource is not None:
            bind_contextvars(group=resource.group, kind=resource.kind)
        writes = collect_own_writes()
        own_events = self._own_events
        while True:
            try:
                request, priority = await queue.get_with_priority()
            except ShutDown:
                return
            writes.clear()  # of tasks that outlived their reconcile: they are not this key's
            if own_events is not None:
                own_events.begin(request)
            try:
                now = await self._process(queue, request, priority)
            except BaseException:
                if own_events is not None:
                    own_events.end(request)
                queue.done(request)
                raise
            release(queue, request, writes, own_events)
            if now - self._turn > _LONGEST_TURN:
                # The workers share a turn: each with one of its own, they would keep the loop for eight times as long.
                if not self._next_turn_is_due:
                    self._next_turn_is_due = True
                    asyncio.get_running_loop().call_soon(self._begin_turn)
                await anyio.lowlevel.checkpoint()

    def _begin_turn(self) -> None:
        self._next_turn_is_due = False
        self._turn = self._time()

    async def _process(self, queue: WorkQueue, request: Request, priority: int) -> float:
        """Reconcile one request and act on the outcome, in the order of section 3.1; return the time it ended."""
        if self._fence is not None:
            self._fence()
        metrics = self._metrics
        error: Exception | None = None
        result = _NOTHING
        metrics.worker_busy(1)
        started = self._time()
        try:
            bind_contextvars(namespace=request.namespace, name=request.name, reconcile_id=str(self._new_id()))
            result = await self._call(request)
        except Exception as caught:
            error = caught
        except asyncio.CancelledError as caught:
            if _is_cancelled():
                raise
            # Not meant for this worker: the reconciler awaited a task that something else had cancelled. Let through,
            # it would end the worker without a word.
            error = ReconcileError("a task that the reconciler awaited was cancelled")
            error.__cause__ = caught
        finally:
            ended = self._time()
            metrics.worker_busy(-1)
        if error is not None:
            metrics.error()
            metrics.reconciled("error", ended - started)
            self._failed(queue, request, priority, error)
            return ended
        if result.priority is not None:
            priority = result.priority
        if result.requeue_after > 0:
            metrics.reconciled("requeue_after", ended - started)
            queue.forget(request)
            queue.add_after(request, result.requeue_after, priority=priority)
        elif result.requeue:
            metrics.reconciled("requeue", ended - started)
            queue.add_rate_limited(request, priority=priority)
        else:
            metrics.reconciled("success", ended - started)
            queue.forget(request)
        return ended

    async def _call(self, request: Request) -> Result:
        timeout = self.options.reconciliation_timeout
        if timeout:
            result: Result | None = None
            with anyio.move_on_after(timeout) as scope:
                result = await self._watched(request)
            if scope.cancel_called:
                # Only the deadline cancels this scope; RC-6 counts it even when the reconciler made the best of it.
                self._metrics.timeout()
            if scope.cancelled_caught:
                raise ReconcileTimeoutError(f"no end within reconciliation_timeout={timeout:g} s")
        else:
            result = await self._watched(request)
        if result is None:
            return _NOTHING
        if not isinstance(result, Result):
            raise TypeError(f"reconcile returned {result!r}; return Result(requeue_after=seconds), or None")
        return result

    def _watched(self, request: Request) -> Awaitable[Result | None]:
        call = self._reconcile(request)
        if not isinstance(call, Coroutine):
            return call
        return watched(call, limit=STALL, time=self._time, stalled=self._stalled)

    def _stalled(self, seconds: float) -> None:
        self._metrics.stalled(seconds)
        log.warning(
            "reconcile_blocked_event_loop",
            seconds=round(seconds, 3),
            advice="await what waits, and put what computes or blocks into anyio.to_thread.run_sync",
        )

    def _failed(self, queue: WorkQueue, request: Request, priority: int, error: Exception) -> None:
        panic = is_panic(error, self._expected)
        if panic:
            self._metrics.panic()
        if is_terminal(error):
            self._metrics.terminal_error()
            log.error("reconcile_failed_for_good", error=str(error) or repr(error), exc_info=error)
            return
        if panic and not self.options.recover_panic:
            raise error
        queue.add_rate_limited(request, priority=priority)
        log.error(
            "reconcile_failed",
            error=str(error) or repr(error),
            failures=queue.num_requeues(request),
            panic=panic,
            # The server's refusals say it all; where else an error came from, only the traceback tells.
            exc_info=None if isinstance(error, ApiError | ReconcileTimeoutError) else error,
        )


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _only(error: Exception) -> Exception:
    """Take an exception out of the groups that task groups wrap around it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def current_reconcile_id() -> str | None:
    """Return the id of the reconcile that calls, as its log lines show it (RC-4); None outside of one."""
    value = get_contextvars().get("reconcile_id")
    return None if value is None else str(value)


class _NoMetrics:
    """Counts nothing."""

    def reconciled(self, result: str, seconds: float) -> None:
        pass

    def error(self) -> None:
        pass

    def terminal_error(self) -> None:
        pass

    def panic(self) -> None:
        pass

    def timeout(self) -> None:
        pass

    def stalled(self, seconds: float) -> None:
        pass

    def max_concurrent(self, n: int) -> None:
        pass

    def worker_busy(self, delta: int) -> None:
        pass
