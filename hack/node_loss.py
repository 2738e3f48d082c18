"""Lose nodes under groups of LeaderWorkerSets, and measure what follows: ``python -m hack.node_loss``.

On a control plane of its own, six sets of two groups run, each set on three nodes of its own. The nodes of all groups 0
are lost at one moment: their heartbeats stop, as far as the API server can tell, and their pods hang. What is done once
these pods are being deleted differs: the node gets the out-of-service taint, the Node object is deleted, or the node
comes back; each with and without the set's annotation. The table has the seconds after the node's taint.

At the default settings of Kubernetes this takes some eight minutes; ``--quick`` has the flags for tests, two minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from hack.manager_process import manager_process
from pyreconcile.api import unstructured
from pyreconcile.api.core_v1 import Node, Pod
from pyreconcile.client import ApiError, Client, ConnectOptions, MergePatch, connect
from pyreconcile.testing import ControlPlane
from pyreconcile_controllers.leaderworkerset import LeaderWorkerSet
from pyreconcile_controllers.leaderworkerset.names import EXCLUSIVE_TOPOLOGY_ANNOTATION, SET_NAME_LABEL
from pyreconcile_controllers.leaderworkerset.node_loss import ANNOTATION, FORCE, OUT_OF_SERVICE, WAIT

QUICK: Final[dict[str, tuple[str, ...]]] = {
    "kube-apiserver": ("--default-not-ready-toleration-seconds=2", "--default-unreachable-toleration-seconds=2"),
    "kube-controller-manager": ("--node-monitor-grace-period=4s", "--node-monitor-period=1s"),
    "kwok": ("--node-lease-duration-seconds=4",),
}
"""Flags that make the loss of a node a matter of seconds."""

REMEDIES: Final = ("taint", "delete", "return")
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
SIZE: Final = 3
NODES_EACH: Final = 3
NAMESPACE: Final = "default"
LIMIT: Final = 600.0
"""Seconds that any one step may take."""

Lease = unstructured("coordination.k8s.io/v1", "Lease")
_LEASES = "kube-node-lease"
_NODE_CONTROLLER = "kube-controller-manager"
_HOUR = 3600
_POLL = 0.05


@dataclass
class Trial:
    """One set, the node it loses, and when what happened (monotonic seconds).

    Attributes:
        remedy: what is done about the node.
        policy: the set's annotation.
        nodes: the nodes that the set may use.
        node: the node under group 0.
        before: UIDs of the set's pods before the loss.
        tainted: the node is tainted as unreachable.
        deleted: the pods on it are being deleted.
        helped: the remedy was given.
        freed: the pods are gone.
        running: group 0 runs again, whole.
    """

    remedy: str
    policy: str
    nodes: tuple[str, ...] = ()
    node: str = ""
    before: dict[str, str] = field(default_factory=dict)
    tainted: float = 0.0
    deleted: float = 0.0
    helped: float = 0.0
    freed: float = 0.0
    running: float = 0.0

    @property
    def name(self) -> str:
        """The set's name."""
        return f"{self.remedy}-{self.policy.lower()}"


def manifest(trial: Trial) -> LeaderWorkerSet:
    """Return a trial's set: two groups, each alone on a node."""
    template = {"spec": {"nodeSelector": {"trial": trial.name}, "containers": [{"name": "c", "image": "busybox:1"}]}}
    return LeaderWorkerSet.from_dict(
        {
            "metadata": {
                "name": trial.name,
                "namespace": NAMESPACE,
                "annotations": {
                    ANNOTATION: trial.policy,
                    EXCLUSIVE_TOPOLOGY_ANNOTATION: "kubernetes.io/hostname",
                },
            },
            "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": SIZE, "workerTemplate": template}},
        }
    )


