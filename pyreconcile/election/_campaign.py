"""The loop of one candidate: acquire, renew, release (rules LE-3, LE-6, LE-12). Runs on any event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Protocol

import anyio
import structlog

from pyreconcile.api import RawObject
from pyreconcile.election._options import JITTER, ElectionOptions
from pyreconcile.election._state import LeaseState

log = structlog.get_logger()

# A refused release is mostly a conflict with somebody's annotation: worth another try at once, not a busy loop.
_RELEASE_PAUSE: Final = 0.1


class LeaseLock(Protocol):
    """Where the Lease is kept. Any exception is a failed try; writes must check ``metadata.resourceVersion``."""

    async def get(self) -> RawObject | None:
        """Read the Lease; None when there is none."""
        ...

    async def create(self, lease: RawObject) -> RawObject:
        """Create it and return what the server made of it; fail when it exists."""
        ...

    async def update(self, lease: RawObject) -> RawObject:
        """Replace it and return what the server made of it; fail when its version moved on."""
        ...

    async def released(self) -> bool:
        """Wait until nobody holds the Lease, and return True; return False when no more can be learnt for now.

        It only shortens a candidate's wait, so a lock that cannot tell returns False at once.
        """
        ...


def _wall() -> datetime:
    return datetime.now(UTC)


class Campaign:
    """Acquires the Lease, keeps it and gives it back.

    Args:
        lock: where the Lease is kept.
        options: times and identity.
        clock: monotonic seconds.
        random: a number in [0, 1) that stretches the waits of candidates.
        sleep: waits that many seconds.
        wall: the time of day, only written into the Lease.
        on_renewed: told after each success until when this candidate leads, on its own ``clock``.
        on_holder: told the identity whenever another holder is seen.
    """

    def __init__(
        self,
        lock: LeaseLock,
        options: ElectionOptions,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        wall: Callable[[], datetime] = _wall,
        on_renewed: Callable[[float], None] = lambda until: None,
        on_holder: Callable[[str], None] = lambda identity: None,
    ) -> None:
        self._lock = lock
        self._options = options
        self._clock = clock
        self._random = random
        self._sleep = sleep
        self._wall = wall
        self._on_renewed = on_renewed
        self._on_holder = on_holder
        self._holder: str | None = None
        self._renewed_at = float("-inf")
        self._may_hold = False
        self._given_up = anyio.Event()
        self.state = LeaseState(
            name=options.name,
            namespace=options.namespace,
            identity=options.identity,
            duration=int(options.lease_duration),
            labels=options.labels,
        )

    @property
    def until(self) -> float:
        """Until when this candidate leads: a renew deadline after its last renewal was sent."""
        return self._renewed_at + self._options.renew_deadline

    async def acquire(self) -> None:
        """Try until the Lease is ours: every retry period, and at once when the holder gives it up."""
        options = self._options
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, name="watch of the Lease")
            while not (await self.try_once(options.renew_deadline) and self._clock() < self.until):
                await self._pause(options.retry_period * (1 + JITTER * self._random()))
            tasks.cancel_scope.cancel()
        self._on_renewed(self.until)

    async def _pause(self, seconds: float) -> None:
        async with anyio.create_task_group() as tasks:

            async def wake() -> None:
                await self._given_up.wait()
                # Several candidates see it at once; one after the other they meet fewer conflicts.
                await self._sleep(_RELEASE_PAUSE * self._random())
                tasks.cancel_scope.cancel()

            tasks.start_soon(wake)
            await self._sleep(seconds)
            tasks.cancel_scope.cancel()
        self._given_up = anyio.Event()

    async def _watch(self) -> None:
        while True:
            try:
                if await self._lock.released():
                    self._given_up.set()
            except Exception as error:
                log.debug("election_watch_failed", lease=self._lease, error=repr(error))
            # Whatever came of it, the Lease is looked at in any case after this time.
            await self._sleep(self._options.retry_period)

    async def renew(self) -> str:
        """Keep the Lease; return the reason when it is lost.

        It is lost when no renewal succeeds within the renew deadline of the last one, and at once when the Lease names
        another holder.
        """
        while True:
            await self._sleep(max(0.0, min(self._options.retry_period, self.until - self._clock())))
            until = self.until
            left = until - self._clock()
            renewed = left > 0 and await self.try_once(left)
            if self._clock() >= until:
                return f"no renewal within {self._options.renew_deadline:g} s"
            if renewed:
                self._on_renewed(self.until)
            elif self.state.held_by_another:
                return f"{self.state.holder} took the Lease"

    async def try_once(self, limit: float) -> bool:
        """Try once to create, take or renew the Lease, within ``limit`` seconds; every failure is False (LE-12)."""
        try:
            with anyio.fail_after(limit):
                return await self._attempt()
        except Exception as error:
            log.warning("election_try_failed", lease=self._lease, error=repr(error))
            return False

    async def release(self) -> None:
        """Empty the Lease if it names us, within the release timeout, also when the caller is being cancelled.

        A write of ours whose answer never came may have succeeded, so this counts too. A Lease that another one holds
        is left alone.
        """
        if not self._may_hold:
            return
        with anyio.move_on_after(self._options.release_timeout, shield=True) as scope:
            while not await self._release_once():
                await self._sleep(_RELEASE_PAUSE)
        if scope.cancelled_caught:
            log.warning("election_release_timed_out", lease=self._lease)

    async def _release_once(self) -> bool:
        try:
            lease = await self._lock.get()
            released = None if lease is None else self.state.release(lease, self._wall())
            if released is not None:
                await self._lock.update(released)
        except Exception as error:
            log.warning("election_release_failed", lease=self._lease, error=repr(error))
            return False
        self._may_hold = False
        return True

    async def _attempt(self) -> bool:
        lease: RawObject | None
        sent_at = self._clock()
        if (renewal := self.state.renewal(sent_at, self._wall())) is not None:
            # Any failure here: read the Lease and decide anew.
            with suppress(Exception):
                self._note_written(await self._lock.update(renewal), sent_at)
                return True
        lease = await self._lock.get()
        sent_at = self._clock()
        if lease is None:
            self._may_hold = True
            self._note_written(await self._lock.create(self.state.creation(self._wall())), sent_at)
            return True
        self.state.observe(lease, sent_at)
        claim = self.state.claim(sent_at, self._wall())
        self._note_holder()
        if claim is None:
            self._may_hold = False
            return False
        self._may_hold = True
        self._note_written(await self._lock.update(claim), sent_at)
        return True

    def _note_written(self, lease: RawObject, sent_at: float) -> None:
        self.state.written(lease, sent_at)
        self._may_hold = True
        self._renewed_at = sent_at
        self._note_holder()

    def _note_holder(self) -> None:
        if (holder := self.state.holder) != self._holder:
            self._holder = holder
            if holder:
                self._on_holder(holder)

    @property
    def _lease(self) -> str:
        return f"{self._options.namespace}/{self._options.name}"
