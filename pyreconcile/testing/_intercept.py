"""A client whose verbs a test can watch, change or let fail (rule TE-11)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, Self, TypeAlias, TypeVar

from pyreconcile.api import KubeObject, Model, RawObject
from pyreconcile.client import Client, Listing, MergePatch, NotFoundError, Patch, Scale, Subresource, WatchEvent
from pyreconcile.client._core import checked_kind
from pyreconcile.client._listing import from_reader
from pyreconcile.client._writing import patch_target

T = TypeVar("T", bound=KubeObject)
B = TypeVar("B", bound=KubeObject)

Hook: TypeAlias = Callable[Concatenate[Client, ...], Awaitable[Any]]
WatchHook: TypeAlias = Callable[Concatenate[Client, ...], AsyncGenerator[Any, None]]
SubresourceHook: TypeAlias = Callable[Concatenate[Subresource[Any], ...], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Interceptor:
    """Functions that are called in place of a client's verbs; verbs without one are as ever.

    Each gets the real client first, then what the verb got, and returns what the verb returns. ``options`` are the
    verb's keyword arguments, to be passed on::

        async def update(client, obj, **options):
            raise ConflictError("somebody was quicker")

    Attributes:
        get: ``(client, kind, key)``; `Client.find` calls it too, and takes its NotFoundError for None.
        list: ``(client, kind, **options)``; returns all objects.
        watch: ``(client, kind, **options)``, an async generator of events.
        create, update, apply: ``(client, obj, **options)``.
        patch: ``(client, kind, key, patch, **options)``.
        delete: ``(client, kind, key, **options)``.
        delete_all_of: ``(client, kind, **options)``.
        subresource_get: ``(real)``; ``real`` is the real `Subresource`, with its ``kind``, ``key`` and ``name``.
        subresource_create, subresource_update, subresource_apply: ``(real, body, **options)``.
        subresource_patch: ``(real, patch, **options)``.
    """

    get: Hook | None = None
    list: Hook | None = None
    watch: WatchHook | None = None
    create: Hook | None = None
    update: Hook | None = None
    patch: Hook | None = None
    apply: Hook | None = None
    delete: Hook | None = None
    delete_all_of: Hook | None = None
    subresource_get: SubresourceHook | None = None
    subresource_create: SubresourceHook | None = None
    subresource_update: SubresourceHook | None = None
    subresource_patch: SubresourceHook | None = None
    subresource_apply: SubresourceHook | None = None


def intercept(client: Client, interceptor: Interceptor) -> Client:
    """Return a client that calls the interceptor's functions in place of its own verbs.

    Clients made of it (``live``, ``with_options``, ``in_namespace``) do so too. Every form of a verb is covered:
    ``update_status`` is an update of the sub-resource ``status``, ``set_scale`` a patch of ``scale``. What goes through
    ``client.transport``, such as a cache's lists and watches, is not.

    Args:
        client: the real one, of a fake or of a control plane.
        interceptor: the functions.
    """
    return InterceptedClient(client, interceptor)


class InterceptedClient(Client):
    """What `intercept` returns."""

    def __init__(self, inner: Client, hooks: Interceptor) -> None:
        super().__init__(inner._transport, inner._settings, inner._discovery)
        self._inner = inner
        self._hooks = hooks

    def _with(self, **changes: Any) -> Self:
        return type(self)(self._inner._with(**changes), self._hooks)

    async def get(self, kind: type[T], key: str) -> T:
        """As `Client.get`."""
        hook = self._hooks.get
        found: T = await (self._inner.get(kind, key) if hook is None else hook(self._inner, kind, key))
        return found

    async def find(self, kind: type[T], key: str) -> T | None:
        """As `Client.find`."""
        if self._hooks.get is None:
            return await self._inner.find(kind, key)
        try:
            return await self.get(kind, key)
        except NotFoundError:
            return None

    def list(self, kind: type[T], **options: Any) -> Listing[T]:
        """As `Client.list`."""
        hook = self._hooks.list
        if hook is None:
            return self._inner.list(kind, **options)
        checked_kind(kind, "list", "client.list(Pod, namespace=…)")
        return from_reader(lambda: hook(self._inner, kind, **options))

    def watch(self, kind: type[T], **options: Any) -> AsyncGenerator[WatchEvent[T], None]:
        """As `Client.watch`."""
        hook = self._hooks.watch
        return self._inner.watch(kind, **options) if hook is None else hook(self._inner, kind, **options)

    async def create(self, obj: T, **options: Any) -> T:
        """As `Client.create`."""
        hook = self._hooks.create
        created: T = await (self._inner.create(obj, **options) if hook is None else hook(self._inner, obj, **options))
        return created

    async def update(self, obj: T, *, subresource: str = "", **options: Any) -> T:
        """As `Client.update`."""
        updated: T
        hook = self._hooks.update
        if subresource:
            updated = await self.subresource(type(obj), obj.key, subresource).update(obj, **options)
        elif hook is None:
            updated = await self._inner.update(obj, **options)
        else:
            updated = await hook(self._inner, obj, **options)
        return updated

    async def patch(self, target: Any, *rest: Any, subresource: str = "", **options: Any) -> Any:
        """As `Client.patch`."""
        kind, key, patch = patch_target(target, rest)
        if subresource:
            return await self.subresource(kind, key, subresource).patch(patch, **options)
        hook = self._hooks.patch
        if hook is None:
            return await self._inner.patch(kind, key, patch, **options)
        return await hook(self._inner, kind, key, patch, **options)

    async def apply(self, obj: T, *, subresource: str = "", **options: Any) -> T:
        """As `Client.apply`."""
        applied: T
        if subresource and self._hooks.subresource_apply is not None:
            options.pop("owner", None)
            real = self._inner.subresource(type(obj), obj.key, subresource)
            applied = await self._hooks.subresource_apply(real, obj, **options)
        elif subresource or self._hooks.apply is None:
            applied = await self._inner.apply(obj, subresource=subresource, **options)
        else:
            applied = await self._hooks.apply(self._inner, obj, **options)
        return applied

    async def delete(self, target: KubeObject | type[KubeObject], key: str | None = None, **options: Any) -> None:
        """As `Client.delete`."""
        if self._hooks.delete is None:
            await self._inner.delete(target, key, **options)
            return
        if isinstance(target, KubeObject):
            await self._hooks.delete(self._inner, type(target), target.key, **options)
            return
        kind = checked_kind(target, "delete", "client.delete(Pod, 'namespace/name') or client.delete(pod)")
        if key is None:
            raise TypeError(f"delete: write client.delete({kind.__name__}, 'namespace/name')")
        await self._hooks.delete(self._inner, kind, key, **options)

    async def delete_all_of(self, kind: type[KubeObject], **options: Any) -> None:
        """As `Client.delete_all_of`."""
        hook = self._hooks.delete_all_of
        await (self._inner.delete_all_of(kind, **options) if hook is None else hook(self._inner, kind, **options))

    def subresource(self, kind: type[Any], key: str, name: str, body: type[Any] | None = None) -> Subresource[Any]:
        """As `Client.subresource`."""
        return InterceptedSubresource(self, self._inner.subresource(kind, key, name, body or kind), self._hooks)

    async def get_scale(self, kind: type[KubeObject], key: str) -> Scale:
        """As `Client.get_scale`."""
        scale: Scale = await self.subresource(kind, key, "scale", Scale).get()
        return scale

    async def set_scale(self, kind: type[KubeObject], key: str, replicas: int) -> Scale:
        """As `Client.set_scale`."""
        patch = MergePatch({"spec": {"replicas": replicas}})
        scale: Scale = await self.subresource(kind, key, "scale", Scale).patch(patch)
        return scale

    async def get_subresource(self, kind: type[KubeObject], key: str, subresource: str) -> RawObject:
        """As `Client.get_subresource`."""
        if self._hooks.subresource_get is None:
            return await self._inner.get_subresource(kind, key, subresource)
        found: KubeObject = await self.subresource(kind, key, subresource, KubeObject).get()
        return found.to_dict()

    async def create_subresource(
        self,
        kind: type[KubeObject],
        key: str,
        subresource: str,
        body: Model | Mapping[str, Any],
        **options: Any,
    ) -> RawObject:
        """As `Client.create_subresource`."""
        if self._hooks.subresource_create is None:
            return await self._inner.create_subresource(kind, key, subresource, body, **options)
        sent = KubeObject.from_dict(body.to_dict() if isinstance(body, Model) else dict(body))
        answer: KubeObject = await self.subresource(kind, key, subresource, KubeObject).create(sent, **options)
        return answer.to_dict()


class InterceptedSubresource(Subresource[B]):
    """The sub-resource of an `InterceptedClient`."""

    def __init__(self, client: Client, real: Subresource[B], hooks: Interceptor) -> None:
        super().__init__(client, real.kind, real.key, real.name, real.body)
        self._real = real
        self._hooks = hooks

    async def get(self) -> B:
        """As `Subresource.get`."""
        hook = self._hooks.subresource_get
        found: B = await (self._real.get() if hook is None else hook(self._real))
        return found

    async def create(self, body: B, **options: Any) -> B:
        """As `Subresource.create`."""
        hook = self._hooks.subresource_create
        answer: B = await (self._real.create(body, **options) if hook is None else hook(self._real, body, **options))
        return answer

    async def update(self, body: B, **options: Any) -> B:
        """As `Subresource.update`."""
        hook = self._hooks.subresource_update
        answer: B = await (self._real.update(body, **options) if hook is None else hook(self._real, body, **options))
        return answer

    async def patch(self, patch: Patch, **options: Any) -> B:
        """As `Subresource.patch`."""
        hook = self._hooks.subresource_patch
        answer: B = await (self._real.patch(patch, **options) if hook is None else hook(self._real, patch, **options))
        return answer

    async def apply(self, body: B, **options: Any) -> B:
        """As `Subresource.apply`."""
        hook = self._hooks.subresource_apply
        answer: B = await (self._real.apply(body, **options) if hook is None else hook(self._real, body, **options))
        return answer