async def silence(client: Client, node: str) -> None:
    """Let a node's heartbeat end, and kwok let go of its pods: somebody else takes its lease, and says no more.

    The time of the renewal has to move on, or the node controller takes the lease for newer than the node.
    """
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    spec = {"holderIdentity": "nobody", "leaseDurationSeconds": 24 * _HOUR, "renewTime": now}
    await client.patch(Lease, f"{_LEASES}/{node}", MergePatch({"spec": spec}))


async def revive(client: Client, node: str) -> None:
    """Let the heartbeat go on: kwok takes the node again."""
    await client.delete(Lease, f"{_LEASES}/{node}", missing_ok=True)


async def out_of_service(client: Client, node: str) -> None:
    """Vouch that nothing runs on a node."""
    live = await client.get(Node, node)
    taints = [taint.to_dict() for taint in (live.spec.taints if live.spec else None) or ()]
    taints.append({"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"})
    await client.patch(Node, node, MergePatch({"spec": {"taints": taints}}))


async def delete_node(client: Client, node: str) -> None:
    """Delete the Node object."""
    await client.delete(Node, node)


HELP: Final[dict[str, Callable[[Client, str], Awaitable[None]]]] = {
    "taint": out_of_service,
    "delete": delete_node,
    "return": revive,
}


async def until(what: str, check: Callable[[], Awaitable[bool]], *, limit: float = LIMIT) -> float:
    """Wait until something is so; return when it was seen, in monotonic seconds."""
    with anyio.fail_after(limit):
        while not await check():
            await anyio.sleep(_POLL)
    print(f"{what}", file=sys.stderr)
    return time.monotonic()


async def pods_of(client: Client, trial: Trial) -> dict[str, Pod]:
    """Return a set's pods by name."""
    pods = await client.list(Pod, namespace=NAMESPACE, labels={SET_NAME_LABEL: trial.name})
    return {pod.metadata.name: pod for pod in pods}


def is_ready(pod: Pod) -> bool:
    """Tell whether a pod is ready and stays."""
    conditions = (pod.status.conditions if pod.status else None) or ()
    ready = any(item.type == "Ready" and item.status == "True" for item in conditions)
    return ready and not pod.metadata.deletion_timestamp


def is_of_group(pod_name: str, trial: Trial, group: int) -> bool:
    """Tell whether a pod is one of a group."""
    return f"{pod_name}-".startswith(f"{trial.name}-{group}-")


async def bring_up(client: Client, trial: Trial) -> None:
    """Create a trial's set and wait until it runs."""
    for node in trial.nodes:
        await client.patch(Node, node, MergePatch({"metadata": {"labels": {"trial": trial.name}}}))

    async def created() -> bool:
        try:
            await client.create(manifest(trial))
        except ApiError:
            return False  # the webhooks are not there yet
        return True

    async def up() -> bool:
        pods = await pods_of(client, trial)
        return len(pods) == 2 * SIZE and all(map(is_ready, pods.values()))

    await until(f"{trial.name}: created", created)
    await until(f"{trial.name}: runs", up)
    pods = await pods_of(client, trial)
    trial.before = {name: pod.metadata.uid for name, pod in pods.items()}
    leader = pods[f"{trial.name}-0"]
    trial.node = (leader.spec.node_name if leader.spec else None) or ""


