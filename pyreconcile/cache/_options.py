"""What to cache of which kind: options, and the scopes that follow from them (rules CA-4, CA-5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from pyreconcile.api import KubeObject, RawObject, Resource, split_key
from pyreconcile.api.selectors import FieldTerm, LabelSelector, parse_fields

Transform = Callable[[RawObject], RawObject]
"""Changes an object before it is stored, in place or by returning another; running it twice must do no harm."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NamespaceOptions:
    """What to cache of one namespace; None falls through to the next wider option.

    Args:
        labels: label selector sent to the server.
        fields: field selector sent to the server.
        transform: applied to every object before it is stored.
    """

    labels: str | None = None
    fields: str | None = None
    transform: Transform | None = None


@dataclass(frozen=True, kw_only=True)
class KindOptions:
    """What to cache of one kind; None, or no namespaces, falls through to the cache's own options.

    Args:
        namespaces: names of namespaces, or a mapping of names to options. An empty name stands for all namespaces
            that are not listed apart.
        labels: label selector sent to the server; the empty text selects everything.
        fields: field selector sent to the server.
        transform: applied to every object before it is stored, and so before handlers see it.
    """

    namespaces: Sequence[str] | Mapping[str, NamespaceOptions] = ()
    labels: str | None = None
    fields: str | None = None
    transform: Transform | None = None


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """How the cache reads.

    Args:
        namespaces: the namespaces to watch, with or without options of their own; none means all.
        by_kind: options of single kinds. The narrower option wins: namespace of a kind, kind, namespace, cache.
        labels, fields, transform: for every kind without its own.
        resync_period: seconds between resyncs of a handler (rule CA-3: 10 h, spread by ±10 %); 0 turns them off.
        read_timeout: seconds a read waits for this process's own writes to arrive before it asks the server (RY-7).
        sync_timeout: seconds a read waits for a kind's first list.
        start_on_read: whether reading a kind that is not watched yet starts its informer; if not, it is an error.
        concurrent_lists: how many initial lists may run at once (rule RF-18).
        freeze_objects: whether to call ``gc.freeze()`` after each MiB of objects that came in. Without it, full
            collections of a large cache stop the event loop for long (docs/cache.md).
    """

    namespaces: Sequence[str] | Mapping[str, NamespaceOptions] = ()
    by_kind: Mapping[type[KubeObject], KindOptions] = field(default_factory=dict)
    labels: str | None = None
    fields: str | None = None
    transform: Transform | None = None
    resync_period: float = 36000.0
    read_timeout: float = 5.0
    sync_timeout: float = 120.0
    start_on_read: bool = True
    concurrent_lists: int = 16
    freeze_objects: bool = True


@dataclass(frozen=True)
class Scope:
    """One list-and-watch: a namespace or all, minus some, and the selectors sent to the server."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""
    transform: Transform | None = None
    excluded: frozenset[str] = frozenset()

    def covers(self, namespace: str) -> bool:
        """Tell whether objects of a namespace fall into this scope."""
        return namespace == self.namespace if self.namespace else namespace not in self.excluded

    def admits(self, key: str) -> bool | None:
        """Tell whether an object with this key falls under the selectors; None when its content decides."""
        if self.labels:
            return None
        namespace, name = split_key(key)
        own = {"metadata.name": name, "metadata.namespace": namespace}
        known = [(own[term.path] == term.value) == term.equal for term in self.field_selector if term.path in own]
        if not all(known):
            return False
        return True if len(known) == len(self.field_selector) else None

    def selects(self, obj: RawObject) -> bool:
        """Tell whether the server would give this object out for this scope's selectors."""
        metadata = obj["metadata"]
        if not self.covers(metadata.get("namespace") or ""):
            return False
        if self.labels and not self.label_selector.matches(metadata.get("labels") or {}):
            return False
        return all((field_text(obj, term.path) == term.value) == term.equal for term in self.field_selector)

    @cached_property
    def label_selector(self) -> LabelSelector:
        """The label selector, parsed."""
        return LabelSelector.parse(self.labels)

    @cached_property
    def field_selector(self) -> tuple[FieldTerm, ...]:
        """The field selector, parsed."""
        return parse_fields(self.fields)

    @property
    def query(self) -> dict[str, str]:
        """The selectors as query parameters."""
        query = {}
        if self.labels:
            query["labelSelector"] = self.labels
        fields = [self.fields] if self.fields else []
        fields += [f"metadata.namespace!={name}" for name in sorted(self.excluded)]
        if fields:
            query["fieldSelector"] = ",".join(fields)
        return query


def scopes_for(resource: Resource, kind_options: KindOptions, options: CacheOptions) -> tuple[Scope, ...]:
    """Work out the list-and-watches of a kind.

    Raises:
        ValueError: namespaces are given for a cluster-scoped kind, or a selector cannot be read.
    """
    if not resource.namespaced:
        if kind_options.namespaces:
            raise ValueError(f"by_kind[{resource.kind}].namespaces: the kind is cluster-scoped, leave them out")
        return (_scope("", frozenset(), kind_options, CacheOptions(), options),)
    names = tuple(kind_options.namespaces or options.namespaces or ("",))
    listed = frozenset(name for name in names if name)
    return tuple(_scope(name, frozenset() if name else listed, kind_options, options, options) for name in names)


def _scope(
    namespace: str, excluded: frozenset[str], kind: KindOptions, by_namespace: CacheOptions, options: CacheOptions
) -> Scope:
    chain = (_entry(kind.namespaces, namespace), kind, _entry(by_namespace.namespaces, namespace), options)
    scope = Scope(
        namespace,
        _first_set([level.labels for level in chain]) or "",
        _first_set([level.fields for level in chain]) or "",
        _first_set([level.transform for level in chain]),
        excluded,
    )
    # Reading the selectors here reports a faulty one when the kind is first asked for, not in a background task.
    _ = scope.label_selector
    if not namespace:
        for term in scope.field_selector:
            if term.path == "metadata.namespace" and term.equal:
                return Scope(term.value, scope.labels, scope.fields, scope.transform)
    return scope


def _entry(namespaces: Sequence[str] | Mapping[str, NamespaceOptions], name: str) -> NamespaceOptions:
    if isinstance(namespaces, Mapping):
        return namespaces.get(name, NamespaceOptions())
    return NamespaceOptions()


def _first_set(values: Sequence[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)


def field_text(obj: RawObject, path: str) -> str:
    """Return the text a field selector compares: the value at a dotted path, empty when it is not there."""
    value: object = obj
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def strip_managed_fields(obj: RawObject) -> RawObject:
    """Drop ``metadata.managedFields``, often a third of an object; a transform for `KindOptions` (rule CA-10)."""
    obj["metadata"].pop("managedFields", None)
    return obj
