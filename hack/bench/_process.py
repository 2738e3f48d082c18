"""The measured process: started as a group of its own, read from /proc, stopped by SIGTERM. Linux only."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import STDOUT

import anyio
from anyio.abc import Process

_STOP_SECONDS = 90.0
_LOG_SHOWN = 2000


class EndedError(RuntimeError):
    """The measured process ended by itself."""


@dataclass(frozen=True)
class Usage:
    """CPU seconds used so far, and resident memory in MiB, of a process and all its descendants."""

    cpu: float
    memory: float


def log_end(log: Path) -> str:
    """Return the last lines of a process's output."""
    return log.read_text(errors="replace")[-_LOG_SHOWN:] if log.exists() else ""


@contextmanager
def explained_by(log: Path) -> Iterator[None]:
    """Add the end of a log to a TimeoutError that leaves the block."""
    try:
        yield
    except TimeoutError as error:
        error.add_note(f"the end of the measured process's output:\n{log_end(log)}")
        raise


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class Measured:
    """A running process."""

    process: Process
    log: Path

    @classmethod
    async def start(cls, command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> Measured:
        """Start a command with more environment variables; its output is added to ``log``."""
        with log.open("ab") as output:
            process = await anyio.open_process(
                list(command),
                stdin=None,
                stdout=output,
                stderr=STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        return cls(process, log)

    def check(self) -> None:
        """Raise EndedError, with the end of the log, unless the process runs."""
        if self.process.returncode is not None:
            raise EndedError(f"the measured process ended with code {self.process.returncode}:\n{log_end(self.log)}")

    def usage(self) -> Usage:
        """Read what the process and its descendants use."""
        self.check()
        cpu = memory = 0.0
        waiting = [self.process.pid]
        while waiting:
            base = Path("/proc") / str(waiting.pop())
            with suppress(FileNotFoundError, ProcessLookupError):  # a child that ends just now
                fields = (base / "stat").read_text().rpartition(") ")[2].split()
                cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                memory += int((base / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
                for thread in (base / "task").iterdir():
                    waiting += [int(child) for child in (thread / "children").read_text().split()]
        return Usage(cpu, memory)

    async def stop(self) -> None:
        """Ask it to end, wait, and kill it if it does not. Not cut short by cancellation."""
        with anyio.CancelScope(shield=True):
            self._signal(signal.SIGTERM)
            with anyio.move_on_after(_STOP_SECONDS):
                await self.process.wait()
            self._signal(signal.SIGKILL)
            await self.process.aclose()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
