"""The owner's side of the supervisor: start, signal and end components, from any thread or event loop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from ._errors import ControlPlaneError
from ._poll import until

__all__ = ["Processes"]

_SUPERVISOR = Path(__file__).with_name("_supervisor.py")
_POLL_SECONDS = 0.01
_START_SECONDS = 30.0  # a busy machine may take seconds for one exec


class Processes:
    """The supervisor of one plane and, through it, the plane's processes.

    State is kept by a reader thread, so every method may be called from any event loop.

    Args:
        lock: The lock file of the plane's directory.
        stop_timeout: Seconds between SIGTERM and SIGKILL.
        scratch: A directory the supervisor removes when it ends, whatever the reason; None to leave all in place.

    Raises:
        ControlPlaneError: Another plane runs in the directory.
    """

    def __init__(self, lock: Path, *, stop_timeout: float, scratch: Path | None) -> None:
        self._stop_timeout = stop_timeout
        self._scratch = scratch
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUPERVISOR), str(lock), str(stop_timeout), str(scratch or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._write_lock = threading.Lock()
        self._pids: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        self._refused: dict[str, str] = {}
        self._ready = False
        self._reader = threading.Thread(target=self._read, name="pyreconcile-plane", daemon=True)
        self._reader.start()

    @property
    def supervisor_pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._note(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        name = event.get("name", "")
        match event["event"]:
            case "ready":
                self._ready = True
            case "started":
                self._codes.pop(name, None)
                self._pids[name] = event["pid"]
            case "exited":
                self._codes[name] = event["code"]
            case "refused":
                self._refused[name] = event["error"]

    def _order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        with self._write_lock:
            try:
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()
            except (BrokenPipeError, ValueError) as error:
                raise ControlPlaneError("the control plane's supervisor has ended") from error

    async def _until(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await until(lambda: condition() or self._gone(), period=_POLL_SECONDS)
        if not condition():
            if self._gone():
                raise ControlPlaneError(f"{what} did not happen: the control plane's supervisor has ended")
            raise ControlPlaneError(f"{what} did not happen within {seconds:g} s")

    def _gone(self) -> bool:
        return self._process.poll() is not None and not self._reader.is_alive()

    async def wait_ready(self) -> None:
        """Wait until the supervisor serves. Raises ControlPlaneError when the directory is in use."""
        await self._until(lambda: self._ready or "" in self._refused, "start of the supervisor", _START_SECONDS)
        if "" in self._refused:
            raise ControlPlaneError("a control plane is already running in this directory")

    async def start(self, name: str, argv: list[str], log: Path | None) -> int:
        """Start a component that is not running and return its process id.

        Raises:
            ControlPlaneError: The program could not be started at all.
        """
        self._pids.pop(name, None)
        self._order(do="start", name=name, argv=argv, log=str(log) if log else None)
        await self._until(lambda: name in self._pids or name in self._refused, f"start of {name}", _START_SECONDS)
        if name in self._refused:
            raise ControlPlaneError(f"{name} could not be started: {self._refused.pop(name)}")
        return self._pids[name]

    def pid(self, name: str) -> int | None:
        """The process id of a component, None when it was never started."""
        return self._pids.get(name)

    def exit_code(self, name: str) -> int | None:
        """How a component has ended (negative: the signal), None while it runs."""
        return self._codes.get(name)

    async def end(self, name: str, number: signal.Signals) -> None:
        """Signal a component's process group and wait until the component has ended; SIGKILL after the time limit."""
        if name not in self._pids or name in self._codes:
            return
        self._order(do="signal", name=name, signal=int(number))
        try:
            await self._until(lambda: name in self._codes, f"end of {name}", self._stop_timeout)
        except ControlPlaneError:
            self._order(do="signal", name=name, signal=int(signal.SIGKILL))
            await self._until(lambda: name in self._codes, f"end of {name}", _START_SECONDS)

    def keep_scratch(self) -> None:
        """Leave the scratch directory in place at the end."""
        self._scratch = None
        self._order(do="keep")

    def detach(self) -> None:
        """Let the plane go on without this process; SIGTERM to the supervisor stops it from now on."""
        self._order(do="detach")
        self._close()

    async def stop(self) -> None:
        """Stop every component in order, then the supervisor. Bounded: twice the stop time limit and a little."""
        if self._process.poll() is None:
            try:
                self._order(do="stop")
                await self._until(
                    lambda: self._process.poll() is not None, "end of the plane", 2 * self._stop_timeout + 5
                )
            except ControlPlaneError:
                self.kill()
        if self._scratch is not None and self._process.returncode != 0:
            shutil.rmtree(self._scratch, ignore_errors=True)  # the supervisor was killed and could not
        self._close()

    def kill(self) -> None:
        """End everything at once."""
        if self._process.poll() is None:
            for name, pid in self._pids.items():
                if name not in self._codes:
                    _kill_group(pid)
            _kill_group(self._process.pid)
        self._process.wait()

    def _close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for stream in (self._process.stdin, self._process.stdout):
            try:
                stream.close()
            except (BrokenPipeError, ValueError):
                continue


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
