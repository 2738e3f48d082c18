"""What to cache of which kind: options, and the scopes that follow from them (rules CA-4, CA-5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from pyreconcile.api import KubeObject, RawObject, Resource, split_key
from pyreconcile.api.selectors import FieldTerm, LabelSelector, parse_fields
from pyreconcile.cache._transforms import Transform

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
        resync_period: seconds between resyncs of a handler; 0 turns them off.
        copy: whether reads give each caller a copy of its own.
    """

    namespaces: Sequence[str] | Mapping[str, NamespaceOptions] = ()
    labels: str | None = None
    fields: str | None = None
    transform: Transform | None = None
    resync_period: float | None = None
    copy: bool | None = None


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """How the cache reads.

    Args:
        namespaces: the namespaces to watch, with or without options of their own; none means all.
        by_kind: options of single kinds. The narrower option wins: namespace of a kind, kind, namespace, cache.
        labels, fields, transform: for every kind without its own.
        resync_period: seconds between resyncs of a handler (rule CA-3: 10 h, spread by ±10 %); 0 turns them off.
        copy: whether reads give each caller a copy of its own, free to change. Without, readers share one object for as
            long as it does not change on the server, which saves decoding it again; nobody may change it (rule CA-6).
        read_timeout: seconds a read waits for this process's own writes to arrive before it reads from the server
            instead (RY-7).
        sync_timeout: seconds a read waits for a kind's first list.
        start_on_read: whether reading a kind that is not watched yet starts its informer; if not, it is an error.
        streaming_lists: whether to try streaming lists; a server without them is found out at the first (rule RF-5).
        concurrent_lists: how many initial lists may run at once (rule RF-18).
        freeze_objects: whether to call ``gc.freeze()`` after each MiB of objects that came in. Without it, full
            collections of a large cache stop the event loop for long (docs/cache.md).
        linger: seconds that an informer goes on after its last handler was removed, unless it is read (rule CA-9).
        on_watch_error: called with the resource and the error, after each list or watch that failed (rule RF-1).
        retry_internal_errors: seconds in which a watch that the server ends with an internal error is opened again at
            the same version; beyond them, and by default at once, the kind is listed anew (rule RF-12).
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
    streaming_lists: bool = True
    concurrent_lists: int = 16
    freeze_objects: bool = True
    copy: bool = True
    linger: float = 30.0
    on_watch_error: Callable[[Resource, Exception], None] | None = None
    retry_internal_errors: float = 0.0


@dataclass(frozen=True)
class Scope:
    """One list-and-watch: a namespace or all, minus some, and the selectors sent to the server.

    With ``metadata_only`` the server sends nothing but the objects' metadata (rule CA-10).
    """

    namespace: str = ""
    labels: str = ""
    fields: str = ""
    transform: Transform | None = None
    excluded: frozenset[str] = frozenset()
    metadata_only: bool = False

    def covers(self, namespace: str) -> bool:
        """Tell whether objects of a namespace fall into this scope."""
        return namespace == self.namespace if self.namespace else namespace not in self.excluded

    def admits(self, key: str) -> bool | None:
        """Tell whether an object with this key falls under the selectors; None when its content decides."""
        if not self.labels and not self.fields:
            return True
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


def scopes_for(
    resource: Resource, kind_options: KindOptions, options: CacheOptions, *, metadata_only: bool = False
) -> tuple[Scope, ...]:
    """Work out the list-and-watches of a kind.

    Raises:
        ValueError: namespaces are given for a cluster-scoped kind, or a selector cannot be read.
    """
    if not resource.namespaced:
        if kind_options.namespaces:
            raise ValueError(f"by_kind[{resource.kind}].namespaces: the kind is cluster-scoped, leave them out")
        scope = _scope("", frozenset(), kind_options, CacheOptions(), options)
        return (replace(scope, metadata_only=metadata_only),)
    names = tuple(kind_options.namespaces or options.namespaces or ("",))
    listed = frozenset(name for name in names if name)
    scopes = (_scope(name, frozenset() if name else listed, kind_options, options, options) for name in names)
    return tuple(replace(scope, metadata_only=metadata_only) for scope in scopes)


def named(namespaces: Sequence[str] | Mapping[str, NamespaceOptions]) -> dict[str, NamespaceOptions]:
    """Return the options of each namespace by its name."""
    if isinstance(namespaces, Mapping):
        return dict(namespaces)
    return {name: NamespaceOptions() for name in namespaces}


def _scope(
    namespace: str, excluded: frozenset[str], kind: KindOptions, by_namespace: CacheOptions, options: CacheOptions
) -> Scope:
    levels: list[KindOptions | NamespaceOptions | CacheOptions] = [
        named(kind.namespaces).get(namespace, NamespaceOptions()),
        kind,
        named(by_namespace.namespaces).get(namespace, NamespaceOptions()),
        options,
    ]
    scope = Scope(
        namespace,
        first_given([level.labels for level in levels]) or "",
        first_given([level.fields for level in levels]) or "",
        first_given([level.transform for level in levels]),
        excluded,
    )
    # Reading the selectors here reports a faulty one when the kind is first asked for, not in a background task.
    _ = scope.label_selector
    if not namespace:
        for term in scope.field_selector:
            if term.path == "metadata.namespace" and term.equal:
                return Scope(term.value, scope.labels, scope.fields, scope.transform)
    return scope


def first_given(values: Sequence[T | None]) -> T | None:
    """Return the first value that is not None."""
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
