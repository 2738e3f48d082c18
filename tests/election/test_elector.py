"""The elector's thread and the fence (rules LE-7 to LE-11, PX-2): a real thread, and a clock that tests may stop."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from pyreconcile.api import copy_json
from pyreconcile.client import ConnectOptions
from pyreconcile.election import ElectionOptions, Elector, LeadershipLostError, NotLeaderError
from pyreconcile.metrics import Metrics

SHORT = {"lease_duration": 1, "renew_deadline": 0.6}
"""Times for a Lease that is to be lost. A machine that stands still for a moment loses it as well."""


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Store:
    """A Lease in memory, shared between threads; ``before`` may block or fail a request."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.writes = 0
        self.before: Callable[[], None] = lambda: None
        self.threads: set[str] = set()
        self._mutex = threading.Lock()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Store]:
        yield self

    @property
    def holder(self) -> str:
        return "" if self.lease is None else self.lease["spec"]["holderIdentity"]

    def _enter(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.before()

    async def get(self) -> dict[str, Any] | None:
        self._enter()
        return copy_json(self.lease)

    async def create(self, lease: dict[str, Any]) -> dict[str, Any]:
        self._enter()
        return self._put(lease, None)

    async def update(self, lease: dict[str, Any]) -> dict[str, Any]:
        self._enter()
        return self._put(lease, lease["metadata"]["resourceVersion"])

    async def released(self) -> bool:
        return False

    def _put(self, lease: dict[str, Any], version: str | None) -> dict[str, Any]:
        with self._mutex:
            if version != (None if self.lease is None else str(self.version)):
                raise RuntimeError("conflict")
            self.version += 1
            self.writes += 1
            self.lease = copy_json(lease)
            assert self.lease is not None
            self.lease["metadata"]["resourceVersion"] = str(self.version)
            return copy_json(self.lease)


def elector(store: Store, identity: str = "a", **options: Any) -> Elector:
    callbacks = {key: options.pop(key) for key in list(options) if key.startswith("on_") or key in ("metrics", "clock")}
    election = ElectionOptions(
        **{
            "name": "lock",
            "namespace": "ns",
            "identity": identity,
            "lease_duration": 60,
            "renew_deadline": 40,
            "retry_period": 0.1,
            **options,
        }
    )
    return Elector(ConnectOptions(), election, lock=store.open, **callbacks)


@asynccontextmanager
async def running(one: Elector) -> AsyncIterator[anyio.Event]:
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run, stop)
        yield stop
        stop.set()


async def expect_loss(one: Elector, reason: str) -> None:
    with pytest.raises(LeadershipLostError, match=reason):
        await one.run(anyio.Event())


async def test_le_11_runs_on_its_own_thread_and_stops_with_it():
    store = Store()
    one = elector(store)
    assert not one.still_leader()
    with anyio.fail_after(30):
        async with running(one):
            await one.elected.wait()
            assert one.still_leader()
            one.check()
    assert store.threads == {"elector-lock"}
    assert not any(thread.name == "elector-lock" for thread in threading.enumerate())
    assert not one.still_leader()
    assert store.holder == ""


async def test_px_2_a_blocked_main_loop_does_not_stop_renewing():
    store, clock = Store(), Clock()
    one = elector(store, clock=clock, **SHORT)
    with anyio.fail_after(60):
        async with running(one):
            await one.elected.wait()
            began = clock.now
            while clock.now < began + 1.3:  # longer than the lease
                writes, limit = store.writes, time.monotonic() + 30
                while store.writes == writes:
                    assert time.monotonic() < limit, "nothing is renewed while the main loop is blocked"
                    time.sleep(0.005)  # noqa: ASYNC251 - this is what the test is about
                clock.now += 0.1
            assert one.still_leader()
            await anyio.sleep(0.1)
            assert one.still_leader()


async def test_px_2_a_blocked_elector_loses_at_the_deadline_and_the_fence_closes():
    store, clock = Store(), Clock()
    one = elector(store, clock=clock, **SHORT)
    blocked, unblock = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        unblock.wait()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_loss, one, "0.6 s")
            await one.elected.wait()
            store.before = block
            while not blocked.is_set():
                await anyio.sleep(0.01)
            clock.now += 0.59
            assert one.still_leader()
            clock.now += 0.02
            assert not one.still_leader()
            with pytest.raises(NotLeaderError, match="ns/lock"):
                one.check()
        unblock.set()  # the thread goes on: its late success must not bring leadership back
        while any(thread.name == "elector-lock" for thread in threading.enumerate()):
            await anyio.sleep(0.01)
    assert not one.still_leader()


async def test_px_2_a_cut_network_loses_at_the_deadline_without_release():
    store = Store()
    one = elector(store, **SHORT)

    def cut() -> None:
        raise ConnectionError("cut")

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_loss, one, "0.6 s")
            await one.elected.wait()
            store.before = cut
    assert not one.still_leader()
    with pytest.raises(RuntimeError, match="was lost"):
        one.check_health()
    assert store.holder == "a"  # LE-8: it is not given away while workers may still act


