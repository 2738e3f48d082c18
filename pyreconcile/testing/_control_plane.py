"""A real control plane for tests: etcd and kube-apiserver, and on request the rest."""

from __future__ import annotations

import contextlib
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import anyio

from ._components import (
    HOST,
    Layout,
    Ports,
    Tuning,
    command_lines,
    kubeconfig_text,
    write_files,
    write_private,
)
from ._errors import ControlPlaneError
from ._http import PlaneHttp
from ._kubeconfig import ExistingCluster
from ._pki import Authority
from ._processes import Processes
from ._programs import KUBECTL, Program, find_programs
from ._progress import Progress, progress
from ._readiness import Readiness
from ._settings import duration_from, is_on
from ._state import ComponentStatus, health_url, write_state

if TYPE_CHECKING:
    from pyreconcile.api.apiextensions_v1 import CustomResourceDefinition
    from pyreconcile.webhook import WebhookServer

__all__ = ["ControlPlane"]

ATTEMPTS = 5  # TE-2
POLL_SECONDS = 0.1  # TE-2
_START_TIMEOUT = 60.0  # TE-1 has 20 s, too short for a busy two-core machine
_STOP_TIMEOUT = 20.0  # TE-1
_SERVED_TIMEOUT = 10.0  # TE-5
_LOG_LINES = 15
_PORT_TAKEN = re.compile(r"address already in use", re.IGNORECASE)


