"""O-08: who cannot renew its Lease has stopped writing before anybody else begins."""

from __future__ import annotations

import signal
import time
from itertools import pairwise

import anyio
import pytest

from hack.field_bench.bench import Programs, Repeat, Run
from hack.field_bench.program import until
from pyreconcile.testing import Match

LEASE, DEADLINE, RETRY = 6, 4, 1
B_ALONE = 60.0
RENEWALS = Match(
    resource="leases",
    where=lambda request: request.verb in ("create", "update", "patch") and request.status in (200, 201),
)
STAMPS = Match(resource="widgets", verb="patch", where=lambda request: request.status == 200)


@pytest.mark.long
@pytest.mark.usefixtures("widgets")
async def test_o_08(repeat: Repeat, programs: Programs):
    async def case(run: Run) -> None:
        judge, script = run.judge, programs("stamper")
        path = f"/apis/field.example.dev/v1/namespaces/{run.namespace}/widgets"
        widget = {"apiVersion": "field.example.dev/v1", "kind": "Widget", "metadata": {"name": "w"}}
        await judge.create(path, {**widget, "spec": {"touch": 0}})

        async def change() -> None:
            number = 0
            while True:
                number += 1
                await judge.patch(f"{path}/w", {"spec": {"touch": number}})
                await anyio.sleep(0.2)

        async with judge.watching(path) as record, anyio.create_task_group() as tasks:

            def stamps(by: str) -> list[tuple[float, int]]:
                """When each stamp of a replica was first seen, and its counter."""
                first: dict[int, float] = {}
                for seen in record.changes:
                    status = seen.object.get("status") or {}
                    if status.get("by") == by:
                        first.setdefault(status["count"], seen.time)
                return sorted((at, number) for number, at in first.items())

            proxy_of_b = await run.another_proxy()
            a = await run.start(script, "a", LEASE, DEADLINE, RETRY)
            await a.says("leading")
            b = await run.start(script, "b", LEASE, DEADLINE, RETRY, proxy=proxy_of_b)
            await b.says("ready")
            tasks.start_soon(change)
            await until(lambda: len(stamps("a")) > 10, timeout=10, what="A stamps")
            lease_path = f"/apis/coordination.k8s.io/v1/namespaces/{run.namespace}/leases"
            with run.proxy.refuse(lease_path):
                await until(lambda: stamps("b"), timeout=3 * LEASE, what="B stamps")
                began_b = stamps("b")[0][0]
                await anyio.sleep(B_ALONE)
            renewed = max(request.ended or 0.0 for request in run.proxy.requests(RENEWALS) if request.time < began_b)
            # When it was sent: the judge sees it some milliseconds later.
            written = max(request.time for request in run.proxy.requests(STAMPS))
            assert written <= renewed + DEADLINE, f"A wrote {written - renewed:.3f} s after its last renewal"
            last_a = max(at for at, _ in stamps("a"))
            assert last_a < began_b, "A wrote after B"
            # Of any two stamps in a row the writer changed once.
            writers = [status["by"] for seen in record.changes if (status := seen.object.get("status"))]
            assert sum(one != two for one, two in pairwise(writers)) == 1, "both wrote"

            # A has ended, or competes again: it leads when B stops.
            if a.exit_code is not None:
                assert a.exit_code != 0
                a = await run.start(script, "a", LEASE, DEADLINE, RETRY)
                await a.says("ready")
            stopped = time.monotonic()
            b.signal(signal.SIGTERM)
            assert await b.ended() == 0
            await until(lambda: stamps("a")[-1][0] > stopped, timeout=2 * LEASE, what="A stamps again")
            tasks.cancel_scope.cancel()

    await repeat(case, at_once=10, seconds=400)
