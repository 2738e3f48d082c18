"""A list request against a store: selectors and indexes in memory (rule CA-7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyreconcile.api import RawObject
from pyreconcile.api.selectors import LabelSelector, field_terms, label_selector
from pyreconcile.cache._options import field_text
from pyreconcile.cache._store import Store, key_of

_PLAIN_FIELDS = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True, slots=True)
class Query:
    """What to find: all given conditions must hold."""

    namespace: str
    selector: LabelSelector
    lookups: tuple[tuple[str, str], ...]
    plain: tuple[tuple[str, str], ...]

    @classmethod
    def read(
        cls,
        namespace: str,
        labels: str | Mapping[str, str | Sequence[str]] | None,
        fields: str | Mapping[str, str] | None,
        index: tuple[str, str] | None,
    ) -> Query:
        """Check and parse the arguments of a list.

        Raises:
            ValueError: a selector cannot be read, or a field is compared with ``!=``.
        """
        lookups = [] if index is None else [index]
        plain: list[tuple[str, str]] = []
        for term in field_terms(fields):
            if not term.equal:
                raise ValueError(f"fields: {term} cannot be read from the cache, only exact matches can (path=value)")
            (plain if term.path in _PLAIN_FIELDS else lookups).append((term.path, term.value))
        return cls(namespace, label_selector(labels), tuple(lookups), tuple(plain))

    def run(self, store: Store) -> list[RawObject]:
        """Return the matching objects of a store, in the order of their keys.

        Raises:
            KeyError: a field or index is asked for that the store has no index for.
        """
        if not self.lookups:
            return self._filtered(store.values(self.namespace))
        (name, value), *others = self.lookups
        found = store.by_index(name, value, self.namespace)
        for name, value in others:
            keys = set(store.index_keys(name, value, self.namespace))
            found = [obj for obj in found if key_of(obj) in keys]
        return self._filtered(found)

    def choose(self, objects: Iterable[RawObject], store: Store) -> list[RawObject]:
        """Return the matching ones of objects that are not in the store, by the functions of the store's indexes."""
        found = list(objects)
        for name, value in self.lookups:
            function = store.index_function(name)
            found = [obj for obj in found if value in function(obj)]
        return sorted(self._filtered(found), key=key_of)

    def _filtered(self, objects: list[RawObject]) -> list[RawObject]:
        if self.selector.requirements:
            matches = self.selector.matches
            objects = [obj for obj in objects if matches(obj["metadata"].get("labels") or {})]
        for path, value in self.plain:
            objects = [obj for obj in objects if field_text(obj, path) == value]
        return objects
