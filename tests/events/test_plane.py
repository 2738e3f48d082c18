"""Events on the real API server (rules EV-2, EV-3)."""

from __future__ import annotations

import anyio
import pytest

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.api.core_v1 import Event as CoreEvent
from pyreconcile.api.events_v1 import Event
from pyreconcile.client import Client
from pyreconcile.events import EventBroadcaster

pytestmark = pytest.mark.plane

PATIENCE = 30.0
"""Seconds for what a busy machine writes at the end."""


async def test_ev_2_the_server_takes_events_and_series(client: Client, namespace: str):
    obj = await client.create(ConfigMap.from_dict({"metadata": {"name": "web", "namespace": namespace}}))
    events = EventBroadcaster(client, flush_timeout=PATIENCE)
    recorder = events.recorder("example.com/web")
    stop = anyio.Event()
    with anyio.fail_after(2 * PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(events.run, stop)
            for number in range(3):
                recorder.event(obj, "Warning", "Failed", f"try {number} " + "x" * 2000, action="Sync", related=obj)
            recorder.event(obj, "Normal", "Synced", "done", action="Sync")
            stop.set()
    found = {event.reason: event for event in await client.list(Event, namespace=namespace)}
    assert set(found) == {"Failed", "Synced"}
    failed = found["Failed"]
    assert failed.series is not None
    assert failed.series.count == 3
    assert failed.regarding is not None
    assert failed.regarding.uid == obj.metadata.uid
    assert failed.reporting_controller == "example.com/web"
    assert found["Synced"].series is None


@pytest.mark.rules("EV-1", "U-70")
async def test_ev_1_the_server_takes_events_of_core_with_counts_and_combined_ones(client: Client, namespace: str):
    obj = await client.create(ConfigMap.from_dict({"metadata": {"name": "web", "namespace": namespace}}))
    events = EventBroadcaster(client, flush_timeout=PATIENCE)
    recorder = events.recorder("web", api="v1")
    stop = anyio.Event()
    with anyio.fail_after(2 * PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(events.run, stop)
            for _ in range(3):
                recorder.event(obj, "Normal", "Synced", "done", action="Sync", related=obj)
            for number in range(12):
                recorder.event(obj, "Warning", "Failed", f"try {number}", action="Sync")
            stop.set()
    found = await client.list(CoreEvent, namespace=namespace)
    [synced] = [one for one in found if one.reason == "Synced"]
    assert synced.count == 3
    assert synced.involved_object.uid == obj.metadata.uid
    assert synced.source is not None
    assert synced.source.component == "web"
    assert len([one for one in found if one.reason == "Failed"]) == 10
    [combined] = [one for one in found if (one.message or "").startswith("(combined")]
    assert (combined.count, combined.message) == (3, "(combined from similar events): try 11")
