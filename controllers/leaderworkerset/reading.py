"""Reading sets and their children, for both controllers."""

from __future__ import annotations

from collections import OrderedDict

from pyreconcile.api import RawObject, object_key, unstructured
from pyreconcile.api.core_v1 import Service
from pyreconcile.cache import Cache
from pyreconcile.client import AlreadyExistsError, Client
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

POD = unstructured("v1", "Pod")
REVISION = unstructured("apps/v1", "ControllerRevision")
"""Classes for objects that events relate to, of which only the metadata matters."""


class SetReader:
    """Reads sets from the cache and decodes each version of one once. What it gives out is shared: never change it."""

    def __init__(self, size: int = 10_000) -> None:
        """Remember at most ``size`` sets, the last used ones."""
        self._size = size
        self._known: OrderedDict[str, tuple[RawObject, LeaderWorkerSet]] = OrderedDict()

    async def find(self, cache: Cache, key: str) -> LeaderWorkerSet | None:
        """Return a set that exists and is not being deleted; nothing is done for any other."""
        raw = await cache.find_raw(LeaderWorkerSet, key)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            self._known.pop(key, None)
            return None
        known = self._known.get(key)
        if known is None or known[0] is not raw:
            known = self._known[key] = (raw, LeaderWorkerSet.from_dict(raw))
            if len(self._known) > self._size:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return known[1]


async def ensure_service(cache: Cache, client: Client, service: Service) -> None:
    """Create a service unless there is one of its name; it is never changed (LWS §6.4)."""
    key = object_key(service.metadata.namespace, service.metadata.name)
    if await cache.find_raw(Service, key) is None:
        try:
            await client.create(service)
        except AlreadyExistsError:
            return
