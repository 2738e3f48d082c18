"""``make soak``: many sets under random trouble, judged by an independent checker.

A control plane of its own comes up with nodes whose loss is noticed quickly, and the manager runs on it. The plan is
drawn from the seed: the same seed, minutes and sets give the same plan. Each round ends in a calm, in which every set
has to come right. The exit code is 0 when no rule was broken.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import structlog

from hack.soak.audit import Deletions
from hack.soak.checker import RULES, Checker
from hack.soak.cluster import QUICK_NODES, Cluster, ManagerEndedError
from hack.soak.end_state import problems
from hack.soak.facts import Change, SetFact
from hack.soak.plan import NODES, Action, Plan, make_plan
from pyreconcile.testing import ControlPlane

CALM = 120.0
"""Seconds in which every set has to come right once trouble is over."""
_LOOK = 0.5


@dataclass
class Outcome:
    """What a soak came to.

    Attributes:
        done: how often each kind of action was done.
        broken: what was wrong; empty when all was right.
        calms: how long each round took to come right, in seconds.
    """

    done: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    calms: list[float] = field(default_factory=list)


async def soak(plan: Plan, folder: Path) -> Outcome:
    """Run a plan on a control plane of its own; the manager's log, and what broke a rule, are left in ``folder``."""
    outcome = Outcome()
    deletions = Deletions(folder)
    arguments = {**QUICK_NODES, "kube-apiserver": [*QUICK_NODES["kube-apiserver"], *deletions.prepare()]}
    plane = ControlPlane(nodes=NODES, controller_manager=True, scheduler=True, extra_args=arguments)
    async with plane, Cluster.open(plane.kubeconfig, folder / "manager.log", deletions) as cluster:
        checker = Checker(cluster.strikes)
        for wire in plan.sets:
            await cluster.create_set(wire)
        await _calm(cluster, checker, outcome, "start", folder)
        for number, actions in enumerate(plan.rounds, 1):
            end = time.monotonic() + plan.round_seconds
            await _trouble(cluster, actions, outcome)
            await _calm(cluster, checker, outcome, f"round {number} of {len(plan.rounds)}", folder)
            await anyio.sleep(max(0.0, end - time.monotonic()))
        outcome.broken += [str(violation) for violation in checker.violations]
        _report(outcome, checker, cluster)
    return outcome


async def _until_told(plan: Plan, folder: Path) -> Outcome:
    """Run a plan; SIGTERM ends it in order, so that neither manager nor control plane stay behind."""
    outcome = Outcome(broken=["ended by SIGTERM"])

    async def listen() -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        outcome = await soak(plan, folder)
        tasks.cancel_scope.cancel()
    return outcome


async def _trouble(cluster: Cluster, actions: list[Action], outcome: Outcome) -> None:
    """Do each action at its time; those on one set one after the other, in their order."""
    start = time.monotonic()
    queues: dict[str, list[Action]] = {}
    for action in actions:
        queues.setdefault(_set_of(action), []).append(action)

    async def follow(queue: list[Action]) -> None:
        for action in queue:
            await anyio.sleep(max(0.0, start + action.at - time.monotonic()))
            await cluster.act(action)
            outcome.done[action.kind] += 1

    async with anyio.create_task_group() as tasks:
        for name, queue in queues.items():
            tasks.start_soon(follow, queue, name=name)


def _set_of(action: Action) -> str:
    """Return what the order of actions counts for: a set, or a node, or the manager."""
    if action.kind in ("node", "manager"):
        return f"{action.kind} {action.target}"
    return "-".join(action.target.split("-")[:2])


async def _calm(cluster: Cluster, checker: Checker, outcome: Outcome, what: str, folder: Path) -> None:
    """Wait until every set is right, then let the checker judge all that was seen."""
    start = time.monotonic()
    found = ["nothing was looked at"]
    while found and time.monotonic() < start + CALM:
        await anyio.sleep(_LOOK)
        cluster.manager.check()
        found = problems(await cluster.snapshot())
    seconds = time.monotonic() - start
    outcome.calms.append(seconds)
    outcome.broken += [f"{what}: not right after {seconds:.0f} s: {problem}" for problem in found]
    before = len(checker.violations)
    await anyio.sleep(_LOOK)  # the last changes are on their way to the watches
    changes = cluster.changes()
    checker.feed(changes)
    checker.settle(time.monotonic())
    broken = checker.violations[before:]
    state = "not right" if found else "right"
    print(f"{what}: {state} after {seconds:.1f} s; {len(changes)} changes seen, {len(broken)} rules broken", flush=True)
    for violation in broken:
        print(f"  {violation.time:.3f} {violation}", flush=True)
    _keep(changes, {violation.set_name for violation in broken}, folder)


def _keep(changes: list[Change], sets: set[str], folder: Path) -> None:
    """Write down what was seen of sets that broke a rule, in order."""
    with (folder / "broken.txt").open("a") as output:
        for change in sorted(changes, key=lambda item: item.order):
            about = change.about
            if (about.name if isinstance(about, SetFact) else about.set_name) in sets:
                print(f"{change.time:.3f}", "gone" if change.gone else "", about, file=output)


def _report(outcome: Outcome, checker: Checker, cluster: Cluster) -> None:
    print("actions: " + ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.done.items())), end="")
    print(f" ({cluster.missed} found no pod)")
    for rule in RULES:
        count = sum(violation.rule == rule for violation in checker.violations)
        print(f"  {rule}: looked at {checker.looked[rule]} times, broken {count} times")
    print(f"calms: {len(outcome.calms)}, the longest {max(outcome.calms):.1f} s")
    for text in outcome.broken:
        print(f"BROKEN {text}")


def main() -> int:
    """Run a soak; return the exit code."""
    parser = argparse.ArgumentParser(prog="hack.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the plan (default 1)")
    parser.add_argument("--minutes", type=float, default=20.0, help="how long trouble and calms last (default 20)")
    parser.add_argument("--sets", type=int, default=30, help="number of sets (default 30)")
    parser.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    parser.add_argument("--folder", type=Path, default=Path(".pyreconcile"), help="for the manager's log")
    options = parser.parse_args()
    plan = make_plan(options.seed, seconds=options.minutes * 60, sets=options.sets)
    if options.plan:
        print("\n".join(plan.lines()))
        return 0
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"soak with seed {plan.seed}: {len(plan.sets)} sets, {len(plan.rounds)} rounds", flush=True)
    outcome = Outcome()
    try:
        outcome = anyio.run(_until_told, plan, options.folder)
    except* ManagerEndedError as ended:
        outcome.broken += [str(error) for error in ended.exceptions]
        print("\n".join(f"BROKEN {text}" for text in outcome.broken))
    print("Every rule was kept." if not outcome.broken else f"{len(outcome.broken)} rules or states were broken.")
    return 1 if outcome.broken else 0


if __name__ == "__main__":
    sys.exit(main())
