"""A program under test, as an ordinary process."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

Line = dict[str, Any]

_LINE_BYTES = 1 << 24
_KILL_SECONDS = 20.0
_PATIENCE = 180.0
"""Seconds to wait for what is not judged by its time: dozens of programs may be starting on two cores."""


class Program:
    """What a program told, and how to talk to it.

    Attributes:
        told: everything it told so far, in order.
        log: the file with its standard error, the framework's log included.
    """

    def __init__(self, process: Process, log: Path) -> None:
        self._process = process
        self.told: list[Line] = []
        self.log = log
        self._news = anyio.Event()
        self._silent = False

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.returncode

    def said(self, what: str, *, since: float = 0.0, **fields: Any) -> list[Line]:
        """Return the lines of one sort whose fields are these."""
        return [line for line in self.told if line["time"] >= since and _is(line, what, fields)]

    async def says(
        self, what: str, *, count: int = 1, since: float = 0.0, timeout: float = _PATIENCE, **fields: Any
    ) -> Line:
        """Wait until it has told something so often, and return the last of these lines.

        Raises:
            AssertionError: it did not in time; the message has the end of its log.
        """
        with anyio.move_on_after(timeout):
            while True:
                news = self._news
                found = self.said(what, since=since, **fields)
                if len(found) >= count:
                    return found[count - 1]
                if self._silent:
                    break
                await news.wait()
        wanted = " ".join([what, *(f"{name}={value}" for name, value in fields.items())])
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        last = "\n".join(map(str, self.told[-10:]))
        raise AssertionError(
            f"not told {count} times within {timeout:g} s: {wanted}; exit code {self.exit_code}; "
            f"told last:\n{last}\nlast lines of its log:\n{tail}"
        )

    async def ask(self, question: str) -> Line:
        """Send a line, and return what it answers, which has the line as its ``what``."""
        before = len(self.said(question))
        assert self._process.stdin is not None
        await self._process.stdin.send(f"{question}\n".encode())
        return await self.says(question, count=before + 1)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    async def ended(self, *, timeout: float = _PATIENCE) -> int:
        """Wait until it has ended, and return its exit code.

        Raises:
            AssertionError: it did not end in time.
        """
        with anyio.move_on_after(timeout):
            return await self._process.wait()
        raise AssertionError(f"did not end within {timeout:g} s")

    def resident_memory(self) -> int:
        """Return the bytes of memory that it occupies, as the kernel counts them."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the process has ended")

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        lines = BufferedByteReceiveStream(self._process.stdout)
        try:
            while True:
                self.told.append(json.loads(await lines.receive_until(b"\n", _LINE_BYTES)))
                self._tell()
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
            self._silent = True
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()


def _is(line: Line, what: str, fields: dict[str, Any]) -> bool:
    return line["what"] == what and all(line.get(name) == value for name, value in fields.items())


@asynccontextmanager
async def program(script: Path, *arguments: object, log: Path) -> AsyncIterator[Program]:
    """Run a script while the block runs; what still runs at its end is killed."""
    command = [sys.executable, str(script), *map(str, arguments)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as errors:
        async with await anyio.open_process(command, stderr=errors, env=environment) as process:
            started = Program(process, log)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(started._listen)
                try:
                    yield started
                finally:
                    if process.returncode is None:
                        process.kill()
                    with anyio.CancelScope(shield=True), anyio.move_on_after(_KILL_SECONDS):
                        await process.wait()
                    tasks.cancel_scope.cancel()


Check = Callable[[], object]


async def until(check: Check, *, timeout: float, what: str) -> float:
    """Wait until a check holds, and return the seconds that took.

    Raises:
        AssertionError: it did not in time.
    """
    began = anyio.current_time()
    while not check():
        if anyio.current_time() - began > timeout:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        await anyio.sleep(0.02)
    return anyio.current_time() - began
