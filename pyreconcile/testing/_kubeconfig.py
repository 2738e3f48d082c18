"""The kubeconfig of a cluster that is there already, also when KUBECONFIG names several files (rule TE-1)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ._errors import ControlPlaneError

_LISTS = ("clusters", "users", "contexts")
# Fields of a cluster or user that name a file, relative to the file that they stand in.
_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class ExistingCluster:
    """The administrator's kubeconfig of a cluster that was there before.

    Args:
        files: the files to use together.
    """

    def __init__(self, *files: Path) -> None:
        self._files = files
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> ExistingCluster:
        """Return the cluster that KUBECONFIG names, one file or several, else that of ``~/.kube/config``."""
        named = [Path(part).expanduser() for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
        return cls(*named) if named else cls(Path.home() / ".kube" / "config")

    def open(self) -> None:
        """Merge several files into one temporary file.

        Raises:
            ControlPlaneError: none of them exists, or one is no kubeconfig.
        """
        found = [path for path in self._files if path.is_file()]
        if len(self._files) > 1 and not found:
            raise ControlPlaneError(f"KUBECONFIG names {', '.join(map(str, self._files))}, but there is no such file")
        if len(found) < 2:
            self._files = tuple(found) or self._files
            return
        text = yaml.safe_dump(merge(found))
        self._folder = tempfile.TemporaryDirectory(prefix="pyreconcile-kubeconfig-")
        path = Path(self._folder.name) / "kubeconfig"
        path.write_text(text)
        self._files = (path,)

    def close(self) -> None:
        """Remove the temporary file."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def kubeconfig(self) -> Path:
        """The one file.

        Raises:
            ControlPlaneError: there are several, and `open` was not called.
        """
        if len(self._files) != 1:
            raise ControlPlaneError("KUBECONFIG names several files: use `async with ControlPlane() as plane`")
        return self._files[0]


def merge(files: Sequence[Path]) -> dict[str, Any]:
    """Return one kubeconfig for several: the first to name a thing decides, as in kubectl.

    Raises:
        ControlPlaneError: a file is no kubeconfig.
    """
    merged: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", **{name: [] for name in _LISTS}}
    for path in files:
        try:
            content = yaml.safe_load(path.read_text()) or {}
        except (OSError, yaml.YAMLError) as error:
            raise ControlPlaneError(f"kubeconfig {path} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise ControlPlaneError(f"{path} is no kubeconfig: its top level must be a mapping")
        if content.get("current-context"):
            merged.setdefault("current-context", content["current-context"])
        for name in _LISTS:
            known = {entry["name"] for entry in merged[name]}
            added = [entry for entry in content.get(name) or () if entry["name"] not in known]
            merged[name] += [_anchored(entry, path.parent.absolute()) for entry in added]
    return merged


def _anchored(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return an entry with the paths in it made absolute."""
    for part in (entry.get("cluster"), entry.get("user")):
        if not isinstance(part, dict):
            continue
        for name in _FILES:
            if part.get(name):
                part[name] = str(folder / part[name])
        plugin = part.get("exec")
        # A plugin's command with a slash in it is a path; without one it is looked for in PATH.
        if isinstance(plugin, dict) and "/" in str(plugin.get("command", "")):
            plugin["command"] = str(folder / plugin["command"])
    return entry
