"""Let groups of LeaderWorkerSets crash in a loop, and show when each is recreated: ``python -m hack.crash_loop``.

Two sets of one group run on a control plane of their own, whose workers crash as soon as they run: one as upstream has
it, one with ``restart-backoff``. The table has the seconds after the first recreation.
"""

from __future__ import annotations

import argparse
import time
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path

import anyio

from hack.manager_process import manager_process
from pyreconcile.api.core_v1 import Pod
from pyreconcile.client import ApiError, Client, ConnectOptions, connect
from pyreconcile.testing import ControlPlane, eventually
from pyreconcile_controllers.leaderworkerset import LeaderWorkerSet
from pyreconcile_controllers.leaderworkerset.names import SET_NAME_LABEL
from pyreconcile_controllers.leaderworkerset.restart_budget import BACKOFF_ANNOTATION, BACKOFF_MAX_ANNOTATION

NAMESPACE = "default"
BACKOFF = {BACKOFF_ANNOTATION: "1s", BACKOFF_MAX_ANNOTATION: "8s"}
SETS: dict[str, dict[str, str]] = {"upstream": {}, "budget": BACKOFF}
_SHOWN = 8


def manifest(name: str, annotations: dict[str, str]) -> LeaderWorkerSet:
    """Return a set whose workers crash."""
    container = {"name": "c", "image": "busybox:1"}
    crashing = {
        "metadata": {"annotations": {"kwok.pyreconcile.dev/crash": "true"}},
        "spec": {"containers": [container]},
    }
    template = {"size": 2, "leaderTemplate": {"spec": {"containers": [container]}}, "workerTemplate": crashing}
    return LeaderWorkerSet.from_dict(
        {
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
            "spec": {"replicas": 1, "leaderWorkerTemplate": template},
        }
    )


async def note_leaders(client: Client, name: str, seen: list[float]) -> None:
    """Note when each leader of a set's group comes, in monotonic seconds, until cancelled."""
    uids: set[str] = set()
    labels = {SET_NAME_LABEL: name}
    async with aclosing(client.watch(Pod, namespace=NAMESPACE, labels=labels)) as events:
        async for event in events:
            metadata = event.object.metadata
            if metadata.name == f"{name}-0" and metadata.uid not in uids:
                uids.add(metadata.uid)
                seen.append(time.monotonic())


async def measure(seconds: float) -> dict[str, list[float]]:
    """Run both sets for so long; return for each when its group was recreated, in seconds after the first time."""
    seen: dict[str, list[float]] = {name: [] for name in SETS}
    async with AsyncExitStack() as stack:
        plane = ControlPlane(nodes=2, controller_manager=True, scheduler=True, use_existing=False)
        await stack.enter_async_context(plane)
        log = Path(plane.directory) / "manager.log"
        arguments = ("--controllers", "leaderworkerset", "--webhook-bind-address", "127.0.0.1:0")
        await stack.enter_async_context(manager_process(plane.kubeconfig, *arguments, log=log))
        client = await stack.enter_async_context(connect(ConnectOptions(kubeconfig=plane.kubeconfig)))

        async def served() -> bool:
            try:
                await client.create(manifest("probe", {}), dry_run=True)
            except ApiError:
                return False
            return True

        await eventually(served, timeout=60, what="the manager serves its webhooks")
        async with anyio.create_task_group() as tasks:
            for name, annotations in SETS.items():
                tasks.start_soon(note_leaders, client, name, seen[name])
                await client.create(manifest(name, annotations))
            await anyio.sleep(seconds)
            tasks.cancel_scope.cancel()
    # The first leader is no recreation, the second one is the first.
    return {name: [moment - moments[1] for moment in moments[1:]] for name, moments in seen.items() if len(moments) > 1}


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=35.0, metavar="N", help="how long the groups crash")
    seconds: float = parser.parse_args().seconds
    print(f"| set | recreations in {seconds:.0f} s | seconds after the first |")
    print("| --- | --- | --- |")
    for name, moments in anyio.run(partial(measure, seconds)).items():
        shown = ", ".join(f"{moment:.1f}" for moment in moments[1 : _SHOWN + 1])
        rest = ", …" if len(moments) > _SHOWN + 1 else ""
        print(f"| {name} | {len(moments)} | {shown}{rest} |")


if __name__ == "__main__":
    main()
