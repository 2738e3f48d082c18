"""LeaderWorkerSet and ModelCache: groups form, recover, scale and roll; children come back; nonsense is refused."""

from __future__ import annotations

import time

from hack.demo._stage import Stage, sample, state_of
from pyreconcile.api.core_v1 import ConfigMap, Pod
from pyreconcile.client import MergePatch
from pyreconcile_controllers.leaderworkerset import LeaderWorkerSet
from pyreconcile_controllers.modelcache import ModelCache

_WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"


async def form(stage: Stage) -> None:
    """Two groups of three pods come up, each pod told who its leader is."""
    stage.say("[bold]Groups form[/]: LeaderWorkerSet demo, 2 groups of 3 pods")
    await stage.client.create(sample("leaderworkerset.yaml", stage.namespace))
    took = await stage.until(lambda: stage.running(6), "six pods run")
    stage.passed(f"six pods run after {took:.2f} s")
    spec = stage.pods["demo-1-2"].spec
    env = {item.name: item.value for item in spec.containers[0].env or []} if spec else {}
    leader = env.get("LWS_LEADER_ADDRESS")
    stage.check(leader == f"demo-1.demo.{stage.namespace}", f"worker demo-1-2 was told its leader: {leader}")
    await stage.until_condition(LeaderWorkerSet, "demo", "Available")


async def lose_a_worker(stage: Stage) -> None:
    """One worker's death recreates its whole group, and no other."""
    stage.say("[bold]A worker is lost[/]: pod demo-0-1 is killed")
    before = {name: pod.metadata.uid for name, pod in stage.pods.items()}
    lost, kept = ["demo-0", "demo-0-1", "demo-0-2"], ["demo-1", "demo-1-1", "demo-1-2"]

    def renewed() -> bool:
        pods = [stage.pods.get(name) for name in lost]
        return all(pod and pod.metadata.uid not in before.values() and state_of(pod) == "Running" for pod in pods)

    await stage.client.delete(Pod, stage.key("demo-0-1"), grace_period_seconds=0)
    took = await stage.until(renewed, "group 0 runs again with new pods")
    stage.passed(f"group 0 runs again with three new pods after {took:.2f} s")
    stage.check(all(stage.pods[name].metadata.uid == before[name] for name in kept), "group 1 kept its pods")


async def scale(stage: Stage) -> None:
    """Groups are added and taken away whole, the highest first."""
    stage.say("[bold]Scale[/]: to 4 groups")
    await stage.client.set_scale(LeaderWorkerSet, stage.key("demo"), 4)
    took = await stage.until(lambda: stage.running(12), "twelve pods run")
    stage.passed(f"twelve pods run after {took:.2f} s")
    await stage.until_condition(LeaderWorkerSet, "demo", "Available")


async def roll(stage: Stage) -> None:
    """A rolling update with one group of surge: never fewer than four groups run."""
    stage.say("[bold]Rolling update[/]: a new image for 4 groups, one group of surge, none unavailable")
    most, fewest = 0, 99
    order: list[str] = []
    old = {pod.metadata.uid for pod in stage.pods.values()}

    def rolled() -> bool:
        nonlocal most, fewest
        leaders = {n: pod for n, pod in stage.pods.items() if pod.metadata.labels.get(_WORKER_INDEX) == "0"}
        running = [name for name, pod in leaders.items() if state_of(pod) == "Running"]
        most, fewest = max(most, len(leaders)), min(fewest, len(running))
        order.extend(name for name in running if leaders[name].metadata.uid not in old and name not in order)
        return stage.running(12) and not any(pod.metadata.uid in old for pod in stage.pods.values())

    container = {"name": "server", "image": "busybox:1.38", "command": ["sleep", "infinity"]}
    spec = {
        "rolloutStrategy": {"rollingUpdateConfiguration": {"maxSurge": 1, "maxUnavailable": 0}},
        "leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": [container]}}},
    }
    await stage.client.patch(LeaderWorkerSet, stage.key("demo"), MergePatch({"spec": spec}))
    took = await stage.until(rolled, "all pods are new")
    stage.passed(f"all pods are new after {took:.2f} s; groups went in the order {', '.join(order)}")
    stage.check(most == 5, "for a while there were five groups")
    stage.check(fewest >= 4, f"at least four leaders ran throughout ({fewest})")
    await stage.until_condition(LeaderWorkerSet, "demo", "Available")


async def heal(stage: Stage) -> None:
    """A ModelCache's ConfigMap comes back when someone deletes it."""
    stage.say("[bold]A child is deleted[/]: the ConfigMap of ModelCache tiny")
    client, key = stage.client, stage.key("tiny-cfg")
    await client.create(sample("modelcache.yaml", stage.namespace))
    first = await stage.until_found(lambda: client.find(ConfigMap, key), "ConfigMap tiny-cfg is made")
    start = time.monotonic()
    await client.delete(ConfigMap, key)

    async def renewed() -> bool:
        found = await client.find(ConfigMap, key)
        return found is not None and found.metadata.uid != first.metadata.uid

    await stage.until_found(renewed, "ConfigMap tiny-cfg is made anew")
    stage.passed(f"it is back after {time.monotonic() - start:.3f} s")


async def refuse(stage: Stage) -> None:
    """Objects that make no sense are refused, with a message that says why."""
    stage.say("[bold]Refused[/]: objects that make no sense")
    empty = ModelCache.from_dict(
        {"metadata": {"name": "no-model", "namespace": stage.namespace}, "spec": {"model": ""}}
    )
    await stage.refused(stage.client.create(empty), "model must not be empty")
    bounds = {"maxUnavailable": 0, "maxSurge": 0}
    patch = MergePatch({"spec": {"rolloutStrategy": {"rollingUpdateConfiguration": bounds}}})
    await stage.refused(stage.client.patch(LeaderWorkerSet, stage.key("demo"), patch), "must not be 0 when")
