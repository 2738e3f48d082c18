"""The manager of LeaderWorkerSet and DisaggregatedSet, in the place of upstream's: same flags, file and Secret.

`main` is the program ``pyreconcile-lws-manager``. It takes the flags of kubernetes-sigs/lws's ``/manager`` and its
configuration file, so that upstream's manifests work with an image that has this program at that path.
"""

from __future__ import annotations

from pyreconcile_controllers.lws_manager.configuration import (
    Configuration,
    ConfigurationError,
    load_configuration,
    parse_configuration,
)
from pyreconcile_controllers.lws_manager.flags import Flags, UsageError, parse_flags
from pyreconcile_controllers.lws_manager.options import CertificatePlace, Plan, make_plan
from pyreconcile_controllers.lws_manager.process import main, run, serve

__all__ = [
    "CertificatePlace",
    "Configuration",
    "ConfigurationError",
    "Flags",
    "Plan",
    "UsageError",
    "load_configuration",
    "main",
    "make_plan",
    "parse_configuration",
    "parse_flags",
    "run",
    "serve",
]
