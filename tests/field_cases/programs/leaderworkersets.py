"""The LeaderWorkerSet controllers and their webhooks, for one namespace.

``leaderworkersets.py KUBECONFIG NAMESPACE``. The webhook configurations are named like the namespace, and are left
behind at the end.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from hack.field_bench.manager import manager_options
from hack.field_bench.report import say
from pyreconcile import Manager
from pyreconcile.cache import CacheOptions
from pyreconcile.webhook import WebhookOptions, install, webhook_configurations
from pyreconcile_controllers import leaderworkerset
from pyreconcile_controllers.leaderworkerset.webhook import WEBHOOKS


async def main(kubeconfig: str, namespace: str) -> None:
    options = manager_options(kubeconfig, CacheOptions(namespaces=(namespace,)))
    options = replace(options, webhook=WebhookOptions(bind_address="127.0.0.1:0"))
    only_here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    webhooks = [replace(webhook, namespace_selector=only_here) for webhook in WEBHOOKS]
    async with Manager(options) as manager, anyio.create_task_group() as tasks:
        leaderworkerset.setup(manager, leaderworkerset.Settings())

        async def run(*, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
            await manager.run(task_status=task_status)
            tasks.cancel_scope.cancel()

        await tasks.start(run)
        assert manager.webhooks is not None
        names = {"mutating_name": namespace, "validating_name": namespace}
        await install(manager.client, webhook_configurations(manager.webhooks, webhooks, **names))
        # The API server begins to ask within a second: a set without a defaulted network was not seen by it.
        probe = leaderworkerset.LeaderWorkerSet.from_dict(
            {
                "metadata": {"name": "probe", "namespace": namespace},
                "spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": []}}}},
            }
        )
        with anyio.fail_after(30):
            while not (await manager.client.create(probe, dry_run=True)).spec.network_config:
                await anyio.sleep(0.05)
        say("ready")


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
