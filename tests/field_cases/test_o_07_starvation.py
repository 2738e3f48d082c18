"""O-07: objects of the first list get their turn although reruns alone are more than the worker can do."""

from __future__ import annotations

import anyio
import pytest

from hack.field_bench.bench import Programs, Repeat, Run

OBJECTS = 200
BUSY = 30
WITHIN = 30.0
WATCHED = 60.0


@pytest.mark.long
@pytest.mark.parametrize("queue", ["priority", "fifo"])
async def test_o_07(repeat: Repeat, programs: Programs, queue: str):
    async def case(run: Run) -> None:
        names = [f"c{number:03}" for number in range(OBJECTS)]
        for name in names:
            # The first 30 by name are those that come back: first in, first out is no excuse.
            labels = {"busy": "yes"} if name < f"c{BUSY:03}" else {}
            await run.judge.create(run.config_maps, {"metadata": {"name": name, "labels": labels}})
        program = await run.start(programs("crowd"), queue)
        began = (await program.says("pass"))["time"]
        changed = ""
        if queue == "priority":
            await anyio.sleep(1)
            # A change goes ahead of the first list, as long as there is something to go ahead of.
            touched = {line["name"] for line in program.said("pass")}
            changed = max(name for name in names if name not in touched)
            live = await run.judge.patch(f"{run.config_maps}/{changed}", {"data": {"changed": "yes"}})
            version = live["metadata"]["resourceVersion"]
            seen = await program.says("pass", name=changed, version=version, timeout=5)
            before = {line["name"] for line in program.told if line["what"] == "pass" and line["time"] < seen["time"]}
            assert len(before) < OBJECTS - 100, f"{len(before)} objects went ahead of the change"
        await anyio.sleep(WATCHED - 1)
        first: dict[str, float] = {}
        for line in program.said("pass"):
            first.setdefault(line["name"], line["time"] - began)
        late = {name: first.get(name) for name in names if first.get(name, WATCHED) > WITHIN}
        assert not late, f"without a pass within {WITHIN:g} s: {late}"
        # The offered load was really more than one worker can do.
        assert len(program.said("pass")) > 0.6 * WATCHED / 0.05
        reruns = [line for line in program.said("pass") if line["name"] < f"c{BUSY:03}"]
        assert len(reruns) < BUSY * WATCHED

    await repeat(case, at_once=10, seconds=400)
