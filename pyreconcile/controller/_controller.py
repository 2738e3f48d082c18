"""The controller: sources fill its queue, workers call the reconciler and act on what it says."""

from __future__ import annotations

import asyncio
import time as _time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import anyio
import anyio.lowlevel
import structlog
from structlog.contextvars import bind_contextvars, get_contextvars

from pyreconcile.api import Resource
from pyreconcile.client import ApiError
from pyreconcile.controller._options import ControllerOptions
from pyreconcile.controller._sources import Source
from pyreconcile.controller._types import ReconcileTimeoutError, Request, Result, is_bug, is_terminal
from pyreconcile.workqueue import PriorityQueue, Queue, QueueMetrics, ShutDown

if TYPE_CHECKING:
    from anyio.abc import TaskGroup, TaskStatus

log = structlog.get_logger()

ReconcileFunction: TypeAlias = Callable[[Request], Awaitable[Result | None]]
"""What a controller calls for each request."""

_LONGEST_TURN = 0.005
"""Seconds a worker may go without giving other tasks their turn, when reconciles never wait."""

_NOTHING = Result()


class ControllerMetrics(Protocol):
    """Receives the counts of one controller (names in runtime.md section 16)."""

    def reconciled(self, result: str, seconds: float, /) -> None:
        """Count one reconcile by result: success, error, requeue or requeue_after."""

    def error(self) -> None:
        """Count one failed reconcile."""

    def terminal_error(self) -> None:
        """Count one reconcile that failed for good."""

    def panic(self) -> None:
        """Count one exception that speaks of a bug."""

    def timeout(self) -> None:
        """Count one reconcile that ran into its time limit."""

    def max_concurrent(self, n: int, /) -> None:
        """Tell the number of workers."""

    def worker_busy(self, delta: int, /) -> None:
        """Change the number of workers at work."""


