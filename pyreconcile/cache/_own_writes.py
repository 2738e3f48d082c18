"""What a read does about this process's own writes that the watch has not shown yet (rules RY-6, RY-7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from pyreconcile.api import RawObject, Resource
from pyreconcile.cache._consistency import Flight, PendingWrite, PendingWrites
from pyreconcile.cache._informer import Informer, Part
from pyreconcile.cache._live import LiveReader, SharedLists
from pyreconcile.cache._query import Query
from pyreconcile.cache._store import Store, key_of, namespace_of
from pyreconcile.cache._versions import newer

MOST_GETS = 4
"""Objects that a read looks up one by one; for more of them one list of metadata is less for the server."""


@dataclass(slots=True)
class Write:
    """A write that was begun, and where it is waited for."""

    resource: Resource
    key: str
    flights: list[tuple[PendingWrites, Flight]]


class OwnWrites:
    """Waits for own writes, and reads from the server when that takes too long.

    Args:
        live: reads from the server.
        timeout: seconds that a read waits.
        informers: gives the informers of a resource.

    Attributes:
        waits: how many reads waited.
        live_reads: how many reads went to the server.
    """

    def __init__(
        self, live: LiveReader, timeout: float, informers: Callable[[Resource], Sequence[Informer[Any]]]
    ) -> None:
        self._live = live
        self._shared = SharedLists()
        self._timeout = timeout
        self._informers = informers
        self._newest: dict[Resource, str] = {}
        self._unsure: set[Resource] = set()
        self.waits = 0
        self.live_reads = 0

    def begin(self, resource: Resource, key: str) -> Write:
        """Take note that a write is about to be sent."""
        flights = [(part.pending, part.pending.begin(key)) for _, part in self._watching(resource, key)]
        return Write(resource, key, flights)

    def end(self, write: Write, *, unknown: bool) -> None:
        """Take note that a write has ended."""
        for pending, flight in write.flights:
            pending.end(flight)
        if unknown:
            self.lost(write.resource, write.key)

    def lost(self, resource: Resource, key: str) -> None:
        """Take note of a write of which no answer tells what became of it."""
        self._unsure.add(resource)
        for _, part in self._watching(resource, key):
            part.pending.lost(key)

    def written(self, resource: Resource, key: str, version: str) -> None:
        """Take note of the version that a write has given to an object."""
        self._newest[resource] = newer(version, self._newest.get(resource, "0"))
        for informer, part in self._watching(resource, key):
            admitted = part.scope.admits(key)
            if not admitted and key in informer.store:
                admitted = True
            if admitted is not False:
                part.pending.written(key, version, part.version, doubtful=admitted is None)

    def deleted(self, resource: Resource, key: str, uid: str) -> None:
        """Take note that an object was removed."""
        for _, part in self._watching(resource, key):
            part.pending.deleted(key, uid, part.stored_uid(key))

    def _watching(self, resource: Resource, key: str) -> list[tuple[Informer[Any], Part]]:
        """Return what watches an object now. A write does not carry it along: informers may come while it lasts."""
        namespace = namespace_of(key)
        found = []
        for informer in self._informers(resource):
            part = informer.part_for(namespace)
            if part is not None:
                found.append((informer, part))
        return found

    def first_version(self, resource: Resource) -> str:
        """Return from which version on the first list of a resource knows all writes so far (RY-4)."""
        return "" if resource in self._unsure else self._newest.get(resource, "0")

    def deadline(self) -> float:
        """Return until when a read that begins now may wait."""
        return anyio.current_time() + self._timeout

    async def shown(self, part: Part, resource: Resource, writes: Sequence[PendingWrite], deadline: float) -> bool:
        """Wait for writes; False when the watch has still not shown them, so that the server has to answer.

        Raises:
            ApiError: what became of a write is not known, and the server does not tell.
        """
        waited = False
        flights = [write for write in writes if isinstance(write, Flight)]
        if flights:
            waited = await self._wait(flights, deadline)
            if not all(flight.seen for flight in flights):
                return False
            writes = [*(write for write in writes if write not in flights), *part.pending.after(flights)]
        open_questions = [write for write in writes if write.unknown or write.doubtful]
        if open_questions:
            with anyio.CancelScope(deadline=deadline) as scope:
                await self._find_out(part, resource, open_questions)
            if scope.cancelled_caught:
                return False
            unknown = [write for write in open_questions if write.unknown]
            writes = [*(write for write in writes if not write.unknown), *part.pending.after(unknown)]
        waited = await self._wait(writes, deadline, counted=waited)
        return all(write.seen for write in writes)

    async def _wait(self, writes: Iterable[PendingWrite], deadline: float, *, counted: bool = False) -> bool:
        """Wait for all writes unless another reader has waited for one in vain; returns whether it had to."""
        waiting = [write for write in writes if not write.seen]
        if not waiting:
            return counted
        if not any(write.overdue for write in waiting):
            self.waits += not counted
            with anyio.CancelScope(deadline=deadline):
                for write in waiting:
                    await write.wait()
        for write in waiting:
            write.overdue = not write.seen
        return True

    async def _find_out(self, part: Part, resource: Resource, writes: Sequence[PendingWrite]) -> None:
        """Ask the server about writes without answer (O-03), and whether the watch will ever show doubtful ones."""
        named = [write for write in writes if not _is_nameless(write.key)]
        if len(named) > MOST_GETS:
            namespaces = {namespace_of(write.key) for write in writes}
            found = await self._versions(part, resource, namespaces.pop() if len(namespaces) == 1 else "")
            for write in writes:
                _learn(part, write, found)
            return
        for write in named:
            self.live_reads += 1
            obj = await self._live.get(resource, write.key, part.scope)
            _learn(part, write, {} if obj is None else {write.key: obj["metadata"]["resourceVersion"]})
        for write in writes:
            if _is_nameless(write.key):
                _learn(part, write, await self._versions(part, resource, namespace_of(write.key)))

    async def _versions(self, part: Part, resource: Resource, namespace: str) -> dict[str, str]:
        self.live_reads += 1
        objects = await self._live.metadata(resource, part.scope, namespace)
        return {key_of(obj): obj["metadata"]["resourceVersion"] for obj in objects}

    async def get_live(self, part: Part, resource: Resource, key: str) -> RawObject | None:
        """Return the object as an up-to-date cache would have it."""
        self.live_reads += 1
        return await self._live.get(resource, key, part.scope)

    async def list_live(self, parts: Sequence[Part], resource: Resource, query: Query, store: Store) -> list[RawObject]:
        """Return the matching objects as an up-to-date cache would have them; ``store`` has the indexes.

        Readers that come while a list runs share the next one: they are many when a watch is behind.
        """
        self.live_reads += 1
        objects: list[RawObject] = []
        for part in parts:
            fetch = partial(self._live.list, resource, part.scope, query.namespace)
            objects += await self._shared.list((part, query.namespace), fetch)
        return query.choose(objects, store)


def _is_nameless(key: str) -> bool:
    return not key or key.endswith("/")


def _learn(part: Part, write: PendingWrite, found: Mapping[str, str]) -> None:
    """Expect of the watch what the server has: versions by keys, complete as far as the write is concerned."""
    pending, key = part.pending, write.key
    if write.doubtful:
        write.doubtful = False
        if key not in found:
            pending.drop(write)
        return
    if _is_nameless(key):
        # Everything newer than what the watch has shown may be it.
        found = {other: version for other, version in found.items() if other.startswith(key)}
        for other, version in found.items():
            pending.written(other, version, part.version)
    elif key in found:
        pending.written(key, found[key], part.version)
    elif stored := part.stored_uid(key):
        pending.deleted(key, stored, stored)
    pending.drop(write)
