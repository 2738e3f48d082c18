"""What handlers and predicates are told. The raw objects are shared with the cache: read them, never change them."""

from __future__ import annotations

from typing import Generic, Self, TypeVar

from pyreconcile.api import KubeObject, RawObject
from pyreconcile.workqueue import LOW_PRIORITY

T = TypeVar("T", bound=KubeObject)


class _ObjectEvent(Generic[T]):
    """An event about one object; the typed view is decoded on first use and is a copy."""

    __slots__ = ("_object", "kind", "raw")

    def __init__(self, raw: RawObject, kind: type[T]) -> None:
        self.raw = raw
        self.kind = kind
        self._object: T | None = None

    @property
    def object(self) -> T:
        """The object as its model."""
        if self._object is None:
            self._object = self.kind.from_dict(self.raw)
        return self._object


class CreateEvent(_ObjectEvent[T]):
    """An object is new, or (``is_initial``) was there when the watch began."""

    __slots__ = ("_low_priority", "is_initial")

    def __init__(
        self, raw: RawObject, kind: type[T], *, is_initial: bool = False, low_priority: int = LOW_PRIORITY
    ) -> None:
        super().__init__(raw, kind)
        self.is_initial = is_initial
        self._low_priority = low_priority

    @property
    def priority(self) -> int:
        """The priority that this event gives its requests: low when part of the initial list (PQ-13)."""
        return self._low_priority if self.is_initial else 0


class DeleteEvent(_ObjectEvent[T]):
    """An object is gone; with ``state_unknown`` the deletion was missed and the object is the last one known."""

    __slots__ = ("state_unknown",)

    priority = 0

    def __init__(self, raw: RawObject, kind: type[T], *, state_unknown: bool = False) -> None:
        super().__init__(raw, kind)
        self.state_unknown = state_unknown


class GenericEvent(_ObjectEvent[T]):
    """Something outside of the cluster concerns an object."""

    __slots__ = ()

    priority = 0

    @classmethod
    def of(cls, obj: T) -> Self:
        """Return the event for an object; it must have a name, and a namespace if its kind has."""
        return cls(obj.to_dict(), type(obj))


class UpdateEvent(Generic[T]):
    """An object changed, or was shown again by a resync; the typed views are decoded on first use."""

    __slots__ = ("_low_priority", "_new", "_old", "kind", "new_raw", "old_raw")

    def __init__(
        self, old_raw: RawObject, new_raw: RawObject, kind: type[T], *, low_priority: int = LOW_PRIORITY
    ) -> None:
        self.old_raw = old_raw
        self.new_raw = new_raw
        self.kind = kind
        self._low_priority = low_priority
        self._old: T | None = None
        self._new: T | None = None

    @property
    def old(self) -> T:
        """The object before, as its model."""
        if self._old is None:
            self._old = self.kind.from_dict(self.old_raw)
        return self._old

    @property
    def new(self) -> T:
        """The object after, as its model."""
        if self._new is None:
            self._new = self.kind.from_dict(self.new_raw)
        return self._new

    @property
    def priority(self) -> int:
        """The priority that this event gives its requests: low when the version did not change (PQ-13)."""
        if self.old_raw is self.new_raw:
            return self._low_priority
        old = self.old_raw["metadata"].get("resourceVersion")
        return self._low_priority if old == self.new_raw["metadata"].get("resourceVersion") else 0
