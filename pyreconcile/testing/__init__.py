"""Tools for tests: a real control plane, and a pytest plugin; ``docs/testing.md`` shows how.

Names are loaded when first used: the pytest plugin is imported in every pytest run of an environment with pyreconcile.
"""

from typing import TYPE_CHECKING

from pyreconcile._lazy import lazy_names

if TYPE_CHECKING:
    from pyreconcile.testing._comparison import Difference, assert_equal, differences
    from pyreconcile.testing._control_plane import ControlPlane
    from pyreconcile.testing._errors import (
        BuildError,
        ControlPlaneError,
        DownloadError,
        ManifestError,
        ProgramNotFoundError,
    )
    from pyreconcile.testing._eventually import eventually
    from pyreconcile.testing._fake import FakeClient, FakeServer, UntypedKind, fake_client
    from pyreconcile.testing._intercept import Interceptor, intercept
    from pyreconcile.testing._poller import Poller
    from pyreconcile.testing._proxy import FaultProxy
    from pyreconcile.testing._proxy_faults import Fault
    from pyreconcile.testing._proxy_requests import Match, Matcher, ProxiedRequest
    from pyreconcile.testing._recorder import FakeRecorder, RecordedEvent
    from pyreconcile.testing._running import running
    from pyreconcile.testing._state import ComponentStatus, PlaneStatus, plane_status, stop_plane

__all__ = [
    "BuildError",
    "ComponentStatus",
    "ControlPlane",
    "ControlPlaneError",
    "Difference",
    "DownloadError",
    "FakeClient",
    "FakeRecorder",
    "FakeServer",
    "Fault",
    "FaultProxy",
    "Interceptor",
    "ManifestError",
    "Match",
    "Matcher",
    "PlaneStatus",
    "Poller",
    "ProgramNotFoundError",
    "ProxiedRequest",
    "RecordedEvent",
    "UntypedKind",
    "assert_equal",
    "differences",
    "eventually",
    "fake_client",
    "intercept",
    "plane_status",
    "running",
    "stop_plane",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(
        __name__,
        {
            "_comparison": ["Difference", "assert_equal", "differences"],
            "_control_plane": ["ControlPlane"],
            "_errors": ["BuildError", "ControlPlaneError", "DownloadError", "ManifestError", "ProgramNotFoundError"],
            "_eventually": ["eventually"],
            "_fake": ["FakeClient", "FakeServer", "UntypedKind", "fake_client"],
            "_intercept": ["Interceptor", "intercept"],
            "_poller": ["Poller"],
            "_proxy": ["FaultProxy"],
            "_proxy_faults": ["Fault"],
            "_proxy_requests": ["Match", "Matcher", "ProxiedRequest"],
            "_recorder": ["FakeRecorder", "RecordedEvent"],
            "_running": ["running"],
            "_state": ["ComponentStatus", "PlaneStatus", "plane_status", "stop_plane"],
        },
    )


def __dir__() -> list[str]:
    return __all__
