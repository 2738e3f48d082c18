"""Listing and watching by the API server's rules."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import TypeAlias

import anyio
import orjson

from pyreconcile.api import RawObject
from pyreconcile.api.selectors import LabelSelector, SelectorError, parse_fields
from pyreconcile.client import BadRequestError, ExpiredError
from pyreconcile.testing._fake._kinds import Served
from pyreconcile.testing._fake._store import Event, Follower, Selects, Store, Table, key_of, table_of

IndexFunction: TypeAlias = Callable[[RawObject], Iterable[str]]
Indexes: TypeAlias = dict[tuple[Table, str], IndexFunction]

_END = {"k8s.io/initial-events-end": "true"}
_WATCH_SECONDS = 1800.0
"""How long a watch lasts that names no time; an API server takes 30 to 60 minutes."""
_OWN_FIELDS = ("metadata.name", "metadata.namespace")


class Reads:
    """The reading half of the fake.

    Args:
        store: what is read.
        indexes: the fields that selectors may name, beside name and namespace (rule TE-10).
    """

    def __init__(self, store: Store, indexes: Indexes) -> None:
        self._store = store
        self._indexes = indexes

    def selection(self, served: Served, namespace: str, query: Mapping[str, str]) -> Selects:
        """Return what tells whether an object is asked for.

        Raises:
            BadRequestError: a selector cannot be read, or a field has no index.
        """
        try:
            labels = LabelSelector.parse(query.get("labelSelector", ""))
            terms = parse_fields(query.get("fieldSelector", ""))
        except SelectorError as error:
            raise BadRequestError(str(error)) from error
        table = table_of(served.resource)
        functions = []
        for term in terms:
            function = self._own_field(term.path) or self._indexes.get((table, term.path))
            if function is None:
                raise BadRequestError(
                    f'"{term.path}" is not a known field selector: only "metadata.name", "metadata.namespace"; '
                    f"for the fake to know it, give it an index of that name"
                )
            functions.append((function, term))

        def selects(obj: RawObject) -> bool:
            metadata = obj["metadata"]
            if namespace and metadata.get("namespace") != namespace:
                return False
            if not labels.matches(metadata.get("labels") or {}):
                return False
            return all((term.value in function(obj)) == term.equal for function, term in functions)

        return selects

    @staticmethod
    def _own_field(path: str) -> IndexFunction | None:
        if path not in _OWN_FIELDS:
            return None
        name = path.removeprefix("metadata.")
        return lambda obj: (obj["metadata"].get(name) or "",)

    def page(self, served: Served, namespace: str, query: Mapping[str, str]) -> tuple[list[RawObject], RawObject]:
        """Return a page of a list, and the list's metadata.

        Raises:
            ExpiredError: the history that the continue token is part of was forgotten.
        """
        selects = self.selection(served, namespace, query)
        found = [obj for obj in self._store.objects(table_of(served.resource), namespace) if selects(obj)]
        token, version = query.get("continue", ""), self._store.version
        if token:
            version, after = _opened(token)
            if version < self._store.oldest:
                raise ExpiredError(
                    "The provided continue parameter is too old to display a consistent list result. You can start a "
                    "new list without the continue parameter."
                )
            found = [obj for obj in found if key_of(obj) > after]
        metadata: RawObject = {"resourceVersion": str(version)}
        limit = int(query.get("limit") or 0)
        if limit and len(found) > limit:
            metadata |= {
                "continue": _token(version, key_of(found[limit - 1])),
                "remainingItemCount": len(found) - limit,
            }
            found = found[:limit]
        return found, metadata

    def watch(
        self, served: Served, namespace: str, query: Mapping[str, str], idle_timeout: float
    ) -> AsyncGenerator[tuple[str, RawObject], None]:
        """Return type and object of each event; ends when the time asked for is over, or nothing came for long.

        Raises:
            BadRequestError: a selector cannot be read.
            ExpiredError: the history from the version asked for was forgotten.
        """
        selects = self.selection(served, namespace, query)
        start = int(query.get("resourceVersion") or 0)
        streaming = query.get("sendInitialEvents") == "true"
        if start and not streaming and start < self._store.oldest:
            raise ExpiredError(f"too old resource version: {start} ({self._store.oldest})")
        return self._events(served, namespace, query, selects, None if streaming or not start else start, idle_timeout)

    async def _events(
        self,
        served: Served,
        namespace: str,
        query: Mapping[str, str],
        selects: Selects,
        start: int | None,
        idle_timeout: float,
    ) -> AsyncGenerator[tuple[str, RawObject], None]:
        table = table_of(served.resource)
        bookmarks = query.get("allowWatchBookmarks") == "true"
        limit = float(query.get("timeoutSeconds") or _WATCH_SECONDS)
        follower = self._store.follow(table)
        try:
            # Everything up to here is in the list or in the history; what comes while they are read, follows.
            known = self._store.version
            if start is None:
                for obj in self._store.objects(table, namespace):
                    if selects(obj):
                        yield "ADDED", obj
                if bookmarks and query.get("sendInitialEvents") == "true":
                    yield "BOOKMARK", _bookmark(served, known, _END)
            else:
                for event in self._store.since(table, start):
                    if event.version <= known and (seen := event.seen_by(selects)):
                        yield seen
            async for event in _followed(follower, limit, idle_timeout):
                if seen := event.seen_by(selects):
                    yield seen
            if bookmarks:
                yield "BOOKMARK", _bookmark(served, self._store.version, {})
        finally:
            self._store.unfollow(table, follower)


async def _followed(follower: Follower, limit: float, idle_timeout: float) -> AsyncIterator[Event]:
    deadline = anyio.current_time() + limit
    while True:
        while follower.waiting:
            yield follower.waiting.popleft()
        left = deadline - anyio.current_time()
        with anyio.move_on_after(min(left, idle_timeout)) as waiting:
            await follower.wait()
        if waiting.cancelled_caught:
            return


def _bookmark(served: Served, version: int, annotations: Mapping[str, str]) -> RawObject:
    metadata: RawObject = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": served.resource.api_version, "kind": served.resource.kind, "metadata": metadata}


def _token(version: int, after: str) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([version, after])).decode()


def _opened(token: str) -> tuple[int, str]:
    try:
        version, after = orjson.loads(base64.urlsafe_b64decode(token))
    except (ValueError, TypeError) as error:
        raise BadRequestError("continue key is not valid") from error
    return int(version), str(after)
