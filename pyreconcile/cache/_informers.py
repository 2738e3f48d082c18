"""The informers of a cache: made as kinds are asked for, counted, and removed when nobody needs them any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import anyio
import anyio.abc

from pyreconcile.api import KubeObject, PartialObjectMetadata, Resource
from pyreconcile.cache._errors import CacheNotStartedError, CacheSyncTimeoutError
from pyreconcile.cache._gc import freeze_cached_objects
from pyreconcile.cache._informer import Informer, Part
from pyreconcile.cache._options import (
    CacheOptions,
    KindOptions,
    NamespaceOptions,
    Scope,
    first_given,
    named,
    scopes_for,
)
from pyreconcile.cache._reflector import Reflector
from pyreconcile.cache._sharing import FieldSets
from pyreconcile.cache._store import IndexFunction
from pyreconcile.cache._watching import ServerSupport, Sink, Transport

T = TypeVar("T", bound=KubeObject)

Form: TypeAlias = tuple[Resource, bool]
"""A resource, and whether only its objects' metadata is watched: each form has an informer of its own (rule CA-1)."""


def form_of(kind: type[KubeObject]) -> Form:
    """Return the form in which a kind is watched."""
    return kind.resource, issubclass(kind, PartialObjectMetadata)


class Informers:
    """Makes, starts, keeps and removes informers.

    Args:
        transport: carries lists and watches.
        options: those of the cache.
        support: what is known of the server.
        first_version: tells from which version on the first list of a resource may be.
        forgotten: called with an informer that is removed, or whose last handler was.
        random: a number in [0, 1).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        transport: Transport,
        options: CacheOptions,
        *,
        support: ServerSupport,
        first_version: Callable[[Resource], str],
        forgotten: Callable[[Informer[Any]], None],
        random: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._transport = transport
        self._options = options
        self._by_kind = {form_of(kind): kind_options for kind, kind_options in options.by_kind.items()}
        self._support = support
        self._first_version = first_version
        self._forgotten = forgotten
        self._random = random
        self._clock = clock
        self._field_sets = FieldSets()
        self._lists = anyio.Semaphore(options.concurrent_lists)
        self._informers: dict[Form, Informer[Any]] = {}
        self._of: dict[Resource, tuple[Informer[Any], ...]] = {}
        self._indexes: dict[Form, dict[str, IndexFunction]] = {}
        self._used: set[Form] = set()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._stopped = False

    @property
    def all(self) -> tuple[Informer[Any], ...]:
        """All informers, running or about to."""
        return tuple(self._informers.values())

    def of(self, resource: Resource) -> tuple[Informer[Any], ...]:
        """Return the informers of a resource, in whichever form."""
        return self._of.get(resource, ())

    def find(self, kind: type[T]) -> Informer[T] | None:
        """Return the informer of a kind, or None; having it counts as a use."""
        form = form_of(kind)
        self._used.add(form)
        return self._informers.get(form)

    def get(self, kind: type[T]) -> Informer[T]:
        """Return the informer of a kind, made if there was none; having it counts as a use.

        Raises:
            CacheNotStartedError: the cache has stopped.
            ValueError: the options do not suit the kind.
        """
        informer = self.find(kind)
        if informer is None:
            informer = self._make(kind)
        return informer

    def kind_options(self, form: Form) -> KindOptions:
        """Return the options of a kind; its metadata has the same unless it is given some of its own."""
        return self._by_kind.get(form) or self._by_kind.get((form[0], False), KindOptions())

    def copies(self, kind: type[KubeObject]) -> bool:
        """Tell whether reads of a kind give copies."""
        return first_given([self.kind_options(form_of(kind)).copy, self._options.copy]) is not False

    def add_index(self, kind: type[KubeObject], name: str, function: IndexFunction) -> None:
        """Index a kind, whose later informers will have the index too.

        Raises:
            ValueError: the name is taken by another function.
        """
        self.get(kind).add_index(name, function)
        self._indexes.setdefault(form_of(kind), {})[name] = function

    def remove(self, kind: type[KubeObject]) -> None:
        """Stop a kind's informer and forget it, if there is one."""
        self._remove(form_of(kind))

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Run all informers, and those made later as they are made."""
        self._tasks = tasks
        for informer in self._informers.values():
            self._start(tasks, informer)

    def stop(self) -> None:
        """Stop all informers for good."""
        self._tasks = None
        self._stopped = True
        for informer in self._informers.values():
            informer.stop()

    async def add_namespace(self, name: str, options: NamespaceOptions, kind: type[KubeObject] | None) -> None:
        """Watch one more namespace; see `Cache.add_namespace`."""
        present = self._namespaces(kind)
        if not name:
            raise ValueError("namespace: name one; the cache watches all of them only if it does from the start")
        if name in present:
            if present[name] != options:
                raise ValueError(f"namespace {name!r} is watched already, with other options: remove it first")
            return
        self._set_namespaces({**present, name: options}, kind)
        added = [part for informer in self.all for part in self._add_parts(informer)]
        try:
            if self._tasks is not None:
                with anyio.fail_after(self._options.sync_timeout):
                    for part in added:
                        await part.settled.wait()
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self.remove_namespace(name, kind)
            if not isinstance(error, TimeoutError):
                raise
            late = [part for part in added if not part.synced]
            why = "; ".join(f"{part.kind} ({part.reflector.last_error or 'no error'})" for part in late)
            seconds = self._options.sync_timeout
            raise CacheSyncTimeoutError(f"no first list of namespace {name!r} within {seconds:g} s of {why}") from error

    async def remove_namespace(self, name: str, kind: type[KubeObject] | None) -> None:
        """Watch a namespace no longer; see `Cache.remove_namespace`."""
        present = self._namespaces(kind)
        if present.keys() == {name}:
            raise ValueError(f"namespace {name!r} is the only one: a cache without any would watch all")
        if present.pop(name, None) is None:
            return
        self._set_namespaces(present, kind)
        # Half of it done would stay so: the namespace counts as removed already. All it waits for is a closed stream.
        with anyio.CancelScope(shield=True):
            for informer in self.all:
                wanted = {scope.namespace for scope in self._scopes(informer.kind)}
                for part in informer.parts:
                    if part.scope.namespace not in wanted:
                        await informer.drop_scope(part)

    def _make(self, kind: type[T]) -> Informer[T]:
        form = form_of(kind)
        if self._stopped:
            raise CacheNotStartedError(f"{kind.resource.kind}: the cache has stopped")
        informer = Informer(
            kind,
            self._scopes(kind),
            partial(self._reflector, kind.resource),
            resync=partial(self._resync, form),
            field_sets=self._field_sets,
            on_unused=partial(self._unused, form),
        )
        for name, function in self._indexes.get(form, {}).items():
            informer.add_index(name, function)
        self._informers[form] = informer
        self._sort()
        if self._tasks is not None:
            self._start(self._tasks, informer)
        return informer

    def _reflector(self, resource: Resource, scope: Scope, sink: Sink) -> Reflector:
        options = self._options
        return Reflector(
            self._transport,
            resource,
            scope,
            sink,
            support=self._support,
            first_version=self._first_version(resource),
            lists=self._lists,
            after_slices=freeze_cached_objects if options.freeze_objects else None,
            on_error=None if options.on_watch_error is None else partial(options.on_watch_error, resource),
            retry_internal_errors=options.retry_internal_errors,
            random=self._random,
            clock=self._clock,
        )

    def _resync(self, form: Form) -> float:
        period = first_given([self.kind_options(form).resync_period, self._options.resync_period])
        return cast(float, period) * (0.9 + 0.2 * self._random())

    def _scopes(self, kind: type[KubeObject]) -> tuple[Scope, ...]:
        resource, metadata_only = form = form_of(kind)
        return scopes_for(resource, self.kind_options(form), self._options, metadata_only=metadata_only)

    def _start(self, tasks: anyio.abc.TaskGroup, informer: Informer[Any]) -> None:
        tasks.start_soon(informer.run, name=f"informer {informer.kind.resource.group_kind}")

    def _remove(self, form: Form) -> None:
        informer = self._informers.pop(form, None)
        if informer is not None:
            self._sort()
            informer.stop()
            self._forgotten(informer)

    def _sort(self) -> None:
        of: dict[Resource, tuple[Informer[Any], ...]] = {}
        for (resource, _), informer in self._informers.items():
            of[resource] = (*of.get(resource, ()), informer)
        self._of = of

    def _unused(self, form: Form) -> None:
        """The last handler of an informer has gone: it goes too, unless somebody asks for it meanwhile."""
        informer = self._informers.get(form)
        if informer is not None and self._tasks is not None:
            self._used.discard(form)
            self._forgotten(informer)
            self._tasks.start_soon(self._linger, form, informer, informer.handlers_removed)

    async def _linger(self, form: Form, informer: Informer[Any], handlers_removed: int) -> None:
        await anyio.sleep(self._options.linger)
        same = self._informers.get(form) is informer and informer.handlers_removed == handlers_removed
        if same and not informer.registrations and form not in self._used:
            self._remove(form)

    def _namespaces(self, kind: type[KubeObject] | None) -> dict[str, NamespaceOptions]:
        """Return the namespaces that can be added to, or removed from.

        Raises:
            ValueError: all namespaces are watched, or the kind has none of its own.
        """
        if kind is None:
            namespaces, where = named(self._options.namespaces), "the cache"
        else:
            where = f"by_kind[{kind.resource.kind}]"
            namespaces = named(self.kind_options(form_of(kind)).namespaces)
            if not namespaces:
                raise ValueError(f"{where}.namespaces: the kind has none of its own, leave ``kind`` out")
        if not namespaces or "" in namespaces:
            raise ValueError(f"{where} watches all namespaces: there is none to add or remove")
        return namespaces

    def _set_namespaces(self, namespaces: dict[str, NamespaceOptions], kind: type[KubeObject] | None) -> None:
        if kind is None:
            self._options = replace(self._options, namespaces=namespaces)
        else:
            form = form_of(kind)
            self._by_kind[form] = replace(self.kind_options(form), namespaces=namespaces)

    def _add_parts(self, informer: Informer[Any]) -> list[Part]:
        present = {part.scope.namespace for part in informer.parts}
        missing = [scope for scope in self._scopes(informer.kind) if scope.namespace not in present]
        return [informer.add_scope(scope) for scope in missing]
