"""Adds that only a reconcile's own writes caused, for controllers that do not want to hear of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from pyreconcile.api import RawObject
from pyreconcile.controller._types import Request
from pyreconcile.workqueue import PriorityQueue, Queue

if TYPE_CHECKING:
    from pyreconcile.cache import PendingWrite


class Delivery(Protocol):
    """What is asked about the event that is being delivered."""

    @property
    def in_bulk(self) -> bool:
        """Whether it comes from a full list or a resync, which may hide what happened before."""
        ...


class OwnEvents:
    """A controller's queue as its handlers see it: adds of a key in a worker's hands wait for the end of the work.

    Then those that came with an event of exactly a version that this reconcile wrote are dropped. All others are
    passed on: events of other writers, also of those between two own writes, deletes, and what a list or a resync
    brings, for a list shows an object's last version alone.

    Args:
        queue: the controller's own.
    """

    def __init__(self, queue: PriorityQueue[Request] | Queue[Request]) -> None:
        self._queue = queue
        self._waiting: dict[Request, list[tuple[str, int]]] = {}
        self._version = ""

    # -- for the handlers ------------------------------------------------------------------------------------------

    def showing(self, obj: RawObject, delivery: Delivery | None) -> None:
        """Say of which object the adds are that follow, until `shown`."""
        if delivery is not None and not delivery.in_bulk:
            self._version = obj["metadata"].get("resourceVersion", "")

    def shown(self) -> None:
        """Adds from now on have another cause than an event of the watch."""
        self._version = ""

    def add(self, key: Request, *, priority: int = 0) -> None:
        """Reconcile as soon as a worker is free."""
        waiting = self._waiting.get(key) if self._version else None
        if waiting is None:
            self._queue.add(key, priority=priority)
        else:
            waiting.append((self._version, priority))

    def add_after(self, key: Request, delay: float, *, priority: int = 0) -> None:
        """Reconcile in ``delay`` seconds, or earlier if it is queued for earlier."""
        self._queue.add_after(key, delay, priority=priority)

    def add_rate_limited(self, key: Request, *, priority: int = 0) -> None:
        """Reconcile after the backoff of this request."""
        self._queue.add_rate_limited(key, priority=priority)

    # -- for the workers -------------------------------------------------------------------------------------------

    def begin(self, key: Request) -> None:
        """A worker has the key from now on."""
        self._waiting[key] = []

    def end(self, key: Request) -> None:
        """The work was broken off: all adds count."""
        self._pass_on(key, ())

    def ending(self, writes: Collection[PendingWrite]) -> Callable[[Request], None]:
        """Return what frees the key of a reconcile that has made these writes."""
        versions = {str(write.number) for write in writes}

        def done(key: Request) -> None:
            self._pass_on(key, versions)
            self._queue.done(key)

        return done

    def _pass_on(self, key: Request, own: Collection[str]) -> None:
        for version, priority in self._waiting.pop(key, ()):
            if version not in own:
                self._queue.add(key, priority=priority)
