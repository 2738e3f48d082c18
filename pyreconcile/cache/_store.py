"""The objects an informer knows, by key and by index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import structlog

from pyreconcile.api import RawObject

IndexFunction = Callable[[RawObject], Iterable[str]]
"""Gives the values under which an object is found. It must depend on the object alone and not change it."""

log = structlog.get_logger()


def key_of(obj: RawObject) -> str:
    """Return an object's key: ``namespace/name``, or ``name`` without a namespace (rule IN-17)."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    name: str = metadata["name"]
    return f"{namespace}/{name}" if namespace else name


def namespace_of(key: str) -> str:
    """Return the namespace in a key, empty for a cluster-scoped object."""
    return key.rpartition("/")[0]


class Store:
    """Raw objects by key, with indexes that follow every change (rules IN-17, IN-18).

    What it gives out is what it holds: read it, never change it. A changed object would be found under the wrong
    index values for ever, since an update takes the old values from the old object.
    """

    def __init__(self) -> None:
        # namespace → key → object: a list of one namespace then costs nothing for the others.
        self._objects: dict[str, dict[str, RawObject]] = {}
        self._indexes: dict[str, _Index] = {}

    def get(self, key: str) -> RawObject | None:
        """Return the object under a key, or None."""
        objects = self._objects.get(key.rpartition("/")[0])
        return None if objects is None else objects.get(key)

    def keys(self, namespace: str = "") -> list[str]:
        """Return all keys, or those of one namespace, in order."""
        if namespace:
            return sorted(self._objects.get(namespace, ()))
        return [key for objects in self._in_order() for key in sorted(objects)]

    def _in_order(self) -> Iterator[dict[str, RawObject]]:
        # Nearly sorted pieces sort much faster than the whole. The slash tells "a/x" from "a-b/x".
        for namespace in sorted(self._objects, key=_prefix):
            yield self._objects[namespace]

    def values(self, namespace: str = "") -> list[RawObject]:
        """Return all objects, or those of one namespace, in the order of their keys."""
        if namespace:
            objects = self._objects.get(namespace, {})
            return [objects[key] for key in sorted(objects)]
        return [obj for objects in self._in_order() for obj in (objects[key] for key in sorted(objects))]

    def by_index(self, name: str, value: str, namespace: str = "") -> list[RawObject]:
        """Return the objects with a value in an index, of all namespaces or of one, in the order of their keys.

        Raises:
            KeyError: there is no such index.
        """
        objects = self._objects
        return [objects[key.rpartition("/")[0]][key] for key in self.index_keys(name, value, namespace)]

    def index_keys(self, name: str, value: str, namespace: str = "") -> list[str]:
        """Return the keys with a value in an index, in order.

        Raises:
            KeyError: there is no such index.
        """
        found = self._index(name).entries.get(value)
        if found is None:
            return []
        if namespace:
            return sorted(found.get(namespace, ()))
        return sorted(key for keys in found.values() for key in keys)

    def index_values(self, name: str) -> list[str]:
        """Return every value that at least one object has in an index, in order.

        Raises:
            KeyError: there is no such index.
        """
        return sorted(self._index(name).entries)

    def has_index(self, name: str) -> bool:
        """Tell whether an index exists."""
        return name in self._indexes

    def index_function(self, name: str) -> IndexFunction:
        """Return the function of an index.

        Raises:
            KeyError: there is no such index.
        """
        return self._index(name).function

    def add_index(self, name: str, function: IndexFunction) -> None:
        """Add an index and fill it from the objects already held (rule IN-15).

        Raises:
            ValueError: the name is taken by another function.
        """
        known = self._indexes.get(name)
        if known is not None:
            if known.function is function:
                return
            raise ValueError(f"index {name!r} exists already: give the second one another name")
        index = _Index(name, function)
        index.fill(self._objects)
        self._indexes[name] = index

    def put(self, key: str, obj: RawObject) -> RawObject | None:
        """Store an object and return the one it replaces. For the informer alone."""
        namespace = key.rpartition("/")[0]
        objects = self._objects.get(namespace)
        if objects is None:
            objects = self._objects[namespace] = {}
        old = objects.get(key)
        objects[key] = obj
        if self._indexes:
            for index in self._indexes.values():
                index.move(namespace, key, old, obj)
        return old

    def delete(self, key: str) -> RawObject | None:
        """Forget an object and return it, or None when it was not known. For the informer alone."""
        namespace = key.rpartition("/")[0]
        objects = self._objects.get(namespace)
        old = objects.pop(key, None) if objects is not None else None
        if objects is not None and not objects:
            del self._objects[namespace]
        if old is not None:
            for index in self._indexes.values():
                index.move(namespace, key, old, None)
        return old

    def snapshot(self, covers: Callable[[str], bool] | None = None) -> list[RawObject]:
        """Return all objects, or those of the namespaces for which ``covers`` is true, in any order; quickly."""
        found: list[RawObject] = []
        for namespace, objects in self._objects.items():
            if covers is None or covers(namespace):
                found += objects.values()
        return found

    def replacement(self, covers: Callable[[str], bool]) -> Replacement:
        """Begin to replace what is held of the namespaces for which ``covers`` is true. For the informer alone."""
        return Replacement(self, covers)

    def _replace(
        self,
        covers: Callable[[str], bool],
        objects: dict[str, dict[str, RawObject]],
        entries: dict[str, dict[str, dict[str, set[str]]]],
    ) -> None:
        kept = {namespace: held for namespace, held in self._objects.items() if not covers(namespace)}
        self._objects = {**kept, **objects}
        for name, index in self._indexes.items():
            if name not in entries:
                # The index was added while the replacement was put together.
                added = _Index(name, index.function)
                added.fill(objects)
                entries[name] = added.entries
            if not kept:
                index.entries = entries[name]
                continue
            for value, by_namespace in index.entries.items():
                for namespace in filter(kept.__contains__, by_namespace):
                    entries[name].setdefault(value, {})[namespace] = by_namespace[namespace]
            index.entries = entries[name]

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return sum(map(len, self._objects.values()))

    def _index(self, name: str) -> _Index:
        try:
            return self._indexes[name]
        except KeyError:
            known = ", ".join(sorted(self._indexes)) or "none"
            raise KeyError(f"no index {name!r} (known: {known}): add it with add_index before reading by it") from None


