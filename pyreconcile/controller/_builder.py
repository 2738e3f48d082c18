"""The builder: which kinds a controller watches, and what each event wakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from pyreconcile.api import KubeObject
from pyreconcile.api import metadata_only as metadata_of
from pyreconcile.controller._controller import Controller, ControllerMetrics
from pyreconcile.controller._handlers import EnqueueMapped, EnqueueObject, EnqueueOwner, Handler, MapFunction
from pyreconcile.controller._mapped import MappedSource
from pyreconcile.controller._names import ControllerNames
from pyreconcile.controller._options import ControllerOptions
from pyreconcile.controller._predicates import Predicate
from pyreconcile.controller._reconciler import AnyReconciler, BoundReconciler, Recorder, reconcile_function
from pyreconcile.controller._sources import KindSource, Source
from pyreconcile.controller._threads import is_coroutine_function
from pyreconcile.workqueue import QueueMetrics

if TYPE_CHECKING:
    from pyreconcile.cache import Cache
    from pyreconcile.client import Client


class HostMetrics(Protocol):
    """Where a controller's counters come from."""

    def controller(self, name: str) -> ControllerMetrics:
        """Return the counters of a controller."""

    def queue(self, name: str) -> QueueMetrics:
        """Return the counters of a queue."""


class HostOptions(Protocol):
    """What a controller takes from the manager's options."""

    @property
    def max_concurrent_reconciles(self) -> int:
        """Workers of a controller that says nothing else."""
        ...

    @property
    def max_concurrent_reconciles_by_kind(self) -> Mapping[str, int]:
        """Workers by ``Kind.group``."""
        ...

    @property
    def skip_name_validation(self) -> bool:
        """Whether controllers may have the name of another one."""
        ...


class HostElector(Protocol):
    """Knows whether this process may act."""

    def check(self) -> None:
        """Raise when it may not."""


class Host(Protocol):
    """What a builder needs of a manager."""

    @property
    def client(self) -> Client:
        """The client of the leader's controllers."""
        ...

    @property
    def unfenced_client(self) -> Client:
        """The client of controllers that run on every replica."""
        ...

    @property
    def cache(self) -> Cache:
        """The cache."""
        ...

    @property
    def metrics(self) -> HostMetrics:
        """The metrics."""
        ...

    @property
    def options(self) -> HostOptions:
        """The options."""
        ...

    @property
    def controller_names(self) -> ControllerNames:
        """The names that controllers have taken."""
        ...

    @property
    def elector(self) -> HostElector | None:
        """The elector; None without an election."""
        ...

    def recorder(self, component: str) -> Recorder:
        """Return a recorder of Events."""

    def add(self, runnable: Any) -> None:
        """Run something."""


@dataclass(frozen=True)
class _Watch:
    kind: type[KubeObject]
    handler: Handler | MapFunction
    predicates: tuple[Predicate, ...]


