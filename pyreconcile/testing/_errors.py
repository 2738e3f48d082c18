"""What can go wrong with a test control plane."""

from __future__ import annotations

__all__ = ["BuildError", "ControlPlaneError", "DownloadError", "ProgramNotFoundError"]


class ControlPlaneError(RuntimeError):
    """The control plane could not be started, or has ended; the message holds the last lines of the log."""


class ProgramNotFoundError(ControlPlaneError):
    """A program of the control plane was found nowhere; the message says where was looked and what to do."""


class BuildError(ControlPlaneError):
    """The control-plane program could not be built: Go is missing or too old, or the build failed."""


class DownloadError(ControlPlaneError):
    """A release binary could not be fetched, or its SHA-256 sum is not the published one."""
