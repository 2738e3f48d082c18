"""Finalizers (HE-6): names that keep a deleted object until its controller has cleaned up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from pyreconcile.api import KubeObject, PartialObjectMetadata
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

    One update with the resource version of ``obj``, so no finalizer that another writer added meanwhile is lost;
    nothing is sent when the finalizer is there, or when the object is being deleted (the server takes no new
    finalizers then).

    Args:
        client: writes.
        obj: the object as it was read; it is not changed.
        name: the finalizer, as in ``labs.example.dev/cleanup``.

    Returns:
        The object as it is now.

    Raises:
        ConflictError: the object has changed since it was read; reconcile again.
        NotFoundError: it is gone.
    """
    if obj.metadata.deletion_timestamp is not None or name in obj.metadata.finalizers:
        return obj
    return await _replace_finalizers(client, obj, [*obj.metadata.finalizers, name])


async def release_finalizer(client: Client, obj: T, name: str) -> T | None:
    """Remove a finalizer on the server; when it was the last one of a deleted object, the object goes.

    One update with the resource version of ``obj``; nothing is sent when the finalizer is not there.

    Args:
        client: writes.
        obj: the object as it was read; it is not changed.
        name: the finalizer.

    Returns:
        The object as it is now, or None when it was gone already.

    Raises:
        ConflictError: the object has changed since it was read; reconcile again.
    """
    if name not in obj.metadata.finalizers:
        return obj
    try:
        return await _replace_finalizers(client, obj, [kept for kept in obj.metadata.finalizers if kept != name])
    except NotFoundError:
        return None


async def _replace_finalizers(client: Client, obj: T, finalizers: list[str]) -> T:
    if not isinstance(obj, PartialObjectMetadata):
        return await client.set_finalizers(obj, finalizers)  # costs the server two thirds of what a patch costs it
    version = obj.metadata.resource_version
    if not version:
        what = f"{type(obj).resource.kind} {obj.key!r}"
        raise ValueError(f"{what} has no resource version: read it from the server first")
    return await client.patch(obj, MergePatch({"metadata": {"finalizers": finalizers, "resourceVersion": version}}))


Cleanup: TypeAlias = Callable[[Any], Awaitable[None]]
"""Cleans up what an object had outside of the cluster; doing it twice must do no harm."""


class Finalized(NamedTuple, Generic[T]):
    """What `Finalizers.run` did."""

    obj: T
    """The object as it is now; when it is gone, as it was last."""
    updated: bool
    """Whether finalizers, or anything else but the status, were written."""
    status_updated: bool
    """Whether the status was written."""


class Finalizers:
    """Several clean-ups, each under a finalizer of its own.

    ::

        finalizers = Finalizers({"labs.example.dev/dns": remove_dns, "labs.example.dev/bucket": remove_bucket})
        obj, _, _ = await finalizers.run(self.client, obj)  # first thing in reconcile

    Args:
        cleanups: coroutine functions by finalizer, called with a copy of the object while it is being deleted. What
            one changes in it is written, such as a condition that says how far it is.
    """

    def __init__(self, cleanups: Mapping[str, Cleanup] | None = None) -> None:
        self._cleanups: dict[str, Cleanup] = {}
        for name, cleanup in (cleanups or {}).items():
            self.register(name, cleanup)

    def register(self, name: str, cleanup: Cleanup) -> None:
        """Add a clean-up.

        Raises:
            ValueError: the finalizer has one already, or its name is not of the form ``domain/name``.
        """
        if name in self._cleanups:
            raise ValueError(f"finalizer {name!r} is registered already")
        domain, _, rest = name.partition("/")
        if not domain or not rest:
            raise ValueError(f"finalizer {name!r}: the server wants a domain and a name, as in 'labs.example.dev/dns'")
        self._cleanups[name] = cleanup

    async def run(self, client: Client, obj: T) -> Finalized[T]:
        """Add all finalizers while the object lives; once it is being deleted, clean up and take them off.

        Every clean-up whose finalizer is there runs, in the order of registration and also after one that failed;
        those that went well lose their finalizer. Then one patch at most, with the resource version of ``obj``, and
        before it one of the status if a clean-up changed that.

        Args:
            client: writes the patches.
            obj: the object as it was read; it is not changed.

        Returns:
            The object as it is now, and what was written.

        Raises:
            ConflictError: the object has changed since it was read; reconcile again.
            NotFoundError: a clean-up changed the status of a kind without that sub-resource, or of a lost object.
            ExceptionGroup: what clean-ups raised, after the patches.
        """
        changed = obj.deep_copy()
        failures: list[Exception] = []
        if obj.metadata.deletion_timestamp is None:
            for name in self._cleanups:
                add_finalizer(changed, name)
        else:
            for name, cleanup in self._cleanups.items():
                if has_finalizer(obj, name):
                    try:
                        await cleanup(changed)
                    except Exception as error:
                        error.add_note(f"finalizer {name}")
                        failures.append(error)
                    else:
                        remove_finalizer(changed, name)
        done = await self._write(client, obj, changed)
        if failures:
            raise ExceptionGroup(f"clean-up of {type(obj).resource.kind} {obj.key} failed", failures)
        return done

    async def _write(self, client: Client, obj: T, changed: T) -> Finalized[T]:
        before, after = obj.to_dict(), changed.to_dict()
        main = MergePatch.between({**before, "status": None}, {**after, "status": None})
        status = MergePatch.between({"status": before.get("status")}, {"status": after.get("status")})
        current = obj
        if status:
            current = await client.patch(obj, _locked(status, current), subresource="status")
        if main:
            with suppress(NotFoundError):
                current = await client.patch(obj, _locked(main, current))
        return Finalized(current, bool(main), bool(status))


def _locked(patch: MergePatch, current: KubeObject) -> MergePatch:
    """Return the patch with the version of ``current``: the server refuses it when the object has changed since."""
    metadata = {**patch.fields.get("metadata", {}), "resourceVersion": current.metadata.resource_version}
    return MergePatch({**patch.fields, "metadata": metadata})
