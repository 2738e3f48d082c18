"""The soak's hands: it asks for what the plan says, loses nodes, ends managers, and watches all of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import Process

from hack.field_bench.judge import Judge, Record
from hack.manager_process import manager_command
from hack.raw_server import MERGE_PATCH, RefusedError
from hack.soak.audit import Deletions
from hack.soak.checker import Strikes
from hack.soak.end_state import Snapshot
from hack.soak.facts import Change, change_of
from hack.soak.plan import Action

Object = dict[str, Any]

NAMESPACE: Final = "soak"
QUICK_NODES: Final = {
    "kube-apiserver": [
        "--default-not-ready-toleration-seconds=2",
        "--default-unreachable-toleration-seconds=2",
    ],
    "kube-controller-manager": ["--node-monitor-grace-period=4s", "--node-monitor-period=1s"],
    "kwok": ["--node-lease-duration-seconds=4"],
}
"""Flags with which a lost node's pods are evicted after some 7 s instead of 350 s."""

STARTING: Final = 5.0
"""Seconds after its start in which a manager may still be blind to what happened before."""

_SETS: Final = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{NAMESPACE}/leaderworkersets"
_APPS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}"
_CORE: Final = f"/api/v1/namespaces/{NAMESPACE}"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_INSIST: Final = 60.0  # seconds that a write may be refused while no manager answers the webhooks
_RETRY: Final = 0.25


class ManagerEndedError(RuntimeError):
    """The manager ended though nobody told it to."""


