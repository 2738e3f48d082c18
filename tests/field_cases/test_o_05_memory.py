"""O-05: what nobody asked for costs no memory, and what is cached in part costs little."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import pytest

from hack.field_bench.bench import Programs, Repeat, Run
from hack.field_bench.judge import Judge
from hack.field_bench.program import Program
from pyreconcile.testing import ControlPlane, FaultProxy

LARGE = 400
LARGE_BYTES = 500_000
WARM_UP = 100
ROUNDS = 3
MB = 1 << 20
ASKED_FOR = ("labels", "fields", "namespace")
IN_PART = ("metadata", "trimmed")
PER_OBJECT = 5 * 1024


@dataclass
class Measured:
    """One program, and its memory at each step."""

    mode: str
    program: Program
    proxy: FaultProxy
    before: float = 0.0

    def received(self) -> int:
        return sum(request.received for request in self.proxy.requests())

    async def memory(self) -> float:
        """The median of some looks, in bytes."""
        looks = []
        for _ in range(5):
            looks.append(self.program.resident_memory())
            await anyio.sleep(0.1)
        return float(sorted(looks)[len(looks) // 2])

    async def caches(self, count: int) -> None:
        with anyio.fail_after(180):
            while (await self.program.ask("cached"))["count"] != count:
                await anyio.sleep(0.5)


@pytest.mark.long
async def test_o_05(repeat: Repeat, programs: Programs):
    async def create_large(count: int = LARGE) -> None:
        start = b'{"metadata":{"name":"large-%d","labels":{"large":"yes"}},"data":{"x":"'
        end = b"x" * LARGE_BYTES + b'"}}'

        async def create(numbers: range) -> None:
            for number in numbers:
                await judge.create("/api/v1/namespaces/large/configmaps", start % number + end)

        async with anyio.create_task_group() as tasks:
            for first in range(4):
                tasks.start_soon(create, range(first, count, 4))

    async def delete_large() -> None:
        await judge.delete("/api/v1/namespaces/large/configmaps?labelSelector=large%3Dyes")

    async def case(run: Run) -> None:
        wanted = {"metadata": {"name": "wanted", "labels": {"wanted": "yes"}}}
        await run.judge.create(run.config_maps, wanted)
        measured = []
        for mode in (*ASKED_FOR, *IN_PART):
            proxy = await run.another_proxy()
            measured.append(Measured(mode, await run.start(programs("memory"), mode, proxy=proxy), proxy))
        for one in measured:
            await one.program.says("reconcile", name="wanted")
        few = {one.mode: (await one.program.ask("cached"))["count"] for one in measured}
        await run.meeting.do(warm_up)
        for one in measured:
            await one.caches(few[one.mode])
        await anyio.sleep(3)
        after: dict[str, list[float]] = {one.mode: [] for one in measured}
        for one in measured:
            one.before = await one.memory()
        for number in range(1, ROUNDS + 1):
            received = {one.mode: one.received() for one in measured}
            await run.meeting.do(create_large)
            for one in measured:
                await one.caches(few[one.mode] + (LARGE if one.mode in IN_PART else 0))
                grown = await one.memory() - (after[one.mode] or [one.before])[-1]
                if one.mode in ASKED_FOR:
                    assert one.received() - received[one.mode] < LARGE_BYTES, f"{one.mode}: large objects arrived"
                    assert grown < 20 * MB, f"{one.mode}: {grown / MB:.1f} MB more"
                else:
                    assert grown / LARGE < PER_OBJECT, (
                        f"{one.mode}: {grown / LARGE / 1024:.1f} KB for each object in round {number}"
                    )
            await run.meeting.do(delete_large)
            for one in measured:
                await one.caches(few[one.mode])
                after[one.mode].append(await one.memory())
        for one in measured:
            assert after[one.mode][-1] < 1.1 * one.before, (
                f"{one.mode}: {one.before / MB:.1f} MB, then {after[one.mode]}"
            )
            assert after[one.mode][-1] < 1.05 * after[one.mode][0], f"{one.mode}: the rounds add up: {after[one.mode]}"

    async def warm_up() -> None:
        """Let every program have read some large objects: room to read one in is no cost of each."""
        await create_large(WARM_UP)
        await anyio.sleep(2)
        await delete_large()

    # Each round leaves its 200 MB in etcd's history for some minutes.
    roomy = ControlPlane(use_existing=False, extra_args={"etcd": ["--quota-backend-bytes=8589934592"]})
    async with roomy as plane, Judge(plane.kubeconfig) as judge:
        await judge.create_namespace("large")
        await repeat(case, at_once=5, seconds=900, plane=plane)


async def test_o_05_a_filter_that_saves_no_memory_is_reported(repeat: Repeat, programs: Programs):
    async def case(run: Run) -> None:
        program = await run.start(programs("memory"), "predicate")
        await run.judge.create(run.config_maps, {"metadata": {"name": "wanted", "labels": {"wanted": "yes"}}})
        await program.says("reconcile", name="wanted")
        log = program.log.read_text()
        assert "level=warning" in log
        assert "KindOptions(labels='wanted=yes')" in log

    await repeat(case, at_once=5, seconds=240)
