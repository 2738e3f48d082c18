"""The examples of docs/controllers.md run as they are printed, on the real API server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from pyreconcile.api.core_v1 import ConfigMap, Secret
from pyreconcile.controller import Builder, GenericEvent, Request
from pyreconcile.testing import eventually, running

pytestmark = pytest.mark.plane

PAGE = Path(__file__).parents[2] / "docs" / "controllers.md"


@pytest.fixture
def example() -> dict[str, Any]:
    names: dict[str, Any] = {}
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    exec(compile(code, str(PAGE), "exec"), names)
    return names


async def test_the_controller_of_the_guide_copies(example, manager, client, namespace):
    assert example["add_to"](manager).concurrency == 4
    config = ConfigMap(metadata={"name": "a", "namespace": namespace, "labels": {"copy": "secret"}}, data={"k": "v"})
    async with running(manager):
        await client.create(config)
        with anyio.fail_after(10):
            while (copy := await client.find(Secret, f"{namespace}/a-copy")) is None:
                await anyio.sleep(0.02)
    assert copy.metadata.owner_references[0].name == "a"


async def test_the_blocking_reconciler_of_the_guide_stamps(example, manager, client, namespace):
    Builder(manager).for_(ConfigMap).complete(example["StampReconciler"]())
    async with running(manager):
        await client.create(ConfigMap(metadata={"name": "a", "namespace": namespace}))

        async def stamped():
            return (await client.get(ConfigMap, f"{namespace}/a")).metadata.annotations.get("stamped") == "yes"

        await eventually(stamped)


async def test_events_from_outside_reach_the_reconciler(example, manager, namespace):
    seen: list[Request] = []
    woken = anyio.Event()

    async def reconcile(request: Request) -> None:
        seen.append(request)
        woken.set()

    send = example["add_outside"](manager, reconcile)
    async with running(manager):
        await send.send(GenericEvent.of(ConfigMap(metadata={"name": "a", "namespace": namespace})))
        with anyio.fail_after(10):
            await woken.wait()
    send.close()
    assert seen == [Request(namespace, "a")]


async def test_the_helpers_of_the_guide(example, client, namespace):
    config = await client.create(ConfigMap(metadata={"name": "a", "namespace": namespace}))
    conditions: list[Any] = []
    await example["helpers"](client, config, conditions)
    assert conditions[0].message == "made"
    assert (await client.get(Secret, f"{namespace}/made")).metadata.owner_references[0].uid == config.metadata.uid
    assert (await client.get(ConfigMap, f"{namespace}/a")).metadata.finalizers == []