class Replacement:
    """The coming content of a store, put together aside so that readers never see half of it (rules RF-3, IN-18).

    Building it may take many turns of the event loop; `commit` is one step that costs little.
    """

    def __init__(self, store: Store, covers: Callable[[str], bool]) -> None:
        self._store = store
        self._covers = covers
        self._objects: dict[str, dict[str, RawObject]] = {}
        self._indexes = {name: _Index(name, index.function) for name, index in store._indexes.items()}

    def put(self, key: str, obj: RawObject) -> None:
        """Add an object."""
        namespace = key.rpartition("/")[0]
        objects = self._objects.get(namespace)
        if objects is None:
            objects = self._objects[namespace] = {}
        objects[key] = obj
        for index in self._indexes.values():
            index.insert(namespace, key, obj)

    def commit(self) -> None:
        """Put it in the place of what the store holds of the covered namespaces."""
        entries = {name: index.entries for name, index in self._indexes.items()}
        self._store._replace(self._covers, self._objects, entries)


class _Index:
    """value → namespace → keys. Empty sets and empty values are dropped."""

    __slots__ = ("entries", "function", "name")

    def __init__(self, name: str, function: IndexFunction) -> None:
        self.name = name
        self.function = function
        self.entries: dict[str, dict[str, set[str]]] = {}

    def fill(self, objects: dict[str, dict[str, RawObject]]) -> None:
        for namespace, held in objects.items():
            for key, obj in held.items():
                self.insert(namespace, key, obj)

    def insert(self, namespace: str, key: str, obj: RawObject) -> None:
        for value in self._values(key, obj):
            self.entries.setdefault(value, {}).setdefault(namespace, set()).add(key)

    def move(self, namespace: str, key: str, old: RawObject | None, new: RawObject | None) -> None:
        before = self._values(key, old) if old is not None else frozenset()
        after = self._values(key, new) if new is not None else frozenset()
        if before == after:
            return
        for value in before - after:
            self._discard(value, namespace, key)
        for value in after - before:
            self.entries.setdefault(value, {}).setdefault(namespace, set()).add(key)

    def _discard(self, value: str, namespace: str, key: str) -> None:
        found = self.entries[value]
        keys = found[namespace]
        keys.discard(key)
        if not keys:
            del found[namespace]
            if not found:
                del self.entries[value]

    def _values(self, key: str, obj: RawObject) -> frozenset[str]:
        try:
            return frozenset(self.function(obj))
        except Exception:
            # One odd object must not stop the watch of all others; it is found under no value.
            log.exception("index_function_failed", index=self.name, key=key)
            return frozenset()


def _prefix(namespace: str) -> str:
    return f"{namespace}/" if namespace else ""
