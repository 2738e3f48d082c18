"""The ordinary list of a reflector: versions, pages, and what is done when a page token expires."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import anyio.lowlevel

from pyreconcile.api import PartialObjectMetadata, RawObject, Resource
from pyreconcile.cache._listbody import ListBody
from pyreconcile.cache._options import Scope
from pyreconcile.cache._store import key_of
from pyreconcile.client import ApiError, ExpiredError, GoneError, RequestTimeoutError

PAGE = 500
"""Objects asked for in one page (client-go ``tools/pager/pager.go``; runtime contract, section 5.1)."""

SECONDS = 120.0
"""The longest that one page may take; a list without pages can be hundreds of megabytes."""

FREEZE_SLICES = 4
"""Slices of a page between two calls of ``after_slices``; they are of 256 KiB."""

JSON = "application/json"


class Requests(Protocol):
    """What a list needs of the client's transport."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
        timeout: float | None = None,
    ) -> bytes:
        """Send a request and return the body of the answer, in the form asked for."""


class Lister:
    """Lists one scope of a resource.

    Args:
        transport: sends the requests.
        resource: what to list.
        scope: namespace and selectors.
        limit: objects in one page.
        prepare: applied to each object.
        after_slices: called each time about 1 MiB of objects has come in.
    """

    def __init__(
        self,
        transport: Requests,
        resource: Resource,
        scope: Scope,
        *,
        limit: int = PAGE,
        prepare: Callable[[RawObject], RawObject] | None = None,
        after_slices: Callable[[], None] | None = None,
    ) -> None:
        self._transport = transport
        self._resource = resource
        self._path = resource.path(scope.namespace)
        self._query = scope.query
        self._limit = limit
        self._accept = PartialObjectMetadata.list_media_type if scope.metadata_only else JSON
        self._prepare = prepare
        self._after_slices = after_slices
        self._slices = 0
        self.received = 0
        """Bytes of all answers."""
        # A server without watch cache answers "any version" in pages; then later lists must be paged too (RF-7).
        self._server_pages = False

    async def fetch(self, version: str) -> tuple[dict[str, RawObject], str]:
        """Return all objects by their keys, and the version they are of.

        Args:
            version: ``"0"`` for any cached state, ``""`` for the newest state, else a state not older than it.

        Raises:
            ApiError: as answered; `is_too_old` and `is_too_large` tell the two that need another version.
            ValueError: the answer is no list of this kind.
        """
        paged = version in ("", "0") or self._server_pages
        query = dict(self._query)
        if version:
            query["resourceVersion"] = version
        first = dict(query, limit=str(self._limit)) if paged else query
        items, listed, token = await self._page_of(first)
        if token and version == "0":
            self._server_pages = True
        while token:
            following = dict(self._query, limit=str(self._limit))
            following["continue"] = token
            try:
                more, _, token = await self._page_of(following)
            except ApiError as error:
                if not is_too_old(error):
                    raise
                # RF-8: the rest of this snapshot is gone; one list without pages cannot expire half-way.
                items, listed, token = await self._page_of(query)
                continue
            items.update(more)
        return items, listed

    async def _page_of(self, query: Mapping[str, str]) -> tuple[dict[str, RawObject], str, str]:
        body = await self._transport.request("GET", self._path, query=query, accept=self._accept, timeout=SECONDS)
        self.received += len(body)
        answer = ListBody(body)
        kind = answer.envelope.get("kind", "")
        if kind == "Table" or not kind.endswith("List"):
            raise ValueError(f"list of {self._resource.plural}: the server answered a {kind or 'body without kind'}")
        api_version, item_kind = self._resource.api_version, self._resource.kind
        prepare = self._prepare
        found: dict[str, RawObject] = {}
        for items in answer.slices():
            for item in items:
                # RF-10: the server leaves them out of the items of a list, and metadata alone has a kind of its own.
                item["apiVersion"] = api_version
                item["kind"] = item_kind
                if prepare is not None:
                    item = prepare(item)
                found[key_of(item)] = item
            self._slices += 1
            if self._after_slices is not None and self._slices % FREEZE_SLICES == 0:
                self._after_slices()
            await anyio.lowlevel.checkpoint()
        metadata = answer.envelope.get("metadata") or {}
        return found, metadata.get("resourceVersion") or "", metadata.get("continue") or ""


def is_too_old(error: Exception) -> bool:
    """Tell whether the server no longer has the version, or the rest of a paged list."""
    return isinstance(error, ExpiredError | GoneError)


def is_too_large(error: Exception) -> bool:
    """Tell whether the server has not reached the version yet (rule RF-9)."""
    if not isinstance(error, ApiError):
        return False
    if any(cause.reason == "ResourceVersionTooLarge" for cause in error.causes):
        return True
    return isinstance(error, RequestTimeoutError) and "Too large resource version" in error.message
