"""Runnables, and groups of them that start and stop together (rules MG-1 to MG-6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

log = structlog.get_logger()


class Runnable(Protocol):
    """Something a manager runs.

    ``needs_leader_election`` says whether it runs only on the leader; one that does not say so does (rule MG-3).
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
    def running(self) -> list[str]:
        """The names of the runnables that have not ended."""
        return [entry.name for entry in self._entries]

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
        entry = _Entry(runnable_name(runnable))
        self._entries[entry] = None
        tasks.start_soon(self._run, runnable, entry, name=f"{self.name}: {entry.name}")

    async def _run(self, runnable: Runnable, entry: _Entry) -> None:
        try:
            with entry.scope:
                await runnable.run(self._stop, task_status=_Ready(entry.ready))
                log.debug("runnable_ended", group=self.name, runnable=entry.name)
        except Exception as error:
            self._on_error(entry.name, _only(error))
        finally:
            del self._entries[entry]
            entry.ready.set()
            entry.ended.set()


async def _wait_ended(entries: Iterable[_Entry]) -> None:
    for entry in list(entries):
        await entry.ended.wait()


def _only(error: Exception) -> Exception:
    """Take an exception out of the groups that task groups wrap around it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
