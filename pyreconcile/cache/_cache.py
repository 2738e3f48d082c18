"""The cache: one informer a kind, typed reads from them, and reads that see one's own writes."""

from __future__ import annotations

import builtins
import random as _random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, overload

import anyio
import anyio.abc
import anyio.lowlevel

from pyreconcile.api import KubeObject, RawObject, Resource, split_key
from pyreconcile.api import metadata_only as metadata_of
from pyreconcile.cache._errors import (
    CacheNotStartedError,
    CacheSyncTimeoutError,
    CacheUnhealthyError,
    NamespaceNotCachedError,
)
from pyreconcile.cache._health import check, late
from pyreconcile.cache._informer import Informer, Part
from pyreconcile.cache._informers import Informers
from pyreconcile.cache._live import LiveReader
from pyreconcile.cache._metrics import CacheCollector, HasRegistry
from pyreconcile.cache._options import CacheOptions, NamespaceOptions
from pyreconcile.cache._own_writes import OwnWrites, Write
from pyreconcile.cache._query import Query
from pyreconcile.cache._reachable import Reachability
from pyreconcile.cache._sharing import SharedViews
from pyreconcile.cache._store import IndexFunction
from pyreconcile.cache._watching import ServerSupport, Transport
from pyreconcile.client import not_found

T = TypeVar("T", bound=KubeObject)

DECODE_SLICE = 100
"""Objects of a list that are decoded before other tasks get their turn."""


class Connected(Protocol):
    """What the cache needs of a client."""

    @property
    def transport(self) -> Transport:
        """The request path."""


