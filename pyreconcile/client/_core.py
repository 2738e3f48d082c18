"""What all verbs share: the transport, where reads come from, and what every write carries with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import orjson

from pyreconcile.api import KubeObject, RawObject, Resource, split_key
from pyreconcile.client._errors import NotFoundError, may_be_done
from pyreconcile.client._transport import JSON, Transport

if TYPE_CHECKING:
    from pyreconcile.client._discovery import Discovery
    from pyreconcile.client._selectors import FieldSelector, LabelSelector

T = TypeVar("T", bound=KubeObject)

FieldValidation: TypeAlias = Literal["Ignore", "Warn", "Strict"]
"""What the server does with unknown and repeated fields."""

Propagation: TypeAlias = Literal["Background", "Foreground", "Orphan"]
"""What happens to the dependents of a deleted object."""


class Reader(Protocol):
    """Where `Client` reads from, such as the cache."""

    async def get(self, kind: type[T], key: str) -> T:
        """Return one object; NotFoundError when there is none."""

    async def find(self, kind: type[T], key: str) -> T | None:
        """Return one object, or None."""

    async def list(
        self,
        kind: type[T],
        *,
        namespace: str = "",
        labels: LabelSelector | None = None,
        fields: FieldSelector | None = None,
        index: tuple[str, str] | None = None,
    ) -> list[T]:
        """Return all objects that match."""


@runtime_checkable
class RawReader(Protocol):
    """A reader that can also give an object as it holds it, which saves decoding where objects are compared."""

    async def find_raw(self, kind: type[KubeObject], key: str) -> RawObject | None:
        """Return one object as parsed JSON that is not to be changed, or None."""


class NotCachedError(Exception):
    """Base of what a `Reader` raises for kinds and namespaces that it does not hold, or not yet."""


class WriteObserver(Protocol):
    """Learns of each write, so that reads meanwhile and later can wait for it (rules RY-4 and RY-5)."""

    def begin(self, resource: Resource, key: str) -> Any:
        """Take note that a write is about to be sent; the key is ``namespace/`` when the server makes up the name.

        What it returns is given to `end`.
        """

    def end(self, write: Any, *, unknown: bool = False) -> None:
        """Take note that a write has ended: done, refused, or ``unknown`` when no answer tells which.

        When it is done, `written`, `deleted` or `lost` follows before any other task runs.
        """

    def written(self, resource: Resource, key: str, resource_version: str) -> None:
        """Take note that the object now has this version."""

    def deleted(self, resource: Resource, key: str, uid: str, resource_version: str | None) -> None:
        """Take note of a delete; with a version when the object is still there and only marked for deletion."""

    def lost(self, resource: Resource, key: str) -> None:
        """Take note that a write was done whose answer cannot be read: what the object is now is not known."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `Client.with_options` can change."""

    reader: Reader | None = None
    write_observer: WriteObserver | None = None
    field_manager: str = "pyreconcile"
    write_guard: Callable[[], None] | None = None
    dry_run: bool = False
    field_validation: FieldValidation | None = None


