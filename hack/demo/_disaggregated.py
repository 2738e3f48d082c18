"""DisaggregatedSet: prefill and decode are rolled out in step."""

from __future__ import annotations

import anyio
from rich.table import Table

from hack.demo._stage import Stage, sample
from pyreconcile.client import JsonPatch
from pyreconcile_controllers.disaggregatedset import DisaggregatedSet, Rollout, State, states
from pyreconcile_controllers.leaderworkerset import LeaderWorkerSet

_REVISION = "disaggregatedset.x-k8s.io/revision"
_ROLE = "disaggregatedset.x-k8s.io/role"
_ROLES = ("prefill", "decode")
_PODS = 10  # prefill 6 of one pod, decode 2 of two


class _Steps:
    """The replicas of each revision and role, after every write, as a watch saw them."""

    def __init__(self) -> None:
        self.replicas: dict[tuple[str, str], int] = {}
        self.seen: list[State] = []
        self.old = ""

    async def follow(self, stage: Stage) -> None:
        async for event in stage.client.watch(LeaderWorkerSet, namespace=stage.namespace):
            labels = event.object.metadata.labels
            key = labels[_REVISION], labels[_ROLE]
            if event.type == "DELETED":
                self.replicas.pop(key, None)
            else:
                self.replicas[key] = event.object.spec.replicas
            state = State(self._of(old=True), self._of(old=False))
            if not self.seen or self.seen[-1] != state:
                self.seen.append(state)

    def _of(self, *, old: bool) -> tuple[int, ...]:
        sums = dict.fromkeys(_ROLES, 0)
        for (revision, role), replicas in self.replicas.items():
            self.old = self.old or revision
            if (revision == self.old) == old:
                sums[role] += replicas
        return tuple(sums.values())


async def form(stage: Stage) -> None:
    """Six prefill and two decode servers come up."""
    stage.say("[bold]Roles form[/]: DisaggregatedSet chat, prefill 6 and decode 2")
    await stage.client.create(sample("disaggregatedset.yaml", stage.namespace))
    took = await stage.until(lambda: stage.running(_PODS), "all pods run")
    stage.passed(f"ten pods run after {took:.2f} s")
    await stage.until_condition(DisaggregatedSet, "chat", "Available")


async def roll(stage: Stage) -> None:
    """A new image for both roles: the ratio is kept at every step, as the planner says."""
    stage.say("[bold]Coordinated rollout[/]: a new image for both roles")
    old = {pod.metadata.uid for pod in stage.pods.values()}
    image = "/spec/roles/{}/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image"
    patch = JsonPatch([{"op": "replace", "path": image.format(role), "value": "busybox:1.37"} for role in (0, 1)])
    steps = _Steps()
    async with anyio.create_task_group() as group:
        group.start_soon(steps.follow, stage, name="steps of the rollout")

        async def followed() -> bool:
            return len(steps.replicas) == len(_ROLES)

        await stage.until_found(followed, "the steps are watched")
        del steps.seen[:-1]  # before all was listed
        await stage.client.patch(DisaggregatedSet, stage.key("chat"), patch)
        took = await stage.until(
            lambda: stage.running(_PODS) and not any(pod.metadata.uid in old for pod in stage.pods.values()),
            "all pods are new",
        )
        stage.passed(f"all pods are new after {took:.2f} s")
        await stage.until_condition(DisaggregatedSet, "chat", "Available")
        group.cancel_scope.cancel()
    plan = states(Rollout.of((6, 2), (6, 2)))
    rows = [state for state in steps.seen if state in plan]
    stage.show(_table(rows))
    stage.check(rows == plan, f"the {len(plan)} states of the planner were passed through, in order")
    totals = [[a + b for a, b in zip(state.old, state.new, strict=True)] for state in steps.seen]
    kept = all(6 <= prefill <= 7 and 2 <= decode <= 3 for prefill, decode in totals)
    stage.check(kept, f"at each of {len(totals)} writes there were 6 or 7 prefill and 2 or 3 decode servers")


def _table(rows: list[State]) -> Table:
    table = Table(title="replicas as the rollout went", title_justify="left")
    for header in ("old prefill", "old decode", "new prefill", "new decode"):
        table.add_column(header, justify="right")
    for state in rows:
        table.add_row(*map(str, (*state.old, *state.new)))
    return table
