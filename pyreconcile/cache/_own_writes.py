"""What a read does about this process's own writes that the watch has not shown yet (rules RY-6, RY-7)."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from pyreconcile.api import RawObject, Resource
from pyreconcile.cache._consistency import PendingWrite
from pyreconcile.cache._informer import Part
from pyreconcile.cache._live import LiveReader
from pyreconcile.cache._query import Query
from pyreconcile.cache._store import Store


class OwnWrites:
    """Waits for own writes, and reads from the server when that takes too long.

    Args:
        live: reads from the server.
        timeout: seconds that a read waits.

    Attributes:
        waits: how many reads waited.
        live_reads: how many reads went to the server.
    """

    def __init__(self, live: LiveReader, timeout: float) -> None:
        self._live = live
        self._timeout = timeout
        self.waits = 0
        self.live_reads = 0

    async def shown(self, part: Part, resource: Resource, writes: Sequence[PendingWrite]) -> bool:
        """Wait for writes; False when the watch has still not shown them, so that the server has to answer."""
        for write in writes:
            if write.doubtful:
                # Only the server can tell whether the watch will ever show it.
                self.live_reads += 1
                if await self._live.get(resource, write.key, part.scope) is None:
                    part.pending.drop(write)
                write.doubtful = False
        waiting = [write for write in writes if not write.seen]
        if not waiting:
            return True
        if not any(write.overdue for write in waiting):
            self.waits += 1
            with anyio.move_on_after(self._timeout):
                for write in waiting:
                    await write.wait()
        late = [write for write in waiting if not write.seen]
        for write in late:
            write.overdue = True
        return not late

    async def get_live(self, part: Part, resource: Resource, key: str) -> RawObject | None:
        """Return the object as an up-to-date cache would have it."""
        self.live_reads += 1
        return await self._live.get(resource, key, part.scope)

    async def list_live(self, parts: Sequence[Part], resource: Resource, query: Query, store: Store) -> list[RawObject]:
        """Return the matching objects as an up-to-date cache would have them; ``store`` has the indexes."""
        self.live_reads += 1
        objects: list[RawObject] = []
        for part in parts:
            objects += await self._live.list(resource, part.scope, query.namespace)
        return query.choose(objects, store)