class Core:
    """A transport with settings; the base of the reading and the writing verbs."""

    def __init__(self, transport: Transport, settings: Settings, discovery: Discovery) -> None:
        self._transport = transport
        self._settings = settings
        self._discovery = discovery
        # Asking a protocol whether something fits it takes microseconds, too long for every write.
        self._raw_reader = settings.reader if isinstance(settings.reader, RawReader) else None
        self._peek: Callable[[type[KubeObject], str], RawObject | None] = getattr(settings.reader, "peek", _nothing)

    @property
    def transport(self) -> Transport:
        """The request path below the verbs."""
        return self._transport

    @property
    def field_manager(self) -> str:
        """The name under which the server records the fields that this client writes."""
        return self._settings.field_manager

    def _with(self, **changes: Any) -> Self:
        return type(self)(self._transport, replace(self._settings, **changes), self._discovery)

    async def _read(self, path: str, query: Mapping[str, str] | None = None, accept: str = JSON) -> bytes:
        return await self._transport.request("GET", path, query=query, accept=accept)

    async def _write(
        self,
        method: str,
        path: str,
        body: bytes | None,
        query: Mapping[str, str],
        *,
        content_type: str = JSON,
        accept: str = JSON,
        idempotent: bool = False,
        about: tuple[Resource, str] | None = None,
        blind: bool = False,
    ) -> bytes:
        """Send a write; the observer hears of it when ``about`` says of which object it is.

        ``blind`` says that the answer does not tell how it changes the object.
        """
        observer = self._settings.write_observer if about is not None and "dryRun" not in query else None
        write = observer.begin(*about) if observer is not None and about is not None else None
        try:
            answer = await self._transport.request(
                method,
                path,
                query=query,
                body=body,
                content_type=content_type,
                accept=accept,
                idempotent=idempotent,
                guard=self._settings.write_guard,
            )
        except BaseException as error:
            if observer is not None:
                observer.end(write, unknown=may_be_done(error))
            raise
        if observer is not None:
            observer.end(write, unknown=blind)
        return answer

    def _decoded(self, kind: type[T], answer: bytes, about: tuple[Resource, str] | None, query: Mapping[str, str]) -> T:
        """Return the object that a write has answered with; the observer hears of one that cannot be read."""
        try:
            return kind.from_json(answer)
        except Exception:
            self._lost(about, query)
            raise

    def _lost(self, about: tuple[Resource, str] | None, query: Mapping[str, str]) -> None:
        observer = self._settings.write_observer
        if observer is not None and about is not None and "dryRun" not in query:
            observer.lost(*about)

    async def _current(self, kind: type[T], key: str) -> T | None:
        """Return the object as this client reads it."""
        if self._settings.reader is not None:
            return await self._settings.reader.find(kind, key)
        try:
            return kind.from_json(await self._read(path_of(kind, key), accept=kind.media_type))
        except NotFoundError:
            return None

    async def _current_raw(self, kind: type[KubeObject], key: str) -> RawObject | None:
        """Return the object as parsed JSON to compare with, not to change; from the server if it is not cached."""
        reader = self._settings.reader
        if reader is not None:
            try:
                if self._raw_reader is not None:
                    return await self._raw_reader.find_raw(kind, key)
                found = await reader.find(kind, key)
                return None if found is None else found.to_dict()
            except NotCachedError:
                # A write must not fail for what the cache does not hold.
                pass
        try:
            raw: RawObject = orjson.loads(await self._read(path_of(kind, key), accept=kind.media_type))
        except NotFoundError:
            return None
        return raw

    def _write_query(self, *, dry_run: bool, field_validation: FieldValidation | None = None) -> dict[str, str]:
        query = {"fieldManager": self._settings.field_manager}
        if dry_run or self._settings.dry_run:
            query["dryRun"] = "All"
        validation = field_validation or self._settings.field_validation
        if validation is not None:
            query["fieldValidation"] = validation
        return query

    def _note(self, obj: KubeObject, query: Mapping[str, str]) -> None:
        observer = self._settings.write_observer
        if observer is not None and "dryRun" not in query:
            observer.written(type(obj).resource, obj.key, obj.metadata.resource_version)


def _nothing(kind: type[KubeObject], key: str) -> None:
    """Peek into a reader that holds nothing, or does not show it."""


def path_of(kind: type[KubeObject], key: str, subresource: str = "") -> str:
    """Return the path of the object that a key names.

    Raises:
        ValueError: the key does not fit the kind's scope; the message says what to write.
    """
    resource = kind.resource
    namespace, name = split_key(key)
    if resource.namespaced and not namespace:
        raise ValueError(f"key {key!r}: {resource.kind} is namespaced, write 'namespace/name'")
    if namespace and not resource.namespaced:
        raise ValueError(f"key {key!r}: {resource.kind} is cluster-scoped, write its name alone")
    return resource.path(namespace, name, subresource)


def path_of_object(obj: KubeObject, subresource: str = "") -> str:
    """Return the path of an object.

    Raises:
        ValueError: its name is missing, or its namespace is missing or out of place.
    """
    if not obj.metadata.name:
        raise ValueError(f"metadata.name: the {type(obj).resource.kind} has no name")
    return path_of(type(obj), obj.key, subresource)


def collection_path(kind: type[KubeObject], namespace: str) -> str:
    """Return the path that objects of a kind are created under.

    Raises:
        ValueError: the namespace is missing, or out of place.
    """
    resource = kind.resource
    if resource.namespaced and not namespace:
        raise ValueError(f"namespace: {resource.kind} is namespaced, say which namespace")
    if namespace and not resource.namespaced:
        raise ValueError(f"namespace {namespace!r}: {resource.kind} is cluster-scoped, leave it out")
    return resource.path(namespace)


def check_whole(kind: type[KubeObject], verb: str) -> None:
    """Refuse to write objects of which only the metadata is known (rule CL-4).

    Raises:
        TypeError: ``kind`` was made by `metadata_only`.
    """
    if kind.media_type != JSON:
        name = kind.resource.kind
        raise TypeError(f"{verb}: {kind.__name__} has only metadata, so use the class of {name} itself, or patch")


def checked_kind(target: object, verb: str, example: str) -> type[KubeObject]:
    """Return ``target`` when it is a kind that has a resource.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(target, type) and issubclass(target, KubeObject) and hasattr(target, "resource"):
        return target
    what = target.__name__ if isinstance(target, type) else type(target).__name__
    raise TypeError(f"{verb}: {what} is not a kind with a resource; write {example}")
