"""A small program that owns the processes of one control plane. Run by file name; standard library only.

It is the parent of every component, so that no component outlives it: whoever starts a plane talks to it over two
pipes, and when its standard input closes without a word (the owner was killed) it kills all process groups at once.

Orders, one JSON object a line on standard input:
    {"do": "start", "name": NAME, "argv": [...], "log": PATH or null}
    {"do": "signal", "name": NAME, "signal": NUMBER}
    {"do": "detach"}     keep running without an owner; from now on SIGTERM is the way to stop
    {"do": "keep"}       leave the scratch directory in place
    {"do": "stop"}       stop all components in order, remove the scratch directory, exit
Reports, one JSON object a line on standard output:
    {"event": "ready"} / {"event": "started", "name", "pid"} / {"event": "exited", "name", "code"}
    {"event": "refused", "name", "error"}
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

POLL_SECONDS = 0.25
LAST = "etcd"  # an API server that loses etcd first takes over a minute to end


def _die_with_parent() -> None:
    """Ask Linux to kill this process when the supervisor ends, even by SIGKILL. No-op elsewhere."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG


class Supervisor:
    """The processes of one plane."""

    def __init__(self, *, stop_timeout: float, scratch: str) -> None:
        self.stop_timeout = stop_timeout
        self.scratch = scratch
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.reported: set[int] = set()
        self.detached = False
        self.stopping = False
        self.owner = os.getppid()
        self.buffer = b""

    def report(self, **event: Any) -> None:
        """Tell the owner, who may be gone."""
        if not self.detached:
            with contextlib.suppress(OSError):
                os.write(1, json.dumps(event).encode() + b"\n")

    def start(self, name: str, argv: list[str], log: str | None) -> None:
        """Start one component in a process group of its own."""
        try:
            with contextlib.ExitStack() as stack:
                # Without a log file the output joins the owner's standard error.
                out = stack.enter_context(open(log, "ab")) if log else 2
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,  # safe: this program has one thread
                )
        except OSError as error:
            self.report(event="refused", name=name, error=str(error))
            return
        self.children[name] = child
        self.report(event="started", name=name, pid=child.pid)

    def reap(self) -> None:
        """Collect and report ended components."""
        for name, child in self.children.items():
            if child.pid not in self.reported and child.poll() is not None:
                self.reported.add(child.pid)
                self.report(event="exited", name=name, code=child.returncode)

    def signal(self, name: str, number: int) -> None:
        """Signal a component's whole process group."""
        child = self.children.get(name)
        if child is not None and child.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number)

    def end(self, names: list[str]) -> None:
        """SIGTERM, then SIGKILL after the time limit; returns when all have ended."""
        for name in names:
            self.signal(name, signal.SIGTERM)
        deadline = time.monotonic() + self.stop_timeout
        while any(self.children[name].poll() is None for name in names):
            if time.monotonic() > deadline:
                for name in names:
                    self.signal(name, signal.SIGKILL)
            time.sleep(0.01)
        self.reap()

    def stop(self) -> None:
        """Orderly end: every component but the store, then the store."""
        self.end([name for name in self.children if name != LAST])
        self.end([name for name in self.children if name == LAST])

    def kill(self) -> None:
        """The owner is gone and nobody waits: end everything now."""
        for name in self.children:
            self.signal(name, signal.SIGKILL)
        for child in self.children.values():
            child.wait()

    def obey(self, order: dict[str, Any]) -> None:
        """Carry out one order."""
        match order.get("do"):
            case "start":
                self.start(order["name"], order["argv"], order["log"])
            case "signal":
                self.signal(order["name"], order["signal"])
            case "detach":
                self.detached = True
                null = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(null, descriptor)
            case "keep":
                self.scratch = ""
            case "stop":
                self.stopping = True

    def read_orders(self) -> bool:
        """Read and carry out what has come in. False at the end of input."""
        chunk = os.read(0, 65536)
        *lines, self.buffer = (self.buffer + chunk).split(b"\n")
        for line in lines:
            if line:
                self.obey(json.loads(line))
        return bool(chunk) or self.detached or self.stopping

    def run(self) -> None:
        """Serve until told to stop or left alone."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopping", True))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.report(event="ready")
        while not self.stopping:
            if self.detached:
                time.sleep(POLL_SECONDS)
            else:
                readable, _, _ = select.select([0], [], [], POLL_SECONDS)
                # The pipe may be held open by another child of the dead owner, hence the second look.
                if (readable and not self.read_orders()) or (not self.detached and os.getppid() != self.owner):
                    self.kill()
                    break
            self.reap()
        else:
            self.stop()
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)


def main() -> None:
    """Take the plane's lock, then serve: arguments are lock file, stop time limit, scratch directory or nothing."""
    lock_path, stop_timeout, scratch = sys.argv[1:4]
    with open(lock_path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.write(1, json.dumps({"event": "refused", "name": "", "error": "already running"}).encode() + b"\n")
            return
        Supervisor(stop_timeout=float(stop_timeout), scratch=scratch).run()


if __name__ == "__main__":
    main()