class ManagerHandle:
    """The manager as a process that comes and goes."""

    def __init__(self, kubeconfig: Path, log: Path, strikes: Strikes) -> None:
        self._command = manager_command(
            kubeconfig, "--controllers", "leaderworkerset", "--webhook-bind-address", "127.0.0.1:0"
        )
        self._log = log
        self._strikes = strikes
        self._process: Process | None = None

    async def start(self) -> None:
        """Start it; returns before it is ready."""
        with self._log.open("ab") as output:
            self._process = await anyio.open_process(self._command, stdout=output, stderr=output)

    async def stop(self, name: str = "SIGTERM") -> None:
        """End it by a signal, and wait until it has; nothing is done when it is away.

        Raises:
            ManagerEndedError: it had ended before.
        """
        process = self._process
        if process is None:
            return
        self.check()
        os.kill(process.pid, signal.Signals[name])
        with anyio.fail_after(30):
            await process.wait()
        self._process = None

    def check(self) -> None:
        """Raise ManagerEndedError when it ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            raise ManagerEndedError(f"the manager ended with code {self._process.returncode}; its log: {self._log}")

    async def away(self, name: str, seconds: float) -> None:
        """Take it away for some time."""
        start = time.monotonic()
        self._strikes.outages.append((start, float("inf")))
        try:
            await self.stop(name)
            await anyio.sleep(seconds)
            await self.start()
        finally:
            self._strikes.outages[-1] = (start, time.monotonic() + STARTING)


class Cluster:
    """Acts and watches in the soak's namespace, past the manager. Make one by `open`."""

    def __init__(
        self, judge: Judge, manager: ManagerHandle, strikes: Strikes, records: list[Record], deletions: Deletions
    ) -> None:
        self.judge = judge
        self.manager = manager
        self.strikes = strikes
        self._records = records
        self._deletions = deletions
        self.missed = 0
        """Actions that found no pod to act on."""

    @classmethod
    @asynccontextmanager
    async def open(cls, kubeconfig: Path, log: Path, deletions: Deletions) -> AsyncIterator[Cluster]:
        """Make the namespace, start the manager, and watch; at the end the manager is stopped."""
        strikes = Strikes()
        manager = ManagerHandle(kubeconfig, log, strikes)
        async with AsyncExitStack() as stack:
            judge = await stack.enter_async_context(Judge(kubeconfig))
            await judge.create_namespace(NAMESPACE)
            await manager.start()
            try:
                await _until_served(judge)
                paths = (_SETS, f"{_APPS}/statefulsets", f"{_CORE}/pods")
                records = [await stack.enter_async_context(judge.watching(path)) for path in paths]
                yield cls(judge, manager, strikes, records, deletions)
            finally:
                with anyio.CancelScope(shield=True):
                    await manager.stop()

    async def snapshot(self) -> Snapshot:
        """List everything."""
        return Snapshot(
            sets=await self.judge.list(_SETS),
            stateful_sets=await self.judge.list(f"{_APPS}/statefulsets"),
            pods=await self.judge.list(f"{_CORE}/pods"),
            services=await self.judge.list(f"{_CORE}/services"),
            revisions=await self.judge.list(f"{_APPS}/controllerrevisions"),
        )

    def changes(self) -> list[Change]:
        """Return what the watches brought since the last call, and note who has deleted which pods."""
        self._deletions.first(self.strikes.deleted_by)
        found = []
        for record in self._records:
            seen = [change_of(item.change, item.time, item.object) for item in record.changes]
            record.changes.clear()
            found += [change for change in seen if change is not None]
        return found

    async def create_set(self, wire: Object) -> None:
        """Create a set."""
        await self._insist("POST", _SETS, wire)

    async def act(self, action: Action) -> None:
        """Do one thing of the plan."""
        detail, path = action.detail, f"{_SETS}/{action.target}"
        match action.kind:
            case "scale":
                await self._change(path, {"replicas": detail["replicas"]})
            case "limits" | "partition":
                await self._change(path, {"rolloutStrategy": {"rollingUpdateConfiguration": detail["limits"]}})
            case "template" | "resize" | "network":
                network = {"subdomainPolicy": detail["subdomain"]}
                await self._change(path, {"leaderWorkerTemplate": detail["template"], "networkConfig": network})
            case "replace":
                await self._replace(path, detail["set"])
            case "kill":
                await self._kill(action.target, detail["grace"])
            case "restart":
                await self._restart(action.target)
            case "node":
                await self._lose_node(action.target, detail["away"])
            case "manager":
                await self.manager.away(detail["signal"], detail["down"])
            case kind:
                raise ValueError(f"{kind!r} is no kind of action")

    async def _change(self, path: str, spec: Object) -> None:
        await self._insist("PATCH", path, {"spec": spec}, content_type=MERGE_PATCH)

    async def _insist(self, method: str, path: str, body: Object, **options: Any) -> None:
        """Send a write again while no manager answers the webhooks, or an object of its name is going."""
        end = time.monotonic() + _INSIST
        while True:
            try:
                await self.judge.request(method, path, body, **options)
            except RefusedError as error:
                if error.code not in (409, 500, 503) or time.monotonic() > end:
                    raise
                await anyio.sleep(_RETRY)
            else:
                return

    async def _replace(self, path: str, wire: Object) -> None:
        await self.judge.request("DELETE", path, {"propagationPolicy": "Foreground"})
        with anyio.fail_after(_INSIST):
            while await self.judge.get(path) is not None:
                await anyio.sleep(_RETRY)
        await self._insist("POST", _SETS, wire)

    async def _kill(self, name: str, grace: int) -> None:
        uid = await self._strike(name)
        if uid:
            body = {"gracePeriodSeconds": grace, "preconditions": {"uid": uid}}
            await self._at_a_pod("DELETE", name, body)

    async def _restart(self, name: str) -> None:
        uid = await self._strike(name)
        if uid:
            annotations = {"kwok.pyreconcile.dev/restarts": "1"}
            body = {"metadata": {"uid": uid, "annotations": annotations}}
            await self._at_a_pod("PATCH", name, body, content_type=MERGE_PATCH)

    async def _strike(self, name: str) -> str:
        pod = await self.judge.get(f"{_CORE}/pods/{name}")
        if pod is None:
            self.missed += 1
            return ""
        uid = str(pod["metadata"]["uid"])
        self.strikes.pods.add(uid)
        return uid

    async def _at_a_pod(self, method: str, name: str, body: Object, **options: Any) -> None:
        try:
            await self.judge.request(method, f"{_CORE}/pods/{name}", body, **options)
        except RefusedError as error:
            if error.code not in (404, 409):  # it is gone, or another has its name
                raise
            self.missed += 1

    async def _lose_node(self, name: str, seconds: float) -> None:
        """Take a node's lease from its kubelet, so that it seems dead, and give it back after some time."""
        path = f"{_LEASES}/{name}"
        self.strikes.node_lost(name, time.monotonic())
        # The time has to move on, or the node controller takes the lease for one that it has not read yet.
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        taken = {"holderIdentity": "soak", "leaseDurationSeconds": 86400, "renewTime": now}
        await self.judge.patch(path, {"spec": taken})
        try:
            await anyio.sleep(seconds)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(10):
                await self.judge.delete(path)
            self.strikes.node_back(name, time.monotonic())


async def _until_served(judge: Judge) -> None:
    """Wait until CRDs and webhooks are in place: until a set is taken, and filled in, in a dry run."""
    pod = {"spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
    probe = {"metadata": {"name": "probe"}, "spec": {"leaderWorkerTemplate": {"workerTemplate": pod}}}
    probe = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", **probe}
    with anyio.fail_after(60):
        while True:
            try:
                made = await judge.create(f"{_SETS}?dryRun=All", probe)
            except RefusedError:
                made = {"spec": {}}
            if "networkConfig" in made["spec"]:
                return
            await anyio.sleep(_RETRY)
