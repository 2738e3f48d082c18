"""What can go wrong with a test control plane."""

from __future__ import annotations

__all__ = ["BuildError", "ControlPlaneError", "DownloadError", "ManifestError", "ProgramNotFoundError"]


class ControlPlaneError(RuntimeError):
    """A test control plane could not be started or used.

    When a component ended or was not ready in time, the message holds the last lines of its log.
    """


class ProgramNotFoundError(ControlPlaneError):
    """A program of the control plane was found nowhere; the message says where was looked and what to do."""


class BuildError(ControlPlaneError):
    """The control-plane program could not be built: Go is missing or too old, or the build failed."""


class DownloadError(ControlPlaneError):
    """A release binary could not be fetched, or its SHA-256 sum is not the published one."""


class ManifestError(ControlPlaneError):
    """CRDs or webhook configurations could not be read or installed; the message names file and document."""
