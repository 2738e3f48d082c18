"""A cache, a client's place and a manager that only remember: controllers without a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from pyreconcile.controller import ControllerNames


class FakeInformer:
    """Hands the initial list to a handler when it is told to sync."""

    def __init__(self) -> None:
        self.initial: list[dict[str, Any]] = []
        self.registrations: list[FakeRegistration] = []
        self.sync_at_once = True

    def add_handler(self, handler: Any, *, name: str = "") -> FakeRegistration:
        registration = FakeRegistration(self, handler)
        self.registrations.append(registration)
        if self.sync_at_once:
            registration.sync()
        return registration

    def sync(self) -> None:
        for registration in self.registrations:
            registration.sync()

    def add(self, raw: dict[str, Any]) -> None:
        for registration in self.registrations:
            registration.handler.on_add(raw, initial=False)

    def update(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        for registration in self.registrations:
            registration.handler.on_update(old, new)

    def delete(self, raw: dict[str, Any], *, state_unknown: bool = False) -> None:
        for registration in self.registrations:
            registration.handler.on_delete(raw, state_unknown=state_unknown)


class FakeRegistration:
    def __init__(self, informer: FakeInformer, handler: Any) -> None:
        self.informer = informer
        self.handler = handler
        self.synced = anyio.Event()

    def sync(self) -> None:
        for raw in self.informer.initial:
            self.handler.on_add(raw, initial=True)
        self.synced.set()

    async def wait_synced(self) -> None:
        await self.synced.wait()

    def remove(self) -> None:
        self.informer.registrations.remove(self)


class FakeCache:
    def __init__(self) -> None:
        self.informers: dict[Any, FakeInformer] = {}
        self.stored: dict[tuple[Any, str], dict[str, Any]] = {}
        self.failures = 0

    def informer(self, kind: Any) -> FakeInformer:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no matches for kind")
        return self.informers.setdefault(kind, FakeInformer())

    def get_raw(self, kind: Any, key: str) -> dict[str, Any] | None:
        return self.stored.get((kind, key))


class FakeMetrics:
    """Counters of a controller."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.workers = 0
        self.busy = 0
        self.most_busy = 0

    def reconciled(self, result: str, seconds: float) -> None:
        assert seconds >= 0
        self.counts[result] += 1

    def error(self) -> None:
        self.counts["errors_total"] += 1

    def terminal_error(self) -> None:
        self.counts["terminal"] += 1

    def panic(self) -> None:
        self.counts["panic"] += 1

    def timeout(self) -> None:
        self.counts["timeout"] += 1

    def stalled(self, seconds: float) -> None:
        self.counts["stalled"] += 1

    def max_concurrent(self, n: int) -> None:
        self.workers = n

    def worker_busy(self, delta: int) -> None:
        self.busy += delta
        self.most_busy = max(self.most_busy, self.busy)


class FakeQueueMetrics:
    def added(self, priority: int) -> None: ...
    def retried(self) -> None: ...
    def depth(self, priority: int, delta: int) -> None: ...
    def got(self, wait_s: float) -> None: ...
    def done(self, work_s: float) -> None: ...
    def watch(self, unfinished: Callable[[], tuple[float, float]]) -> None: ...


class FakeHost:
    """What a builder needs of a manager."""

    def __init__(self) -> None:
        self.client = SimpleNamespace(name="fenced")
        self.unfenced_client = SimpleNamespace(name="unfenced")
        self.cache = FakeCache()
        self.elector: Any = None
        self.options = SimpleNamespace(
            max_concurrent_reconciles=0, max_concurrent_reconciles_by_kind={}, skip_name_validation=False
        )
        self.controller_names = ControllerNames()
        self.controllers: list[Any] = []
        self.counters: dict[str, FakeMetrics] = {}
        self.metrics = SimpleNamespace(
            controller=lambda name: self.counters.setdefault(name, FakeMetrics()), queue=lambda name: FakeQueueMetrics()
        )

    def recorder(self, component: str) -> Any:
        return SimpleNamespace(component=component)

    def add(self, runnable: Any) -> None:
        self.controllers.append(runnable)


@asynccontextmanager
async def running(controller: Any) -> AsyncIterator[anyio.Event]:
    """Run a controller until the block ends; yields its stop event."""
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(10):
            await tasks.start(lambda task_status: controller.run(stop, task_status=task_status))
        yield stop
        stop.set()


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def counters() -> FakeMetrics:
    return FakeMetrics()


@pytest.fixture
def run() -> Callable[[Any], Any]:
    return running


class RecordedQueue:
    """Remembers adds as (request, priority)."""

    def __init__(self) -> None:
        self.adds: list[tuple[Any, int]] = []
        self.delayed: list[tuple[Any, float, int]] = []

    def add(self, key: Any, *, priority: int = 0) -> None:
        self.adds.append((key, priority))

    def add_after(self, key: Any, delay: float, *, priority: int = 0) -> None:
        self.delayed.append((key, delay, priority))

    def add_rate_limited(self, key: Any, *, priority: int = 0) -> None:
        self.delayed.append((key, -1.0, priority))

    def taken(self) -> list[tuple[Any, int]]:
        adds, self.adds = self.adds, []
        return adds


@pytest.fixture
def queue() -> RecordedQueue:
    return RecordedQueue()


def make_object(
    name: str = "a", namespace: str = "ns", *, version: str = "1", owners: Any = None, **metadata: Any
) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": name, "resourceVersion": version, "uid": f"uid-{name}", **metadata}
    if namespace:
        fields["namespace"] = namespace
    if owners is not None:
        fields["ownerReferences"] = owners
    return {"metadata": fields}


@pytest.fixture(scope="session")
def raw() -> Callable[..., dict[str, Any]]:
    return make_object
