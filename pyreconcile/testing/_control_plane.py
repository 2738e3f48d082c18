"""A real control plane for tests: etcd and kube-apiserver, and on request the rest."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ._components import Tuning, kubeconfig_text, write_private
from ._errors import ControlPlaneError
from ._kubeconfig import ExistingCluster
from ._plane import Plane, Wishes
from ._programs import KUBECTL, Program, find_programs
from ._progress import Progress, progress
from ._settings import duration_from, is_on

if TYPE_CHECKING:
    from pyreconcile.api.apiextensions_v1 import CustomResourceDefinition
    from pyreconcile.webhook import WebhookServer

__all__ = ["ControlPlane"]

ATTEMPTS = 5  # TE-2
_START_TIMEOUT = 60.0  # TE-1 has 20 s, too short for a busy two-core machine
_STOP_TIMEOUT = 20.0  # TE-1
_SERVED_TIMEOUT = 30.0  # TE-5 has 10 s, too short for a busy two-core machine


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
        crds: File or folder of CRDs, or several, to install on entering, as by `install_crds`.
        programs: A folder with the programs, or the multi-call program; else see ``find_programs``.
        directory: Where to keep files; kept afterwards. A temporary directory, removed at the end, when None.
        kubeconfig: Use the cluster of this kubeconfig instead.
        use_existing: Whether to use the existing cluster; USE_EXISTING_CLUSTER decides when None.
        start_timeout: Seconds to become ready; $KUBEBUILDER_CONTROLPLANE_START_TIMEOUT or 60.
        stop_timeout: Seconds between SIGTERM and SIGKILL; $KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT or 20.
        attach_output: Component output joins our standard error; $KUBEBUILDER_ATTACH_CONTROL_PLANE_OUTPUT.
        report: Where slow work (the first build) is shown; standard error by default.

    Raises:
        ValueError: ``nodes`` is negative, ``extra_args`` names no component, or a variable holds no duration.
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
        crds: Path | str | Sequence[Path | str] = (),
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
        self._wishes = Wishes(
            components=[
                "etcd",
                "kube-apiserver",
                *(["kube-controller-manager"] if controller_manager else []),
                *(["kube-scheduler"] if scheduler else []),
                *(["kwok"] if nodes else []),
            ],
            nodes=nodes,
            tuning=Tuning(
                feature_gates=feature_gates or {},
                runtime_config=runtime_config or {},
                extra_args=extra_args or {},
                extra_stages=extra_stages,
            ),
            start_timeout=_seconds(start_timeout, "KUBEBUILDER_CONTROLPLANE_START_TIMEOUT", _START_TIMEOUT),
            stop_timeout=_seconds(stop_timeout, "KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT", _STOP_TIMEOUT),
            attach_output=is_on("KUBEBUILDER_ATTACH_CONTROL_PLANE_OUTPUT") if attach_output is None else attach_output,
        )
        self._crds = [crds] if isinstance(crds, str | Path) else crds
        self._program_path = programs
        self._directory = directory
        self._existing = None if kubeconfig is None else ExistingCluster(kubeconfig)
        if kubeconfig is None and (is_on("USE_EXISTING_CLUSTER") if use_existing is None else use_existing):
            self._existing = ExistingCluster.from_environment()
        self._report = report
        self._programs: dict[str, Program] = {}
        self._plane: Plane | None = None

    @property
    def existing(self) -> bool:
        """Whether this is a cluster that was there before and is left alone."""
        return self._existing is not None

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig file."""
        return self._started().layout.kubeconfig if self._existing is None else self._existing.kubeconfig

    @property
    def directory(self) -> Path:
        """Where the plane keeps its files; logs are under ``logs/``."""
        return self._started().layout.root

    @property
    def url(self) -> str:
        """The API server's URL."""
        return self._started().url

    @property
    def kubectl(self) -> list[str]:
        """The start of a kubectl command line for this plane."""
        program = self._programs.get(KUBECTL)
        start = program.argv(KUBECTL) if program else [KUBECTL]
        return [*start, f"--kubeconfig={self.kubeconfig}"]

    @property
    def components(self) -> tuple[str, ...]:
        """The names of the components that were started; none for an existing cluster."""
        return self._plane.components if self._plane else ()

    def pid(self, component: str) -> int:
        """The process id of a component."""
        return self._with(component).pid(component)

    def _started(self) -> Plane:
        if self._existing is not None:
            raise ControlPlaneError(
                "this is an existing cluster: files, a URL and users has only a control plane that was started here"
            )
        if self._plane is None:
            raise ControlPlaneError("the control plane is not running: use `async with ControlPlane() as plane`")
        return self._plane

    def _with(self, component: str) -> Plane:
        if component not in self.components or self._plane is None or not self._plane.running:
            running = ", ".join(self.components) if self._plane and self._plane.running else "none"
            raise ControlPlaneError(f"{component} was not started by this control plane; components: {running}")
        return self._plane

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

    async def _start(self) -> None:
        if self._plane is not None and self._plane.running:
            raise ControlPlaneError("this control plane is running already: for a second, make another `ControlPlane`")
        with progress() if self._report is None else contextlib.nullcontext(self._report) as report:
            names = [*self._wishes.components, KUBECTL]
            self._programs = await find_programs(names, programs=self._program_path, progress=report)
        for attempts_left in reversed(range(ATTEMPTS)):
            root = self._directory or Path(tempfile.mkdtemp(prefix="pyreconcile-plane-"))
            root.mkdir(parents=True, exist_ok=True)
            scratch = self._directory is None
            self._plane = plane = Plane(root, scratch=scratch, programs=self._programs, wishes=self._wishes)
            try:
                await plane.start()
            except BaseException as error:
                failed = isinstance(error, ControlPlaneError)
                again = failed and attempts_left > 0 and plane.lost_a_port()
                await plane.stop(keep=failed and not again)
                if not again:
                    raise
            else:
                return

    async def stop(self) -> None:
        """Stop every component, etcd last, and remove temporary files. Not cut short by cancellation; bounded."""
        if self._existing is not None:
            self._existing.close()
        if self._plane is not None:
            await self._plane.stop()

    def detach(self) -> None:
        """Leave the plane running without us; ``stop_plane(directory)`` ends it. It must have a directory."""
        if self._directory is None or self._plane is None or not self._plane.running:
            raise ControlPlaneError("only a running control plane with a directory can be detached")
        self._plane.detach()

    async def add_user(self, name: str, groups: Sequence[str] = ()) -> Path:
        """Make a user with a client certificate (TE-4). It may do nothing until a role is bound to it.

        Args:
            name: The user's name, as in the subject of a RoleBinding.
            groups: The groups the user is in.

        Returns:
            The user's kubeconfig file.

        Raises:
            ControlPlaneError: This is an existing cluster, whose certificate authority we do not have.
            ValueError: ``name`` is empty or has more than 64 characters, which no certificate can hold.
        """
        plane = self._started()
        text = kubeconfig_text(plane.url, plane.authority.certificate, name, plane.authority.issue_client(name, groups))
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

        Documents of other kinds are passed over. A CRD that is there already, as in an existing cluster, is changed for
        good. For CRDs that are made from models, see `pyreconcile.crd`. On
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
        updated. At the end of the block, also when it is cancelled, they are deleted, and those that were there before
        are as they were; only a process that is killed leaves them. The API server begins and ends to ask
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
        await self._with(component).kill(component)

    async def restart(self, component: str) -> None:
        """Stop a component, start it again on the same port, and wait until it is healthy.

        Raises:
            ControlPlaneError: It ended, or was not healthy within the start time limit.
        """
        await self._with(component).restart(component)


def _seconds(given: float | None, variable: str, default: float) -> float:
    return duration_from(variable, default) if given is None else given
