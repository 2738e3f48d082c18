"""What an author writes: a Reconciler, or a coroutine function."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, get_args, get_origin

import structlog

from pyreconcile.api import KubeObject
from pyreconcile.controller._controller import ReconcileFunction
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


class Reconciler(ABC, Generic[T]):
    """Brings the cluster from what it is to what one object says.

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

    def setup(self, manager: Any) -> None:
        """Prepare what the reconciler needs of the manager, such as indexes. Called once by ``complete``."""

    def bind(self, *, client: Client, cache: Cache, recorder: Recorder, name: str = "") -> None:
        """Set the attributes; ``Builder.complete`` does it, and so may a test."""
        self.client = client
        self.cache = cache
        self.recorder = recorder
        self.log = structlog.get_logger(controller=name) if name else structlog.get_logger()


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


def reconcile_function(reconciler: Reconciler[Any] | ReconcileFunction, kind: type[KubeObject] | None) -> Any:
    """Return the coroutine function that a controller calls.

    Raises:
        TypeError: it is neither a Reconciler nor a coroutine function, or a Reconciler of another kind than ``for_``;
            the message says what to write.
    """
    if isinstance(reconciler, type):
        raise TypeError(f"complete({reconciler.__name__}): pass an instance, complete({reconciler.__name__}())")
    function = reconciler.reconcile if isinstance(reconciler, Reconciler) else reconciler
    name = getattr(function, "__qualname__", repr(function))
    if not callable(function):
        raise TypeError(f"complete({reconciler!r}): pass a Reconciler, or async def reconcile(request)")
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)):
        raise TypeError(
            f"{name} is a plain function and would block the event loop: write 'async def', and put what blocks into "
            "'await anyio.to_thread.run_sync(…)'"
        )
    if isinstance(reconciler, Reconciler):
        declared = _declared_kind(type(reconciler))
        if declared is not None and kind is not None and declared.resource != kind.resource:
            raise TypeError(
                f"{type(reconciler).__name__} is a Reconciler[{declared.__name__}], but the builder has "
                f"for_({kind.__name__})"
            )
        if isinstance(reconciler, ObjectReconciler):
            found = kind or declared
            if found is None:
                raise TypeError(f"{type(reconciler).__name__}: an ObjectReconciler needs for_(Kind)")
            reconciler.kind = found
    return function


def _declared_kind(cls: type) -> type[KubeObject] | None:
    """Return K of ``class X(Reconciler[K])``; None when that does not name one kind."""
    for base in cls.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            origin = get_origin(generic)
            if isinstance(origin, type) and issubclass(origin, Reconciler):
                (argument,) = get_args(generic)[:1] or (None,)
                if isinstance(argument, type) and issubclass(argument, KubeObject) and hasattr(argument, "resource"):
                    return argument
    return None
