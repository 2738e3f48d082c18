"""O-03: a controller that counts its children in a cache that is behind never makes one too many."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from hack.field_bench.bench import Case, Programs, Repeat, Run
from hack.field_bench.judge import Judge
from hack.field_bench.program import until
from pyreconcile.testing import Match, ProxiedRequest

BEHIND = 3.0
WATCHES = Match(resource="configmaps", verb="watch")
CREATES = Match(resource="configmaps", verb="create")


def lists(request: ProxiedRequest) -> bool:
    return request.resource == "configmaps" and (request.verb in ("list", "get") or request.streaming_list)


async def touch(judge: Judge, path: str) -> None:
    for number in range(5):
        await anyio.sleep(0.2)
        await judge.patch(path, {"metadata": {"annotations": {"touch": str(number)}}})


async def stale(run: Run, script: Path, variant: str) -> None:
    judge, proxy = run.judge, run.proxy
    path = f"/apis/field.example.dev/v1/namespaces/{run.namespace}/widgets"
    async with judge.watching(run.config_maps, {"fieldSelector": "metadata.name!=kube-root-ca.crt"}) as record:
        controller = await run.start(script)
        await controller.says("synced")
        with ExitStack() as faults:
            faults.enter_context(proxy.delay_stream(WATCHES, seconds=BEHIND))
            if variant == "c":
                lost = faults.enter_context(proxy.drop_response(CREATES, times=1))
            widget = {"apiVersion": "field.example.dev/v1", "kind": "Widget", "metadata": {"name": "w"}}
            await judge.create(path, {**widget, "spec": {"replicas": 1}})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(touch, judge, f"{path}/w")
                await until(lambda: record.of("ADDED"), timeout=30, what="a child was created")
                if variant == "b":
                    controller.signal(signal.SIGKILL)
                    await controller.ended()
                    controller = await run.start(script)
                    await controller.says("pass", owned=1)
            await anyio.sleep(2 * BEHIND)
            assert len(record.of("ADDED")) == 1, record.of("ADDED")
            if variant == "c":
                assert lost.hits == 1

            await judge.patch(f"{path}/w", {"spec": {"replicas": 3}})
            await until(lambda: len(record.of("ADDED")) == 3, timeout=30, what="two more children were created")
            await anyio.sleep(2 * BEHIND)
            assert len(record.of("ADDED")) == 3, record.of("ADDED")
            await controller.says("pass", owned=3)

            # Passes that need no create read the cache alone.
            since = time.monotonic()
            passes = len(controller.said("pass"))
            for number in range(1, 6):
                await judge.patch(f"{path}/w", {"metadata": {"annotations": {"again": str(number)}}})
                await controller.says("pass", count=passes + number, timeout=30)
            assert proxy.requests(lists, since=since) == []
        assert record.of("DELETED") == []
        assert len({seen.object["metadata"]["uid"] for seen in record.changes}) == 3


@pytest.mark.usefixtures("widgets")
async def test_o_03(repeat: Repeat, programs: Programs):
    def variant(name: str) -> Case:
        async def case(run: Run) -> None:
            await stale(run, programs("widgets"), name)
            if name == "a":
                assert len(run.proxy.requests(lists)) == 1  # the first

        return case

    await repeat({name: variant(name) for name in "abc"}, at_once=3, seconds=300)
