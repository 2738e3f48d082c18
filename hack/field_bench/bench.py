"""Runs of a case, many of them at once where they are independent, and what came of each."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

import anyio
from anyio.abc import TaskGroup, TaskStatus

from hack.field_bench.judge import Judge
from hack.field_bench.program import Program, program
from pyreconcile.testing import ControlPlane, FaultProxy

Programs: TypeAlias = Callable[[str], Path]
"""Gives the file of a program under test."""


@dataclass
class Run:
    """One run of a case: a namespace of its own, a proxy, and the judge.

    Attributes:
        number: 1 for the first run.
        namespace: its name.
        judge: the client that decides.
        proxy: what the first program goes through.
        kubeconfig: the administrator's, past the proxy.
        scratch: a folder for logs.
        meeting: where the runs of a batch wait for each other.
    """

    number: int
    namespace: str
    judge: Judge
    proxy: FaultProxy
    kubeconfig: Path
    scratch: Path
    meeting: Meeting
    _stack: AsyncExitStack = field(repr=False)
    _tasks: TaskGroup = field(repr=False)
    _programs: int = 0

    @property
    def config_maps(self) -> str:
        """The path of the namespace's ConfigMaps."""
        return f"/api/v1/namespaces/{self.namespace}/configmaps"

    async def start(self, script: Path, *arguments: object, proxy: FaultProxy | None = None) -> Program:
        """Start a program whose first arguments are the proxy's kubeconfig and the namespace."""
        self._programs += 1
        log = self.scratch / f"{self.namespace}-{script.stem}-{self._programs}.log"
        kubeconfig = (proxy or self.proxy).kubeconfig

        async def host(*, task_status: TaskStatus[Program]) -> None:
            async with program(script, kubeconfig, self.namespace, *arguments, log=log) as started:
                task_status.started(started)
                await anyio.sleep_forever()

        started: Program = await self._tasks.start(host)
        return started

    async def another_proxy(self) -> FaultProxy:
        """Start one more proxy, for a second program."""
        return await self._stack.enter_async_context(FaultProxy(self.kubeconfig))


class Meeting:
    """Lets the runs of a batch do one thing together, such as restarting the server that they share."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._waiting = 0
        self._done = anyio.Event()

    async def do(self, action: Callable[[], Awaitable[None]]) -> None:
        """Wait for all runs that are still going on; the last one does it."""
        self._waiting += 1
        self._action = action
        done = self._done
        await self._perhaps()
        await done.wait()

    async def leave(self) -> None:
        """Be waited for no longer."""
        self._members -= 1
        await self._perhaps()

    async def _perhaps(self) -> None:
        if self._waiting and self._waiting == self._members:
            self._waiting = 0
            done, self._done = self._done, anyio.Event()
            await self._action()
            done.set()


Case: TypeAlias = Callable[[Run], Awaitable[None]]
"""One run of a case; raises when it goes wrong."""


class Repeat(Protocol):
    """Runs a case as often as asked for."""

    async def __call__(
        self, case: Case | Mapping[str, Case], /, *, at_once: int, seconds: float, plane: ControlPlane | None = None
    ) -> None:
        """Run it.

        Args:
            case: the case, or its variants by name; each run then is one of each, at the same time.
            at_once: how many runs go on at the same time.
            seconds: how long a run may take.
            plane: where, if not on the session's control plane.

        Raises:
            FailedRunsError: one or more runs went wrong.
        """


async def restart_api_server(plane: ControlPlane) -> None:
    """End the API server and start it again. It is killed: with open watches it takes 20 s to end by itself."""
    await plane.kill("kube-apiserver")
    await plane.restart("kube-apiserver")


@dataclass
class Outcome:
    """What came of one run."""

    case: str
    number: int
    seconds: float
    error: BaseException | None = None


class FailedRunsError(AssertionError):
    """Some runs of a case went wrong."""


@asynccontextmanager
async def _opened(kubeconfig: Path, name: str, number: int, scratch: Path, meeting: Meeting) -> AsyncIterator[Run]:
    async with AsyncExitStack() as stack:
        judge = await stack.enter_async_context(Judge(kubeconfig))
        proxy = await stack.enter_async_context(FaultProxy(kubeconfig))
        namespace = f"{name}-{secrets.token_hex(3)}"
        await judge.create_namespace(namespace)
        try:
            async with anyio.create_task_group() as tasks:
                yield Run(number, namespace, judge, proxy, kubeconfig, scratch, meeting, stack, tasks)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(10):
                await judge.delete(f"/api/v1/namespaces/{namespace}")


async def run_batch(runs: Sequence[tuple[str, int, Case]], kubeconfig: Path, *, seconds: float) -> list[Outcome]:
    """Do several runs at once. An error of one does not end the others.

    Args:
        runs: name and number of each, and the case.
        kubeconfig: the cluster.
        seconds: how long a run may take.
    """
    meeting = Meeting(len(runs))
    outcomes: list[Outcome] = []

    async def one(name: str, number: int, case: Case) -> None:
        began = time.monotonic()
        error: Exception | None = None
        try:
            with anyio.fail_after(seconds):
                async with _opened(kubeconfig, name[:40].strip("-"), number, scratch, meeting) as run:
                    await case(run)
        except Exception as caught:
            error = caught
        await meeting.leave()
        outcomes.append(Outcome(name, number, time.monotonic() - began, error))

    with tempfile.TemporaryDirectory(prefix="pyreconcile-field-") as folder:
        scratch = Path(folder)
        async with anyio.create_task_group() as tasks:
            for run in runs:
                tasks.start_soon(one, *run)
    return outcomes
