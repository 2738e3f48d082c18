"""A manager that needs no API server, and runnables that tell what happens to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import TaskStatus

from pyreconcile.client import ConnectOptions
from pyreconcile.manager import Manager, ManagerOptions


class Recorder:
    """Makes runnables that write down when they start and stop."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def runnable(self, name: str, **options: Any) -> Worker:
        return Worker(self.log, name, **options)


class Worker:
    def __init__(
        self,
        log: list[str],
        name: str,
        *,
        leader: bool | None = None,
        up_after: float = 0,
        stop_takes: float = 0,
        fail_at: float | None = None,
        fail_in_stop: Exception | None = None,
        error: Exception | None = None,
    ) -> None:
        self.name = name
        if leader is not None:
            self.needs_leader_election = leader
        self._log = log
        self._up_after = up_after
        self._stop_takes = stop_takes
        self._fail_at = fail_at
        self._fail_in_stop = fail_in_stop
        self._error = error or RuntimeError(f"{name} failed")

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
        self._log.append(f"{self.name} begins")
        try:
            await anyio.sleep(self._up_after)
            task_status.started()
            with anyio.move_on_after(float("inf") if self._fail_at is None else self._fail_at):
                await stop.wait()
                self._log.append(f"{self.name} stopping")
                await anyio.sleep(self._stop_takes)
                if self._fail_in_stop is not None:
                    raise self._fail_in_stop
                return
            raise self._error
        except BaseException as error:
            self._log.append(f"{self.name} {'cancelled' if not isinstance(error, Exception) else 'fails'}")
            raise
        finally:
            self._log.append(f"{self.name} ended")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def local_manager() -> Callable[..., Any]:
    """Open a manager whose client has nobody to talk to; all servers are off."""
    from kubernetes_asyncio.client import Configuration

    @asynccontextmanager
    async def open_manager(*, elector: Any = None, exit_process: Any = None, **options: Any) -> AsyncIterator[Manager]:
        settings = {
            "connect": ConnectOptions(configuration=Configuration(host="http://127.0.0.1:1")),
            "metrics_bind_address": "0",
            "health_probe_bind_address": "0",
            **options,
        }
        extra = {} if exit_process is None else {"exit_process": exit_process}
        async with Manager(ManagerOptions(**settings), elector=elector, **extra) as manager:
            yield manager

    return open_manager
