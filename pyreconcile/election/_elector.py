"""The elector: a candidate on its own thread, and the fence that guards every write (rules LE-7 to LE-11)."""

from __future__ import annotations

import asyncio
import random as _random
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Final, TypeAlias

import anyio
import structlog
from anyio.abc import TaskStatus

from pyreconcile.client import ConnectOptions
from pyreconcile.election._campaign import Campaign, LeaseLock
from pyreconcile.election._lock import open_lock
from pyreconcile.election._options import ElectionOptions
from pyreconcile.metrics import Metrics

log = structlog.get_logger()

LockFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[LeaseLock]]
"""Opens a `LeaseLock`; called and used on the elector's own loop."""

_NEVER: Final = float("-inf")

# Seconds that a thread which missed its deadline gets to end by itself. It may be stuck; leadership is lost anyway,
# the process should exit, and the thread is a daemon.
_STUCK: Final = 1.0


class NotLeaderError(Exception):
    """This process does not lead now, so it must not act: the fence refused a write or a reconcile."""


class LeadershipLostError(Exception):
    """Leadership ended against our will. The process should exit: what it started may still be going on."""


def boot_time() -> float:
    """Return monotonic seconds that also count while the machine sleeps, where the system has such a clock.

    A leader that wakes up from suspension must find its deadline passed.
    """
    return _clock_gettime(_BOOTTIME) if _BOOTTIME is not None else time.monotonic()


_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
_clock_gettime = time.clock_gettime