class Controller:
    """Reconciles requests from its sources, one worker per object at a time. The manager runs it.

    Made by `Builder.complete`; constructing one by hand is for sources and queues of your own.

    Args:
        name: names it in metrics and logs.
        reconcile: called for each request.
        sources: fill the queue.
        options: concurrency, time limits, backoff.
        resource: the kind it is for, shown in logs.
        metrics: receives the counts of the controller.
        queue_metrics: receives the counts of the queue.
        fence: called before each reconcile; raises when this process must not act any more, which ends the
            controller with that error (LE-11).
        time: monotonic clock in seconds, for durations.
        new_id: makes the id of a reconcile.
    """

    def __init__(
        self,
        name: str,
        reconcile: ReconcileFunction,
        *,
        sources: tuple[Source, ...] | list[Source] = (),
        options: ControllerOptions | None = None,
        resource: Resource | None = None,
        metrics: ControllerMetrics | None = None,
        queue_metrics: QueueMetrics | None = None,
        fence: Callable[[], None] | None = None,
        time: Callable[[], float] = _time.perf_counter,
        new_id: Callable[[], object] = uuid.uuid4,
    ) -> None:
        self.name = name
        self.options = options or ControllerOptions()
        self._reconcile = reconcile
        self._sources: list[Source] = list(sources)
        self._resource = resource
        self._metrics = metrics or _NoMetrics()
        self._queue_metrics = queue_metrics
        self._fence = fence
        self._time = time
        self._new_id = new_id
        self._queue: PriorityQueue[Request] | Queue[Request] | None = None
        self._tasks: TaskGroup | None = None
        self._started = False
        self._metrics.max_concurrent(self.concurrency)

    def __repr__(self) -> str:
        return f"<Controller {self.name!r}>"

    @property
    def needs_leader_election(self) -> bool:
        """Whether the manager runs it on the leader only."""
        return self.options.needs_leader_election

    @property
    def concurrency(self) -> int:
        """How many objects it reconciles at once."""
        return self.options.max_concurrent_reconciles or 1

    @property
    def queue(self) -> PriorityQueue[Request] | Queue[Request] | None:
        """The work queue; None before the controller runs."""
        return self._queue

    def watch(self, source: Source) -> None:
        """Add a source; on a running controller it begins at once (RC-13)."""
        if self._tasks is not None and self._queue is not None:
            self._tasks.start_soon(self._feed, source, self._queue)
        else:
            self._sources.append(source)

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
        try:
            await self._run(stop, task_status)
        except ExceptionGroup as group:
            raise _only(group) from None

    async def _run(self, stop: anyio.Event, task_status: TaskStatus[None]) -> None:
        queue = self._queue = self._new_queue()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                if await self._sync(tasks, queue, stop):
                    task_status.started()
                    async with anyio.create_task_group() as workers:
                        for number in range(self.concurrency):
                            workers.start_soon(self._work, queue, name=f"{self.name} worker {number}")
                        await stop.wait()
                        queue.shutdown()
            finally:
                self._tasks = None
                queue.shutdown()
            tasks.cancel_scope.cancel()

    def _new_queue(self) -> PriorityQueue[Request] | Queue[Request]:
        options = self.options
        if options.use_priority_queue:
            return PriorityQueue(
                rate_limiter=options.rate_limiter,
                metrics=self._queue_metrics,
                name=self.name,
                ageing=options.ageing,
            )
        return Queue(rate_limiter=options.rate_limiter, metrics=self._queue_metrics, name=self.name)

    # -- sources ---------------------------------------------------------------------------------------------------

    async def _sync(self, tasks: TaskGroup, queue: PriorityQueue[Request] | Queue[Request], stop: anyio.Event) -> bool:
        """Start all sources side by side; return whether they synced before the stop."""
        sources, self._sources = self._sources, []
        waiting = {id(source): source.name for source in sources}
        timeout = self.options.cache_sync_timeout
        synced = False

        async def start(source: Source) -> None:
            await tasks.start(source.run, queue, name=f"{self.name} {source.name}")
            del waiting[id(source)]

        async def watch_stop() -> None:
            await stop.wait()
            starting.cancel_scope.cancel()

        with anyio.move_on_after(timeout or None) as limit:
            async with anyio.create_task_group() as starting:
                starting.start_soon(watch_stop)
                async with anyio.create_task_group() as starts:
                    for source in sources:
                        starts.start_soon(start, source)
                synced = not waiting
                starting.cancel_scope.cancel()
        if limit.cancelled_caught and not synced and not stop.is_set():
            raise TimeoutError(
                f"controller {self.name}: no sync within {timeout:g} s of {', '.join(sorted(waiting.values()))}; "
                "is the CRD installed, and may this account list and watch the kind?"
            )
        return synced

    async def _feed(self, source: Source, queue: PriorityQueue[Request] | Queue[Request]) -> None:
        await source.run(queue, task_status=anyio.TASK_STATUS_IGNORED)

    # -- workers ---------------------------------------------------------------------------------------------------

    async def _work(self, queue: PriorityQueue[Request] | Queue[Request]) -> None:
        # A task has its own context, so what is bound here reaches this worker's log lines only.
        resource = self._resource
        bind_contextvars(controller=self.name)
        if resource is not None:
            bind_contextvars(group=resource.group, kind=resource.kind)
        turn = self._time()
        while True:
            try:
                request, priority = await queue.get_with_priority()
            except ShutDown:
                return
            try:
                now = await self._process(queue, request, priority)
            finally:
                queue.done(request)
            if now - turn > _LONGEST_TURN:
                await anyio.lowlevel.checkpoint()
                turn = self._time()

    async def _process(self, queue: PriorityQueue[Request] | Queue[Request], request: Request, priority: int) -> float:
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
            error = RuntimeError("a task that the reconciler awaited was cancelled")
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
                result = await self._reconcile(request)
            if scope.cancel_called:
                # Only the deadline cancels this scope; RC-6 counts it even when the reconciler made the best of it.
                self._metrics.timeout()
            if scope.cancelled_caught:
                raise ReconcileTimeoutError(f"no end within reconciliation_timeout={timeout:g} s")
        else:
            result = await self._reconcile(request)
        if result is None:
            return _NOTHING
        if not isinstance(result, Result):
            raise TypeError(f"reconcile returned {result!r}; return Result(requeue_after=seconds), or None")
        return result

    def _failed(
        self, queue: PriorityQueue[Request] | Queue[Request], request: Request, priority: int, error: Exception
    ) -> None:
        bug = is_bug(error)
        if bug:
            self._metrics.panic()
        if is_terminal(error):
            self._metrics.terminal_error()
            log.error("reconcile_failed_for_good", error=str(error) or repr(error), exc_info=error)
            return
        if bug and not self.options.recover_panic:
            raise error
        queue.add_rate_limited(request, priority=priority)
        log.error(
            "reconcile_failed",
            error=str(error) or repr(error),
            failures=queue.num_requeues(request),
            # The server's refusals say it all; where else an error came from, only the traceback tells.
            exc_info=None if isinstance(error, ApiError) else error,
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

    def max_concurrent(self, n: int) -> None:
        pass

    def worker_busy(self, delta: int) -> None:
        pass
