"""Planes that run on their own, found by their directory."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio

from ._components import HOST, Layout
from ._errors import ControlPlaneError
from ._http import PlaneHttp
from ._poll import until

__all__ = ["ComponentStatus", "PlaneStatus", "health_url", "is_running", "plane_status", "stop_plane", "write_state"]

_POLL_SECONDS = 0.05
_HEALTH_PATHS = {
    "etcd": "http://{host}:{port}/health",
    "kube-apiserver": "https://{host}:{port}/readyz",
    "kube-controller-manager": "https://{host}:{port}/healthz",
    "kube-scheduler": "https://{host}:{port}/healthz",
}


def health_url(component: str, port: int) -> str:
    """Where a component answers about its health."""
    return _HEALTH_PATHS[component].format(host=HOST, port=port)


@dataclass(frozen=True, kw_only=True)
class ComponentStatus:
    """One component of a plane."""

    name: str
    pid: int
    port: int | None
    """None for kwok, which serves nothing."""
    healthy: bool = False


@dataclass(frozen=True, kw_only=True)
class PlaneStatus:
    """What is known of the plane in a directory."""

    directory: Path
    running: bool
    components: tuple[ComponentStatus, ...] = ()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return Layout(self.directory).kubeconfig

    @property
    def healthy(self) -> bool:
        """Whether it runs and every component is healthy."""
        return self.running and all(component.healthy for component in self.components)


def is_running(directory: Path) -> bool:
    """Whether a supervisor holds the directory's lock. A stale process id cannot fool this."""
    try:
        with Layout(directory).lock.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return True
        raise
    return False


def write_state(layout: Layout, supervisor: int, components: list[ComponentStatus]) -> None:
    """Note the processes of a plane that will run on its own."""
    content = {"supervisor": supervisor, "components": [asdict(component) for component in components]}
    scratch = layout.state.with_suffix(".tmp")
    scratch.write_text(json.dumps(content, indent=2))
    scratch.rename(layout.state)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


async def plane_status(directory: Path) -> PlaneStatus:
    """Look at the plane of a directory: is it running, is each component healthy. Bounded by 5 s a component."""
    layout = Layout.at(directory)
    if not is_running(directory) or not layout.state.exists():
        return PlaneStatus(directory=layout.root, running=False)
    noted = json.loads(layout.state.read_text())
    components = []
    async with PlaneHttp(layout.pki("ca.crt"), layout.pki("admin.pem")) as http:
        for component in noted["components"]:
            port = component["port"]
            healthy = _alive(component["pid"]) and (port is None or await http.ok(health_url(component["name"], port)))
            components.append(ComponentStatus(name=component["name"], pid=component["pid"], port=port, healthy=healthy))
    return PlaneStatus(directory=layout.root, running=True, components=tuple(components))


async def stop_plane(directory: Path, *, timeout: float = 60.0) -> bool:
    """Stop the plane of a directory and wait for its end. False when none was running.

    Raises:
        ControlPlaneError: It did not end within the time limit (seconds).
    """
    layout = Layout.at(directory)
    if not is_running(directory):
        return False
    with anyio.move_on_after(timeout):
        # Without the file its `up` has not finished yet.
        await until(lambda: layout.state.exists() or not is_running(directory), period=_POLL_SECONDS)
        if layout.state.exists():
            os.kill(json.loads(layout.state.read_text())["supervisor"], signal.SIGTERM)
        await until(lambda: not is_running(directory), period=_POLL_SECONDS)
        layout.state.unlink(missing_ok=True)
        return True
    raise ControlPlaneError(f"the control plane in {directory} did not end within {timeout:g} s")
