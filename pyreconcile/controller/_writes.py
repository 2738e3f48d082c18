"""create_or_update and create_or_patch (HE-1, HE-2): write an object only when it is not as it should be."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pyreconcile.api import KubeObject, RawObject
from pyreconcile.client import MergePatch, semantic_equal

if TYPE_CHECKING:
    from pyreconcile.client import Client

T = TypeVar("T", bound=KubeObject)


class OperationResult(enum.StrEnum):
    """What was written."""

    UNCHANGED = "unchanged"
    CREATED = "created"
    UPDATED = "updated"
    UPDATED_STATUS = "updatedStatus"
    UPDATED_STATUS_ONLY = "updatedStatusOnly"


async def create_or_update(
    client: Client, obj: T, mutate: Callable[[T], Awaitable[None] | None]
) -> tuple[T, OperationResult]:
    """Create an object, or update the one that is there; write nothing when it is as wanted (HE-1).

    Prefer ``client.apply`` where you can: it needs no read and leaves other writers' fields alone.

    Args:
        client: reads and writes.
        obj: names the object; it is what is created when there is none.
        mutate: sets what is wanted on the object it is given: ``obj``, or the one that was read. It may be async.

    Returns:
        The object as it is on the server, and created, updated or unchanged.

    Raises:
        ValueError: ``mutate`` changed the name or the namespace.
        ConflictError: the object has changed since it was read.
        AlreadyExistsError: the cached read did not know of it yet; reconcile again.
    """
    before = await client.find_raw(type(obj), obj.key)
    if before is None:
        await _mutate(obj, mutate)
        return await client.create(obj), OperationResult.CREATED
    present = type(obj).from_dict(before)
    await _mutate(present, mutate)
    if semantic_equal(before, present.to_dict()):
        return present, OperationResult.UNCHANGED
    return await client.update(present), OperationResult.UPDATED


async def create_or_patch(
    client: Client, obj: T, mutate: Callable[[T], Awaitable[None] | None]
) -> tuple[T, OperationResult]:
    """Create an object, or patch what differs, its status too (HE-2).

    A merge patch changes the object without its status, a second one the status; each is sent only when something
    differs. A patch carries no resource version, so it does not conflict. An object that is created is sent once: the
    server ignores a status there, and the next call writes it.

    Args:
        client: reads and writes.
        obj: names the object; it is what is created when there is none.
        mutate: sets what is wanted on the object it is given: ``obj``, or the one that was read. It may be async.

    Returns:
        The object as it is on the server, and what was written.

    Raises:
        ValueError: ``mutate`` changed the name or the namespace.
        NotFoundError: it is gone, or its kind has no status sub-resource but the status was changed.
    """
    before = await client.find_raw(type(obj), obj.key)
    if before is None:
        await _mutate(obj, mutate)
        return await client.create(obj), OperationResult.CREATED
    present = type(obj).from_dict(before)
    await _mutate(present, mutate)
    after = present.to_dict()
    current = present
    main_differs = not semantic_equal(_without_status(before), _without_status(after))
    status_differs = not semantic_equal(before.get("status"), after.get("status"))
    if main_differs:
        patch = MergePatch.between(_without_status(before), _without_status(after))
        current = await client.patch(present, patch)
    if status_differs:
        # Built from what was wanted, not from the first answer: that one still has the old status (HE-2a).
        patch = MergePatch.between(_only_status(before), _only_status(after))
        current = await client.patch(present, patch, subresource="status")
    if main_differs:
        return current, OperationResult.UPDATED_STATUS if status_differs else OperationResult.UPDATED
    return current, OperationResult.UPDATED_STATUS_ONLY if status_differs else OperationResult.UNCHANGED


async def _mutate(obj: KubeObject, mutate: Callable[[Any], Awaitable[None] | None]) -> None:
    key = obj.key
    outcome = mutate(obj)
    if inspect.isawaitable(outcome):
        await outcome
    if obj.key != key:
        raise ValueError(f"mutate changed {key!r} into {obj.key!r}: it must keep name and namespace")


def _without_status(raw: RawObject) -> RawObject:
    return {name: value for name, value in raw.items() if name != "status"}


def _only_status(raw: RawObject) -> RawObject:
    return {"metadata": {}, "status": raw.get("status") or {}}
