"""Managers that compete on the real API server (rules LE-1 to LE-11, O-08, O-09)."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import aiohttp
import anyio
import pytest

from pyreconcile.api import RawObject
from pyreconcile.api.coordination_v1 import Lease
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.api.events_v1 import Event
from pyreconcile.cache import CacheOptions
from pyreconcile.client import Client, ConnectOptions, MergePatch
from pyreconcile.controller import Builder, Controller, ControllerOptions, Request
from pyreconcile.election import ElectionOptions, Elector, LeadershipLostError, LeaseLock, NotLeaderError
from pyreconcile.election._lock import open_lock
from pyreconcile.manager import Manager, ManagerOptions
from pyreconcile.testing import ControlPlane

pytestmark = pytest.mark.plane


class Replica:
    """A manager whose controller stamps its name into every ConfigMap with the label ``stamp``.

    A busy machine costs it no Lease, for that lasts 30 s. Who needs a Lease to run out gives shorter times.
    """

    def __init__(self, plane: ControlPlane, namespace: str, name: str, **election: Any) -> None:
        self.name = name
        self.stop = anyio.Event()
        self.ended = anyio.Event()
        self.error: Exception | None = None
        self.stamps: list[float] = []
        """When each of its writes was begun."""
        self.looks = 0
        """How often it read the Lease."""
        self.cut = False
        self.manager: Manager
        self.controller: Controller | None = None
        self.options = ControllerOptions(skip_name_validation=True)  # all replicas are in this process
        connect = ConnectOptions(kubeconfig=plane.kubeconfig)
        times = {"lease_duration": 30, "renew_deadline": 20, "retry_period": 0.3, **election}
        leader_election = ElectionOptions(name="lock", namespace=namespace, identity=name, **times)
        self._options = ManagerOptions(
            connect=connect,
            cache=CacheOptions(namespaces=(namespace,)),
            leader_election=leader_election,
            metrics_bind_address="127.0.0.1:0",
            health_probe_bind_address="127.0.0.1:0",
        )

        @asynccontextmanager
        async def lock() -> AsyncIterator[LeaseLock]:
            async with open_lock(connect, leader_election) as opened:
                yield _Cuttable(opened, self)

        self.elector = Elector(connect, leader_election, lock=lock)

    async def run(self, *, own_elector: bool = True) -> None:
        try:
            async with Manager(self._options, elector=self.elector if own_elector else None) as self.manager:
                if not own_elector:
                    assert self.manager.elector is not None
                    self.elector = self.manager.elector
                builder = Builder(self.manager).for_(ConfigMap).named("stamper").with_options(self.options)
                self.controller = builder.complete(self._stamp)
                await self.manager.run(self.stop)
        except Exception as error:
            self.error = error
        finally:
            self.ended.set()

    async def _stamp(self, request: Request) -> None:
        found = await self.manager.client.find(ConfigMap, request.key)
        if found is None or "stamp" not in found.metadata.labels or (found.data or {}).get("by") == self.name:
            return
        began = time.monotonic()
        await self.manager.client.patch(ConfigMap, request.key, MergePatch({"data": {"by": self.name}}))
        self.stamps.append(began)


class _Cuttable:
    """The lock, behind a network that can be cut."""

    def __init__(self, lock: LeaseLock, replica: Replica) -> None:
        self._lock = lock
        self._replica = replica

    def _check(self) -> None:
        if self._replica.cut:
            raise ConnectionError("the network is cut")

    async def get(self) -> RawObject | None:
        self._replica.looks += 1
        self._check()
        return await self._lock.get()

    async def released(self) -> bool:
        self._check()
        return await self._lock.released()

    async def create(self, lease: RawObject) -> RawObject:
        self._check()
        return await self._lock.create(lease)

    async def update(self, lease: RawObject) -> RawObject:
        self._check()
        return await self._lock.update(lease)


async def until(condition: Callable[[], Any]) -> None:
    """Wait until the condition holds."""
    with anyio.fail_after(30):
        while True:
            result = condition()
            if not isinstance(result, bool) and hasattr(result, "__await__"):
                result = await result
            if result:
                return
            await anyio.sleep(0.01)


async def leads_at_once(replica: Replica) -> None:
    """Wait until it leads: by its next look at the Lease, a retry (0.66 s) away at most; one may be under way."""
    looks = replica.looks
    await until(replica.elector.still_leader)
    assert replica.looks - looks <= 2


async def touch(client: Client, namespace: str) -> str:
    """Create a ConfigMap to be stamped; return its key."""
    name = f"stamp-{secrets.token_hex(8)}"
    metadata = {"name": name, "namespace": namespace, "labels": {"stamp": "yes"}}
    return (await client.create(ConfigMap.from_dict({"metadata": metadata}))).key


async def stamped(client: Client, key: str, by: str) -> bool:
    return ((await client.get(ConfigMap, key)).data or {}).get("by") == by


async def lease_spec(client: Client, namespace: str) -> RawObject:
    spec: RawObject = (await client.get(Lease, f"{namespace}/lock")).to_dict()["spec"]
    return spec


def renewed_at(spec: RawObject) -> float:
    """Return when a Lease was last renewed, as `time.time` tells it."""
    return datetime.fromisoformat(spec["renewTime"]).timestamp()


async def test_only_the_leader_acts_and_a_stop_hands_over_within_a_second(
    control_plane: ControlPlane, client: Client, namespace: str
):
    a, b = Replica(control_plane, namespace, "a"), Replica(control_plane, namespace, "b")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.run)
        await until(lambda: a.elector.still_leader())
        tasks.start_soon(b.run)
        key = await touch(client, namespace)
        await until(lambda: stamped(client, key, "a"))
        spec = await lease_spec(client, namespace)
        assert spec["holderIdentity"] == "a"
        assert spec["leaseDurationSeconds"] == 30
        assert spec["leaseTransitions"] == 0
        assert spec["renewTime"].endswith("Z")
        assert len(spec["renewTime"].partition(".")[2]) == 7
        await until(lambda: b.looks > 3)
        assert not b.elector.still_leader()
        assert b.stamps == []

        a.stop.set()
        await a.ended.wait()
        await leads_at_once(b)
        assert not a.elector.still_leader()
        await until(lambda: stamped(client, key, "b"))
        assert (await lease_spec(client, namespace))["leaseTransitions"] == 1
        b.stop.set()
    assert a.error is None
    assert b.error is None
    spec = await lease_spec(client, namespace)
    assert spec.get("holderIdentity", "") == ""
    assert spec["leaseDurationSeconds"] == 1


async def test_le_4_a_holder_that_died_is_followed_after_its_lease(
    control_plane: ControlPlane, client: Client, namespace: str
):
    a = Replica(control_plane, namespace, "a", release_on_cancel=False, lease_duration=4, renew_deadline=3)
    b = Replica(control_plane, namespace, "b")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.run)
        await until(lambda: a.elector.still_leader())
        tasks.start_soon(b.run)
        a.stop.set()
        await a.ended.wait()
        spec = await lease_spec(client, namespace)
        assert spec["holderIdentity"] == "a"
        await until(lambda: b.elector.still_leader())
        assert time.time() - renewed_at(spec) > 4  # the holder's duration counts, b's own of 30 s does not
        b.stop.set()
    assert b.error is None


async def test_le_13_a_manager_that_yields_ends_in_order_and_the_next_one_leads_at_once(
    control_plane: ControlPlane, client: Client, namespace: str
):
    a = Replica(control_plane, namespace, "a", release_on_cancel=False)
    b = Replica(control_plane, namespace, "b")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.run)
        await until(lambda: a.elector.still_leader())
        tasks.start_soon(b.run)
        await until(lambda: hasattr(b, "manager") and b.manager.health_probe_port > 0)
        await until(lambda: a.manager.elected.is_set())
        assert not b.manager.yield_leadership()
        assert a.manager.yield_leadership()
        await a.ended.wait()
        assert a.error is None
        await leads_at_once(b)
        key = await touch(client, namespace)
        await until(lambda: stamped(client, key, "b"))
        b.stop.set()
    assert b.error is None


async def test_o_08_a_leader_that_is_cut_off_writes_nothing_more_before_the_next_one_leads(
    control_plane: ControlPlane, client: Client, namespace: str
):
    a = Replica(control_plane, namespace, "a", lease_duration=5, renew_deadline=3.5)
    b = Replica(control_plane, namespace, "b")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.run)
        await until(lambda: a.elector.still_leader())
        tasks.start_soon(b.run)
        key = await touch(client, namespace)
        await until(lambda: stamped(client, key, "a"))
        a.cut = True
        cut_at = time.monotonic()
        b_leads = False
        while not b_leads:
            await touch(client, namespace)
            await anyio.sleep(0.02)
            b_leads = b.elector.still_leader()
            a_leads = a.elector.still_leader()  # asked last: what is over does not come back
            assert not (a_leads and b_leads)
            if not a_leads:
                with pytest.raises(NotLeaderError):
                    await a.manager.client.patch(ConfigMap, key, MergePatch({"data": {"by": "a"}}))
        await a.ended.wait()
        assert isinstance(a.error, LeadershipLostError)
        await until(lambda: stamped(client, key, "b"))
        assert a.stamps[-1] < cut_at + 3.5
        assert a.stamps[-1] < b.stamps[0]
        b.stop.set()
    assert b.error is None


@pytest.mark.rules("MG-3", "U-29")
async def test_u_29_a_warm_standby_has_its_queue_ready_and_reconciles_only_once_elected(
    control_plane: ControlPlane, client: Client, namespace: str
):
    a, b = Replica(control_plane, namespace, "a"), Replica(control_plane, namespace, "b")
    b.options = ControllerOptions(skip_name_validation=True, enable_warmup=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.run)
        await until(lambda: a.elector.still_leader())
        key = await touch(client, namespace)
        await until(lambda: stamped(client, key, "a"))
        tasks.start_soon(b.run)
        await until(lambda: b.controller is not None and b.controller.queue is not None and len(b.controller.queue) > 0)
        assert not b.elector.still_leader()
        assert b.stamps == []
        a.stop.set()
        await until(lambda: stamped(client, key, "b"))
        b.stop.set()
    assert (a.error, b.error) == (None, None)


@pytest.mark.rules("PX-2", "LE-11", "LE-8", "PX-6")
@pytest.mark.parametrize("cut", [True, False], ids=["cut off", "renewing"])
async def test_px_2_a_reconcile_that_blocks_the_loop_beyond_the_lease(
    control_plane: ControlPlane, client: Client, namespace: str, cut: bool
):
    """The loop stands still for longer than the Lease lasts, as 20 s would with the default of 15 s.

    A healthy elector renews all the same, so leadership stays and the write goes out. One that is cut off has lost it
    by the deadline, on time although nobody's loop runs, and the write is refused.
    """
    a = Replica(control_plane, namespace, "a", lease_duration=4, renew_deadline=3)
    led_at: list[float] = []
    lost_at: list[float] = []
    over = threading.Event()
    results: list[Exception | None] = []

    def watch() -> None:
        while not over.is_set():
            asked = time.time()
            if not a.elector.still_leader():
                lost_at.append(time.time())
                return
            led_at.append(asked)
            time.sleep(0.005)

    def loss_is_known() -> bool:
        try:
            a.elector.check_health()
        except RuntimeError:
            return True
        return False

    def stand_still() -> None:
        began = time.monotonic()
        while (lasted := time.monotonic() - began) < 4.5 or (cut and lasted < 30 and not loss_is_known()):
            time.sleep(0.005)

    async def block(request: Request) -> None:
        if request.name != "x" or results:
            return  # such as the ConfigMap that every namespace has, or the event of our own write
        a.cut = cut
        watcher = threading.Thread(target=watch)
        watcher.start()
        stand_still()  # the loop is blocked on purpose
        over.set()
        try:
            await a.manager.client.patch(ConfigMap, request.key, MergePatch({"data": {"by": "a"}}))
            results.append(None)
        except NotLeaderError as error:
            results.append(error)
            raise
        finally:
            watcher.join()
            a.stop.set()

    a._stamp = block  # type: ignore[method-assign]
    key = (await client.create(ConfigMap.from_dict({"metadata": {"name": "x", "namespace": namespace}}))).key
    with anyio.fail_after(60):
        await a.run()
    written = (await client.get(ConfigMap, key)).data or {}
    if cut:
        deadline = renewed_at(await lease_spec(client, namespace)) + 3
        assert led_at[-1] <= deadline
        assert lost_at[0] > deadline - 0.5
        assert isinstance(results[0], NotLeaderError)
        assert written == {}
        assert isinstance(a.error, LeadershipLostError)
    else:
        assert lost_at == []
        assert results[0] is None
        assert written == {"by": "a"}
        assert a.error is None


@pytest.mark.parametrize("own_elector", [False, True])
async def test_le_7_events_and_the_metric_tell_who_became_and_who_stopped_leading(
    control_plane: ControlPlane, client: Client, namespace: str, own_elector: bool
):
    a = Replica(control_plane, namespace, "a")
    master = ("leader_election_master_status", {"name": "lock"})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: a.run(own_elector=own_elector))
        await until(lambda: hasattr(a, "manager") and a.manager.elected.is_set())
        assert a.manager.metrics.registry.get_sample_value(*master) == 1
        a.stop.set()
    assert a.manager.metrics.registry.get_sample_value(*master) == 0
    assert a.error is None
    events = await client.list(Event, namespace=namespace)
    told = {
        (event.reason, event.note, event.regarding.kind, event.regarding.name) for event in events if event.regarding
    }
    assert told == {
        ("LeaderElection", "a became leader", "Lease", "lock"),
        ("LeaderElection", "a stopped leading", "Lease", "lock"),
    }


async def test_metrics_and_probes_of_a_working_manager(control_plane: ControlPlane, client: Client, namespace: str):
    a = Replica(control_plane, namespace, "a")
    async with anyio.create_task_group() as tasks, aiohttp.ClientSession() as session:
        tasks.start_soon(lambda: a.run(own_elector=False))
        key = await touch(client, namespace)
        await until(lambda: stamped(client, key, "a"))
        async with session.get(f"http://127.0.0.1:{a.manager.metrics_port}/metrics") as response:
            text = await response.text()
        for path in ("healthz", "healthz/leader-election", "readyz"):
            async with session.get(f"http://127.0.0.1:{a.manager.health_probe_port}/{path}") as response:
                assert (response.status, await response.text()) == (200, "ok")
        a.stop.set()
    for line in (
        'controller_runtime_reconcile_total{controller="stamper",result="success"}',
        'controller_runtime_reconcile_errors_total{controller="stamper"} 0.0',
        'controller_runtime_reconcile_time_seconds_count{controller="stamper"}',
        'controller_runtime_max_concurrent_reconciles{controller="stamper"} 1.0',
        'controller_runtime_active_workers{controller="stamper"}',
        'workqueue_adds_total{controller="stamper",name="stamper"}',
        'workqueue_depth{controller="stamper",name="stamper",priority="0"}',
        'workqueue_queue_duration_seconds_bucket{controller="stamper",le="1e-08",name="stamper"}',
        'workqueue_unfinished_work_seconds{controller="stamper",name="stamper"}',
        'workqueue_longest_running_processor_seconds{controller="stamper",name="stamper"}',
        'leader_election_master_status{name="lock"} 1.0',
        'rest_client_requests_total{code="200",host="',
        "process_cpu_seconds_total",
        "python_info",
    ):
        assert line in text, line