class Builder:
    """Builds a controller and adds it to a manager::

        Builder(manager).for_(ModelCache).owns(ConfigMap).complete(ModelCacheReconciler())

    Every method but ``complete`` returns the builder.

    Args:
        manager: gives client, cache and metrics, and runs the controller.
    """

    def __init__(self, manager: Host) -> None:
        self._manager = manager
        self._for: _Watch | None = None
        self._owned: list[tuple[type[KubeObject], bool, bool, tuple[Predicate, ...]]] = []
        self._watched: list[_Watch] = []
        self._raw: list[Source] = []
        self._predicates: tuple[Predicate, ...] = ()
        self._name = ""
        self._options = ControllerOptions()
        self._completed = False

    def for_(
        self, kind: type[KubeObject], *, predicates: Sequence[Predicate] = (), metadata_only: bool = False
    ) -> Self:
        """Reconcile each object of this kind; every event of one enqueues it. Once at most (SR-12).

        Args:
            kind: the model.
            predicates: all of them must let an event pass.
            metadata_only: watch and cache nothing but the objects' metadata. Read them as
                ``metadata_only(kind)`` of `pyreconcile.api`: reading the kind itself would cache whole objects too.
        """
        if self._for is not None:
            raise ValueError(
                f"for_({_named(kind)}): the controller is for {self._for.kind.__name__} already; "
                "use owns or watches for further kinds"
            )
        checked = _checked_kind("for_", kind, metadata_only=metadata_only)
        self._for = _Watch(checked, EnqueueObject(), _checked_predicates("for_", predicates))
        return self

    def owns(
        self,
        kind: type[KubeObject],
        *,
        predicates: Sequence[Predicate] = (),
        every_owner: bool = False,
        match_uid: bool = False,
        metadata_only: bool = False,
    ) -> Self:
        """Reconcile the owner, of the kind given to ``for_``, when an object of this kind changes (SR-6).

        Args:
            kind: the children.
            predicates: all of them must let an event pass.
            every_owner: wake every owner of the kind; by default only the controller.
            match_uid: leave out references to an owner that was since replaced by one of the same name.
            metadata_only: watch and cache nothing but the objects' metadata.
        """
        checked = _checked_predicates("owns", predicates)
        kind = _checked_kind("owns", kind, metadata_only=metadata_only)
        self._owned.append((kind, every_owner, match_uid, checked))
        return self

    def watches(
        self,
        kind: type[KubeObject],
        handler: Handler | MapFunction,
        *,
        predicates: Sequence[Predicate] = (),
        metadata_only: bool = False,
    ) -> Self:
        """Watch a further kind.

        Args:
            kind: what to watch.
            handler: a function, plain or async, that takes an object of the kind and returns the requests it
                concerns (SR-7); or a `Handler`.
            predicates: all of them must let an event pass.
            metadata_only: watch and cache nothing but the objects' metadata; a function then gets a
                `PartialObjectMetadata`.
        """
        if isinstance(handler, type) or not (isinstance(handler, Handler) or callable(handler)):
            raise TypeError(
                f"watches({_named(kind)}, {handler!r}): give a function that takes the object and returns requests, "
                "or an instance of a Handler such as EnqueueObject()"
            )
        checked = _checked_predicates("watches", predicates)
        self._watched.append(_Watch(_checked_kind("watches", kind, metadata_only=metadata_only), handler, checked))
        return self

    def watches_source(self, source: Source) -> Self:
        """Add a source of your own, such as a `ChannelSource`; ``with_predicates`` does not apply to it (SR-12)."""
        self._raw.append(source)
        return self

    def named(self, name: str) -> Self:
        """Name the controller in metrics and logs; by default it is the kind of ``for_`` in lower case (SR-13)."""
        self._name = name
        return self

    def with_options(self, options: ControllerOptions) -> Self:
        """Set concurrency, time limits and backoff."""
        if not isinstance(options, ControllerOptions):
            raise TypeError(f"with_options({options!r}): give a ControllerOptions(…)")
        self._options = options
        return self

    def with_predicates(self, *predicates: Predicate) -> Self:
        """Put predicates before those of every kind watched (SR-12)."""
        self._predicates += _checked_predicates("with_predicates", predicates)
        return self

    def complete(self, reconciler: AnyReconciler) -> Controller:
        """Build the controller and add it to the manager.

        Args:
            reconciler: a `Reconciler`, or ``async def reconcile(request) -> Result | None``. A `SyncReconciler`, or
                a plain function, runs in worker threads.

        Raises:
            ValueError: something is missing, given twice, or the name is taken; the message says what to write.
            TypeError: the reconciler is of no use as one.
        """
        if self._completed:
            raise ValueError("complete: this builder has a reconciler already; use one builder for each controller")
        kind = None if self._for is None else self._for.kind
        if self._owned and self._for is None:
            raise ValueError(f"owns({self._owned[0][0].__name__}) needs for_(Kind): the kind whose objects own it")
        if self._for is None and not self._watched and not self._raw:
            raise ValueError("complete: nothing is watched; say for_(Kind), watches(Kind, …) or watches_source(…)")
        name = self._name or ("" if kind is None else kind.resource.kind.lower())
        if not name:
            raise ValueError("complete: a controller without for_ needs a name; say named('…')")
        function = reconcile_function(reconciler, kind)
        manager = self._manager
        options = self._with_concurrency(self._options, kind)
        skip = options.skip_name_validation
        unique = not (manager.options.skip_name_validation if skip is None else skip)
        if unique:
            manager.controller_names.check(name)
        leader_only = options.needs_leader_election
        if isinstance(reconciler, BoundReconciler):
            reconciler.bind(
                client=manager.client if leader_only else manager.unfenced_client,
                cache=manager.cache,
                recorder=manager.recorder(name),
                name=name,
            )
            reconciler.setup(manager)
        controller = Controller(
            name,
            function,
            sources=self._sources(),
            options=options,
            resource=None if kind is None else kind.resource,
            metrics=manager.metrics.controller(name),
            queue_metrics=manager.metrics.queue(name),
            fence=manager.elector.check if leader_only and manager.elector is not None else None,
        )
        manager.add(controller)
        if unique:
            manager.controller_names.claim(name, owner=manager)
        self._completed = True
        return controller

    def _with_concurrency(self, options: ControllerOptions, kind: type[KubeObject] | None) -> ControllerOptions:
        """Fill in the number of workers by rule RC-9."""
        workers = options.max_concurrent_reconciles
        if workers is None and kind is not None:
            workers = self._manager.options.max_concurrent_reconciles_by_kind.get(kind.resource.group_kind)
        return replace(
            options, max_concurrent_reconciles=workers or self._manager.options.max_concurrent_reconciles or 1
        )

    def _sources(self) -> list[Source]:
        watches: list[_Watch] = []
        if self._for is not None:
            watches.append(self._for)
            for kind, every_owner, match_uid, predicates in self._owned:
                lookup = self._owner_uid(self._for.kind) if match_uid else None
                handler = EnqueueOwner(self._for.kind, every_owner=every_owner, owner_uid=lookup)
                watches.append(_Watch(kind, handler, predicates))
        sources = [self._source(watch) for watch in [*watches, *self._watched]]
        return [*sources, *self._raw]

    def _source(self, watch: _Watch) -> Source:
        cache, handler, low = self._manager.cache, watch.handler, self._options.low_priority
        predicates = self._predicates + watch.predicates
        if isinstance(handler, Handler):
            return KindSource(cache, watch.kind, handler, predicates=predicates, low_priority=low)
        function: Any = handler
        if is_coroutine_function(function):
            return MappedSource(cache, watch.kind, function, predicates=predicates, low_priority=low)
        return KindSource(cache, watch.kind, EnqueueMapped(function), predicates=predicates, low_priority=low)

    def _owner_uid(self, owner: type[KubeObject]) -> Callable[[str], str | None]:
        cache = self._manager.cache

        def uid_of(key: str) -> str | None:
            raw = cache.get_raw(owner, key)
            return None if raw is None else raw["metadata"].get("uid")

        return uid_of


def _named(kind: object) -> str:
    return getattr(kind, "__name__", repr(kind))


def _checked_kind(method: str, kind: type[KubeObject], *, metadata_only: bool) -> type[KubeObject]:
    if not (isinstance(kind, type) and issubclass(kind, KubeObject) and hasattr(kind, "resource")):
        raise TypeError(
            f"{method}({_named(kind)}): give a kind, such as ConfigMap, a CustomResource of yours with group and "
            "version, or unstructured('apps/v1', 'Deployment')"
        )
    return metadata_of(kind) if metadata_only else kind


def _checked_predicates(method: str, predicates: Sequence[Predicate]) -> tuple[Predicate, ...]:
    if isinstance(predicates, Predicate):
        raise TypeError(f"{method}: predicates is a list; write predicates=[{type(predicates).__name__}(…)]")
    for predicate in predicates:
        if not isinstance(predicate, Predicate):
            raise TypeError(
                f"{method}: {predicate!r} is no predicate; give instances, such as GenerationChanged(), "
                "or PredicateFuncs(update=…)"
            )
    return tuple(predicates)