class Cache:
    """Reads from memory what informers keep equal to the server.

    The kinds are watched as they are asked for. Objects that `get`, `find` and `list` give out are copies, free to
    change. As the client's write observer it makes each read wait for this process's own earlier writes (rule RY-7);
    a read with no such write pending costs nothing more.

    Args:
        client: its transport carries lists and watches.
        options: namespaces, selectors, periods.
        metrics: where numbers about the informers are shown.
        random: a number in [0, 1), for the spread of periods.
        clock: monotonic seconds.
    """

    name = "cache"
    needs_leader_election = False

    def __init__(
        self,
        client: Connected,
        options: CacheOptions | None = None,
        metrics: HasRegistry | None = None,
        *,
        random: Callable[[], float] = _random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        transport = client.transport
        self._options = options or CacheOptions()
        self._own_writes = OwnWrites(
            LiveReader(transport), self._options.read_timeout, lambda resource: self._informers.of(resource)
        )
        url: str = getattr(transport, "base_url", "")  # what only looks like a transport has none
        self._informers = Informers(
            transport,
            self._options,
            support=ServerSupport(
                streaming_list=self._options.streaming_lists,
                reachability=Reachability(url, random=random) if url else None,
            ),
            first_version=self._own_writes.first_version,
            forgotten=self._forgotten,
            random=random,
            clock=clock,
        )
        self._by_kind: dict[type[KubeObject], Informer[Any]] = {}
        self._shared = SharedViews()
        self._sharing: set[type[KubeObject]] = set()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._started = anyio.Event()
        self._stopped = False
        if metrics is not None:
            metrics.registry.register(CacheCollector(self))

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """All informers, running or about to."""
        return self._informers.all

    @property
    def own_write_waits(self) -> int:
        """How many reads waited for an own write."""
        return self._own_writes.waits

    @property
    def live_reads(self) -> int:
        """How many reads went to the server because the watch was behind an own write."""
        return self._own_writes.live_reads

    async def run(
        self, stop: anyio.Event, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Watch until ``stop`` is set, then close all streams at once and return.

        ``task_status.started()`` is called when reads are accepted; they wait for the first list of their kind.
        Cancellation does the same as ``stop``.

        Raises:
            RuntimeError: it ran before.
        """
        if self._started.is_set() or self._stopped:
            raise RuntimeError("a cache runs once: make a new one")
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                self._informers.start(tasks)
                self._started.set()
                task_status.started()
                await stop.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            self._stopped = True
            self._by_kind.clear()
            self._informers.stop()

    async def wait_for_sync(self) -> None:
        """Wait until the cache runs and the first lists of all kinds asked for so far are in.

        Raises:
            CacheSyncTimeoutError: that took longer than ``sync_timeout``.
            InformerStoppedError: the cache stopped meanwhile.
        """
        with anyio.move_on_after(self._options.sync_timeout) as scope:
            await self._started.wait()
            for informer in self.informers:
                await informer.wait_synced()
        if scope.cancelled_caught:
            missing = [informer for informer in self.informers if not informer.has_synced]
            raise CacheSyncTimeoutError(late(missing, self._options.sync_timeout))

    @overload
    def informer(self, kind: type[T], *, metadata_only: Literal[False] = ...) -> Informer[T]: ...

    @overload
    def informer(self, kind: type[KubeObject], *, metadata_only: bool) -> Informer[Any]: ...

    def informer(self, kind: type[T], *, metadata_only: bool = False) -> Informer[Any]:
        """Return the informer of a kind, starting it if the cache runs and else when it does. Never waits.

        Args:
            kind: the model class. One made by `pyreconcile.api.metadata_only` has an informer apart from the kind's
                own, which asks the server for metadata alone (rules CA-1, CA-10).
            metadata_only: return that informer, as if ``kind`` were ``metadata_only(kind)``.

        Raises:
            CacheNotStartedError: the cache has stopped.
            ValueError: the options do not suit the kind.
        """
        return self._informers.get(metadata_of(kind) if metadata_only else kind)

    def remove_informer(self, kind: type[KubeObject]) -> None:
        """Stop watching a kind and forget its objects; asking for it later starts anew, with its indexes (rule CA-9).

        An informer also ends by itself when its last handler was removed and nobody reads its kind meanwhile
        (`CacheOptions.linger`).
        """
        self._informers.remove(kind)

    async def add_namespace(
        self, namespace: str, *, kind: type[KubeObject] | None = None, options: NamespaceOptions | None = None
    ) -> None:
        """Watch one more namespace, and wait for its first lists (rule CA-11). One that is watched already is fine.

        Meanwhile reads in it wait, and lists over all namespaces do without it. Cancelled, or failed, it is as before.

        Args:
            namespace: its name.
            kind: add it to the namespaces of this kind, where ``by_kind`` gives it some of its own; by default it is
                added to those of the cache, for all other kinds.
            options: what to watch in it.

        Raises:
            CacheSyncTimeoutError: a first list did not come within ``sync_timeout``.
            ValueError: all namespaces are watched, or this one is with other options.
        """
        await self._informers.add_namespace(namespace, options or NamespaceOptions(), kind)

    async def remove_namespace(self, namespace: str, *, kind: type[KubeObject] | None = None) -> None:
        """Watch a namespace no longer, and forget its objects (rule CA-11). One that is not watched is fine.

        Handlers hear of each object as deleted with ``state_unknown``; reads in the namespace are an error from now on.

        Args:
            namespace: its name.
            kind: as for `add_namespace`.

        Raises:
            ValueError: all namespaces are watched, or it is the last one.
        """
        await self._informers.remove_namespace(namespace, kind)

    def add_index(self, kind: type[KubeObject], name: str, fn: IndexFunction) -> None:
        """Index a kind, watching it from now on; waits for nothing.

        Args:
            kind: the model class.
            name: what reads call the index. One named like a field path (``spec.nodeName``) serves ``fields=``.
            fn: gives an object's values.

        Raises:
            ValueError: the name is taken by another function.
        """
        self._informers.add_index(kind, name, fn)

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
        writes = part.pending.on(key) if part.pending else ()
        if writes:
            shown = await self._own_writes.shown(part, kind.resource, writes)
            part = self._part(informer, namespace)  # it may have been removed meanwhile
            if not shown:
                return await self._own_writes.get_live(part, kind.resource, key)
        raw = informer.store.get(key)
        if raw is None:
            _check_key(kind.resource, key)
        return raw

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
        informer = self._by_kind.get(kind) or await self._synced(kind)
        if namespace:
            parts: tuple[Part, ...] = (self._part(informer, namespace),)
            if not parts[0].synced:
                await self._part_synced(parts[0])
        else:
            # A namespace that is being added joins them once it is in.
            parts = tuple(part for part in informer.parts if part.synced)
        for part in parts:
            writes = part.pending.all(namespace) if part.pending else ()
            if writes and not await self._own_writes.shown(part, kind.resource, writes):
                return (await self._own_writes.list_live(parts, kind.resource, query, informer.store))[:limit]
        return query.run(informer.store)[:limit]

    def begin(self, resource: Resource, key: str) -> Write:
        """Take note that a write is about to be sent; readers of the key, and of all keys, wait for its end (RY-4).

        Args:
            resource: what is written.
            key: of which object; ``namespace/`` when the server makes up the name.
        """
        return self._own_writes.begin(resource, key)

    def end(self, write: Write, *, unknown: bool = False) -> None:
        """Take note that a write has ended; what it wrote is told by `written` or `deleted`, at once.

        Args:
            write: from `begin`.
            unknown: it is not known what became of it. The next read asks the server, and then waits until the watch
                has shown whatever that says.
        """
        self._own_writes.end(write, unknown=unknown)

    def written(self, resource: Resource, key: str, resource_version: str) -> None:
        """Take note of an own write: later reads of the key or of all keys wait until the watch has shown it."""
        self._own_writes.written(resource, key, resource_version)

    def deleted(self, resource: Resource, key: str, uid: str, resource_version: str | None) -> None:
        """Take note of an own delete; with a version when the object is only marked for deletion (rule RY-5)."""
        if resource_version:
            self._own_writes.written(resource, key, resource_version)
        else:
            self._own_writes.deleted(resource, key, uid)

    def check(self) -> None:
        """Tell whether the cache follows the server, for a readiness check.

        Raises:
            CacheUnhealthyError: the cache does not run, a kind has no first list yet, has had no watch for 30 s, or
                the last call of a handler raised (rule IN-12).
        """
        if self._tasks is None:
            raise CacheUnhealthyError("the cache does not run")
        for informer in self.informers:
            check(informer)

    def _typed(self, kind: type[T], raw: RawObject, copy: bool | None) -> T:
        if copy is None:
            copy = kind not in self._sharing
        return kind.from_dict(raw) if copy else self._shared.of(kind, raw)

    def _forgotten(self, informer: Informer[Any]) -> None:
        # The next read then takes the long way, on which it is noted that the kind is used.
        self._by_kind = {kind: other for kind, other in self._by_kind.items() if other is not informer}

    async def _synced(self, kind: type[T]) -> Informer[T]:
        if self._tasks is None:
            state = "has stopped" if self._stopped else "does not run"
            raise CacheNotStartedError(f"{kind.__name__} cannot be read: the cache {state}")
        if self._informers.find(kind) is None and not self._options.start_on_read:
            raise CacheNotStartedError(f"{kind.__name__} is not watched: ask for its informer before reading it")
        informer = self.informer(kind)
        with anyio.move_on_after(self._options.sync_timeout) as scope:
            await informer.wait_synced()
        if scope.cancelled_caught:
            raise CacheSyncTimeoutError(late([informer], self._options.sync_timeout))
        if not self._informers.copies(kind):
            self._sharing.add(kind)
        self._by_kind[kind] = informer
        return informer

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
