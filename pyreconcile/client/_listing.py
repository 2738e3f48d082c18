"""Lists: all at once, or page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Generic, Protocol

import orjson

from pyreconcile.api import RawObject
from pyreconcile.client._core import T
from pyreconcile.client._errors import ExpiredError, GoneError


class Fetch(Protocol):
    """Reads one page, given the parameters that vary between pages."""

    async def __call__(self, query: dict[str, str]) -> bytes:
        """Return the body of the answer."""


class Listing(Generic[T]):
    """The objects of a kind that match.

    ``await`` it for a list of all, or iterate over it with ``async for`` to hold one page at a time. A page that the
    server can no longer give (410) makes it start over once (rule CL-8a): while iterating, objects that were already
    handed out are then left out by their UID.
    """

    def __init__(
        self,
        *,
        pages: Callable[[], AsyncIterator[list[T]]],
        whole: Callable[[], Awaitable[list[T]]],
    ) -> None:
        self._pages = pages
        self._whole = whole

    def __await__(self) -> Generator[Any, None, list[T]]:
        return self._whole().__await__()

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self._pages():
            for obj in page:
                yield obj


def from_server(kind: type[T], fetch: Fetch, limit: int) -> Listing[T]:
    """Return the listing that pages through the server's answers."""

    async def pages() -> AsyncIterator[list[T]]:
        given: set[str] = set()
        token, restarts = "", 0
        while True:
            try:
                answer = await _page(fetch, limit, token)
            except (ExpiredError, GoneError):
                if not token or restarts:
                    raise
                token, restarts = "", 1
                continue
            items = [item for item in items_of(answer) if uid_of(item) not in given] if given else items_of(answer)
            token = answer.get("metadata", {}).get("continue") or ""
            if token and not restarts:
                given.update(map(uid_of, items))
            yield [kind.model_validate(item) for item in items]
            if not token:
                return

    async def whole() -> list[T]:
        found: list[T] = []
        token, restarts = "", 0
        while True:
            try:
                answer = await _page(fetch, limit, token)
            except (ExpiredError, GoneError):
                if not token or restarts:
                    raise
                found, token, restarts = [], "", 1
                continue
            found.extend(map(kind.model_validate, items_of(answer)))
            token = answer.get("metadata", {}).get("continue") or ""
            if not token:
                return found

    return Listing(pages=pages, whole=whole)


def from_reader(read: Callable[[], Awaitable[list[T]]]) -> Listing[T]:
    """Return the listing of a reader, which has everything at once."""

    async def pages() -> AsyncIterator[list[T]]:
        yield await read()

    return Listing(pages=pages, whole=read)


async def _page(fetch: Fetch, limit: int, token: str) -> RawObject:
    query = {"limit": str(limit)} if limit else {}
    if token:
        query["continue"] = token
    answer: RawObject = orjson.loads(await fetch(query))
    return answer


def items_of(answer: RawObject) -> list[RawObject]:
    """Return the items of a list answer; Go writes an empty one as null."""
    items: list[RawObject] = answer.get("items") or []
    return items


def uid_of(item: RawObject) -> str:
    """Return the UID of an object."""
    return str(item.get("metadata", {}).get("uid", ""))
