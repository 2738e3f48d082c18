"""Reading some kinds past the cache (rule CL-1)."""

from __future__ import annotations

from collections.abc import Sequence

from pyreconcile.api import KubeObject, RawObject
from pyreconcile.client._core import NotCachedError, RawReader, Reader, T
from pyreconcile.client._reading import ReadVerbs
from pyreconcile.client._selectors import FieldSelector, LabelSelector


class PartialReader:
    """Gives some kinds from the server and all others from another reader."""

    def __init__(self, reader: Reader, live: ReadVerbs, uncached: Sequence[type[KubeObject]]) -> None:
        self._reader = reader
        self._raw_reader = reader if isinstance(reader, RawReader) else None
        self._live = live
        self._resources = {kind.resource for kind in uncached if hasattr(kind, "resource")}
        self._bases = tuple(kind for kind in uncached if not hasattr(kind, "resource"))

    def _of(self, kind: type[KubeObject]) -> Reader | ReadVerbs:
        live = kind.resource in self._resources or issubclass(kind, self._bases)
        return self._live if live else self._reader

    async def get(self, kind: type[T], key: str) -> T:
        """Return one object; NotFoundError when there is none."""
        return await self._of(kind).get(kind, key)

    async def find(self, kind: type[T], key: str) -> T | None:
        """Return one object, or None."""
        return await self._of(kind).find(kind, key)

    async def find_raw(self, kind: type[KubeObject], key: str) -> RawObject | None:
        """Return one object of a cached kind as parsed JSON.

        Raises:
            NotCachedError: the kind is read from the server.
        """
        if self._of(kind) is self._live:
            raise NotCachedError(f"{kind.resource.kind} is read from the server")
        if self._raw_reader is not None:
            return await self._raw_reader.find_raw(kind, key)
        found = await self._reader.find(kind, key)
        return None if found is None else found.to_dict()

    async def list(
        self,
        kind: type[T],
        *,
        namespace: str = "",
        labels: LabelSelector | None = None,
        fields: FieldSelector | None = None,
        index: tuple[str, str] | None = None,
    ) -> list[T]:
        """Return all objects that match.

        Raises:
            ValueError: an index is asked for of a kind that is read from the server.
        """
        source = self._of(kind)
        return await source.list(kind, namespace=namespace, labels=labels, fields=fields, index=index)
