"""The loop of a candidate on virtual time (rules LE-3, LE-6, LE-10, LE-12)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from pyreconcile.api import copy_json
from pyreconcile.election import ElectionOptions
from pyreconcile.election._campaign import Campaign

pytestmark = pytest.mark.looptime

Fault = Callable[[str, float], Awaitable[None]]


class Store:
    """A Lease with versions; ``fault`` may raise or wait before a request has its effect."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.calls: list[tuple[str, float]] = []
        self.emptied = anyio.Event()

    def lock(self, fault: Fault | None = None, *, after: Fault | None = None) -> Lock:
        return Lock(self, fault, after)

    @property
    def holder(self) -> str:
        return "" if self.lease is None else self.lease["spec"]["holderIdentity"]

    def put(self, lease: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        if not lease["spec"]["holderIdentity"]:
            self.emptied.set()
        lease = copy_json(lease)
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.lease = lease
        return copy_json(lease)


class Lock:
    def __init__(self, store: Store, fault: Fault | None, after: Fault | None) -> None:
        self._store = store
        self._fault = fault
        self._after = after

    async def _begin(self, verb: str) -> None:
        self._store.calls.append((verb, now()))
        if self._fault is not None:
            await self._fault(verb, now())

    async def _end(self, verb: str) -> None:
        if self._after is not None:
            await self._after(verb, now())

    async def get(self) -> dict[str, Any] | None:
        await self._begin("get")
        return copy_json(self._store.lease)

    async def create(self, lease: dict[str, Any]) -> dict[str, Any]:
        await self._begin("create")
        if self._store.lease is not None:
            raise RuntimeError("already exists")
        created = self._store.put(lease)
        await self._end("create")
        return created

    async def update(self, lease: dict[str, Any]) -> dict[str, Any]:
        await self._begin("update")
        if self._store.lease is None or lease["metadata"]["resourceVersion"] != str(self._store.version):
            raise RuntimeError("conflict")
        updated = self._store.put(lease)
        await self._end("update")
        return updated

    async def released(self) -> bool:
        await self._store.emptied.wait()
        self._store.emptied = anyio.Event()
        return True


def now() -> float:
    return asyncio.get_running_loop().time()


def campaign(lock: Lock, identity: str = "a", *, random: float = 0.0, **callbacks: Any) -> Campaign:
    options = ElectionOptions(name="lock", namespace="ns", identity=identity)
    return Campaign(lock, options, clock=now, random=lambda: random, **callbacks)


def held_by(store: Store, holder: str, duration: int = 15) -> None:
    fields = {"holderIdentity": holder, "leaseDurationSeconds": duration, "leaseTransitions": 0}
    store.put({"metadata": {"name": "lock", "namespace": "ns"}, "spec": fields})


@pytest.mark.rules("U-59")
async def test_le_3_creates_the_lease_when_there_is_none():
    store, until = Store(), []
    await campaign(store.lock(), on_renewed=until.append).acquire()
    assert [verb for verb, _ in store.calls] == ["get", "create"]
    assert store.holder == "a"
    assert until == [10]


@pytest.mark.parametrize(("random", "pause"), [(0.0, 2.0), (0.5, 3.2), (0.999, 4.3976)])
async def test_le_3_candidates_wait_a_retry_stretched_at_random(random: float, pause: float):
    store = Store()
    held_by(store, "b")
    with anyio.move_on_after(13):
        await campaign(store.lock(), random=random).acquire()
    times = [time for _, time in store.calls]
    assert [late - early for early, late in itertools.pairwise(times)] == pytest.approx([pause] * (len(times) - 1))


@pytest.mark.rules("U-59")
async def test_le_4_takes_over_when_the_holder_is_silent_for_its_lease():
    store, seen = Store(), []
    held_by(store, "b")
    one = campaign(store.lock(), on_holder=seen.append)
    await one.acquire()
    assert 15 <= now() <= 17
    assert seen == ["b", "a"]
    assert store.lease is not None
    assert store.lease["spec"]["leaseTransitions"] == 1


@pytest.mark.rules("U-59")
async def test_le_3_renews_every_retry_period_with_one_request():
    store, until = Store(), []
    one = campaign(store.lock(), random=0.9, on_renewed=until.append)
    await one.acquire()
    store.calls.clear()
    with anyio.move_on_after(7):
        await one.renew()
    assert store.calls == [("update", 2), ("update", 4), ("update", 6)]
    assert until == [10, 12, 14, 16]


async def test_le_3_a_window_without_success_ends_leadership():
    store = Store()

    async def fail(verb: str, time: float) -> None:
        if time > 5:
            raise ConnectionError("cut")

    one = campaign(store.lock(fail))
    await one.acquire()
    assert "10 s" in await one.renew()
    assert now() == 14  # the last good renewal was sent at 4


async def test_le_3_each_success_opens_a_new_window():
    store = Store()

    async def mostly_fail(verb: str, time: float) -> None:
        if int(time) % 8 != 0:
            raise ConnectionError("flaky")

    one = campaign(store.lock(mostly_fail))
    await one.acquire()
    with anyio.move_on_after(100) as scope:
        await one.renew()
    assert scope.cancelled_caught


async def test_le_12_a_request_that_hangs_is_cut_at_the_deadline():
    store = Store()

    async def hang(verb: str, time: float) -> None:
        if time >= 2:
            await anyio.sleep_forever()

    one = campaign(store.lock(hang))
    await one.acquire()
    await one.renew()
    assert now() == 10


async def test_le_12_an_answer_after_the_deadline_does_not_count():
    store, until = Store(), []
    blocked = iter([0.0, 100.0])

    one = campaign(store.lock(), on_renewed=until.append)
    await one.acquire()
    clock = now
    # The thread is stopped for 100 s between asking and being answered: time jumps, the request has succeeded.
    one._clock = lambda: clock() + next(blocked, 100.0)
    await one.renew()
    assert until == [10]


async def test_another_holder_ends_leadership_at_once():
    store = Store()
    one = campaign(store.lock())
    await one.acquire()
    held_by(store, "b")
    assert await one.renew() == "b took the Lease"
    assert now() == 2


async def test_le_4_a_conflict_is_resolved_within_the_same_try():
    store = Store()
    one = campaign(store.lock())
    await one.acquire()
    assert store.lease is not None
    store.put({**store.lease, "metadata": {**store.lease["metadata"], "annotations": {"x": "y"}}})
    store.calls.clear()
    assert await one.try_once(10)
    assert [verb for verb, _ in store.calls] == ["update", "get", "update"]
    assert store.lease["metadata"]["annotations"] == {"x": "y"}


async def test_le_4_a_deleted_lease_is_created_again():
    store = Store()
    one = campaign(store.lock())
    await one.acquire()
    store.lease = None
    assert await one.try_once(10)
    assert store.holder == "a"


@pytest.mark.parametrize("body", [None, [], "text", {"spec": None}, {"spec": 3}])
async def test_le_12_bad_bodies_are_failed_tries(body: Any):
    store = Store()
    held_by(store, "b")
    lock = store.lock()
    lock.get = lock.update = lock.create = lambda *args: answer(body)  # type: ignore[assignment,method-assign,misc]

    async def answer(value: Any) -> Any:
        return value

    one = campaign(lock)
    assert await one.try_once(10) is False


@pytest.mark.rules("U-60")
async def test_le_6_release_empties_the_lease_and_retries_a_conflict():
    store = Store()
    conflicts = iter(["update"])

    async def conflict(verb: str, time: float) -> None:
        if time > 0 and verb == next(conflicts, None):
            raise RuntimeError("conflict")

    one = campaign(store.lock(conflict))
    await one.acquire()
    await anyio.sleep(1)
    store.calls.clear()
    conflicts = iter(["", "update"])  # get, then the first update
    await one.release()
    assert store.holder == ""
    assert store.lease is not None
    assert store.lease["spec"]["leaseDurationSeconds"] == 1
    assert [verb for verb, _ in store.calls] == ["get", "update", "get", "update"]
    await one.release()
    assert len(store.calls) == 4


async def test_o_09_release_runs_in_a_cancelled_scope_and_is_bounded():
    store = Store()

    async def hang(verb: str, time: float) -> None:
        if time > 0:
            await anyio.sleep_forever()

    one = campaign(store.lock(hang))
    await one.acquire()
    await anyio.sleep(1)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await one.release()
    assert now() == 4
    assert store.holder == "a"


async def test_o_09_release_in_a_cancelled_scope_reaches_the_server():
    store = Store()
    one = campaign(store.lock())
    await one.acquire()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await one.release()
    assert store.holder == ""


async def test_o_09_a_foreign_holder_is_left_alone():
    store = Store()
    one = campaign(store.lock())
    await one.acquire()
    held_by(store, "b")
    await one.release()
    assert store.holder == "b"


async def test_le_10_a_claim_whose_answer_never_came_is_given_back():
    store = Store()

    async def lose_the_answer(verb: str, time: float) -> None:
        if verb == "create":
            await anyio.sleep_forever()

    one = campaign(store.lock(after=lose_the_answer))
    with anyio.move_on_after(5):
        await one.acquire()
    assert store.holder == "a"
    await one.release()
    assert store.holder == ""


async def test_a_candidate_that_never_claimed_writes_nothing_at_release():
    store = Store()
    held_by(store, "b")
    one = campaign(store.lock())
    assert not await one.try_once(10)
    store.calls.clear()
    await one.release()
    assert store.calls == []


async def test_le_6_after_a_release_the_next_one_leads_at_once():
    store = Store()
    first, second = campaign(store.lock(), "a"), campaign(store.lock(), "b", random=0.999)
    await first.acquire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(second.acquire)
        await anyio.sleep(1)
        await first.release()
    assert store.holder == "b"
    assert now() <= 1.1


@pytest.mark.parametrize("outcome", [False, ConnectionError("cut")])
async def test_le_6_without_a_watch_the_next_one_leads_within_a_retry(outcome: bool | Exception):
    class Blind(Lock):
        async def released(self) -> bool:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    store = Store()
    first, second = campaign(store.lock(), "a"), campaign(Blind(store, None, None), "b", random=0.999)
    await first.acquire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(second.acquire)
        await anyio.sleep(1)
        await first.release()
    assert store.holder == "b"
    assert 1.1 < now() <= 4.4
