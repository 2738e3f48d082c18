"""``pyreconcile run`` as a process of its own, beside the demo and the benchmark."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import Process

_STOP_SECONDS = 30.0


class ManagerEndedError(RuntimeError):
    """The manager ended by itself."""


def manager_command(kubeconfig: Path, *arguments: str) -> list[str]:
    """Return the command line of a manager without an election, metrics and probes; it installs CRDs and webhooks."""
    command = [sys.executable, "-m", "pyreconcile", "run", "--install", "--no-leader-elect"]
    command += ["--kubeconfig", str(kubeconfig)]
    return [*command, "--metrics-bind-address", "0", "--health-probe-bind-address", "0", *arguments]


@asynccontextmanager
async def manager_process(
    kubeconfig: Path, *arguments: str, log: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    """Run the manager without an election, metrics and probes while the block runs; stop it by SIGTERM.

    Args:
        kubeconfig: the cluster; CRDs and webhooks are installed there.
        arguments: more arguments of ``pyreconcile run``.
        log: a file that gets its output.
        environment: variables to set beside those of this process.

    Raises:
        ManagerEndedError: it ended by itself while the block ran.
    """
    command = manager_command(kubeconfig, *arguments)
    variables = {**os.environ, **(environment or {})}
    with log.open("ab") as output:
        async with await anyio.open_process(command, stdout=output, stderr=output, env=variables) as process:
            try:
                yield process
                if process.returncode is not None:
                    raise ManagerEndedError(f"the manager ended with code {process.returncode}")
            finally:
                await _stop(process)


async def _stop(process: Process) -> None:
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.terminate()
        with anyio.move_on_after(_STOP_SECONDS):
            await process.wait()
        if process.returncode is None:
            process.kill()
