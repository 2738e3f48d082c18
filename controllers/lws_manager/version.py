"""Which build this is, and what it calls itself."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Final

COMMIT_VARIABLE: Final = "PYRECONCILE_COMMIT"
DATE_VARIABLE: Final = "PYRECONCILE_BUILD_DATE"
"""What an image's build sets, so that it can be told which one runs."""

# Go's names of architectures, which upstream's user agent has.
_ARCHITECTURES: Final = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}


def user_agent(environment: Mapping[str, str] = os.environ) -> str:
    """Return ``lws/<version> (<os>/<architecture>) <commit>``; of the commit the first seven digits (LWS §11)."""
    machine = platform.machine()
    commit = environment.get(COMMIT_VARIABLE, "")[:7] or "unknown"
    return f"lws/v{version('pyreconcile')} ({sys.platform}/{_ARCHITECTURES.get(machine, machine)}) {commit}"


def version_text(environment: Mapping[str, str] = os.environ) -> str:
    """Return what ``--version`` prints."""
    return (
        f"Version: v{version('pyreconcile')} (pyreconcile)\n"
        f"Build Date: {environment.get(DATE_VARIABLE) or 'N/A'}\n"
        f"Git Commit: {environment.get(COMMIT_VARIABLE) or 'unknown'}"
    )
