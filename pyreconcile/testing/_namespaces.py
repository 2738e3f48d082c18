"""A namespace for a test."""

from __future__ import annotations

from pathlib import Path

from pyreconcile.api.core_v1 import Namespace
from pyreconcile.client import connect

__all__ = ["create_namespace", "delete_namespace"]


async def create_namespace(kubeconfig: Path, name: str) -> None:
    """Create it, marked as ours so that leftovers on a shared cluster can be found."""
    labels = {"app.kubernetes.io/managed-by": "pyreconcile-testing"}
    async with connect(kubeconfig=kubeconfig) as client:
        await client.create(Namespace.from_dict({"metadata": {"name": name, "labels": labels}}))


async def delete_namespace(kubeconfig: Path, name: str) -> None:
    """Ask for its deletion without waiting for the end."""
    async with connect(kubeconfig=kubeconfig) as client:
        await client.delete(Namespace, name, missing_ok=True)
