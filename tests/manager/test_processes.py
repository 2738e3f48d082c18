"""Hand-over between real processes (O-09): after SIGTERM at once, after SIGKILL when the lease is over."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from pyreconcile.api.coordination_v1 import Lease
from pyreconcile.client import Client, MergePatch
from pyreconcile.testing import ControlPlane

pytestmark = pytest.mark.plane

LEASE = 6.0
RETRY = 0.3 * 2.2
SLACK = 15  # a loaded machine


class Replica:
    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self.process = process
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def says(self, word: str) -> None:
        """Wait for a line (log lines come between)."""
        with anyio.fail_after(30):
            while (await self._lines.receive_until(b"\n", 65536)).decode() != word:
                pass


@asynccontextmanager
async def replica(plane: ControlPlane, namespace: str, identity: str) -> AsyncIterator[Replica]:
    script = str(Path(__file__).with_name("replica.py"))
    command = [sys.executable, script, str(plane.kubeconfig), namespace, identity]
    async with await anyio.open_process(command, stderr=None) as process:
        try:
            yield Replica(process)
        finally:
            if process.returncode is None:
                process.kill()


async def test_o_09_sigterm_hands_over_at_once_and_sigkill_after_the_lease(
    control_plane: ControlPlane, client: Client, namespace: str
):
    async with (
        replica(control_plane, namespace, "a") as a,
        replica(control_plane, namespace, "b") as b,
        replica(control_plane, namespace, "c") as c,
    ):
        # Imports take their time: all three are up before the first one is watched.
        for one in (a, b, c):
            await one.says("ready")
        replicas = {"a": a, "b": b, "c": c}

        first = await holder(client, namespace, set())
        await replicas[first].says("leading")
        terminated_at = time.time()
        replicas[first].process.send_signal(signal.SIGTERM)
        with anyio.fail_after(30):
            assert await replicas[first].process.wait() == 0

        second = await holder(client, namespace, {first})
        await replicas[second].says("leading")
        lease = await client.get(Lease, f"{namespace}/lock")
        assert lease.spec is not None
        assert lease.spec.acquire_time is not None
        assert lease.spec.acquire_time.timestamp() - terminated_at < LEASE - RETRY  # it was not over: it was given back
        await anyio.sleep(0.5)
        replicas[second].process.send_signal(signal.SIGKILL)
        with anyio.fail_after(30):
            await replicas[second].process.wait()
        lease = await client.get(Lease, f"{namespace}/lock")
        assert lease.spec is not None
        assert lease.spec.holder_identity == second
        assert lease.spec.renew_time is not None

        third = await holder(client, namespace, {first, second})
        await replicas[third].says("leading")
        took = time.time() - lease.spec.renew_time.timestamp()
        assert LEASE < took < LEASE + RETRY + SLACK
        lease = await client.get(Lease, f"{namespace}/lock")
        assert lease.spec is not None
        assert lease.spec.lease_transitions == 2

        replicas[third].process.send_signal(signal.SIGINT)
        with anyio.fail_after(30):
            assert await replicas[third].process.wait() == 0
        lease = await client.get(Lease, f"{namespace}/lock")
        assert lease.spec is not None
        assert not lease.spec.holder_identity


@pytest.mark.rules("LE-8")
async def test_le_8_a_process_that_lost_the_lease_exits_with_an_error(
    control_plane: ControlPlane, client: Client, namespace: str
):
    async with replica(control_plane, namespace, "a") as a:
        await a.says("leading")
        thief = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 60}}
        await client.patch(Lease, f"{namespace}/lock", MergePatch(thief))
        with anyio.fail_after(30):
            assert await a.process.wait() == 1
    lease = await client.get(Lease, f"{namespace}/lock")
    assert lease.spec is not None
    assert lease.spec.holder_identity == "thief"


async def holder(client: Client, namespace: str, former: set[str]) -> str:
    """Wait until somebody else holds the Lease."""
    with anyio.fail_after(30):
        while True:
            lease = await client.find(Lease, f"{namespace}/lock")
            identity = lease.spec.holder_identity if lease is not None and lease.spec is not None else None
            if identity and identity not in former:
                return identity
            await anyio.sleep(0.02)
