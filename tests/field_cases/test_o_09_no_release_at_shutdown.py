"""O-09: a leader that is asked to stop gives its Lease back, when its work has ended, and not for ever."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from hack.field_bench.bench import Case, Programs, Repeat, Run
from hack.field_bench.judge import Record, Seen
from hack.field_bench.program import Program, until
from hack.field_bench.stalls import stalls
from pyreconcile.testing import FaultProxy, ProxiedRequest

LEASE, DEADLINE, RETRY = 30, 20, 1
PROMPTLY = 3.0
RELEASE_LIMIT = 5.0
EXIT = 1.5
"""Seconds that the rest of an exit may take on a busy machine."""

pytestmark = pytest.mark.usefixtures("widgets")


def lease_write(request: ProxiedRequest) -> bool:
    return request.resource == "leases" and request.verb in ("update", "patch") and request.status == 200


@dataclass
class Pair:
    """A, which leads, and B, which waits."""

    a: Program
    b: Program
    leases: str
    widgets: str
    record: Record

    def holders(self, *, since: float = 0.0) -> list[tuple[float, str]]:
        """Who held the Lease, and since when, as the judge saw it."""
        return [
            (seen.time, seen.object["spec"].get("holderIdentity") or "")
            for seen in self.record.changes
            if seen.time >= since and seen.change != "DELETED"
        ]

    async def given_back(self, *, since: float) -> Seen:
        """Wait until the judge has seen A out of the Lease, which may be some time after A has ended."""

        def found() -> list[Seen]:
            return [
                seen
                for seen in self.record.changes
                if seen.time >= since and seen.object["spec"].get("holderIdentity") != "a"
            ]

        await until(found, timeout=30, what="the judge sees that A has given the Lease back")
        return found()[0]


@asynccontextmanager
async def pair(run: Run, script: Path) -> AsyncIterator[Pair]:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{run.namespace}/leases"
    widgets = f"/apis/field.example.dev/v1/namespaces/{run.namespace}/widgets"
    async with run.judge.watching(leases) as record:
        proxy_of_b: FaultProxy = await run.another_proxy()
        a = await run.start(script, "a", LEASE, DEADLINE, RETRY)
        await a.says("leading")
        b = await run.start(script, "b", LEASE, DEADLINE, RETRY, proxy=proxy_of_b)
        await b.says("ready")
        await proxy_of_b.wait_for(lambda request: request.resource == "leases" and request.status == 200)
        yield Pair(a, b, leases, widgets, record)


async def create_widget(run: Run, path: str, name: str) -> None:
    widget = {"apiVersion": "field.example.dev/v1", "kind": "Widget", "metadata": {"name": name}}
    await run.judge.create(path, {**widget, "spec": {}})


async def handed_over(run: Run, both: Pair, began: float) -> None:
    """A has emptied the Lease with a version-checked update before it ended, and B leads within 3 s of that."""
    given_back = await both.given_back(since=began)
    assert given_back.object["spec"].get("holderIdentity") in ("", None)
    last_write = run.proxy.requests(lease_write)[-1]
    assert last_write.verb == "update"  # the judge sees below that it carried the version
    leading = await both.b.says("leading")
    assert leading["time"] - given_back.time < PROMPTLY
    lease = await run.judge.get(f"{both.leases}/lock")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == "b"


async def idle(run: Run, script: Path) -> None:
    async with pair(run, script) as both, stalls() as held_up:
        began = time.monotonic()
        both.a.signal(signal.SIGTERM)
        assert await both.a.ended() == 0
        ended = time.monotonic()
        assert ended - began - await held_up(began, ended) < EXIT + PROMPTLY
        await handed_over(run, both, began)


async def pass_running(run: Run, script: Path) -> None:
    async with pair(run, script) as both, run.judge.watching(both.widgets) as widgets:
        await create_widget(run, both.widgets, "slow")
        await both.a.says("pass", name="slow")
        began = time.monotonic()
        both.a.signal(signal.SIGTERM)
        assert await both.a.ended() == 0
        released = await both.given_back(since=began)

        def stamps() -> list[Seen]:
            return [seen for seen in widgets.changes if (seen.object.get("status") or {}).get("by") == "a"]

        await until(stamps, timeout=30, what="the judge sees A's stamp")
        (stamped,) = stamps()
        # By the server's order: two watches may bring it in another.
        assert began < stamped.time
        assert version(stamped) < version(released)
        await handed_over(run, both, began)


def version(seen: Seen) -> int:
    return int(seen.object["metadata"]["resourceVersion"])


async def lease_taken(run: Run, script: Path) -> None:
    async with pair(run, script) as both:
        await run.judge.patch(f"{both.leases}/lock", {"spec": {"holderIdentity": "third"}})
        both.a.signal(signal.SIGTERM)
        await both.a.ended()
        lease = await run.judge.get(f"{both.leases}/lock")
        assert lease is not None
        assert lease["spec"]["holderIdentity"] == "third"
        await anyio.sleep(PROMPTLY)
        assert {holder for _, holder in both.holders()} == {"a", "third"}
        assert not both.b.said("leading")


async def server_away(run: Run, script: Path) -> None:
    async with pair(run, script) as both, stalls() as held_up:
        with run.proxy.blackhole():
            began = time.monotonic()
            both.a.signal(signal.SIGTERM)
            await both.a.ended()
            ended = time.monotonic()
        assert ended - began - await held_up(began, ended) < RELEASE_LIMIT + EXIT


async def test_o_09_sigterm(repeat: Repeat, programs: Programs):
    def variant(case: Callable[[Run, Path], Awaitable[None]]) -> Case:
        return lambda run: case(run, programs("stamper"))

    variants = {
        "a-idle": idle,
        "b-pass-running": pass_running,
        "c-lease-taken": lease_taken,
        "e-server-away": server_away,
    }
    await repeat({name: variant(case) for name, case in variants.items()}, at_once=3, seconds=300)


@pytest.mark.long
async def test_o_09_d_sigkill(repeat: Repeat, programs: Programs):
    async def case(run: Run) -> None:
        async with pair(run, programs("stamper")) as both:
            renewed = both.holders()[-1][0]
            both.a.signal(signal.SIGKILL)
            await both.a.ended()
            leading = await both.b.says("leading", timeout=LEASE + 10)
            renewed = max(at for at, holder in both.holders() if holder == "a")
            # The last renewal may have come between the look and the signal.
            assert LEASE - 0.5 < leading["time"] - renewed < LEASE + 2.2 * RETRY + 2

    await repeat(case, at_once=10, seconds=300)
