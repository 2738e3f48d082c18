"""O-12: a rolling update ends, although groups of the old revision were never ready."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hack.field_bench.bench import Case, Programs, Repeat, Run
from hack.field_bench.groups import Groups, watched_groups
from hack.field_bench.program import until

DEAD = "kwok.pyreconcile.dev/never-ready"
DELAY = "kwok.pyreconcile.dev/ready-delay"
READINESS = "2s"
LIMIT = 60.0
GROUPS = 4

pytestmark = pytest.mark.usefixtures("leaderworkersets")


def template(image: str, *, dead: bool) -> dict[str, object]:
    annotations = {DEAD: "true" if dead else None, DELAY: READINESS}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "c", "image": image}]}}


async def create(groups: Groups, size: int, worker: dict[str, object]) -> None:
    limits = {"maxUnavailable": 0, "maxSurge": 1}
    strategy = {"type": "RollingUpdate", "rollingUpdateConfiguration": limits}
    pods = {"size": size, "workerTemplate": worker}
    await groups.create({"replicas": GROUPS, "leaderWorkerTemplate": pods, "rolloutStrategy": strategy})


async def updated_to_good(groups: Groups, began: float) -> None:
    """Within 60 s all four groups are ready and new, the surge group is gone, and there were never more than five."""

    def four_good() -> bool:
        now = groups.moments()[-1]
        return now.ready == now.leaders.keys() == set(range(GROUPS)) and len(set().union(*now.revisions.values())) == 1

    await until(four_good, timeout=LIMIT, what="four groups of one revision are ready, and no other is there")
    await groups.shows(timeout=30, replicas=GROUPS, readyReplicas=GROUPS, updatedReplicas=GROUPS)
    assert time.monotonic() - began < LIMIT
    leaders = (await groups.leader_set())["spec"]
    assert (leaders["replicas"], leaders["updateStrategy"]["rollingUpdate"].get("partition", 0)) == (GROUPS, 0)
    pods = await groups.run.judge.list(groups.pods)
    assert {pod["spec"]["containers"][0]["image"] for pod in pods.values()} == {"good"}
    assert max(len(moment.leaders) for moment in groups.moments()) == GROUPS + 1


async def all_dead(run: Run, script: Path, size: int) -> None:
    async with watched_groups(run, script) as groups:
        await create(groups, size, template("bad", dead=True))
        pods = GROUPS * size
        await until(lambda: len(groups.record.of("ADDED")) == pods, timeout=60, what="all pods are there")
        await groups.shows(timeout=60, replicas=GROUPS, updatedReplicas=GROUPS)
        assert not any(moment.ready for moment in groups.moments())
        began = time.monotonic()
        await groups.patch({"leaderWorkerTemplate": {"workerTemplate": template("good", dead=False)}})
        await updated_to_good(groups, began)


async def two_dead(run: Run, script: Path) -> None:
    """Ordinals 2 and 3 die before the update; ready groups never fall below the two that are left."""
    async with watched_groups(run, script) as groups:
        await create(groups, 1, template("old", dead=False))
        await groups.shows(timeout=60, readyReplicas=GROUPS)
        for index in (2, 3):
            await run.judge.patch(f"{groups.pods}/set-{index}", {"metadata": {"annotations": {DEAD: "true"}}})
        await groups.shows(timeout=60, readyReplicas=2)
        began = time.monotonic()
        await groups.patch({"leaderWorkerTemplate": {"workerTemplate": template("good", dead=False)}})
        await updated_to_good(groups, began)
        assert min(len(moment.ready) for moment in groups.moments(since=began)) == 2


async def test_o_12(repeat: Repeat, programs: Programs):
    def dead(size: int) -> Case:
        return lambda run: all_dead(run, programs("leaderworkersets"), size)

    async def two(run: Run) -> None:
        await two_dead(run, programs("leaderworkersets"))

    cases = {"a-size-1": dead(1), "b-size-3": dead(3), "c-two-dead": two}
    await repeat(cases, at_once=2, seconds=180)
