"""Two groups where there is room for less, without and with gang scheduling: ``python -m hack.gang_scheduling``.

On a control plane of its own with the gate GenericWorkload, one node grows from 1 to 8 CPUs under a set of two groups
of four pods, which ask for 1 CPU each. What has a node is looked at every 20 ms, for as long as it takes until nothing
changes. Where both groups run, one loses a pod, and then both are updated. The table has seconds, and what was placed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio

from hack.manager_process import manager_process
from pyreconcile.api.core_v1 import Node, Pod
from pyreconcile.client import ApiError, Client, MergePatch, connect
from pyreconcile.testing import ControlPlane
from pyreconcile_controllers.leaderworkerset import LeaderWorkerSet
from pyreconcile_controllers.leaderworkerset.names import GROUP_INDEX_LABEL, SET_NAME_LABEL

NAME: Final = "article"
NAMESPACE: Final = "default"
GROUPS: Final = 2
SIZE: Final = 4
ROOM: Final = (1, 3, 4, 5, 8)
"""CPUs of the node, one after the other."""
NODE: Final = "node-0"
LIMIT: Final = 60.0
"""Seconds that any one step may take."""
QUIET: Final = 3.0
"""Seconds without a change after which nothing more is expected: the scheduler tries again every second here."""
PROVIDERS: Final = ("", "kubernetes")

Counts = tuple[int, ...]


@dataclass
class Row:
    """One step, and what followed.

    Attributes:
        step: what was done.
        placed: pods with a node, for each group, by provider.
        seconds: from the step to the last change, by provider.
    """

    step: str
    placed: dict[str, Counts] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def manifest(image: str) -> LeaderWorkerSet:
    """Return the set."""
    container = {"name": "c", "image": image, "resources": {"requests": {"cpu": "1"}}}
    template = {"size": SIZE, "workerTemplate": {"spec": {"containers": [container]}}}
    return LeaderWorkerSet.from_dict(
        {
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"replicas": GROUPS, "leaderWorkerTemplate": template},
        }
    )


async def pods_of(client: Client) -> list[Pod]:
    """Return the set's pods, those that are going away left out."""
    listed = await client.list(Pod, namespace=NAMESPACE, labels={SET_NAME_LABEL: NAME})
    return [pod for pod in listed if not pod.metadata.deletion_timestamp]


def placed(pods: Sequence[Pod]) -> Counts:
    """Return how many pods of each group have a node."""
    found = Counter(pod.metadata.labels.get(GROUP_INDEX_LABEL, "") for pod in pods if pod.spec and pod.spec.node_name)
    return tuple(found[str(index)] for index in range(GROUPS))


async def settled(client: Client, done: Callable[[list[Pod]], bool]) -> tuple[Counts, float]:
    """Wait until ``done``, then until nothing changes any more; return what has a node, and after how many seconds."""
    start = changed = time.monotonic()
    last: object = None
    with anyio.fail_after(LIMIT):
        while True:
            pods = await pods_of(client)
            seen = sorted((pod.metadata.uid or "", bool(pod.spec and pod.spec.node_name)) for pod in pods)
            now = time.monotonic()
            if seen != last:
                last, changed = seen, now
            if done(pods) and now - changed >= QUIET:
                return placed(pods), changed - start
            await anyio.sleep(0.02)


async def make_room(client: Client, cpus: int) -> None:
    """Give the node so many CPUs."""
    await client.patch(Node, NODE, MergePatch({"status": {"allocatable": {"cpu": str(cpus)}}}), subresource="status")


async def served(client: Client) -> None:
    """Wait until the API server asks the webhooks of the manager."""
    with anyio.fail_after(LIMIT):
        while True:
            try:
                made = await client.create(manifest("probe"), dry_run=True)
            except ApiError:
                made = None
            if made is not None and made.spec.network_config is not None:
                return
            await anyio.sleep(0.1)


def complete(pods: list[Pod]) -> bool:
    """Tell whether all pods exist."""
    return len(pods) == GROUPS * SIZE


async def play(client: Client, provider: str, rows: list[Row]) -> None:
    """Go through all steps once."""
    steps = iter(rows)

    async def note(done: Callable[[list[Pod]], bool]) -> None:
        row = next(steps)
        row.placed[provider], row.seconds[provider] = await settled(client, done)
        print(
            f"{provider or 'none':>10}  {row.step}: {row.placed[provider]}, {row.seconds[provider]:.2f} s", flush=True
        )

    await make_room(client, ROOM[0])
    await client.create(manifest("busybox:1"))
    await note(complete)
    for cpus in ROOM[1:]:
        await make_room(client, cpus)
        await note(complete)
    lost = next(pod for pod in await pods_of(client) if pod.metadata.name == f"{NAME}-0-1")
    await client.delete(Pod, f"{NAMESPACE}/{NAME}-0-1")
    gone = lost.metadata.uid
    await note(lambda pods: complete(pods) and all(pod.metadata.uid != gone for pod in pods))
    template = manifest("busybox:2").spec.leader_worker_template.worker_template.to_dict()
    patch = MergePatch({"spec": {"leaderWorkerTemplate": {"workerTemplate": template}}})
    await client.patch(LeaderWorkerSet, f"{NAMESPACE}/{NAME}", patch)
    await note(lambda pods: complete(pods) and all(_image(pod) == "busybox:2" for pod in pods))


def _image(pod: Pod) -> str | None:
    return pod.spec.containers[0].image if pod.spec else None


async def clean(client: Client) -> None:
    """Delete the set, and wait until its pods are gone."""
    await client.delete_all_of(LeaderWorkerSet, namespace=NAMESPACE)
    with anyio.fail_after(LIMIT):
        while await client.list(Pod, namespace=NAMESPACE):
            await anyio.sleep(0.1)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| step | placed without | with | seconds without | with |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        counts = [" + ".join(map(str, row.placed[provider])) for provider in PROVIDERS]
        seconds = [f"{row.seconds[provider]:.2f}" for provider in PROVIDERS]
        lines.append(f"| {row.step} | {' | '.join(counts)} | {' | '.join(seconds)} |")
    return "\n".join(lines)


def wrong(rows: Sequence[Row]) -> list[str]:
    """Return what is not as it has to be: with gang scheduling every group is placed whole or not at all."""
    return [row.step for row in rows if any(count not in (0, SIZE) for count in row.placed["kubernetes"])]


async def main() -> int:
    """Play both, print the table; 1 when a group was left partly placed."""
    steps = [f"created, node of {ROOM[0]} CPU", *(f"node of {cpus} CPUs" for cpus in ROOM[1:])]
    rows = [Row(step) for step in (*steps, "a worker of group 0 deleted", "new image for both groups")]
    with TemporaryDirectory() as folder:
        log = Path(folder) / "manager.log"
        gates = {"GenericWorkload": True}
        async with (
            ControlPlane(
                nodes=1, controller_manager=True, scheduler=True, feature_gates=gates, use_existing=False
            ) as plane,
            connect(kubeconfig=plane.kubeconfig) as client,
        ):
            for provider in PROVIDERS:
                variables = {"LEADERWORKERSET_SCHEDULER_PROVIDER": provider}
                arguments = ("--controllers", "leaderworkerset", "--webhook-bind-address", "127.0.0.1:0")
                async with manager_process(plane.kubeconfig, *arguments, log=log, environment=variables):
                    await served(client)
                    await play(client, provider, rows)
                    await clean(client)
    print(table(rows))
    return 1 if wrong(rows) else 0


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.exit(anyio.run(main))
