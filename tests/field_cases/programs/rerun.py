"""Fails and succeeds by a script: ``rerun.py KUBECONFIG NAMESPACE``.

Each round of a key is one failure, then a success that asks for a rerun in 1 s. The key ``twice`` fails two times in
each of its rounds. The controller ``default`` has the default backoff and runs 15 rounds; ``slow`` has one that begins
at 0.3 s, whose steps can be told from each other also on a busy machine, and runs 5 rounds.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

import anyio

from hack.field_bench.manager import config_maps_of, manager_options
from hack.field_bench.report import say
from hack.field_bench.stalls import TICK, Stall, note_stalls
from pyreconcile import Builder, Manager, Request, Result
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.controller import ControllerOptions
from pyreconcile.workqueue import RateLimiter, WindowedExponentialRateLimiter


class Script:
    def __init__(self, controller: str, rounds: int, limiter: RateLimiter) -> None:
        self._controller = controller
        self._rounds = rounds
        self._limiter = limiter
        self._passes: Counter[str] = Counter()

    async def reconcile(self, request: Request) -> Result | None:
        length = 3 if request.name == "twice" else 2
        number, step = divmod(self._passes[request.name], length)
        self._passes[request.name] += 1
        failures = self._limiter.num_requeues(request)
        at = {"controller": self._controller, "key": request.name, "round": number, "step": step}
        say("pass", **at, failures=failures)
        if number == self._rounds:
            await anyio.sleep(2 * TICK)  # a stall before this pass is told by then
            say("finished", controller=self._controller, key=request.name)
            return None
        if step < length - 1:
            say("ends", **at, ended=time.monotonic())
            raise OSError("as the script says")
        say("ends", **at, ended=time.monotonic())
        return Result(requeue_after=1)


async def main(kubeconfig: str, namespace: str) -> None:
    async with Manager(manager_options(kubeconfig, config_maps_of(namespace))) as manager:
        for name, base, rounds in (("default", 0.005, 15), ("slow", 0.3, 5)):
            limiter = WindowedExponentialRateLimiter(base)
            script = Script(name, rounds, limiter)
            builder = Builder(manager).for_(ConfigMap).named(name)
            builder.with_options(ControllerOptions(rate_limiter=limiter)).complete(script.reconcile)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note_stalls, tell_stall)
            await manager.run()
            tasks.cancel_scope.cancel()


def tell_stall(stall: Stall) -> None:
    say("stall", since=stall.since, until=stall.until, seconds=stall.seconds)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
