"""One replica as a process of its own: ``replica.py KUBECONFIG NAMESPACE IDENTITY``; says on stdout when it leads."""

from __future__ import annotations

import sys

import anyio

from pyreconcile.client import ConnectOptions
from pyreconcile.election import ElectionOptions
from pyreconcile.manager import Manager, ManagerOptions


class Announcer:
    name = "announcer"

    async def run(self, stop: anyio.Event, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        print("leading", flush=True)  # noqa: T201
        task_status.started()
        await stop.wait()
        print("stopping", flush=True)  # noqa: T201


async def main(kubeconfig: str, namespace: str, identity: str) -> None:
    options = ManagerOptions(
        connect=ConnectOptions(kubeconfig=kubeconfig),
        leader_election=ElectionOptions(
            name="lock",
            namespace=namespace,
            identity=identity,
            lease_duration=6,
            renew_deadline=4.5,
            retry_period=0.3,
        ),
        metrics_bind_address="0",
        health_probe_bind_address="0",
        handle_signals=True,
    )
    async with Manager(options) as manager:
        manager.add(Announcer())
        print("ready", flush=True)  # noqa: T201
        await manager.run()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
