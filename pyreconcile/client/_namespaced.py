"""A client bound to one namespace (rule CL-7)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Self

from pyreconcile.api import KubeObject, Model, RawObject, split_key
from pyreconcile.client._client import Client
from pyreconcile.client._core import T, checked_kind
from pyreconcile.client._listing import Listing
from pyreconcile.client._scale import Scale
from pyreconcile.client._subresource import Subresource
from pyreconcile.client._watching import WatchEvent


class NamespacedClient(Client):
    """Fills the namespace in, refuses another, and hands every verb to the client that it was made from.

    Get one from `Client.in_namespace`.
    """

    def __init__(self, inner: Client, namespace: str) -> None:
        if not namespace:
            raise ValueError("in_namespace: name the namespace")
        super().__init__(inner._transport, inner._settings, inner._discovery)
        self._inner = inner
        self._namespace = namespace

    def _with(self, **changes: Any) -> Self:
        return type(self)(self._inner._with(**changes), self._namespace)

    def _scope(self, kind: type[KubeObject], namespace: str) -> str:
        """Return the namespace that a list of a kind is limited to; empty for a cluster-scoped kind."""
        if not kind.resource.namespaced:
            return namespace
        if namespace not in ("", self._namespace):
            raise ValueError(f"namespace {namespace!r}: this client is bound to namespace {self._namespace!r}")
        return self._namespace

    def _key(self, kind: type[KubeObject], key: str) -> str:
        namespace, name = split_key(key)
        inside = self._scope(kind, namespace)
        return f"{inside}/{name}" if inside else name

    def _object(self, obj: T) -> T:
        namespace = obj.metadata.namespace
        inside = self._scope(type(obj), namespace)
        if inside == namespace:
            return obj
        metadata = obj.metadata.deep_copy()
        metadata.namespace = inside
        return obj.model_copy(update={"metadata": metadata})

    async def get(self, kind: type[T], key: str) -> T:
        """As `Client.get`."""
        return await self._inner.get(kind, self._key(kind, key))

    async def find(self, kind: type[T], key: str) -> T | None:
        """As `Client.find`."""
        return await self._inner.find(kind, self._key(kind, key))

    async def find_raw(self, kind: type[KubeObject], key: str) -> RawObject | None:
        """As `Client.find_raw`."""
        return await self._inner.find_raw(kind, self._key(kind, key))

    def list(self, kind: type[T], *, namespace: str = "", **options: Any) -> Listing[T]:
        """As `Client.list`, of this namespace."""
        checked_kind(kind, "list", "client.list(Pod)")
        return self._inner.list(kind, namespace=self._scope(kind, namespace), **options)

    def watch(self, kind: type[T], *, namespace: str = "", **options: Any) -> AsyncGenerator[WatchEvent[T], None]:
        """As `Client.watch`, of this namespace."""
        checked_kind(kind, "watch", "client.watch(Pod)")
        return self._inner.watch(kind, namespace=self._scope(kind, namespace), **options)

    async def create(self, obj: T, **options: Any) -> T:
        """As `Client.create`."""
        return await self._inner.create(self._object(obj), **options)

    async def update(self, obj: T, **options: Any) -> T:
        """As `Client.update`."""
        return await self._inner.update(self._object(obj), **options)

    async def update_status(self, obj: T, **changes: Any) -> T:
        """As `Client.update_status`."""
        return await self._inner.update_status(self._object(obj), **changes)

    async def patch(self, target: Any, *rest: Any, **options: Any) -> Any:
        """As `Client.patch`."""
        if isinstance(target, KubeObject):
            return await self._inner.patch(self._object(target), *rest, **options)
        if isinstance(target, type) and rest:
            kind = checked_kind(target, "patch", "client.patch(Pod, 'name', MergePatch({…}))")
            return await self._inner.patch(kind, self._key(kind, rest[0]), *rest[1:], **options)
        return await self._inner.patch(target, *rest, **options)

    async def apply(self, obj: T, **options: Any) -> T:
        """As `Client.apply`."""
        return await self._inner.apply(self._object(obj), **options)

    async def delete(self, target: KubeObject | type[KubeObject], key: str | None = None, **options: Any) -> None:
        """As `Client.delete`."""
        if isinstance(target, KubeObject):
            return await self._inner.delete(self._object(target), key, **options)
        kind = checked_kind(target, "delete", "client.delete(Pod, 'name') or client.delete(pod)")
        return await self._inner.delete(kind, None if key is None else self._key(kind, key), **options)

    async def delete_all_of(self, kind: type[KubeObject], *, namespace: str = "", **options: Any) -> None:
        """As `Client.delete_all_of`, in this namespace."""
        checked_kind(kind, "delete_all_of", "client.delete_all_of(Pod)")
        await self._inner.delete_all_of(kind, namespace=self._scope(kind, namespace), **options)

    def subresource(self, kind: type[Any], key: str, name: str, body: type[Any] | None = None) -> Subresource[Any]:
        """As `Client.subresource`."""
        checked_kind(kind, "subresource", "client.subresource(Deployment, 'name', 'scale', Scale)")
        return self._inner.subresource(kind, self._key(kind, key), name, body or kind)

    async def get_scale(self, kind: type[KubeObject], key: str) -> Scale:
        """As `Client.get_scale`."""
        return await self._inner.get_scale(kind, self._key(kind, key))

    async def set_scale(self, kind: type[KubeObject], key: str, replicas: int) -> Scale:
        """As `Client.set_scale`."""
        return await self._inner.set_scale(kind, self._key(kind, key), replicas)

    async def get_subresource(self, kind: type[KubeObject], key: str, subresource: str) -> RawObject:
        """As `Client.get_subresource`."""
        return await self._inner.get_subresource(kind, self._key(kind, key), subresource)

    async def create_subresource(
        self,
        kind: type[KubeObject],
        key: str,
        subresource: str,
        body: Model | Mapping[str, Any],
        **options: Any,
    ) -> RawObject:
        """As `Client.create_subresource`."""
        return await self._inner.create_subresource(kind, self._key(kind, key), subresource, body, **options)