class Elector:
    """Takes part in an election for this process.

    The election runs on a thread of its own with its own event loop and HTTP client, so that a reconcile that blocks
    the main loop cannot keep it from renewing. Should the elector itself be blocked or cut off, `still_leader` turns
    false when the renew deadline has passed, whatever any loop does (rule LE-11).

    Args:
        connection: how to reach the API server.
        options: the Lease, identity and times.
        lock: keeps the Lease elsewhere (rule LE-10); ``connection`` is not used then.
        metrics: where ``leader_election_master_status`` is counted.
        on_started_leading, on_stopped_leading: called on the loop of `run`; the latter always at the end, even if
            this process never led (rule LE-7).
        on_new_leader: called on the loop of `run` with the identity of every new holder that is seen.
        clock: monotonic seconds, callable from any thread.
        random: a number in [0, 1) that stretches the waits of candidates.
        sleep: waits on the elector's loop.
    """

    def __init__(
        self,
        connection: ConnectOptions,
        options: ElectionOptions,
        *,
        lock: LockFactory | None = None,
        metrics: Metrics | None = None,
        on_started_leading: Callable[[], None] = lambda: None,
        on_stopped_leading: Callable[[], None] = lambda: None,
        on_new_leader: Callable[[str], None] = lambda identity: None,
        clock: Callable[[], float] = boot_time,
        random: Callable[[], float] = _random.random,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self.options = options
        self.elected = anyio.Event()
        """Set on the loop of `run` once this process leads; not cleared again."""
        self._open_lock: LockFactory = lock or (lambda: open_lock(connection, options))
        self._metrics = metrics
        self._on_started_leading = [on_started_leading]
        self._on_stopped_leading = [on_stopped_leading]
        self._on_new_leader = on_new_leader
        self._clock = clock
        self._random = random
        self._sleep = sleep

        # Written on the elector's thread, read on any: plain attributes, each assigned in one step.
        self._until = _NEVER
        self._lost: str | None = None
        self._error: Exception | None = None
        self._wake: Callable[[], object] | None = None

        # Written on the loop of `run`. Once closed, a late renewal cannot bring leadership back.
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = anyio.Event()
        self._thread_ended = anyio.Event()
        self._stop_asked = threading.Event()
        self._yields = False

    def still_leader(self) -> bool:
        """Tell whether this process leads now. Cheap, callable from any thread."""
        return self._clock() < self._until and not self._closed

    def check(self) -> None:
        """Do nothing while this process leads; the guard of writes and reconciles.

        Raises:
            NotLeaderError: it does not lead.
        """
        if not self.still_leader():
            raise NotLeaderError(f"{self.options.identity} does not hold the Lease {self._lease}: refusing to act")

    def check_health(self) -> None:
        """Check that a leader renews (rule LE-9).

        Raises:
            RuntimeError: this process leads, and its last renewal is older than the lease and the tolerance; or it
                lost leadership and has not exited yet, because something in it refuses to end.
        """
        if self._lost is not None:
            raise RuntimeError(f"the Lease {self._lease} was lost: {self._lost}")
        options = self.options
        until = self._until
        if until == _NEVER or self._closed:
            return
        age = self._clock() - (until - options.renew_deadline)
        if age > options.lease_duration + options.health_tolerance:
            raise RuntimeError(f"the Lease {self._lease} was last renewed {age:.0f} s ago")

    def observe(
        self,
        *,
        on_started_leading: Callable[[], None],
        on_stopped_leading: Callable[[], None],
        metrics: Metrics | None = None,
    ) -> None:
        """Have these called too, and count into ``metrics`` if there are none yet. A manager does so, before `run`."""
        self._on_started_leading.append(on_started_leading)
        self._on_stopped_leading.append(on_stopped_leading)
        self._metrics = self._metrics or metrics

    def release_at_end(self) -> None:
        """Give the Lease back at the end of `run` also if ``release_on_cancel`` is off (rule LE-13)."""
        self._yields = True

    def yield_leadership(self) -> bool:
        """Give the Lease back now, so that another one leads; `run` then returns (rule LE-13).

        Whatever acts on the leadership must have ended before. Call it on the loop of `run`. It returns False, and
        does nothing, when this process does not lead.
        """
        if not self.still_leader():
            return False
        self.release_at_end()
        self._ask_to_stop()
        return True

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Take part until ``stop`` is set, then give the Lease back and return.

        Cancelling does the same. Giving back takes at most ``options.release_timeout`` seconds; an API server that
        cannot be reached does not delay the end for longer.

        Raises:
            LeadershipLostError: leadership ended without ``stop``. The Lease is not given back then.
            RuntimeError: it was run before.
            Exception: the connection could not be set up.
        """
        if self._loop is not None:
            raise RuntimeError("an Elector runs once: make a new one")
        self._loop = asyncio.get_running_loop()
        self._stop = stop
        self._show(leading=False)
        self._thread = threading.Thread(target=self._run_thread, name=f"elector-{self.options.name}", daemon=True)
        self._thread.start()
        task_status.started()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._await_deadline)
                tasks.start_soon(self._await_stop, stop)
                await self._over.wait()
                tasks.cancel_scope.cancel()
        finally:
            await self._finish()
        if self._error is not None:
            raise self._error
        if self._lost is not None:
            raise LeadershipLostError(f"{self.options.identity} lost the Lease {self._lease}: {self._lost}")

    async def _await_deadline(self) -> None:
        """Notice a missed deadline even when the elector's thread is stuck."""
        await self.elected.wait()
        while True:
            left = self._until - self._clock()
            if left <= 0:
                break
            await anyio.sleep(left)
        if not self._closed:
            self._closed = True
            self._lost = self._lost or f"no renewal within {self.options.renew_deadline:g} s"
            self._over.set()

    async def _await_stop(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._ask_to_stop()

    async def _finish(self) -> None:
        self._ask_to_stop()
        limit = _STUCK if self._lost is not None else self.options.release_timeout + _STUCK
        with anyio.move_on_after(limit, shield=True):
            await self._thread_ended.wait()
        if self._thread_ended.is_set():
            self._thread.join(_STUCK)  # telling us was the last it did
        else:
            log.error("elector_stuck", lease=self._lease, seconds=limit)
        self._show(leading=False)
        for tell in self._on_stopped_leading:
            tell()

    def _ask_to_stop(self) -> None:
        self._closed = True
        self._stop_asked.set()
        if (wake := self._wake) is not None:
            with suppress(RuntimeError):  # its loop has just been closed
                wake()

    def _note_elected(self) -> None:
        if not self._closed and not self._stop.is_set():  # who stops must not become leader (rule LE-10)
            log.info("became_leader", lease=self._lease, identity=self.options.identity)
            self._show(leading=True)
            self.elected.set()
            for tell in self._on_started_leading:
                tell()

    def _note_thread_ended(self) -> None:
        self._thread_ended.set()
        self._over.set()

    def _show(self, *, leading: bool) -> None:
        if self._metrics is not None:
            self._metrics.leader(self.options.name, leading)

    @property
    def _releases(self) -> bool:
        return self.options.release_on_cancel or self._yields

    @property
    def _lease(self) -> str:
        return f"{self.options.namespace}/{self.options.name}"

    # From here on: the elector's own thread.

    def _run_thread(self) -> None:
        try:
            anyio.run(self._campaign)
        except Exception as error:
            self._error = error
        finally:
            self._until = _NEVER
            self._post(self._note_thread_ended)

    async def _campaign(self) -> None:
        stop, loop, scope = anyio.Event(), asyncio.get_running_loop(), anyio.CancelScope()
        self._wake = lambda: loop.call_soon_threadsafe(stop.set)
        if self._stop_asked.is_set():
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_when, stop, scope)
            try:
                await self._compete(scope)
            except Exception as error:
                self._error = error
            tasks.cancel_scope.cancel()

    async def _compete(self, scope: anyio.CancelScope) -> None:
        """Lead until the Lease is lost or ``scope`` is cancelled; then give the Lease back."""
        campaign: Campaign | None = None
        led = False
        async with AsyncExitStack() as stack:
            with scope:
                campaign = Campaign(
                    await stack.enter_async_context(self._open_lock()),
                    self.options,
                    clock=self._clock,
                    random=self._random,
                    sleep=self._sleep,
                    on_renewed=self._note_renewed,
                    on_holder=lambda identity: self._post(lambda: self._on_new_leader(identity)),
                )
                await campaign.acquire()
                led = True
                self._post(self._note_elected)
                self._lost = await campaign.renew()
            self._until = _NEVER
            # A claim whose answer never came is given back in any case: who stops must not become leader (LE-10).
            if campaign is not None and self._lost is None and (self._releases or not led):
                await campaign.release()

    def _note_renewed(self, until: float) -> None:
        self._until = until

    def _post(self, call: Callable[[], None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop of `run` is gone: nobody is left to tell
                self._loop.call_soon_threadsafe(call)


async def _cancel_when(stop: anyio.Event, scope: anyio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()
