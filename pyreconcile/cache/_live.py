"""Reads from the server, under the same scope as the cache, for when the cache is behind (rule RY-7)."""

from __future__ import annotations

from dataclasses import replace

import orjson

from pyreconcile.api import RawObject, Resource, split_key
from pyreconcile.cache._lister import Lister, Requests
from pyreconcile.cache._options import Scope
from pyreconcile.client import NotFoundError


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
        return obj if scope.transform is None else scope.transform(obj)

    async def list(self, resource: Resource, scope: Scope, namespace: str = "") -> list[RawObject]:
        """Return the scope's objects, or those of one of its namespaces, at the newest version."""
        if namespace and namespace != scope.namespace:
            scope = replace(scope, namespace=namespace, excluded=frozenset())
        objects, _ = await Lister(self._transport, resource, scope, prepare=scope.transform).fetch("")
        return list(objects.values())
