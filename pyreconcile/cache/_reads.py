"""What can be read from a cache."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from pyreconcile.api import KubeObject, RawObject, Resource, split_key
from pyreconcile.cache._errors import CacheNotStartedError, CacheSyncTimeoutError, NamespaceNotCachedError
from pyreconcile.cache._health import late
from pyreconcile.cache._informer import Informer, Part
from pyreconcile.cache._informers import Informers
from pyreconcile.cache._options import CacheOptions
from pyreconcile.cache._own_writes import OwnWrites
from pyreconcile.cache._query import Query
from pyreconcile.cache._registration import InformerStoppedError
from pyreconcile.cache._sharing import SharedViews
from pyreconcile.client import not_found

T = TypeVar("T", bound=KubeObject)

DECODE_SLICE = 100
"""Objects of a list that are decoded before other tasks get their turn."""


class CacheReads:
    """The reading side of `Cache`."""

    def __init__(self, options: CacheOptions, informers: Informers, own_writes: OwnWrites) -> None:
        self._options = options
        self._informers = informers
        self._own_writes = own_writes
        self._by_kind: dict[type[KubeObject], Informer[Any]] = {}
        self._shared = SharedViews()
        self._sharing: set[type[KubeObject]] = set()
        self._running = False
        self._stopped = False

    async def get(self, kind: type[T], key: str, *, copy: bool | None = None) -> T:
        """Return one object, by default a copy that is free to change.

        A kind that is not watched yet is from now on, and the read waits for its first list.

        Args:
            kind: the model class.
            key: ``namespace/name``, or ``name`` of a cluster-scoped object.
            copy: False for an object that readers share and nobody may change; by default as the options say.

        Raises:
            NotFoundError: there is no such object in the cache.
            CacheNotStartedError: the cache does not run.
            CacheSyncTimeoutError: the first list did not come in time.
            NamespaceNotCachedError: the cache does not watch the namespace.
            ValueError: the key does not fit the kind's scope.
        """
        raw = await self.find_raw(kind, key)
        if raw is None:
            raise not_found(kind.resource, key)
        return self._typed(kind, raw, copy)

    async def find(self, kind: type[T], key: str, *, copy: bool | None = None) -> T | None:
        """Return one object, or None; raises as `get` does otherwise."""
        raw = await self.find_raw(kind, key)
        return None if raw is None else self._typed(kind, raw, copy)

    async def find_raw(self, kind: type[KubeObject], key: str) -> RawObject | None:
        """Return one object as the cache holds it, or None; read only. Raises as `get` does otherwise."""
        informer = self._by_kind.get(kind) or await self._synced(kind)
        namespace = key.rpartition("/")[0]
        part = self._part(informer, namespace)
        if not part.synced:
            await self._part_synced(part)
            return await self.find_raw(kind, key)
        writes = part.pending.on(key) if part.pending else ()
        if writes:
            own_writes = self._own_writes
            shown = await own_writes.shown(part, kind.resource, writes, own_writes.deadline())
            if informer.stopped:  # its store is out of date for good
                return await self.find_raw(kind, key)
            part = self._part(informer, namespace)  # it may have been removed meanwhile
            if not shown:
                return await own_writes.get_live(part, kind.resource, key)
        raw = informer.store.get(key)
        if raw is None:
            _check_key(kind.resource, key)
        return raw

    def peek(self, kind: type[KubeObject], key: str) -> RawObject | None:
        """Return one object as the cache holds it now, or None; read only.

        None also when it does not hold the kind, or not as the server has it: a transform may have taken fields away.
        """
        informer = self._by_kind.get(kind)
        if informer is None or any(part.scope.transform is not None for part in informer.parts):
            return None
        return informer.store.get(key)

    def get_raw(self, kind: type[KubeObject], key: str) -> RawObject | None:
        """Return one object as the cache holds it now, without waiting for anything; read only.

        Raises:
            CacheNotStartedError: the kind is not watched, or its first list is not in yet.
        """
        informer = self._informers.find(kind)
        if informer is None or not informer.has_synced:
            raise CacheNotStartedError(f"{kind.resource.kind} is not in the cache yet: get its informer, wait_for_sync")
        return informer.store.get(key)

    async def list(
        self,
        kind: type[T],
        *,
        namespace: str = "",
        labels: str | Mapping[str, str | Sequence[str]] | None = None,
        fields: str | Mapping[str, str] | None = None,
        index: tuple[str, str] | None = None,
        limit: int | None = None,
        copy: bool | None = None,
    ) -> builtins.list[T]:
        """Return all objects that match, in the order of their keys.

        Args:
            kind: the model class.
            namespace: only this one; all watched ones when empty.
            labels: label selector, evaluated in memory.
            fields: exact matches only; besides ``metadata.name`` and ``metadata.namespace`` each needs an index of
                the path's name (rule CA-7).
            index: name of an index and the value to look up.
            limit: the first so many only. There are no pages, hence no token to go on with.
            copy: as for `get`.

        Raises:
            KeyError: there is no such index.
            ValueError: a selector cannot be read, or a field term is no exact match.
            CacheNotStartedError, CacheSyncTimeoutError, NamespaceNotCachedError: as for `get`.
        """
        found = await self.list_raw(kind, namespace=namespace, labels=labels, fields=fields, index=index, limit=limit)
        objects = []
        for done, raw in enumerate(found, 1):
            objects.append(self._typed(kind, raw, copy))
            if done % DECODE_SLICE == 0:
                await anyio.lowlevel.checkpoint()
        return objects

    async def list_raw(
        self,
        kind: type[KubeObject],
        *,
        namespace: str = "",
        labels: str | Mapping[str, str | Sequence[str]] | None = None,
        fields: str | Mapping[str, str] | None = None,
        index: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> builtins.list[RawObject]:
        """Return all objects that match as the cache holds them; read only. Raises as `list` does."""
        if namespace and not kind.resource.namespaced:
            raise ValueError(f"namespace {namespace!r}: {kind.resource.kind} is cluster-scoped, leave it out")
        if limit is not None and limit < 1:
            raise ValueError(f"limit {limit}: it is a number of objects, leave it out for all")
        query = Query.read(namespace, labels, fields, index)
        return (await self._select(kind, query))[:limit]

    async def _select(self, kind: type[KubeObject], query: Query) -> builtins.list[RawObject]:
        informer = self._by_kind.get(kind) or await self._synced(kind)
        if query.namespace:
            parts: tuple[Part, ...] = (self._part(informer, query.namespace),)
            if not parts[0].synced:
                await self._part_synced(parts[0])
                return await self._select(kind, query)
        else:
            # A namespace that is being added joins them once it is in.
            parts = tuple(part for part in informer.parts if part.synced)
        own_writes, deadline = self._own_writes, 0.0
        for part in parts:
            writes = part.pending.all(query.namespace) if part.pending else ()
            if writes:
                deadline = deadline or own_writes.deadline()
                shown = await own_writes.shown(part, kind.resource, writes, deadline)
                if informer.stopped:
                    return await self._select(kind, query)
                if not shown:
                    return await own_writes.list_live(parts, kind.resource, query, informer.store)
        return query.run(informer.store)

    def _typed(self, kind: type[T], raw: RawObject, copy: bool | None) -> T:
        if copy is None:
            copy = kind not in self._sharing
        return kind.from_dict(raw) if copy else self._shared.of(kind, raw)

    def _forgotten(self, informer: Informer[Any]) -> None:
        # The next read then takes the long way, on which it is noted that the kind is used.
        self._by_kind = {kind: other for kind, other in self._by_kind.items() if other is not informer}

    async def _synced(self, kind: type[T]) -> Informer[T]:
        with anyio.move_on_after(self._options.sync_timeout) as scope:
            informer = await self._running_informer(kind)
        if scope.cancelled_caught:
            missing = self._informers.find(kind)
            raise CacheSyncTimeoutError(late([] if missing is None else [missing], self._options.sync_timeout))
        if not self._informers.copies(kind):
            self._sharing.add(kind)
        self._by_kind[kind] = informer
        return informer

    async def _running_informer(self, kind: type[T]) -> Informer[T]:
        while True:
            if not self._running:
                state = "has stopped" if self._stopped else "does not run"
                raise CacheNotStartedError(f"{kind.__name__} cannot be read: the cache {state}")
            if self._informers.find(kind) is None and not self._options.start_on_read:
                raise CacheNotStartedError(f"{kind.__name__} is not watched: ask for its informer before reading it")
            informer = self._informers.get(kind)
            await informer.wait_synced()
            if not informer.stopped:
                return informer
            if self._running and self._informers.find(kind) is informer:
                raise InformerStoppedError(f"informer of {kind.__name__} has stopped")
            # It was removed, or the cache ended, in this very turn of the loop: what it holds is out of date for good.

    async def _part_synced(self, part: Part) -> None:
        with anyio.move_on_after(self._options.sync_timeout) as scope:
            await part.settled.wait()
        if scope.cancelled_caught:
            raise CacheSyncTimeoutError(f"no first list of namespace {part.scope.namespace!r} of {part.kind}")

    def _part(self, informer: Informer[Any], namespace: str) -> Part:
        part = informer.part_for(namespace)
        if part is None:
            resource = informer.kind.resource
            if resource.namespaced and not namespace:
                raise ValueError(f"{resource.kind} is namespaced: write the key as 'namespace/name'")
            watched = ", ".join(part.scope.namespace for part in informer.parts)
            raise NamespaceNotCachedError(f"namespace {namespace!r} of {resource.kind} is not watched, only {watched}")
        return part


def _check_key(resource: Resource, key: str) -> None:
    if resource.namespaced != bool(split_key(key)[0]):
        form = "'namespace/name'" if resource.namespaced else "its name alone"
        scope = "namespaced" if resource.namespaced else "cluster-scoped"
        raise ValueError(f"key {key!r}: {resource.kind} is {scope}, write {form}")