async def test_le_7_callbacks_come_on_the_callers_loop_and_stopped_always_runs():
    store, calls = Store(), []

    def note(what: str) -> Callable[..., None]:
        return lambda *args: calls.append((what, *args, threading.current_thread() is threading.main_thread()))

    hooks = {name: note(name) for name in ("on_started_leading", "on_stopped_leading", "on_new_leader")}
    one = elector(store, **hooks)
    with anyio.fail_after(30):
        async with running(one):
            await one.elected.wait()
    assert calls == [("on_new_leader", "a", True), ("on_started_leading", True), ("on_stopped_leading", True)]

    calls.clear()
    store.lease = None
    await store.create({"metadata": {}, "spec": {"holderIdentity": "b", "leaseDurationSeconds": 60}})
    with anyio.fail_after(30):
        async with running(elector(store, **hooks)):
            while not calls:
                await anyio.sleep(0.01)
    assert calls == [("on_new_leader", "b", True), ("on_stopped_leading", True)]


async def test_le_10_stopping_before_being_elected_does_not_lead():
    store = Store()
    one = elector(store)
    stop = anyio.Event()
    stop.set()
    with anyio.fail_after(30):
        await one.run(stop)
    assert not one.elected.is_set()
    assert store.holder == ""


async def test_le_6_cancelling_gives_the_lease_back():
    store = Store()
    one = elector(store)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.run, anyio.Event())
            await one.elected.wait()
            tasks.cancel_scope.cancel()
    assert store.holder == ""


async def test_le_6_without_release_the_lease_is_kept_at_stop():
    store = Store()
    one = elector(store, release_on_cancel=False)
    with anyio.fail_after(30):
        async with running(one):
            await one.elected.wait()
    assert store.holder == "a"


async def test_le_13_a_leader_yields_of_its_own_will_even_if_it_would_keep_the_lease():
    store = Store()
    one, other = elector(store, "a", release_on_cancel=False), elector(store, "b")
    assert not one.yield_leadership()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.run, anyio.Event())
            await one.elected.wait()
            stop = anyio.Event()
            tasks.start_soon(other.run, stop)
            assert one.yield_leadership()
            assert not one.still_leader()
            await other.elected.wait()
            assert store.holder == "b"
            stop.set()


async def test_only_one_of_three_leads_and_each_takes_its_turn():
    store = Store()
    electors = {name: elector(store, name) for name in "abc"}
    order: list[str] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            stops = {name: anyio.Event() for name in electors}
            for name, one in electors.items():
                tasks.start_soon(one.run, stops[name])
            while len(order) < 3:
                leading = [name for name, one in electors.items() if one.still_leader()]
                assert len(leading) <= 1
                if leading and leading[0] not in order:
                    order.append(leading[0])
                    stops[leading[0]].set()
                await anyio.sleep(0.01)
    assert sorted(order) == ["a", "b", "c"]


async def test_le_9_health_is_bad_when_a_leader_has_not_renewed_for_too_long():
    store = Store()
    clock = Clock()

    async def never_again(seconds: float) -> None:
        await anyio.sleep_forever()

    one = Elector(
        ConnectOptions(),
        ElectionOptions(name="lock", namespace="ns", health_tolerance=20),
        lock=store.open,
        clock=clock,
        sleep=never_again,
    )
    one.check_health()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.run, anyio.Event())
            await one.elected.wait()
            one.check_health()
            clock.now = 100.0 + 35
            one.check_health()
            assert not one.still_leader()
            clock.now = 100.0 + 35.1
            with pytest.raises(RuntimeError, match="35 s ago"):
                one.check_health()
            tasks.cancel_scope.cancel()


async def test_master_status_follows_leadership():
    store, metrics = Store(), Metrics()
    one = elector(store, metrics=metrics)
    line = b'leader_election_master_status{name="lock"} '
    with anyio.fail_after(30):
        async with running(one):
            assert line + b"1.0" not in metrics.render()
            await one.elected.wait()
            assert line + b"1.0" in metrics.render()
    assert line + b"0.0" in metrics.render()


async def test_an_elector_runs_once():
    one = elector(Store())
    stop = anyio.Event()
    stop.set()
    await one.run(stop)
    with pytest.raises(RuntimeError, match="once"):
        await one.run(stop)


async def test_a_connection_that_cannot_be_set_up_is_an_error():
    @asynccontextmanager
    async def broken() -> AsyncIterator[Store]:
        raise OSError("no kubeconfig")
        yield Store()

    one = Elector(ConnectOptions(), ElectionOptions(name="lock", namespace="ns"), lock=broken)
    with anyio.fail_after(30), pytest.raises(OSError, match="no kubeconfig"):
        await one.run(anyio.Event())
