"""Runnables, and groups of them that start and stop together (rules MG-1 to MG-6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

log = structlog.get_logger()


class Runnable(Protocol):
    """Something a manager runs.

    ``needs_leader_election`` says whether it runs only on the leader; one that does not say so does. A leader-only one
    may also have ``needs_warmup``, true, and a method ``warm_up`` of the form of ``run``: the manager then calls that
    before the election, on every replica, and keeps it running beside ``run`` (rule MG-3).
    """

    @property
    def name(self) -> str:
        """Names it in logs and errors."""
        ...

    @property
    def needs_leader_election(self) -> bool:
        """Whether it may run on the leader only."""
        ...

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
        """Work until ``stop`` is set, then end in good order.

        Call ``task_status.started()`` once up. Returning early is no error; raising stops the manager. Cancellation
        asks for an immediate end.
        """
        ...


def runnable_name(runnable: object) -> str:
    """Return the name of a runnable, or of its class."""
    return str(getattr(runnable, "name", "") or type(runnable).__name__)


@dataclass(eq=False)
class _Entry:
    name: str
    runnable: Runnable
    ready: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class _Ready(TaskStatus[None]):
    def __init__(self, ready: anyio.Event) -> None:
        self._ready = ready

    def started(self, value: None = None) -> None:
        self._ready.set()


class RunnableGroup:
    """Runnables of one kind; added before the start they wait for it, afterwards they start at once (rule MG-4).

    Args:
        name: names the group in logs.
        on_error: told the name and the exception of each runnable that fails.
    """

    def __init__(self, name: str, on_error: Callable[[str, Exception], None]) -> None:
        self.name = name
        self._on_error = on_error
        self._waiting: list[Runnable] = []
        self._entries: dict[_Entry, None] = {}
        self._stop = anyio.Event()
        self._tasks: TaskGroup | None = None

    def add(self, runnable: Runnable) -> None:
        """Add a runnable."""
        if self._tasks is None:
            self._waiting.append(runnable)
        else:
            self._launch(runnable, self._tasks)

    def start(self, tasks: TaskGroup) -> None:
        """Start all runnables in ``tasks``, side by side."""
        self._tasks = tasks
        waiting, self._waiting = self._waiting, []
        for runnable in waiting:
            self._launch(runnable, tasks)

    async def wait_ready(self) -> None:
        """Wait until each runnable has said that it is up, or has ended."""
        for entry in list(self._entries):
            await entry.ready.wait()

    @property
    def runnables(self) -> list[Runnable]:
        """The runnables that have not ended, or have still to start."""
        return [*self._waiting, *(entry.runnable for entry in list(self._entries))]

    @property
    def running(self) -> list[str]:
        """The names of the runnables that have not ended."""
        return [entry.name for entry in self._entries]

    def ask_to_stop(self) -> None:
        """Ask all runnables to end, without waiting for that."""
        self._stop.set()

    async def stop(self) -> None:
        """Ask all runnables to end, and wait until they have."""
        self._stop.set()
        await _wait_ended(self._entries)

    async def cancel(self, *others: RunnableGroup) -> None:
        """Cancel all runnables of this group and of ``others`` at once, and wait until they ended."""
        groups = (self, *others)
        for group in groups:
            group._stop.set()
            for entry in group._entries:
                entry.scope.cancel()
        for group in groups:
            await _wait_ended(group._entries)

    def _launch(self, runnable: Runnable, tasks: TaskGroup) -> None:
        entry = _Entry(runnable_name(runnable), runnable)
        self._entries[entry] = None
        tasks.start_soon(self._run, runnable, entry, name=f"{self.name}: {entry.name}")

    async def _run(self, runnable: Runnable, entry: _Entry) -> None:
        try:
            with entry.scope:
                await runnable.run(self._stop, task_status=_Ready(entry.ready))
                log.debug("runnable_ended", group=self.name, runnable=entry.name)
        except asyncio.CancelledError as error:
            if not nobody_cancelled():
                raise
            # Let through, it would end the whole group without a word; during a stop it is how things end (rule MG-5).
            if not self._stop.is_set():
                failure = RuntimeError(f"runnable {entry.name!r}: a task that it awaited was cancelled")
                failure.__cause__ = error
                self._on_error(entry.name, failure)
        except Exception as error:
            self._on_error(entry.name, _only(error))
        finally:
            del self._entries[entry]
            entry.ready.set()
            entry.ended.set()


class WarmUp:
    """The part of a leader-only runnable that runs before the election (rule MG-3)."""

    needs_leader_election = False

    def __init__(self, runnable: Runnable) -> None:
        self.name = f"{runnable_name(runnable)} warmup"
        self._warm_up: Callable[..., Awaitable[None]] = runnable.warm_up  # type: ignore[attr-defined]

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
        """Warm up, until ``stop`` is set."""
        await self._warm_up(stop, task_status=task_status)


def nobody_cancelled() -> bool:
    """Tell, while handling a CancelledError, whether it came out of a task that was awaited and cancelled elsewhere."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


async def _wait_ended(entries: Iterable[_Entry]) -> None:
    for entry in list(entries):
        await entry.ended.wait()


def _only(error: Exception) -> Exception:
    """Take an exception out of the groups that task groups wrap around it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
