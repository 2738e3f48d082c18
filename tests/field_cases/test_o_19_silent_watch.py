"""O-19: a connection that has died without a sign is noticed, and a healthy one is left alone."""

from __future__ import annotations

import re
import time

import anyio
import pytest

from hack.field_bench.bench import Programs, Repeat, Run
from hack.field_bench.judge import Judge
from hack.field_bench.program import Program
from pyreconcile.testing import ControlPlane, ProxiedRequest

KIND = "field.example.dev/v1/Gadget"
OBJECTS = 5
IDLE = 120.0
NOTICED = 90.0
CONTROL = 900.0
STALE = 62.0
"""Seconds of silence that a live watch does not reach: the API server sends a bookmark each minute."""

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("gadgets")]


@pytest.fixture
async def gadgets(control_plane: ControlPlane) -> None:
    async with Judge(control_plane.kubeconfig) as judge:
        await judge.create_crd("field.example.dev", "Gadget")


def is_list(request: ProxiedRequest) -> bool:
    return request.resource == "gadgets" and (request.verb == "list" or request.streaming_list)


def is_watch(request: ProxiedRequest) -> bool:
    return request.resource == "gadgets" and request.watch


async def started(run: Run, programs: Programs) -> tuple[Program, str]:
    path = f"/apis/field.example.dev/v1/namespaces/{run.namespace}/gadgets"
    for number in range(1, OBJECTS + 1):
        await create(run, path, f"g{number}")
    informer = await run.start(programs("informer"), KIND)
    await informer.says("synced")
    await informer.says("reconcile", count=OBJECTS)
    return informer, path


async def create(run: Run, path: str, name: str) -> None:
    await run.judge.create(
        path, {"apiVersion": "field.example.dev/v1", "kind": "Gadget", "metadata": {"name": name}, "spec": {}}
    )


async def silence(informer: Program) -> float:
    """The freshness signal: the seconds that the metrics of the program say nothing was heard for."""
    text = (await informer.ask("metrics"))["text"]
    return max(
        float(value) for value in re.findall(r"^pyreconcile_cache_silence_seconds\{.*\} (.*)$", text, re.MULTILINE)
    )


async def test_o_19(repeat: Repeat, programs: Programs):
    async def black_hole(run: Run) -> None:
        informer, path = await started(run, programs)
        await anyio.sleep(IDLE)
        assert await silence(informer) < STALE
        told = len([line for line in informer.told if line["what"] != "metrics"])
        with run.proxy.blackhole(new=False):
            began = time.monotonic()
            await create(run, path, "g6")
            await run.judge.delete(f"{path}/g1")
            stalest = 0.0
            while not (informer.said("add", name="g6") and informer.said("delete", name="g1")):
                assert time.monotonic() - began < NOTICED, f"nothing was noticed within {NOTICED:g} s"
                stalest = max(stalest, await silence(informer))
                await anyio.sleep(0.5)
            assert stalest > STALE, f"the metrics showed {stalest:.1f} s of silence at most"
            await informer.says("reconcile", name="g6")
            await informer.says("reconcile", name="g1", count=2)
            await anyio.sleep(3)
            assert await silence(informer) < STALE
        changes = [line for line in informer.told if line["what"] != "metrics"][told:]
        assert sorted((line["what"], line["name"]) for line in changes) == [
            ("add", "g6"),
            ("delete", "g1"),
            ("reconcile", "g1"),
            ("reconcile", "g6"),
        ]
        requests = run.proxy.requests(lambda request: is_list(request) or is_watch(request), since=began)
        assert requests[0].query.get("resourceVersion")
        assert not [request for request in requests if is_list(request)]

    async def control(run: Run) -> None:
        informer, _ = await started(run, programs)
        began, told = time.monotonic(), len(informer.told)
        await anyio.sleep(CONTROL)
        assert informer.told[told:] == []
        assert await silence(informer) < STALE
        requests = run.proxy.requests(lambda request: request.resource == "gadgets", since=began)
        assert not [request for request in requests if is_list(request)]
        assert len(requests) <= CONTROL / 60

    await repeat({"black-hole": black_hole, "control": control}, at_once=20, seconds=1200)
