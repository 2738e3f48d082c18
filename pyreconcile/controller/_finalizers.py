"""Finalizers (HE-6): names that keep a deleted object until its controller has cleaned up."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pyreconcile.api import KubeObject
from pyreconcile.client import MergePatch, NotFoundError

if TYPE_CHECKING:
    from pyreconcile.client import Client

T = TypeVar("T", bound=KubeObject)


def has_finalizer(obj: KubeObject, name: str) -> bool:
    """Tell whether the object has this finalizer."""
    return name in obj.metadata.finalizers


def add_finalizer(obj: KubeObject, name: str) -> bool:
    """Add a finalizer, in place and only locally; return whether it was missing."""
    if name in obj.metadata.finalizers:
        return False
    obj.metadata.finalizers = [*obj.metadata.finalizers, name]
    return True


def remove_finalizer(obj: KubeObject, name: str) -> bool:
    """Remove all entries of a finalizer, in place and only locally; return whether there was one."""
    kept = [present for present in obj.metadata.finalizers if present != name]
    removed = len(kept) != len(obj.metadata.finalizers)
    if removed:
        obj.metadata.finalizers = kept
    return removed


async def ensure_finalizer(client: Client, obj: T, name: str) -> T:
    """Make sure that an object has a finalizer, on the server.

    One merge patch with the resource version of ``obj``, so no finalizer that another writer added meanwhile is
    lost; nothing is sent when the finalizer is there, or when the object is being deleted (the server takes no new
    finalizers then).

    Args:
        client: writes the patch.
        obj: the object as it was read; it is not changed.
        name: the finalizer, as in ``labs.example.dev/cleanup``.

    Returns:
        The object as it is now.

    Raises:
        ConflictError: the object has changed since it was read; reconcile again.
        NotFoundError: it is gone.
    """
    if obj.metadata.deletion_timestamp is not None:
        return obj
    changed = obj.deep_copy()
    if not add_finalizer(changed, name):
        return obj
    return await client.patch(obj, MergePatch.between(obj, changed, optimistic_lock=True))


async def release_finalizer(client: Client, obj: T, name: str) -> T | None:
    """Remove a finalizer on the server; when it was the last one of a deleted object, the object goes.

    One merge patch with the resource version of ``obj``; nothing is sent when the finalizer is not there.

    Args:
        client: writes the patch.
        obj: the object as it was read; it is not changed.
        name: the finalizer.

    Returns:
        The object as it is now, or None when it was gone already.

    Raises:
        ConflictError: the object has changed since it was read; reconcile again.
    """
    changed = obj.deep_copy()
    if not remove_finalizer(changed, name):
        return obj
    try:
        return await client.patch(obj, MergePatch.between(obj, changed, optimistic_lock=True))
    except NotFoundError:
        return None
