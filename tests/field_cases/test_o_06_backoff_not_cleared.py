"""O-06: a success that asks for a rerun is a success: the next failure waits for the first step of the backoff."""

from __future__ import annotations

from itertools import pairwise

from hack.field_bench.bench import Programs, Repeat, Run
from hack.field_bench.stalls import Stall

RERUN = 1.0
CONTROLLERS = {"default": (0.005, 15), "slow": (0.3, 5)}
"""First step of the backoff, and rounds, as in the program."""
LATE = 0.25
"""Seconds that a busy machine may add, beside those in which the program was not run at all.

Doubling in each round would make 80 s of the default's 5 ms.
"""


async def test_o_06(repeat: Repeat, programs: Programs):
    async def case(run: Run) -> None:
        for name in ("once", "twice"):
            await run.judge.create(run.config_maps, {"metadata": {"name": name}})
        program = await run.start(programs("rerun"))
        for controller in CONTROLLERS:
            for key in ("once", "twice"):
                await program.says("finished", controller=controller, key=key, timeout=120)
        stalls = [Stall(line["since"], line["until"], line["seconds"]) for line in program.said("stall")]
        for controller, (base, rounds) in CONTROLLERS.items():
            for key, failures in (("once", 1), ("twice", 2)):
                lines = [
                    line for line in program.told if (line.get("controller"), line.get("key")) == (controller, key)
                ]
                passes = [line for line in lines if line["what"] == "pass"]
                assert len(passes) == rounds * (failures + 1) + 1
                ends = [line["ended"] for line in lines if line["what"] == "ends"]
                for number, (ended, (before, after)) in enumerate(zip(ends, pairwise(passes), strict=True)):
                    step = number % (failures + 1)
                    # After a success, and after a rerun that was asked for, the table holds no entry.
                    assert before["failures"] == step, before
                    waited = after["time"] - ended
                    held = sum(stall.within(ended, after["time"]) for stall in stalls)
                    wanted = RERUN if step == failures else base * 2**step
                    assert wanted - 0.002 <= waited < wanted + LATE + held, (controller, key, number, waited, held)

    await repeat(case, at_once=5, seconds=240)
