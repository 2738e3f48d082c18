"""What the judge saw of the groups of one LeaderWorkerSet, moment by moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from hack.field_bench.bench import Run
from hack.field_bench.judge import Object, Record

LABEL = "leaderworkerset.sigs.k8s.io/"
REVISION = f"{LABEL}template-revision-hash"

_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations/{}"


@dataclass(frozen=True)
class Moment:
    """The groups after one change of a pod.

    Attributes:
        time: when the change came, in the seconds of ``time.monotonic``.
        leaders: UID of each group's leader, terminating ones included.
        revisions: revisions of the pods of each group that are not terminating.
        ready: groups of which every pod is there and ready.
    """

    time: float
    leaders: dict[int, str]
    revisions: dict[int, set[str]]
    ready: frozenset[int]


@dataclass
class Groups:
    """One set: its path, those of its objects, and every change of its pods."""

    run: Run
    name: str
    record: Record

    @property
    def sets(self) -> str:
        """The path of the namespace's LeaderWorkerSets."""
        return f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{self.run.namespace}/leaderworkersets"

    @property
    def path(self) -> str:
        """The set's path."""
        return f"{self.sets}/{self.name}"

    @property
    def pods(self) -> str:
        """The path of the namespace's pods."""
        return f"/api/v1/namespaces/{self.run.namespace}/pods"

    async def create(self, spec: Object) -> None:
        """Create the set."""
        body = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        await self.run.judge.create(self.sets, {**body, "metadata": {"name": self.name}, "spec": spec})

    async def patch(self, spec: Object) -> None:
        """Change the set's spec."""
        await self.run.judge.patch(self.path, {"spec": spec})

    async def leader_set(self) -> Object:
        """Return the leader StatefulSet."""
        found = await self.run.judge.get(f"/apis/apps/v1/namespaces/{self.run.namespace}/statefulsets/{self.name}")
        assert found is not None
        return found

    async def shows(self, *, timeout: float, **counters: int) -> None:
        """Wait until the status is of the newest generation and has these counters, such as ``readyReplicas``.

        Raises:
            AssertionError: it has not in time.
        """
        status: Object = {}
        with anyio.move_on_after(timeout):
            while True:
                found = await self.run.judge.get(self.path)
                assert found is not None
                status = found.get("status") or {}
                current = status.get("observedGeneration") == found["metadata"]["generation"]
                if current and all(status.get(name) == value for name, value in counters.items()):
                    return
                await anyio.sleep(0.05)
        raise AssertionError(f"not within {timeout:g} s: {counters}; last: {status}; {self.moments()[-1:]}")

    def moments(self, *, since: float = 0.0) -> list[Moment]:
        """Return the moments since a time."""
        return [moment for moment in self._moments() if moment.time >= since]

    def _moments(self) -> Iterator[Moment]:
        pods: dict[str, Object] = {}
        for seen in self.record.changes:
            if seen.change == "DELETED":
                pods.pop(seen.object["metadata"]["uid"], None)
            else:
                pods[seen.object["metadata"]["uid"]] = seen.object
            yield _moment(seen.time, list(pods.values()))


def _moment(time: float, pods: list[Object]) -> Moment:
    leaders: dict[int, str] = {}
    revisions: dict[int, set[str]] = {}
    ready: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for pod in pods:
        metadata = pod["metadata"]
        labels, index = metadata["labels"], int(metadata["labels"][f"{LABEL}group-index"])
        if labels[f"{LABEL}worker-index"] == "0":
            leaders[index] = metadata["uid"]
            sizes[index] = int(metadata["annotations"][f"{LABEL}size"])
        if "deletionTimestamp" not in metadata:
            revisions.setdefault(index, set()).add(labels[REVISION])
            ready[index] = ready.get(index, 0) + _is_ready(pod)
    whole = frozenset(index for index, size in sizes.items() if ready.get(index, 0) == size)
    return Moment(time, leaders, revisions, whole)


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


@asynccontextmanager
async def watched_groups(run: Run, script: Path, name: str = "set") -> AsyncIterator[Groups]:
    """Run the program of the LeaderWorkerSet controllers and write down the pods of a set, while the block runs."""
    pods = f"/api/v1/namespaces/{run.namespace}/pods"
    async with run.judge.watching(pods, {"labelSelector": f"{LABEL}name={name}"}) as record:
        program = await run.start(script)
        await program.says("ready")
        groups = Groups(run, name, record)
        try:
            yield groups
        finally:
            # Webhooks that nobody serves any more would hold up what is deleted with the namespace.
            with anyio.CancelScope(shield=True), anyio.move_on_after(10):
                await run.judge.delete(groups.path)
                for stage in ("mutating", "validating"):
                    await run.judge.delete(_CONFIGURATIONS.format(stage, run.namespace))
