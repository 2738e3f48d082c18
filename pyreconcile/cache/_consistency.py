"""Reads that see this process's own writes (rules RY-3 to RY-7)."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection
from contextvars import ContextVar

import anyio

from pyreconcile.cache._versions import parse_version


class PendingWrite:
    """A write that the watch has not shown yet."""

    __slots__ = ("_seen", "_then", "doubtful", "key", "number", "overdue", "seen", "unknown")

    def __init__(self, key: str, *, number: int = 0, doubtful: bool = False, unknown: bool = False) -> None:
        self.key = key
        # The version that it gave to the object; 0 where there is none.
        self.number = number
        self.seen = False
        # No answer came, so it is not known whether there is anything to be shown, and at which version.
        self.unknown = unknown
        # The watch has a selector, and it is not known whether the object falls under it and will ever be shown.
        self.doubtful = doubtful
        # Set once a reader waited in vain: until the watch catches up, readers ask the server without a wait.
        self.overdue = False
        self._seen: anyio.Event | None = None
        self._then: Callable[[], None] | None = None

    def then(self, callback: Callable[[], None]) -> None:
        """Have a plain function called, once, when the watch has shown the write. There is room for one."""
        self._then = callback

    async def wait(self) -> None:
        """Wait until the watch has shown the write. Bounded by the caller."""
        if not self.seen:
            if self._seen is None:
                self._seen = anyio.Event()
            await self._seen.wait()

    def resolve(self) -> None:
        """Let the readers go on."""
        self.seen = True
        if self._seen is not None:
            self._seen.set()
        then, self._then = self._then, None
        if then is not None:
            then()


_collected: ContextVar[deque[PendingWrite] | None] = ContextVar("own_writes", default=None)

_MOST_COLLECTED = 1000
"""Writes that are noted at most: a task that outlives what started it may write for ever, with nobody to empty them."""


def collect_own_writes() -> deque[PendingWrite]:
    """Have each write of this task, and of tasks it starts from now on, noted in what is returned.

    Only writes that the watch is sure to show are noted, also those that it has shown already, and only the last 1000.
    The caller empties it.
    """
    writes: deque[PendingWrite] = deque(maxlen=_MOST_COLLECTED)
    _collected.set(writes)
    return writes


class Flight(PendingWrite):
    """A write whose answer is not there yet. ``namespace/`` as its key stands for a name that the server makes up."""

    __slots__ = ()


class PendingWrites:
    """The writes of one list-and-watch that its store does not show yet; falsy when there are none.

    Resource versions grow within a resource and a watch delivers them in order, so a write has been seen as soon as
    the watch has come to its version, by whatever event or bookmark. Deletes have no version of their own and are
    told by UID.

    Args:
        stored_uid: gives the UID of the stored object of a key, empty for none.
    """

    def __init__(self, stored_uid: Callable[[str], str] = lambda key: "") -> None:
        self._stored_uid = stored_uid
        self._latest: dict[str, PendingWrite] = {}
        self._by_version: list[tuple[int, int, PendingWrite]] = []
        self._deletes: dict[str, dict[str, PendingWrite]] = {}
        self._flights: dict[str, list[Flight]] = {}
        self._unknown: dict[str, PendingWrite] = {}
        self._count = 0

    def begin(self, key: str) -> Flight:
        """Note that a write is about to be sent (rule RY-4)."""
        flight = Flight(key)
        self._flights.setdefault(key, []).append(flight)
        return flight

    def end(self, flight: Flight) -> None:
        """Note that a write has ended."""
        flights = self._flights[flight.key]
        flights.remove(flight)
        if not flights:
            del self._flights[flight.key]
        flight.resolve()

    def lost(self, key: str) -> None:
        """Note a write of which no answer tells what became of it."""
        self._unknown[key] = PendingWrite(key, unknown=True)

    def written(self, key: str, version: str, reached: str, *, doubtful: bool = False) -> None:
        """Note a write that answered with ``version``; ``reached`` is where the watch is.

        ``doubtful`` says that the watch has a selector which may leave the object out.

        A version without an order (rule RY-3) cannot be waited for and is left out.
        """
        try:
            number = parse_version(version)
            shown = bool(reached) and parse_version(reached) >= number
        except ValueError:
            return
        write = PendingWrite(key, number=number, doubtful=doubtful)
        write.seen = shown
        if not doubtful and (collected := _collected.get()) is not None:
            collected.append(write)
        if shown:
            return
        self._count += 1
        latest = self._latest.get(key)
        if latest is None or latest.number < number:  # the answers to two tasks may be handled in any order
            self._latest[key] = write
        heapq.heappush(self._by_version, (number, self._count, write))

    def deleted(self, key: str, uid: str, stored_uid: str) -> None:
        """Note that an object was removed; ``stored_uid`` is that of the stored object of this key, empty for none.

        An object that is not stored has been seen to go already, unless an own write of its key is still pending:
        then it is yet to come, and to go.
        """
        uid = uid or stored_uid
        if uid and (uid == stored_uid or key in self._latest) and uid not in self._deletes.get(key, ()):
            write = PendingWrite(key)
            self._deletes.setdefault(key, {})[uid] = write
            if (collected := _collected.get()) is not None:
                collected.append(write)

    def on(self, key: str) -> list[PendingWrite]:
        """Return what a reader of this key has to wait for."""
        found: list[PendingWrite] = [*self._flights.get(key, ()), *self._deletes.get(key, {}).values()]
        found += [write for write in (self._unknown.get(key), self._latest.get(key)) if write is not None]
        return found

    def all(self, namespace: str = "") -> list[PendingWrite]:
        """Return what a reader of all keys, or of one namespace's, has to wait for."""
        found = [*self._latest.values(), *self._unknown.values()]
        for deletes in self._deletes.values():
            found += deletes.values()
        for flights in self._flights.values():
            found += flights
        if namespace:
            prefix = f"{namespace}/"
            found = [write for write in found if write.key.startswith(prefix)]
        return found

    def after(self, flights: Collection[PendingWrite]) -> list[PendingWrite]:
        """Return what the writes that have left the air since have become (rule RY-6: no others)."""
        keys = {flight.key for flight in flights}
        nameless = tuple(key for key in keys if key.endswith("/") or not key)
        return [
            write
            for write in self.all()
            if not isinstance(write, Flight) and (write.key in keys or (nameless and write.key.startswith(nameless)))
        ]

    def drop(self, write: PendingWrite) -> None:
        """Forget a write that the watch will not show."""
        for held in (self._latest, self._unknown):
            if held.get(write.key) is write:
                del held[write.key]
        write.resolve()

    def clear(self) -> None:
        """Let all readers go: the watch has ended and will show nothing more."""
        for write in self.all():
            write.resolve()
        for _, _, write in self._by_version:  # also those that a later write of their key has replaced
            write.resolve()
        self._latest.clear()
        self._by_version.clear()
        self._deletes.clear()
        self._unknown.clear()

    def reached(self, version: str) -> None:
        """The watch has delivered everything up to this version."""
        waiting = self._by_version
        if not waiting:
            return
        try:
            number = parse_version(version)
        except ValueError:
            return
        while waiting and waiting[0][0] <= number:
            write = heapq.heappop(waiting)[2]
            self.drop(write)
            if write.key in self._deletes:
                self._left_out(write.key)

    def gone(self, key: str, uid: str) -> None:
        """The object with this UID has left the store, or was seen to be deleted without having been in it."""
        deletes = self._deletes.get(key)
        if deletes is not None and (write := deletes.pop(uid, None)) is not None:
            if not deletes:
                del self._deletes[key]
            write.resolve()

    def replaced(self) -> None:
        """The store was replaced by a list: what it lacks is gone, unless an own write is newer than the list."""
        for key in list(self._deletes):
            self._left_out(key)

    def _left_out(self, key: str) -> None:
        """Let the deletes of a key go whose objects were not shown by now, and never will be: a selector is why."""
        if key not in self._latest:
            present = self._stored_uid(key)
            for uid in [uid for uid in self._deletes[key] if uid != present]:
                self.gone(key, uid)

    def __bool__(self) -> bool:
        # Those of _latest are all in _by_version, which also has the ones before them that somebody may wait for.
        return bool(self._by_version or self._deletes or self._flights or self._unknown)
