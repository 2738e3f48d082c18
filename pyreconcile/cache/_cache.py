"""The cache: one informer a kind, typed reads from them, and reads that see one's own writes."""

from __future__ import annotations

import random as _random
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar, overload

import anyio
import anyio.abc

from pyreconcile.api import KubeObject, Resource
from pyreconcile.api import metadata_only as metadata_of
from pyreconcile.cache._errors import CacheSyncTimeoutError, CacheUnhealthyError
from pyreconcile.cache._health import check, late
from pyreconcile.cache._informer import Informer
from pyreconcile.cache._informers import Informers
from pyreconcile.cache._live import LiveReader
from pyreconcile.cache._metrics import CacheCollector, HasRegistry
from pyreconcile.cache._options import CacheOptions, NamespaceOptions
from pyreconcile.cache._own_writes import OwnWrites, Write
from pyreconcile.cache._reachable import Reachability
from pyreconcile.cache._reads import CacheReads
from pyreconcile.cache._store import IndexFunction
from pyreconcile.cache._watching import ServerSupport, Transport

T = TypeVar("T", bound=KubeObject)


class Connected(Protocol):
    """What the cache needs of a client."""

    @property
    def transport(self) -> Transport:
        """The request path."""


class Cache(CacheReads):
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
        transport, options = client.transport, options or CacheOptions()
        own_writes = OwnWrites(LiveReader(transport), options.read_timeout, lambda resource: informers.of(resource))
        url: str = getattr(transport, "dialled_url", "")  # what only looks like a transport has none
        informers = Informers(
            transport,
            options,
            support=ServerSupport(
                streaming_list=options.streaming_lists,
                reachability=Reachability(url, random=random) if url else None,
            ),
            first_version=own_writes.first_version,
            forgotten=self._forgotten,
            random=random,
            clock=clock,
        )
        super().__init__(options, informers, own_writes)
        self._started = anyio.Event()
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
                self._running = True
                self._informers.start(tasks)
                self._started.set()
                task_status.started()
                try:
                    await stop.wait()
                finally:
                    self._end()
                tasks.cancel_scope.cancel()
        finally:
            self._end()
            self._informers.stop()

    def _end(self) -> None:
        self._running = False
        self._stopped = True
        self._by_kind.clear()

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
        A cancellation takes effect when all this is done, which takes as long as closing a stream.

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

    def begin(self, resource: Resource, key: str) -> Write:
        """Take note that a write is about to be sent; readers of the key, and of all keys, wait for its end (RY-4).

        Args:
            resource: what is written.
            key: of which object; ``namespace/`` when the server makes up the name.
        """
        return self._own_writes.begin(resource, key)

    def end(self, write: Write, *, unknown: bool = False) -> None:
        """Take note that a write has ended; what it wrote is told by `written`, `deleted` or `lost`, at once.

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

    def lost(self, resource: Resource, key: str) -> None:
        """Take note of an own write whose answer cannot be read: the next read asks the server, as after `end`."""
        self._own_writes.lost(resource, key)

    def check(self) -> None:
        """Tell whether the cache follows the server, for a readiness check.

        Raises:
            CacheUnhealthyError: the cache does not run, a kind has no first list yet, has had no watch for 30 s, or
                the last call of a handler raised (rule IN-12).
        """
        if not self._running:
            raise CacheUnhealthyError("the cache does not run")
        for informer in self.informers:
            check(informer)
