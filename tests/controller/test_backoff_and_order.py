"""Backoff and order as a controller shows them, over minutes and hours of virtual time."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import anyio
import pytest
from structlog.testing import capture_logs

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.controller import (
    Builder,
    Controller,
    ControllerOptions,
    EnqueueObject,
    FunctionSource,
    KindSource,
    Request,
    Result,
)

A = Request("ns", "a")


@pytest.fixture(autouse=True)
def logs():
    """Keep the tracebacks of all these failures from being rendered: that would take most of the time."""
    with capture_logs() as captured:
        yield captured


def now() -> float:
    return asyncio.get_running_loop().time()


async def feed_one(queue) -> None:
    queue.add(A)


@pytest.mark.looptime
@pytest.mark.rules("U-19", "U-20")
async def test_rc_2_a_rerun_clears_the_failures_in_every_round(run):
    """Fail, succeed with a rerun in 1 s, fail again, fifteen times: the delay is the first step in each round."""
    times: list[float] = []

    async def reconcile(request: Request) -> Result | None:
        times.append(now())
        if len(times) > 33:
            return None
        if len(times) > 30:
            raise OSError("in a row")
        if len(times) % 2:
            raise OSError("once")
        return Result(requeue_after=1)

    controller = Controller("rounds", reconcile, sources=[FunctionSource(feed_one)])
    async with run(controller):
        await anyio.sleep(60)
        assert controller.queue.num_requeues(A) == 0
    delays = [after - before for before, after in pairwise(times)]
    assert delays[0:30:2] == [pytest.approx(0.005, abs=0.001)] * 15
    assert delays[1:30:2] == [pytest.approx(1, abs=0.001)] * 15
    assert delays[30:33] == [pytest.approx(step, abs=0.001) for step in (0.005, 0.01, 0.02)]


@pytest.mark.looptime
@pytest.mark.parametrize("use_priority_queue", [True, False])
@pytest.mark.rules("PQ-13", "RC-3")
async def test_pq_15_the_first_list_ends_although_reruns_alone_are_more_than_the_worker_can_do(
    host, raw, run, use_priority_queue
):
    first: dict[str, float] = {}
    passes = 0
    order: list[str] = []

    async def reconcile(request: Request) -> Result | None:
        nonlocal passes
        passes += 1
        first.setdefault(request.name, now() - start)
        order.append(request.name)
        await anyio.sleep(0.05)
        return Result(requeue_after=1) if request.name < "c030" else None

    informer = host.cache.informer(ConfigMap)
    informer.initial = [raw(f"c{number:03}") for number in range(200)]
    options = ControllerOptions(use_priority_queue=use_priority_queue)
    controller = Builder(host).for_(ConfigMap).with_options(options).complete(reconcile)
    start = now()
    async with run(controller):
        await anyio.sleep(2)
        informer.update(raw("c199"), raw("c199", version="2"))
        seen = len(order)
        await anyio.sleep(0.2)
        if use_priority_queue:
            assert "c199" in order[seen : seen + 3], "a change goes ahead of the first list"
        await anyio.sleep(58)
    assert len(first) == 200
    assert max(first.values()) < 30
    assert passes > 1000, "the worker was never idle"


@pytest.mark.looptime
@pytest.mark.rules("PX-6")
async def test_pq_15_low_work_ends_under_a_load_of_news_that_never_ends(host, raw, run):
    began, calls = time.monotonic(), 0
    low_done: list[float] = []

    async def reconcile(request: Request) -> None:
        nonlocal calls
        calls += 1
        if request.name.startswith("low"):
            low_done.append(now() - start)
        await anyio.sleep(1)

    async def news(queue) -> None:
        number = 0
        while True:  # twice what the worker can do
            queue.add(Request("ns", f"news-{number % 5000}"))
            number += 1
            await anyio.sleep(0.5)

    informer = host.cache.informer(ConfigMap)
    informer.initial = [raw(f"low-{number}") for number in range(10)]
    sources = [KindSource(host.cache, ConfigMap, EnqueueObject()), FunctionSource(news)]
    controller = Controller("busy", reconcile, sources=sources, options=ControllerOptions(ageing=1.0))
    start = now()
    async with run(controller):
        await anyio.sleep(300)
    assert len(low_done) == 10
    assert min(low_done) > 90, "news goes first"
    assert max(low_done) < 250, "but not for ever: 100 points at 1 a second, and what was queued before"
    assert calls > 290
    assert time.monotonic() - began < 20


@pytest.mark.looptime
@pytest.mark.parametrize("use_priority_queue", [True, False])
async def test_wq_18_events_for_a_failing_object_do_not_put_its_retry_off(host, raw, run, use_priority_queue):
    """Events every 10 ms for 2 s, each run fails; then the cause is gone, and the object is right within a window."""
    times: list[float] = []
    broken = True

    async def reconcile(request: Request) -> None:
        times.append(now())
        if broken:
            raise OSError("not yet")

    informer = host.cache.informer(ConfigMap)
    informer.initial = [raw("a")]
    options = ControllerOptions(use_priority_queue=use_priority_queue)
    controller = Builder(host).for_(ConfigMap).with_options(options).complete(reconcile)
    async with run(controller):
        for version in range(200):
            await anyio.sleep(0.01)
            informer.update(raw("a", version=f"{version}"), raw("a", version=f"{version + 1}"))
        await anyio.sleep(0.005)
        failures = controller.queue.num_requeues(A)
        broken, runs, healed = False, len(times), now()
        await anyio.sleep(10)
    assert runs > 150, "each event is a try"
    assert failures <= 10, "windows of 5, 10, 20 ms … fill 2 s: that many failures count"
    assert len(times) > runs
    assert times[runs] - healed < 2.6, "not after 1000 s"


@pytest.mark.looptime
async def test_px_6_an_hour_of_failing_takes_no_real_time(run):
    began = time.monotonic()
    times: list[float] = []

    async def reconcile(request: Request) -> None:
        times.append(now())
        raise OSError("never")

    async with run(Controller("hour", reconcile, sources=[FunctionSource(feed_one)])):
        await anyio.sleep(3600)
    delays = [after - before for before, after in pairwise(times)]
    expected = [min(1000.0, 0.005 * 2**n) for n in range(len(delays))]
    assert delays == [pytest.approx(step, rel=0.01, abs=0.002) for step in expected]
    assert len(delays) >= 19
    assert time.monotonic() - began < 20


@pytest.mark.rules("PX-6")
async def test_px_6_backoff_holds_on_the_real_clock(run):
    times: list[float] = []
    healed = anyio.Event()

    async def reconcile(request: Request) -> None:
        times.append(time.monotonic())
        if len(times) < 5:
            raise OSError("not yet")
        healed.set()

    async with run(Controller("real", reconcile, sources=[FunctionSource(feed_one)])):
        with anyio.fail_after(10):
            await healed.wait()
    for number, (before, after) in enumerate(pairwise(times)):
        assert after - before >= 0.005 * 2**number - 0.001
