"""Tools for tests: a real control plane, and a pytest plugin."""

from ._control_plane import ControlPlane
from ._errors import BuildError, ControlPlaneError, DownloadError, ProgramNotFoundError
from ._running import running
from ._state import ComponentStatus, PlaneStatus, plane_status, stop_plane

__all__ = [
    "BuildError",
    "ComponentStatus",
    "ControlPlane",
    "ControlPlaneError",
    "DownloadError",
    "PlaneStatus",
    "ProgramNotFoundError",
    "plane_status",
    "running",
    "stop_plane",
]