class ControlPlane:
    """A control plane on the loopback interface, as an async context manager.

    Several can run side by side. Nothing stays behind when the owner ends, not even when it is killed: a supervisor
    process notices and ends all components. Methods may be called from any event loop.

    With ``kubeconfig``, or with USE_EXISTING_CLUSTER=true in the environment (TE-1; then the files that $KUBECONFIG
    names, or ~/.kube/config), nothing is started and the existing cluster is used.

    Args:
        nodes: Number of simulated nodes (kwok); 0 for none.
        controller_manager: Run kube-controller-manager: Deployments, Jobs, garbage collection, namespaces end.
        scheduler: Run kube-scheduler.
        feature_gates: Gates of the API server, controller-manager and scheduler alike.
        runtime_config: API groups, versions or kinds to serve or not, as in ``--runtime-config``.
        extra_args: More flags for each component by name; they win over ours.
        extra_stages: More files of kwok Stage documents.
        crds: Files and folders of CRDs to install on entering, as by `install_crds`.
        programs: A folder with the programs, or the multi-call program; else see ``find_programs``.
        directory: Where to keep files; kept afterwards. A temporary directory, removed at the end, when None.
        kubeconfig: Use the cluster of this kubeconfig instead.
        use_existing: Whether USE_EXISTING_CLUSTER decides when it is None, else itself.
        start_timeout: Seconds to become ready; $KUBEBUILDER_CONTROLPLANE_START_TIMEOUT or 60.
        stop_timeout: Seconds between SIGTERM and SIGKILL; $KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT or 20.
        attach_output: Component output joins our standard error; $KUBEBUILDER_ATTACH_CONTROL_PLANE_OUTPUT.
        report: Where slow work (the first build) is shown; standard error by default.

    Raises:
        ProgramNotFoundError: A program is nowhere to be found, built or fetched (on entering).
        ControlPlaneError: It did not become ready; the message has the last log lines, and the logs are kept.
        ManifestError: A CRD could not be read or installed.
    """

    def __init__(
        self,
        *,
        nodes: int = 0,
        controller_manager: bool = False,
        scheduler: bool = False,
        feature_gates: Mapping[str, bool] | None = None,
        runtime_config: Mapping[str, bool] | None = None,
        extra_args: Mapping[str, Sequence[str]] | None = None,
        extra_stages: Sequence[Path] = (),
        crds: Sequence[Path | str] = (),
        programs: Path | None = None,
        directory: Path | None = None,
        kubeconfig: Path | None = None,
        use_existing: bool | None = None,
        start_timeout: float | None = None,
        stop_timeout: float | None = None,
        attach_output: bool | None = None,
        report: Progress | None = None,
    ) -> None:
        if nodes < 0:
            raise ValueError(f"nodes={nodes}: must be 0 or more")
        self._nodes = nodes
        self._wanted = ["etcd", "kube-apiserver"]
        self._wanted += ["kube-controller-manager"] if controller_manager else []
        self._wanted += ["kube-scheduler"] if scheduler else []
        self._wanted += ["kwok"] if nodes else []
        self._tuning = Tuning(
            feature_gates=feature_gates or {},
            runtime_config=runtime_config or {},
            extra_args=extra_args or {},
            extra_stages=extra_stages,
        )
        self._crds = crds
        self._program_path = programs
        self._directory = directory
        self._existing = None if kubeconfig is None else ExistingCluster(kubeconfig)
        if kubeconfig is None and (is_on("USE_EXISTING_CLUSTER") if use_existing is None else use_existing):
            self._existing = ExistingCluster.from_environment()
        if start_timeout is None:
            start_timeout = duration_from("KUBEBUILDER_CONTROLPLANE_START_TIMEOUT", _START_TIMEOUT)
        if stop_timeout is None:
            stop_timeout = duration_from("KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT", _STOP_TIMEOUT)
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._attach = is_on("KUBEBUILDER_ATTACH_CONTROL_PLANE_OUTPUT") if attach_output is None else attach_output
        self._report = report
        self._layout: Layout | None = None
        self._authority: Authority | None = None
        self._ports: Ports | None = None
        self._processes: Processes | None = None
        self._programs: dict[str, Program] = {}
        self._lines: dict[str, list[str]] = {}

    @property
    def existing(self) -> bool:
        """Whether this is a cluster that was there before and is left alone."""
        return self._existing is not None

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig file."""
        return self._started_layout().kubeconfig if self._existing is None else self._existing.kubeconfig

    @property
    def directory(self) -> Path:
        """Where the plane keeps its files; logs are under ``logs/``."""
        return self._started_layout().root

    @property
    def url(self) -> str:
        """The API server's URL."""
        if self._ports is None:
            raise ControlPlaneError("the URL is known only for a control plane that was started here")
        return f"https://{HOST}:{self._ports['kube-apiserver']}"

    @property
    def kubectl(self) -> list[str]:
        """The start of a kubectl command line for this plane."""
        program = self._programs.get(KUBECTL)
        start = program.argv(KUBECTL) if program else [KUBECTL]
        return [*start, f"--kubeconfig={self.kubeconfig}"]

    @property
    def components(self) -> tuple[str, ...]:
        """The names of the components that were started; none for an existing cluster."""
        return tuple(self._lines)

    def pid(self, component: str) -> int:
        """The process id of a component."""
        pid = self._started(component).pid(component)
        assert pid is not None
        return pid

    def _started_layout(self) -> Layout:
        if self._layout is None:
            raise ControlPlaneError("the control plane is not running: use `async with ControlPlane() as plane`")
        return self._layout

    def _started(self, component: str) -> Processes:
        if self._processes is None or component not in self._lines:
            running = ", ".join(self._lines) or "none"
            raise ControlPlaneError(f"{component} was not started by this control plane; components: {running}")
        return self._processes

    async def __aenter__(self) -> ControlPlane:
        if self._existing is None:
            await self._start()
        else:
            self._existing.open()
        try:
            if self._crds:
                await self.install_crds(*self._crds)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def _find_programs(self) -> None:
        with progress() if self._report is None else contextlib.nullcontext(self._report) as report:
            names = [*self._wanted, KUBECTL]
            self._programs = await find_programs(names, programs=self._program_path, progress=report)

    async def _start(self) -> None:
        await self._find_programs()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._start_once()
            except BaseException as error:
                again = self._lost_a_port() and isinstance(error, ControlPlaneError) and attempt < ATTEMPTS
                with contextlib.suppress(ControlPlaneError):
                    if self._processes is not None and isinstance(error, ControlPlaneError) and not again:
                        self._processes.keep_scratch()
                await self.stop()
                if not again:
                    raise
            else:
                return

    async def _start_once(self) -> None:
        root = self._directory or Path(tempfile.mkdtemp(prefix="pyreconcile-plane-"))
        self._layout = layout = Layout.at(root)
        root = layout.root
        root.mkdir(parents=True, exist_ok=True)
        layout.check_ours()
        scratch = None if self._directory else root
        self._processes = Processes(layout.lock, stop_timeout=self._stop_timeout, scratch=scratch)
        await self._processes.wait_ready()
        layout.clear()
        self._ports = Ports()
        self._authority = Authority()
        write_files(layout, self._authority, self.url)
        self._lines = {
            name: line
            for name, line in command_lines(layout, self._ports, self._tuning).items()
            if name in self._wanted
        }
        self._link_kubectl()
        with anyio.move_on_after(self._start_timeout) as scope:
            for name in self._lines:
                if name != "kwok":  # kwok ends when there is no API server yet
                    await self._launch(name)
            async with self._http() as http:
                await self._until_ready(http)
        if scope.cancelled_caught:
            raise ControlPlaneError(
                f"the control plane was not ready within {self._start_timeout:g} s; logs are in {root / 'logs'}\n"
                + "\n".join(self._log_tail(name) for name in self._lines)
            )

    def _link_kubectl(self) -> None:
        link = self.directory / "bin" / KUBECTL
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(self._programs[KUBECTL].path.absolute())

    def _http(self) -> PlaneHttp:
        layout = self._started_layout()
        return PlaneHttp(layout.pki("ca.crt"), layout.pki("admin.pem"))

    async def _launch(self, name: str) -> None:
        argv = [*self._programs[name].argv(name), *self._lines[name]]
        await self._started(name).start(name, argv, None if self._attach else self._started_layout().log(name))

    async def _until_ready(self, http: PlaneHttp) -> None:
        readiness = Readiness(http, self.url)
        await self._poll(readiness.serving)
        if "kwok" in self._lines:
            await self._poll(lambda: readiness.create_nodes(self._nodes))
            await self._launch("kwok")
        for name in self._lines:
            await self._poll(self._health_check(http, name))
        if "kwok" in self._lines:
            untainted = "kube-controller-manager" in self._lines
            await self._poll(lambda: readiness.nodes_usable(self._nodes, untainted=untainted))

    def _health_check(self, http: PlaneHttp, name: str) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            if name == "kwok":
                return self._started(name).exit_code(name) is None
            assert self._ports is not None
            return await http.ok(health_url(name, self._ports[name]))

        return check

    async def _poll(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition. Raises ControlPlaneError as soon as a component has ended."""
        while True:
            for name in self._lines:
                code = self._started(name).exit_code(name)
                if code is not None:
                    raise ControlPlaneError(
                        f"{name} ended with code {code} while starting; logs are in {self.directory / 'logs'}\n"
                        + self._log_tail(name)
                    )
            if await condition():
                return
            await anyio.sleep(POLL_SECONDS)

    def _log_tail(self, name: str) -> str:
        """The last lines of a component's log, with a heading."""
        try:
            lines = self._started_layout().log(name).read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        shown = [line for line in lines if line.strip()][-_LOG_LINES:] or ["(no output)"]
        return "\n".join([f"--- {name}, last lines:", *shown])

    def _lost_a_port(self) -> bool:
        return any(_PORT_TAKEN.search(self._log_tail(name)) for name in self._lines) if self._layout else False

    async def stop(self) -> None:
        """Stop every component, etcd last, and remove temporary files. Not cut short by cancellation; bounded."""
        if self._existing is not None:
            self._existing.close()
        with anyio.CancelScope(shield=True):
            if self._processes is not None:
                await self._processes.stop()
                self._processes = None
        if self._ports is not None:
            self._ports.close()
            self._ports = None

    def detach(self) -> None:
        """Leave the plane running without us; ``stop_plane(directory)`` ends it. It must have a directory."""
        layout = self._started_layout()
        if self._directory is None or self._processes is None or self._ports is None:
            raise ControlPlaneError("only a running control plane with a directory can be detached")
        components = [
            ComponentStatus(name=name, pid=self.pid(name), port=self._ports.by_name.get(name)) for name in self._lines
        ]
        write_state(layout, self._processes.supervisor_pid, components)
        self._processes.detach()
        self._processes = None

    async def add_user(self, name: str, groups: Sequence[str] = ()) -> Path:
        """Make a user with a client certificate (TE-4). It may do nothing until a role is bound to it.

        Args:
            name: The user's name, as in the subject of a RoleBinding.
            groups: The groups the user is in.

        Returns:
            The user's kubeconfig file.

        Raises:
            ControlPlaneError: This is an existing cluster, whose certificate authority we do not have.
        """
        if self._authority is None:
            raise ControlPlaneError("users can be added only to a control plane that was started here")
        text = kubeconfig_text(self.url, self._authority.certificate, name, self._authority.client(name, groups))
        path = self.directory / "users" / (re.sub(r"[^\w.-]", "_", name) + ".kubeconfig")
        write_private(path, text)
        return path

    async def install_crds(
        self,
        *paths: Path | str,
        server: WebhookServer | None = None,
        base_url: str | None = None,
        timeout: float = _SERVED_TIMEOUT,
    ) -> list[CustomResourceDefinition]:
        """Create or update the CRDs of files, and wait until discovery lists every version that they serve (TE-5).

        Documents of other kinds are passed over. For CRDs that are made from models, see `pyreconcile.crd`. On
        cancellation, what was applied stays.

        Args:
            *paths: Files of YAML or JSON, or folders with .yaml, .yml and .json files.
            server: A webhook server that listens. Kinds whose conversions it has are converted there, whatever their
                files say of conversion.
            base_url: How the API server reaches ``server``; by default ``https://127.0.0.1:PORT``.
            timeout: Seconds that the server may take to serve them all.

        Returns:
            The CRDs as the server has them.

        Raises:
            ManifestError: A CRD could not be read, was refused, or is not served in time; file and document are named.
            RuntimeError: Neither does ``server`` listen, nor is ``base_url`` given.
        """
        from ._installing import apply_crds

        return await apply_crds(self.kubeconfig, paths, server=server, base_url=base_url, timeout=timeout)

    def webhooks(
        self, *paths: Path | str, server: WebhookServer, base_url: str | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Have the API server ask ``server`` as the webhook configurations of files say, while a block runs (TE-5).

        Each webhook keeps its path; where it is dialled and the CA become the server's. Configurations are created or
        updated, and deleted at the end of the block, also when it is cancelled. The API server begins and ends to ask
        within a second, so wait for the first effect with `eventually`.

        Args:
            *paths: Files of YAML or JSON, or folders with .yaml, .yml and .json files.
            server: A webhook server that listens, such as ``manager.webhooks`` of a running manager.
            base_url: How the API server reaches ``server``; by default ``https://127.0.0.1:PORT``.

        Raises:
            ManifestError: A configuration could not be read or was refused, or names a path that ``server`` does not
                serve; file and document are named.
            RuntimeError: Neither does ``server`` listen, nor is ``base_url`` given.
        """
        from ._installing import applied_webhooks

        return applied_webhooks(self.kubeconfig, paths, server=server, base_url=base_url)

    async def kill(self, component: str) -> None:
        """End a component with SIGKILL and wait until it is gone."""
        await self._started(component).end(component, signal.SIGKILL)

    async def restart(self, component: str) -> None:
        """Stop a component, start it again on the same port, and wait until it is healthy.

        Raises:
            ControlPlaneError: It was not healthy within the start time limit.
        """
        processes = self._started(component)
        await processes.end(component, signal.SIGTERM)
        await self._launch(component)
        async with self._within(f"{component} was not healthy"), self._http() as http:
            await self._poll(self._health_check(http, component))

    @asynccontextmanager
    async def _within(self, what: str) -> AsyncIterator[None]:
        with anyio.move_on_after(self._start_timeout) as scope:
            yield
        if scope.cancelled_caught:
            raise ControlPlaneError(f"{what} within {self._start_timeout:g} s")
