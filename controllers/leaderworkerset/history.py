"""The stored revisions of a set: finding, creating, reusing and forgetting ControllerRevisions (LWS §5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from pyreconcile.api.apps_v1 import ControllerRevision
from pyreconcile.client import Client
from pyreconcile.controller import controller_of
from pyreconcile_controllers.leaderworkerset import groups
from pyreconcile_controllers.leaderworkerset.objects import controller_revision
from pyreconcile_controllers.leaderworkerset.revision import Revision
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet


@dataclass(frozen=True, slots=True)
class History:
    """The revisions of one set, as the client reads them: its own, and orphans with its label."""

    client: Client
    lws: LeaderWorkerSet
    stored: tuple[ControllerRevision, ...]

    @classmethod
    async def read(cls, client: Client, lws: LeaderWorkerSet) -> History:
        """List the revisions of a set."""
        listed = await client.list(ControllerRevision, namespace=lws.metadata.namespace, index=(groups.BY_SET, lws.key))
        return cls(client, lws, tuple(_usable(listed, lws)))

    def find(self, key: str) -> ControllerRevision | None:
        """Return the revision with a key, the newest if there are several; None for an empty key."""
        if not key:
            return None
        matching = [stored for stored in self.stored if groups.revision_key(stored) == key]
        return max(matching, key=_number, default=None)

    async def create(self, revision: Revision, key: str) -> tuple[ControllerRevision, bool]:
        """Return the stored form of a revision under a key, and whether it had to be created.

        One that is stored already with the same content is used again: a retry after a failed apply, or the way back
        to an earlier template, leaves no second copy behind (LWS §16.2).

        Raises:
            AlreadyExistsError: another revision has the name; the next try sees it.
        """
        stored = self.find(key)
        if stored is not None and stored.data == orjson.loads(revision.data):
            return stored, False
        number = max(map(_number, self.stored), default=0) + 1
        created = await self.client.create(controller_revision(self.lws, revision, key, number))
        return created, True

    async def truncate(self, key: str) -> None:
        """Delete every revision whose key is another."""
        for stored in self.stored:
            if groups.revision_key(stored) != key:
                await self.client.delete(ControllerRevision, stored.key, uid=stored.metadata.uid, missing_ok=True)


def _usable(listed: Iterable[ControllerRevision], lws: LeaderWorkerSet) -> Iterable[ControllerRevision]:
    for stored in listed:
        owner = controller_of(stored)
        if owner is None or owner.uid == lws.metadata.uid:
            yield stored


def _number(stored: ControllerRevision) -> int:
    return stored.revision or 0
