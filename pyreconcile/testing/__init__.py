"""Tools for tests: a real control plane, and a pytest plugin; ``docs/testing.md`` shows how.

Names are loaded when first used: the pytest plugin is imported in every pytest run of an environment with pyreconcile.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyreconcile.testing._control_plane import ControlPlane
    from pyreconcile.testing._errors import BuildError, ControlPlaneError, DownloadError, ProgramNotFoundError
    from pyreconcile.testing._running import running
    from pyreconcile.testing._state import ComponentStatus, PlaneStatus, plane_status, stop_plane

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

_HOME_OF = {
    "BuildError": "_errors",
    "ComponentStatus": "_state",
    "ControlPlane": "_control_plane",
    "ControlPlaneError": "_errors",
    "DownloadError": "_errors",
    "PlaneStatus": "_state",
    "ProgramNotFoundError": "_errors",
    "plane_status": "_state",
    "running": "_running",
    "stop_plane": "_state",
}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
