"""Reading verbs: get, find, list, watch, scale and other sub-resources."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from random import uniform
from typing import Any, Self

import orjson

from pyreconcile.api import KubeObject, RawObject
from pyreconcile.client._core import Core, T, checked_kind, path_of
from pyreconcile.client._discovery import ServedKinds
from pyreconcile.client._listing import Listing, from_reader, from_server
from pyreconcile.client._selectors import FieldSelector, LabelSelector, selection
from pyreconcile.client._watching import WatchEvent, parse_event

_WATCH_SECONDS = (300.0, 600.0)
"""A watch that names no length lasts a random number of seconds between these (runtime rule 5.1)."""
_IDLE_MARGIN = 5.0
"""Seconds of silence beyond a watch's own length before its connection counts as dead (rule RF-16)."""


class ReadVerbs(Core):
    """The verbs that change nothing."""

    @property
    def live(self) -> Self:
        """The same client, reading from the server and not from a cache."""
        return self if self._settings.reader is None else self._with(reader=None)

    async def get(self, kind: type[T], key: str) -> T:
        """Return one object, from the cache where the client has one.

        Args:
            kind: the model class, or one made by `pyreconcile.api.unstructured`.
            key: ``namespace/name``, or ``name`` of a cluster-scoped object.

        Raises:
            NotFoundError: there is no such object.
            ValueError: the key does not fit the kind's scope.
        """
        if self._settings.reader is not None:
            return await self._settings.reader.get(kind, key)
        return kind.from_json(await self._read(path_of(kind, key), accept=kind.media_type))

    async def find(self, kind: type[T], key: str) -> T | None:
        """Return one object, or None when there is none."""
        return await self._current(kind, key)

    async def find_raw(self, kind: type[KubeObject], key: str) -> RawObject | None:
        """Return one object as parsed JSON, or None when there is none.

        From a cache it is the very object that the cache holds: read it, never change it. It saves decoding where
        objects are only compared.
        """
        return await self._current_raw(kind, key)

    def list(
        self,
        kind: type[T],
        *,
        namespace: str = "",
        labels: LabelSelector | None = None,
        fields: FieldSelector | None = None,
        index: tuple[str, str] | None = None,
        limit: int = 500,
    ) -> Listing[T]:
        """Return the objects that match: ``await`` gives a list, ``async for`` one object after the other.

        Args:
            kind: the model class.
            namespace: only this namespace; all of them when empty.
            labels: label selector.
            fields: field selector; the server supports few fields.
            index: name and value of an index of the cache.
            limit: objects a page, when read from the server; 0 for all in one answer.

        Raises:
            ValueError: an index is asked for and the client reads from the server, or a namespace is given for a
                cluster-scoped kind.
        """
        checked_kind(kind, "list", "client.list(Pod, namespace=…)")
        _check_namespace(kind, namespace)
        reader = self._settings.reader
        if reader is not None:
            return from_reader(
                lambda: reader.list(kind, namespace=namespace, labels=labels, fields=fields, index=index)
            )
        if index is not None:
            raise ValueError(f"index {index[0]!r}: only a cache has indexes, and this client reads from the server")
        path, chosen = kind.resource.path(namespace), selection(labels, fields)

        async def fetch(query: dict[str, str]) -> bytes:
            return await self._read(path, {**chosen, **query}, kind.list_media_type)

        return from_server(kind, fetch, limit)

    async def watch(
        self,
        kind: type[T],
        *,
        namespace: str = "",
        labels: LabelSelector | None = None,
        fields: FieldSelector | None = None,
        resource_version: str = "",
        bookmarks: bool = False,
        timeout_seconds: float | None = None,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Yield changes from the server as they happen, on one connection.

        It ends when the server ends the watch. It neither lists nor resumes: the cache does. Close it (leave a
        ``contextlib.aclosing`` block) to end it early.

        Args:
            kind: the model class.
            namespace, labels, fields: as for `list`.
            resource_version: changes after this one; when empty, first all objects as ADDED.
            bookmarks: yield BOOKMARK events as well.
            timeout_seconds: how long the server keeps the watch open; by default a random 5 to 10 minutes.

        Raises:
            ExpiredError: the resource version is too old; list again.
            ApiError: any other refusal, at the start or as an ERROR event.
            ValueError: a namespace is given for a cluster-scoped kind.
        """
        checked_kind(kind, "watch", "client.watch(Pod, namespace=…)")
        _check_namespace(kind, namespace)
        seconds = uniform(*_WATCH_SECONDS) if timeout_seconds is None else timeout_seconds
        query = {"watch": "true", **selection(labels, fields), "timeoutSeconds": str(int(max(seconds, 1)))}
        if resource_version:
            query["resourceVersion"] = resource_version
        if bookmarks:
            query["allowWatchBookmarks"] = "true"
        path = kind.resource.path(namespace)
        idle = seconds + _IDLE_MARGIN
        async with self._transport.stream(path, query=query, idle_timeout=idle, accept=kind.media_type) as lines:
            async for line in lines:
                yield parse_event(kind, line)

    async def get_subresource(self, kind: type[KubeObject], key: str, subresource: str) -> RawObject:
        """Return a sub-resource as parsed JSON.

        Raises:
            NotFoundError: there is no such object, or it has no such sub-resource.
        """
        answer: Any = orjson.loads(await self._read(path_of(kind, key, subresource)))
        return dict(answer)

    async def kind_for(self, api_version: str, kind: str) -> type[KubeObject]:
        """Return the class for a kind that is known by name only: its model, or an unstructured class.

        The server is asked for the kinds it has at the first use, and again for the group version on a miss, so a
        CRD that was installed meanwhile is found.

        Raises:
            UnknownKindError: neither a model nor the server knows it.
        """
        return await self._discovery.kind_for(api_version, kind)

    async def served_kinds(self) -> ServedKinds:
        """Return all kinds that the server serves now; ``failures`` names the group versions that it cannot tell.

        Raises:
            ApiError: the list of groups itself could not be read.
        """
        return await self._discovery.served()


def _check_namespace(kind: type[KubeObject], namespace: str) -> None:
    if namespace and not kind.resource.namespaced:
        raise ValueError(f"namespace {namespace!r}: {kind.resource.kind} is cluster-scoped, leave it out")
