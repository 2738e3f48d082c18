"""The manager: one process's controllers, with client, cache, election, webhooks, probes and metrics."""

from pyreconcile.manager._groups import Runnable
from pyreconcile.manager._health import HealthCheck, ping
from pyreconcile.manager._lifecycle import GracefulTimeoutError
from pyreconcile.manager._loops import LoopName, run
from pyreconcile.manager._manager import Manager
from pyreconcile.manager._options import ManagerOptions

__all__ = [
    "GracefulTimeoutError",
    "HealthCheck",
    "LoopName",
    "Manager",
    "ManagerOptions",
    "Runnable",
    "ping",
    "run",
]
