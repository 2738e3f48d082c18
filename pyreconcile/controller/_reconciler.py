"""What an author writes: a Reconciler of one of three forms, or a function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args, get_origin

import structlog

from pyreconcile.api import KubeObject, PartialObjectMetadata
from pyreconcile.controller._threads import ReconcileFunction, SyncReconcileFunction
from pyreconcile.controller._types import Request, Result

if TYPE_CHECKING:
    from pyreconcile.cache import Cache
    from pyreconcile.client import Client

T = TypeVar("T", bound=KubeObject)


class Recorder(Protocol):
    """Writes Kubernetes Events without waiting; the manager's EventRecorder is one."""

    def event(
        self,
        obj: KubeObject,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's own word
        reason: str,
        note: str,
        *,
        action: str,
        related: KubeObject | None = None,
    ) -> None:
        """Record that something happened to an object; ``type`` is Normal or Warning."""


class BoundReconciler(ABC, Generic[T]):
    """What `Reconciler` and `SyncReconciler` share; derive from one of these.

    ``Builder.complete`` sets the attributes before the first call. ``T`` is the kind given to ``for_``.

    Attributes:
        client: reads from the cache, writes to the server; ``client.live`` reads from the server.
        cache: the manager's cache.
        recorder: writes Kubernetes Events about objects.
        log: a structlog logger; in a reconcile every line carries controller, kind, object and reconcile id.
    """

    client: Client
    cache: Cache
    recorder: Recorder
    log: Any

    def setup(self, manager: Any) -> None:
        """Prepare what the reconciler needs of the manager, such as indexes. Called once by ``complete``."""

    def bind(self, *, client: Client, cache: Cache, recorder: Recorder, name: str = "") -> None:
        """Set the attributes; ``Builder.complete`` does it, and so may a test."""
        self.client = client
        self.cache = cache
        self.recorder = recorder
        self.log = structlog.get_logger(controller=name) if name else structlog.get_logger()


class Reconciler(BoundReconciler[T]):
    """Brings the cluster from what it is to what one object says."""

    @abstractmethod
    async def reconcile(self, request: Request) -> Result | None:
        """Reconcile one object: read it, compare, act. Called again with the same state it must change nothing.

        Args:
            request: which object; it may be gone.

        Returns:
            When to look again; None to wait for the next event.

        Raises:
            TerminalError: a retry is of no use until something changes.
            Exception: anything else is tried again after a growing delay.

        It is cancelled when the manager's graceful time is over or leadership is lost: let CancelledError pass.
        """


class SyncReconciler(BoundReconciler[T]):
    """A `Reconciler` whose ``reconcile`` is a plain function: it may block, since it runs in a worker thread.

    Client and cache belong to the event loop: use them through `run_in_loop`. Threads cannot be ended from outside.
    When ``reconciliation_timeout`` is over, or at a hard stop, the controller goes on without the thread; the object is
    not reconciled again before that has ended, and the next `run_in_loop` in it raises.
    """

    @abstractmethod
    def reconcile(self, request: Request) -> Result | None:
        """Reconcile one object; as `Reconciler.reconcile` otherwise."""


class ObjectReconciler(Reconciler[T]):
    """A reconciler that is given the object itself; one that is gone counts as reconciled (RC-16)."""

    kind: type[T]

    async def reconcile(self, request: Request) -> Result | None:
        """Read the object and reconcile it."""
        obj = await self.client.find(self.kind, request.key)
        return None if obj is None else await self.reconcile_object(obj)

    @abstractmethod
    async def reconcile_object(self, obj: T) -> Result | None:
        """Reconcile one object; it is a copy that you may change. Otherwise as `Reconciler.reconcile`."""


AnyReconciler: TypeAlias = BoundReconciler[Any] | ReconcileFunction | SyncReconcileFunction
"""What ``Builder.complete`` takes."""


def reconcile_function(reconciler: AnyReconciler, kind: type[KubeObject] | None) -> Any:
    """Return the function that a controller calls.

    Raises:
        TypeError: it is no reconciler, or one of another kind than ``for_``; the message says what to write.
    """
    if isinstance(reconciler, type):
        raise TypeError(f"complete({reconciler.__name__}): pass an instance, complete({reconciler.__name__}())")
    if not isinstance(reconciler, BoundReconciler):
        if not callable(reconciler):
            raise TypeError(f"complete({reconciler!r}): pass a Reconciler, or async def reconcile(request)")
        return reconciler
    declared = _declared_kind(type(reconciler))
    name = type(reconciler).__name__
    if declared is not None and kind is not None and declared.resource != kind.resource:
        raise TypeError(f"{name} is a Reconciler[{declared.__name__}], but the builder has for_({kind.__name__})")
    if isinstance(reconciler, ObjectReconciler):
        found = kind or declared
        if found is None:
            raise TypeError(f"{name}: an ObjectReconciler needs for_(Kind)")
        if declared is not None and issubclass(found, PartialObjectMetadata) > issubclass(
            declared, PartialObjectMetadata
        ):
            raise TypeError(
                f"{name} wants whole objects, and for_ with metadata_only gives it their metadata; make it an "
                "ObjectReconciler[PartialObjectMetadata]"
            )
        reconciler.kind = found
    function = getattr(reconciler, "reconcile", None)
    if not callable(function):
        raise TypeError(f"{name}: derive from Reconciler or SyncReconciler, and write reconcile(self, request)")
    return function


def _declared_kind(cls: type) -> type[KubeObject] | None:
    """Return K of ``class X(Reconciler[K])``; None when that does not name one kind."""
    for base in cls.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            origin = get_origin(generic)
            if isinstance(origin, type) and issubclass(origin, BoundReconciler):
                (argument,) = get_args(generic)[:1] or (None,)
                if isinstance(argument, type) and issubclass(argument, KubeObject) and hasattr(argument, "resource"):
                    return argument
    return None
