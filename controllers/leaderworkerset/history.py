"""The stored revisions of a set: finding, creating, reusing and forgetting ControllerRevisions (LWS §5)."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from pyreconcile.api import RawObject
from pyreconcile.api.apps_v1 import ControllerRevision
from pyreconcile.cache import Cache
from pyreconcile.client import Client
from pyreconcile_controllers.leaderworkerset import groups
from pyreconcile_controllers.leaderworkerset.objects import controller_revision
from pyreconcile_controllers.leaderworkerset.revision import Revision
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet


@dataclass(frozen=True, slots=True)
class History:
    """The revisions of one set, as the cache shows them: its own, and orphans with its label."""

    lws: LeaderWorkerSet
    stored: tuple[RawObject, ...]

    @classmethod
    async def read(cls, cache: Cache, lws: LeaderWorkerSet) -> History:
        """List the revisions of a set."""
        listed = await cache.list_raw(
            ControllerRevision, namespace=lws.metadata.namespace, index=(groups.BY_SET, lws.key)
        )
        return cls(lws, tuple(stored for stored in listed if _is_usable(stored, lws)))

    def find(self, key: str) -> RawObject | None:
        """Return the revision with a key, the newest if there are several; None for an empty key."""
        if not key:
            return None
        matching = [stored for stored in self.stored if groups.revision_key(stored) == key]
        return max(matching, key=_number, default=None)

    async def create(self, client: Client, revision: Revision, key: str) -> tuple[RawObject, bool]:
        """Return the stored form of a revision under a key, and whether it had to be created.

        One that is stored already with the same content is used again: a retry after a failed apply, or the way back
        to an earlier template, leaves no second copy behind (LWS §16.2).

        Raises:
            AlreadyExistsError: another revision has the name; the next try sees it.
        """
        stored = self.find(key)
        if stored is not None and stored.get("data") == orjson.loads(revision.data):
            return stored, False
        number = max(map(_number, self.stored), default=0) + 1
        created = await client.create(controller_revision(self.lws, revision, key, number))
        return created.to_dict(), True

    async def truncate(self, client: Client, key: str) -> None:
        """Delete every revision whose key is another."""
        for stored in self.stored:
            if groups.revision_key(stored) != key:
                name = f"{groups.namespace_of(stored)}/{groups.name_of(stored)}"
                await client.delete(ControllerRevision, name, uid=groups.uid_of(stored), missing_ok=True)


def _is_usable(stored: RawObject, lws: LeaderWorkerSet) -> bool:
    owner = groups.controller_of(stored)
    return owner is None or owner["uid"] == lws.metadata.uid


def _number(stored: RawObject) -> int:
    number: int = stored.get("revision", 0)
    return number
