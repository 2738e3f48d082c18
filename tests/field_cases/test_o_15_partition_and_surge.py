"""O-15: surge groups exist only while groups move; a new set with a partition has none."""

from __future__ import annotations

import time

import anyio
import pytest

from hack.field_bench.bench import Programs, Repeat, Run
from hack.field_bench.groups import Groups, watched_groups
from hack.field_bench.program import until

DELAY = "kwok.pyreconcile.dev/ready-delay"
REPLICAS, UNAVAILABLE, SURGE = 6, 2, 3
STILL = 3.0
"""Seconds in which nothing may move."""

pytestmark = pytest.mark.usefixtures("leaderworkersets")


def template(image: str) -> dict[str, object]:
    metadata = {"annotations": {DELAY: "5s"}}
    return {"workerTemplate": {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": image}]}}}


async def partition(groups: Groups, value: int) -> None:
    await groups.patch({"rolloutStrategy": {"rollingUpdateConfiguration": {"partition": value}}})


async def at_rest(groups: Groups, updated: int) -> None:
    """All six groups are ready, so many of them of the new revision, and there is no other group."""
    counters = {"replicas": REPLICAS, "readyReplicas": REPLICAS, "updatedReplicas": updated}
    await groups.shows(timeout=60, **counters)

    def six() -> bool:
        now = groups.moments()[-1]
        return now.ready == now.leaders.keys() == set(range(REPLICAS))

    await until(six, timeout=30, what="six groups are ready, and no other is there")


def moved(groups: Groups, before: dict[int, str]) -> set[int]:
    """The groups whose leader is another than before."""
    return {index for index, uid in groups.moments()[-1].leaders.items() if before[index] != uid}


async def partitioned(run: Run, programs: Programs) -> None:
    async with watched_groups(run, programs("leaderworkersets")) as groups:
        limits = {"partition": 9, "maxUnavailable": UNAVAILABLE, "maxSurge": SURGE}
        strategy = {"type": "RollingUpdate", "rollingUpdateConfiguration": limits}
        pods = {"size": 2, **template("v1")}
        await groups.create({"replicas": REPLICAS, "leaderWorkerTemplate": pods, "rolloutStrategy": strategy})
        await at_rest(groups, REPLICAS)
        assert max(len(moment.leaders) for moment in groups.moments()) == REPLICAS
        first = groups.moments()[-1].leaders

        # A partition above the replicas: no group changes.
        await groups.patch({"leaderWorkerTemplate": template("v2")})
        await groups.shows(timeout=60, replicas=REPLICAS, updatedReplicas=0)
        await anyio.sleep(STILL)
        assert groups.record.of("DELETED") == []
        assert len(groups.record.of("ADDED")) == 2 * REPLICAS

        began = time.monotonic()
        await partition(groups, 4)
        await at_rest(groups, 2)
        assert moved(groups, first) == {4, 5}
        within = groups.moments(since=began)
        assert (
            max(len(moment.leaders) for moment in within) == REPLICAS
        )  # Two may be unavailable: none needs a stand-in.
        assert min(len(moment.ready) for moment in within) >= REPLICAS - UNAVAILABLE

        began = time.monotonic()
        await partition(groups, 0)
        await at_rest(groups, REPLICAS)
        assert moved(groups, first) == set(range(REPLICAS))
        within = groups.moments(since=began)
        assert max(len(moment.leaders) for moment in within) <= REPLICAS + SURGE
        assert min(len(moment.ready) for moment in within) >= REPLICAS - UNAVAILABLE

        def left() -> int:
            return len(groups.record.of("ADDED")) - len(groups.record.of("DELETED"))

        # The garbage collector takes the workers of a surge group some time after its leader.
        await until(lambda: left() == 2 * REPLICAS, timeout=30, what="no other pod is left")
        images = [pod["spec"]["containers"][0]["image"] for pod in (await run.judge.list(groups.pods)).values()]
        assert images == ["v2"] * 2 * REPLICAS


async def test_o_15(repeat: Repeat, programs: Programs):
    async def case(run: Run) -> None:
        await partitioned(run, programs)

    await repeat(case, at_once=3, seconds=240)
