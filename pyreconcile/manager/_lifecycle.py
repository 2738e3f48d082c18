"""The course of a manager's life: groups start in order, and stop in order (rules MG-1 to MG-6, LE-8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from pyreconcile.election import LeadershipLostError, NotLeaderError
from pyreconcile.manager._groups import Runnable, RunnableGroup, WarmUp, nobody_cancelled, runnable_name
from pyreconcile.webhook import WebhookServer

log = structlog.get_logger()

LAST_WAIT: Final = 10.0
"""Seconds that cancelled runnables have to end. One that shields itself, or waits for a thread, may never do."""


class GracefulTimeoutError(Exception):
    """Something did not end within the graceful shutdown timeout and was cancelled."""


class Election(Protocol):
    """What a manager needs of an elector."""

    elected: anyio.Event

    async def run(self, stop: anyio.Event) -> None:
        """Take part until ``stop`` is set; raise when leadership is lost. Returning earlier counts as a loss."""
        ...


class Lifecycle:
    """Runs groups of runnables, and the election between them.

    Args:
        election: says when leader-only runnables may start; None for at once.
        grace: seconds that everything has to end in good order; negative for ever.
        exit_process: ends the process when leadership is lost and something does not end (rule LE-8).
        owns_process: whether ``exit_process`` is also to be called when something does not end after the grace.
    """

    def __init__(
        self,
        election: Election | None,
        *,
        grace: float,
        exit_process: Callable[[int], object],
        owns_process: bool,
    ) -> None:
        self.elected = anyio.Event()
        self.stop_wanted = anyio.Event()
        self.started = False
        self.hooks: list[Callable[[], Awaitable[None]]] = []

        # In the order of starting (rule MG-1).
        self.http = RunnableGroup("http", self._fail)
        self.webhooks = RunnableGroup("webhooks", self._fail)
        self.caches = RunnableGroup("caches", self._fail)
        self.others = RunnableGroup("others", self._fail)
        self.warmup = RunnableGroup("warmup", self._fail)
        self.leader_only = RunnableGroup("leader-only", self._fail)

        self._election = election
        self._grace = grace
        self._exit_process = exit_process
        self._owns_process = owns_process
        self._workers_ended = anyio.Event()
        self._election_begins = anyio.Event()
        self._election_over = anyio.Event()
        self._starting = anyio.CancelScope()
        self._stopping = anyio.CancelScope()
        self._lost = False
        self._error: Exception | None = None
        self._stop_error: Exception | None = None

    @property
    def groups(self) -> tuple[RunnableGroup, ...]:
        """All groups, in the order of starting."""
        return self.http, self.webhooks, self.caches, self.others, self.warmup, self.leader_only

    def add(self, runnable: Runnable) -> None:
        """Put a runnable into its group; it starts with the group, or at once.

        Raises:
            RuntimeError: the manager is stopping.
        """
        if self.stop_wanted.is_set():
            raise RuntimeError(f"cannot add {runnable_name(runnable)!r}: the manager is stopping")
        if isinstance(runnable, WebhookServer):
            self.webhooks.add(runnable)
        elif getattr(runnable, "needs_leader_election", True):
            if getattr(runnable, "needs_warmup", False):
                self.warmup.add(WarmUp(runnable))
            self.leader_only.add(runnable)
        else:
            self.others.add(runnable)

    async def run(
        self,
        last: Callable[[anyio.Event], Coroutine[Any, Any, None]],
        stop: anyio.Event | None,
        task_status: TaskStatus[None],
    ) -> None:
        """Run until a stop is wanted; ``last`` runs from before the first to after the last runnable.

        Raises:
            GracefulTimeoutError: something did not end in time.
            Exception: what the first runnable failed with, or the election.
        """
        self.started = True
        async with anyio.create_task_group() as services:
            services.start_soon(self._run_services, last)
            try:
                async with anyio.create_task_group() as tasks:
                    await self._run_tasks(tasks, stop, task_status)
                    tasks.cancel_scope.cancel()
            finally:
                self.stop_wanted.set()
                self._workers_ended.set()
                self._election_begins.set()
        self._raise_errors()

    async def _run_tasks(self, tasks: TaskGroup, stop: anyio.Event | None, task_status: TaskStatus[None]) -> None:
        if stop is not None:
            tasks.start_soon(self._await_stop, stop)
        tasks.start_soon(self._start_in_order, tasks, task_status)
        await self.stop_wanted.wait()
        if not self.elected.is_set():
            self._election_over.set()  # rule LE-10
        await self._stop_in_order()

    async def _await_stop(self, stop: anyio.Event) -> None:
        await stop.wait()
        self.stop_wanted.set()

    async def _start_in_order(self, tasks: TaskGroup, task_status: TaskStatus[None]) -> None:
        with self._starting:
            for group in (self.http, self.webhooks, self.caches):
                group.start(tasks)
                await group.wait_ready()
                if self.stop_wanted.is_set():
                    return
            self.others.start(tasks)
            self.warmup.start(tasks)
            if self._election is not None:
                task_status.started()
                self._election_begins.set()
                await self._election.elected.wait()
            if not self.stop_wanted.is_set():
                self.elected.set()
                await self._run_hooks()
            if not self.stop_wanted.is_set():
                self.leader_only.start(tasks)
                if self._election is None:
                    task_status.started()

    async def _run_hooks(self) -> None:
        try:
            for hook in self.hooks:
                await hook()
        except asyncio.CancelledError as error:
            if not nobody_cancelled():
                raise
            failure = RuntimeError("before_leading: a task that a hook awaited was cancelled")
            failure.__cause__ = error
            self._fail("before_leading", failure)
        except Exception as error:
            self._fail("before_leading", error)

    async def _stop_in_order(self) -> None:
        self._starting.cancel()
        self.warmup.ask_to_stop()  # beside the others (rule MG-2)
        groups = [self.others, self.leader_only, self.warmup, self.caches, self.webhooks, self.http]
        grace = self._grace
        asked: list[RunnableGroup] = []
        with self._stopping:
            if grace >= 0:
                self._stopping.deadline = anyio.current_time() + grace
            for group in groups:
                asked.append(group)
                await group.stop()
        if not self._stopping.cancel_called:
            return
        late = [name for group in asked for name in group.running]
        if late and grace > 0 and not self._lost:
            self._stop_error = GracefulTimeoutError(
                f"graceful_shutdown_timeout: {grace:g} s were not enough to stop {', '.join(map(repr, late))}"
            )
        with anyio.move_on_after(LAST_WAIT) as limit:
            await self._cancel_in_order()
        if limit.cancelled_caught:
            self._give_up(exits=self._owns_process)
            await self._cancel_in_order()

    async def _cancel_in_order(self) -> None:
        await self.others.cancel(self.leader_only, self.warmup)
        for group in (self.caches, self.webhooks, self.http):
            await group.cancel()

    def _give_up(self, *, exits: bool) -> None:
        """Say what does not end, and end the process: tasks that are not ended cannot be left behind."""
        stuck = [name for group in self.groups for name in group.running]
        log.error("runnables_do_not_end", runnables=stuck, seconds=LAST_WAIT, exiting=exits)
        if exits:
            self._exit_process(1)

    async def _run_services(self, last: Callable[[anyio.Event], Coroutine[Any, Any, None]]) -> None:
        """Run what must outlive the workers, also when the manager is cancelled; the election ends first."""
        last_stop = anyio.Event()
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(last, last_stop)
                try:
                    await self._run_election()
                    if self._lost:
                        with anyio.move_on_after(LAST_WAIT) as limit:
                            await self._workers_ended.wait()
                        if limit.cancelled_caught:
                            self._give_up(exits=True)
                    await self._workers_ended.wait()
                finally:
                    last_stop.set()

    async def _run_election(self) -> None:
        await self._election_begins.wait()
        if self._election is None or self.stop_wanted.is_set():
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_election)
            try:
                await self._election.run(self._election_over)
                if not self._election_over.is_set():
                    raise LeadershipLostError("the election ended by itself, before what may run on the leader only")
            except asyncio.CancelledError as error:
                if not nobody_cancelled():
                    raise
                loss = LeadershipLostError("the election ended: a task that it awaited was cancelled")
                loss.__cause__ = error
                self._lose(loss)
            except Exception as error:
                self._lose(error)
            tasks.cancel_scope.cancel()

    def _lose(self, error: Exception) -> None:
        # No graceful time from here on: others may lead by now (rule LE-8).
        self._lost = True
        if isinstance(self._error, NotLeaderError):
            self._error = error  # a worker's fence noticed first; this is why
        elif self.stop_wanted.is_set():
            self._stop_error = error
        self._fail("election", error)
        self._stopping.cancel()

    async def _end_election(self) -> None:
        await self._workers_ended.wait()
        self._election_over.set()

    def _fail(self, name: str, error: Exception) -> None:
        if self.stop_wanted.is_set():
            log.error("runnable_failed_while_stopping", runnable=name, error=repr(error))
            return
        log.error("runnable_failed", runnable=name, error=repr(error))
        self._error = error
        self.stop_wanted.set()

    def _raise_errors(self) -> None:
        errors = [error for error in (self._error, self._stop_error) if error is not None]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("the manager failed, and did not stop in time", errors)
