"""One attempt at a control plane: its files, ports and processes, from start to end."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from pyreconcile.certs import CertificateAuthority

from ._components import HOST, Layout, Ports, Tuning, command_lines, write_files
from ._errors import ControlPlaneError
from ._http import PlaneHttp
from ._processes import Processes
from ._programs import KUBECTL, Program
from ._readiness import Readiness
from ._state import ComponentStatus, health_url, write_state

__all__ = ["Plane", "Wishes"]

POLL_SECONDS = 0.1  # TE-2
_LOG_LINES = 15
_PORT_TAKEN = re.compile(r"address already in use", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user asks of a plane; times in seconds."""

    components: Sequence[str]
    nodes: int
    tuning: Tuning
    start_timeout: float
    stop_timeout: float
    attach_output: bool


class Plane:
    """The processes of a plane: made, then started, then stopped (always) or detached.

    Args:
        root: its directory, which is there; what an earlier plane left in it is removed.
        scratch: remove the directory at the end.
        programs: how to call each component, and kubectl.
        wishes: what the user asks.

    Raises:
        ControlPlaneError: the directory holds files of somebody else.
    """

    def __init__(self, root: Path, *, scratch: bool, programs: Mapping[str, Program], wishes: Wishes) -> None:
        self.layout = Layout.at(root)
        self.layout.check_ours()
        self.authority = CertificateAuthority("pyreconcile-testing")
        self._wishes = wishes
        self._programs = programs
        self._ports = Ports()
        lines = command_lines(self.layout, self._ports, wishes.tuning)
        self._lines = {name: line for name, line in lines.items() if name in wishes.components}
        self._processes = Processes(
            self.layout.lock, stop_timeout=wishes.stop_timeout, scratch=self.layout.root if scratch else None
        )
        self.running = True
        """False once it was stopped or left to itself."""

    @property
    def url(self) -> str:
        """The API server's URL."""
        return f"https://{HOST}:{self._ports['kube-apiserver']}"

    @property
    def components(self) -> tuple[str, ...]:
        """The names of the components."""
        return tuple(self._lines)

    def pid(self, name: str) -> int:
        """A component's process id."""
        pid = self._processes.pid(name)
        assert pid is not None
        return pid

    async def start(self) -> None:
        """Start every component and wait until all are ready; to be followed by `stop`, whatever happens.

        Raises:
            ControlPlaneError: another plane runs in the directory, or a component ended or was not ready in time; the
                message has the last log lines.
        """
        await self._processes.wait_ready()
        self.layout.clear()
        write_files(self.layout, self.authority, self.url)
        self._link_kubectl()
        with anyio.move_on_after(self._wishes.start_timeout) as scope:
            for name in self._lines:
                if name != "kwok":  # kwok ends when there is no API server yet
                    await self._launch(name)
            async with self._http() as http:
                await self._until_ready(http)
        if scope.cancelled_caught:
            raise ControlPlaneError(
                f"the control plane was not ready within {self._wishes.start_timeout:g} s;"
                f" logs are in {self.layout.root / 'logs'}\n" + "\n".join(self._log_tail(name) for name in self._lines)
            )

    async def stop(self, *, keep: bool = False) -> None:
        """Stop every component, etcd last, and remove temporary files unless ``keep``. Not cut short; bounded."""
        if not self.running:
            return
        self.running = False
        if keep:
            with contextlib.suppress(ControlPlaneError):  # the supervisor has ended, so nothing is removed
                self._processes.keep_scratch()
        with anyio.CancelScope(shield=True):
            await self._processes.stop()
        self._ports.close()

    def detach(self) -> None:
        """Leave the processes to themselves; ``stop_plane(directory)`` ends them."""
        components = [
            ComponentStatus(name=name, pid=self.pid(name), port=self._ports.by_name.get(name)) for name in self._lines
        ]
        write_state(self.layout, self._processes.supervisor_pid, components)
        self._processes.detach()
        self._ports.close()
        self.running = False

    async def kill(self, name: str) -> None:
        """End a component with SIGKILL and wait until it is gone."""
        await self._processes.end(name, signal.SIGKILL)

    async def restart(self, name: str) -> None:
        """Stop a component, start it again on the same port, and wait until it is healthy.

        Raises:
            ControlPlaneError: it ended, or was not healthy within the start time limit.
        """
        await self._processes.end(name, signal.SIGTERM)
        await self._launch(name)
        with anyio.move_on_after(self._wishes.start_timeout) as scope:
            async with self._http() as http:
                await self._poll(self._health_check(http, name), [name])  # others may be down on purpose
        if scope.cancelled_caught:
            limit = f"{self._wishes.start_timeout:g} s"
            raise ControlPlaneError(f"{name} was not healthy within {limit}\n{self._log_tail(name)}")

    def lost_a_port(self) -> bool:
        """Whether a component said that somebody else has its port, so that another try may help."""
        return any(_PORT_TAKEN.search(self._log_tail(name)) for name in self._lines)

    def _link_kubectl(self) -> None:
        link = self.layout.root / "bin" / KUBECTL
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(self._programs[KUBECTL].path.absolute())

    def _http(self) -> PlaneHttp:
        return PlaneHttp(self.layout.pki("ca.crt"), self.layout.pki("admin.pem"))

    async def _launch(self, name: str) -> None:
        argv = [*self._programs[name].argv(name), *self._lines[name]]
        await self._processes.start(name, argv, None if self._wishes.attach_output else self.layout.log(name))

    async def _until_ready(self, http: PlaneHttp) -> None:
        readiness = Readiness(http, self.url)
        nodes = self._wishes.nodes
        await self._poll(readiness.serving)
        if "kwok" in self._lines:
            await self._poll(lambda: readiness.create_nodes(nodes))
            await self._launch("kwok")
        for name in self._lines:
            await self._poll(self._health_check(http, name))
        if "kwok" in self._lines:
            untainted = "kube-controller-manager" in self._lines
            await self._poll(lambda: readiness.nodes_usable(nodes, untainted=untainted))

    def _health_check(self, http: PlaneHttp, name: str) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            if name == "kwok":  # serves nothing
                return self._processes.exit_code(name) is None
            return await http.ok(health_url(name, self._ports[name]))

        return check

    async def _poll(self, condition: Callable[[], Awaitable[bool]], needed: Sequence[str] = ()) -> None:
        """Wait for a condition. Raises ControlPlaneError as soon as a needed component, by default any, has ended."""
        while True:
            for name in needed or self._lines:
                code = self._processes.exit_code(name)
                if code is not None:
                    raise ControlPlaneError(
                        f"{name} ended with code {code} while starting; logs are in {self.layout.root / 'logs'}\n"
                        + self._log_tail(name)
                    )
            if await condition():
                return
            await anyio.sleep(POLL_SECONDS)

    def _log_tail(self, name: str) -> str:
        """The last lines of a component's log, with a heading."""
        try:
            lines = self.layout.log(name).read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        shown = [line for line in lines if line.strip()][-_LOG_LINES:] or ["(no output)"]
        return "\n".join([f"--- {name}, last lines:", *shown])