async def follow(client: Client, trial: Trial) -> None:
    """Lose a trial's node, help, and note the times."""
    lost = {uid for name, uid in trial.before.items() if is_of_group(name, trial, 0)}

    async def tainted() -> bool:
        node = await client.get(Node, trial.node)
        taints = (node.spec.taints if node.spec else None) or ()
        return any(taint.key == UNREACHABLE and taint.effect == "NoExecute" for taint in taints)

    async def deleted() -> bool:
        pods = [pod for pod in (await pods_of(client, trial)).values() if pod.metadata.uid in lost]
        return all(pod.metadata.deletion_timestamp for pod in pods)

    async def freed() -> bool:
        return not any(pod.metadata.uid in lost for pod in (await pods_of(client, trial)).values())

    async def running() -> bool:
        pods = {name: pod for name, pod in (await pods_of(client, trial)).items() if is_of_group(name, trial, 0)}
        return len(pods) == SIZE and all(is_ready(pod) and pod.metadata.uid not in lost for pod in pods.values())

    trial.tainted = await until(f"{trial.name}: node tainted", tainted)
    trial.deleted = await until(f"{trial.name}: pods are being deleted", deleted)
    await HELP[trial.remedy](client, trial.node)
    trial.helped = time.monotonic()
    trial.freed = await until(f"{trial.name}: pods gone", freed)
    trial.running = await until(f"{trial.name}: group runs", running)
    after = {name: pod.metadata.uid for name, pod in (await pods_of(client, trial)).items()}
    for name, uid in trial.before.items():
        if is_of_group(name, trial, 1) and after.get(name) != uid:
            raise AssertionError(f"{trial.name}: pod {name} of the other group was replaced")


def all_trials() -> list[Trial]:
    """Return one trial for each remedy, with and without the annotation."""
    return [Trial(remedy, policy) for remedy in REMEDIES for policy in (WAIT, FORCE)]


async def measure(trials: Sequence[Trial], *, quick: bool, collector: bool = True) -> None:
    """Run trials at once on a control plane of their own, and fill in their times.

    Args:
        trials: no two alike.
        quick: with the flags that make the loss of a node a matter of seconds.
        collector: whether Kubernetes' collector of pods runs, which removes those on lost nodes after a while.

    Raises:
        AssertionError: a group that lost no node was touched.
        TimeoutError: something did not happen within `LIMIT`.
    """
    # Else Kubernetes takes one lost node of a zone after the other, 10 s apart, and none when half of them are lost.
    node_controller = ["--node-eviction-rate=10", "--unhealthy-zone-threshold=1"]
    if not collector:
        node_controller.append("--controllers=*,-pod-garbage-collector-controller")
    flags = QUICK if quick else {}
    plane = ControlPlane(
        nodes=NODES_EACH * len(trials),
        controller_manager=True,
        scheduler=True,
        extra_args={**flags, _NODE_CONTROLLER: (*flags.get(_NODE_CONTROLLER, ()), *node_controller)},
        use_existing=False,
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(plane)
        log = Path(plane.directory) / "manager.log"
        arguments = ("--controllers", "leaderworkerset", "--webhook-bind-address", "127.0.0.1:0")
        await stack.enter_async_context(manager_process(plane.kubeconfig, *arguments, log=log))
        client = await stack.enter_async_context(connect(ConnectOptions(kubeconfig=plane.kubeconfig)))
        names = sorted(node.metadata.name for node in await client.list(Node))
        for number, trial in enumerate(trials):
            trial.nodes = tuple(names[NODES_EACH * number : NODES_EACH * (number + 1)])
            await bring_up(client, trial)
        for trial in trials:
            await silence(client, trial.node)
        async with anyio.create_task_group() as tasks:
            for trial in trials:
                tasks.start_soon(follow, client, trial)


def table(trials: Sequence[Trial]) -> list[str]:
    """Return the times as a table in Markdown; seconds after the taint, and after the remedy in the last columns."""
    lines = [
        "| then | node-loss | pods deleted | pods gone | group Running | gone after it | Running after it |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for trial in trials:
        since = [trial.deleted - trial.tainted, trial.freed - trial.tainted, trial.running - trial.tainted]
        since += [trial.freed - trial.helped, trial.running - trial.helped]
        cells = [trial.remedy, trial.policy, *(f"{seconds:.1f} s" for seconds in since)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="with the flags that make Kubernetes notice in seconds")
    quick: bool = parser.parse_args().quick
    trials = all_trials()
    anyio.run(partial(measure, trials, quick=quick))
    print("\n".join(table(trials)))


if __name__ == "__main__":
    main()
