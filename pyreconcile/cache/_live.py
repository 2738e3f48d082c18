"""Reads from the server, under the same scope as the cache, for when the cache is behind (rule RY-7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass, field, replace

import anyio
import orjson

from pyreconcile.api import RawObject, Resource, split_key
from pyreconcile.cache._lister import Lister, Requests
from pyreconcile.cache._options import Scope
from pyreconcile.client import ApiError, NotFoundError


class LiveReader:
    """Gives what an up-to-date cache of a scope would give."""

    def __init__(self, transport: Requests) -> None:
        self._transport = transport

    async def get(self, resource: Resource, key: str, scope: Scope) -> RawObject | None:
        """Return the object, or None when there is none or the scope leaves it out."""
        namespace, name = split_key(key)
        try:
            body = await self._transport.request("GET", resource.path(namespace, name))
        except NotFoundError:
            return None
        obj: RawObject = orjson.loads(body)
        if not scope.selects(obj):
            return None
        if scope.metadata_only:
            obj = {field: obj[field] for field in ("apiVersion", "kind", "metadata")}
        return obj if scope.transform is None else scope.transform(obj)

    async def list(self, resource: Resource, scope: Scope, namespace: str = "") -> list[RawObject]:
        """Return the scope's objects, or those of one of its namespaces, at the newest version."""
        lister = Lister(self._transport, resource, _narrowed(scope, namespace), prepare=scope.transform)
        objects, _ = await lister.fetch("")
        return list(objects.values())

    async def metadata(self, resource: Resource, scope: Scope, namespace: str = "") -> Collection[RawObject]:
        """Return the metadata of what `list` gives."""
        lister = Lister(self._transport, resource, replace(_narrowed(scope, namespace), metadata_only=True))
        objects, _ = await lister.fetch("")
        return objects.values()


def _narrowed(scope: Scope, namespace: str) -> Scope:
    if namespace and namespace != scope.namespace:
        return replace(scope, namespace=namespace, excluded=frozenset())
    return scope


@dataclass(slots=True)
class _Lists:
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    begun: int = 0
    done: int = 0
    waiting: int = 0
    outcome: list[RawObject] | ApiError = field(default_factory=list)


class SharedLists:
    """Joins live lists of the same place: while one runs, all later readers together get the next one.

    A reader never gets a list that began before it asked, so what it knows to be done is in there.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, _Lists] = {}

    async def list(self, place: Hashable, fetch: Callable[[], Awaitable[list[RawObject]]]) -> list[RawObject]:
        """Return a list of ``place`` that began after this call; cancelled, another reader makes it.

        Args:
            place: what is listed.
            fetch: makes the list.

        Raises:
            ApiError: as answered to this reader or to another that it was joined with.
        """
        lists = self._running.setdefault(place, _Lists())
        asked = lists.begun
        lists.waiting += 1
        try:
            async with lists.lock:
                if lists.done <= asked:
                    lists.begun = number = lists.begun + 1
                    try:
                        lists.outcome = await fetch()
                    except ApiError as error:
                        lists.outcome = error
                    lists.done = number
                if isinstance(lists.outcome, ApiError):
                    raise lists.outcome
                return lists.outcome
        finally:
            lists.waiting -= 1
            if not lists.waiting:
                del self._running[place]
