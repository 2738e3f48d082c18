"""Reconcilers that are plain functions: each call runs in a worker thread, and can be given up on (RC-6)."""

from __future__ import annotations

import asyncio
import enum
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar

import anyio
import anyio.to_thread
import structlog

from pyreconcile.controller._types import ReconcileError, ReconcileTimeoutError, Request, Result

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger()

ReconcileFunction: TypeAlias = Callable[[Request], Awaitable[Result | None]]
"""What a controller calls for each request."""

SyncReconcileFunction: TypeAlias = Callable[[Request], Result | None]
"""A plain function to reconcile with; it runs in a worker thread."""


class _State(enum.Enum):
    NEW = "new"
    RUNNING = "running"
    ENDED = "ended"
    REVOKED = "revoked"


class _Call:
    """One call in a thread. Whether it ran, and who says that it has ended, is decided under a lock."""

    def __init__(self, function: SyncReconcileFunction, request: Request, ended: Callable[[], None]) -> None:
        self._function = function
        self._request = request
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._state = _State.NEW
        self._given_up = False
        self._scope: anyio.CancelScope | None = None  # of the coroutine that the thread waits for

    def run(self) -> Any:
        """Call the function; in the thread."""
        with self._lock:
            if self._state is _State.REVOKED:
                return None
            self._state = _State.RUNNING
        _current.set(self)
        try:
            return self._function(self._request)
        finally:
            with self._lock:
                self._state = _State.ENDED
            with suppress(RuntimeError):  # the loop has gone, and with it who would care
                self._loop.call_soon_threadsafe(self._ended)

    def give_up(self) -> bool:
        """Stop waiting for the call; tell whether it goes on without us. In the loop."""
        self._given_up = True
        if self._scope is not None:
            self._scope.cancel()
        with self._lock:
            found = self._state
            if found is _State.NEW:
                self._state = _State.REVOKED
        if found is _State.NEW:
            self._ended()
        return found is _State.RUNNING

    def wait_for(self, function: Callable[[], Awaitable[T]]) -> T:
        """Have something awaited in the loop; in the thread."""
        if self._given_up:
            raise self._error()
        # Not anyio.from_thread: that would be cancelled with our own wait, before anyone knows why.
        try:
            return asyncio.run_coroutine_threadsafe(self._await(function), self._loop).result()
        except CancelledError as error:
            raise ReconcileError("what the reconciler waited for was cancelled") from error

    async def _await(self, function: Callable[[], Awaitable[T]]) -> T:
        if not self._given_up:
            with anyio.CancelScope() as self._scope:
                try:
                    return await function()
                finally:
                    self._scope = None
        raise self._error()

    def _error(self) -> ReconcileTimeoutError:
        return ReconcileTimeoutError(f"the reconcile of {self._request} was given up on")


_current: ContextVar[_Call] = ContextVar("pyreconcile_threaded_call")


class ThreadedReconcile:
    """Makes a coroutine function of a plain one by running it in worker threads.

    Cancellation, such as by the time limit or at a hard stop, ends the wait and leaves the thread behind, since no
    thread can be ended from outside. Until that one has ended by itself, its object is not reconciled again (one
    worker per object), and it counts against the limit of threads.

    Args:
        function: reconciles one request.
        limit: how many threads there may be, those left behind included.
    """

    def __init__(self, function: SyncReconcileFunction, *, limit: int) -> None:
        self._function = function
        self._limit = limit
        self._running: set[Request] = set()
        self._slots: anyio.Semaphore | None = None  # made in the loop
        self._limiter: anyio.CapacityLimiter | None = None

    async def __call__(self, request: Request) -> Result | None:
        """Reconcile one request.

        Raises:
            ReconcileTimeoutError: an earlier call for it was given up on and has not ended yet.
            TypeError: the function returned a coroutine.
            Exception: whatever the function raised.
        """
        if request in self._running:
            raise ReconcileTimeoutError(f"an earlier reconcile of {request} was given up on and still runs")
        if self._slots is None or self._limiter is None:
            self._slots, self._limiter = anyio.Semaphore(self._limit), anyio.CapacityLimiter(self._limit)
        slots = self._slots
        await slots.acquire()
        self._running.add(request)

        def ended() -> None:
            self._running.discard(request)
            slots.release()

        call = _Call(self._function, request, ended)
        try:
            result = await anyio.to_thread.run_sync(call.run, abandon_on_cancel=True, limiter=self._limiter)
        except BaseException:
            if call.give_up():
                log.warning("reconcile_thread_left_behind", advice="give what blocks a time limit of its own")
            raise
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            name = getattr(self._function, "__qualname__", repr(self._function))
            raise TypeError(f"{name} is a plain function that returned {result!r}; write 'async def'")
        outcome: Result | None = result
        return outcome


def run_in_loop(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a coroutine function from a reconciler that is a plain function, and wait for its result.

    ::

        def reconcile(request: Request) -> None:
            config = run_in_loop(client.find, ConfigMap, request.key)

    The coroutine runs in the controller's event loop; it is cancelled when the reconcile is given up on.

    Raises:
        RuntimeError: the caller is no such reconciler.
        ReconcileTimeoutError: the reconcile was given up on; end it.
        Exception: whatever the coroutine raised.
    """
    call = _current.get(None)
    if call is None:
        raise RuntimeError("run_in_loop is for reconcilers that are plain functions; elsewhere, await the call")
    return call.wait_for(partial(function, *args, **kwargs))


def is_coroutine_function(function: object) -> bool:
    """Tell whether calling ``function`` gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def as_coroutine_function(function: ReconcileFunction | SyncReconcileFunction, *, limit: int) -> ReconcileFunction:
    """Return the function itself if it is a coroutine function, else one that runs it in threads."""
    if isinstance(function, ThreadedReconcile) or is_coroutine_function(function):
        return function  # type: ignore[return-value]
    return ThreadedReconcile(function, limit=limit)  # type: ignore[arg-type]
