"""Recording never waits; writing happens beside it (rules EV-2, EV-3). On virtual time, with a client in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pyreconcile.api.core_v1 import ConfigMap, Node
from pyreconcile.client import ForbiddenError, NotFoundError, ServiceUnavailableError
from pyreconcile.events import EventBroadcaster

pytestmark = pytest.mark.looptime

WALL = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
MAP = ConfigMap.from_dict({"metadata": {"name": "web", "namespace": "ns", "uid": "u1", "resourceVersion": "5"}})
NODE = Node.from_dict({"metadata": {"name": "node-1", "uid": "u2"}})


class FakeClient:
    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.patched: list[tuple[str, dict[str, Any]]] = []
        self.errors: list[Exception] = []
        self.tries = 0
        self.hang = False

    async def _serve(self) -> None:
        self.tries += 1
        await anyio.sleep(float("inf") if self.hang else 0.001)
        if self.errors:
            raise self.errors.pop(0)

    async def create(self, obj: Any) -> Any:
        await self._serve()
        self.created.append(obj.to_dict())

    async def patch(self, kind: Any, key: str, patch: Any) -> Any:
        await self._serve()
        self.patched.append((key, patch.fields))


def broadcaster(client: FakeClient, **options: Any) -> EventBroadcaster:
    clock = lambda: asyncio.get_running_loop().time()  # noqa: E731
    return EventBroadcaster(client, clock=clock, wall=lambda: WALL, host="host", **options)  # type: ignore[arg-type]


@asynccontextmanager
async def running(events: EventBroadcaster) -> AsyncIterator[None]:
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(events.run, stop)
        yield
        stop.set()


async def test_ev_3_an_event_has_all_that_the_api_asks_for():
    client = FakeClient()
    events = broadcaster(client)
    async with running(events):
        events.recorder("web-controller").event(
            MAP, "Normal", "Created", "made it", action="CreateConfigMap", related=NODE
        )
        await anyio.sleep(1)
    [created] = client.created
    name = created["metadata"].pop("name")
    assert name.startswith("web.")
    assert created == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "ns"},
        "eventTime": "2026-01-02T03:04:05.000006Z",
        "reportingController": "web-controller",
        "reportingInstance": "web-controller-host",
        "regarding": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "web",
            "namespace": "ns",
            "uid": "u1",
            "resourceVersion": "5",
        },
        "related": {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "u2"},
        "type": "Normal",
        "reason": "Created",
        "action": "CreateConfigMap",
        "note": "made it",
    }


async def test_ev_3_events_of_cluster_scoped_objects_go_to_default():
    client = FakeClient()
    events = broadcaster(client)
    async with running(events):
        events.recorder("c").event(NODE, "Warning", "Lost", "gone", action="Watch")
    assert client.created[0]["metadata"]["namespace"] == "default"
    assert "namespace" not in client.created[0]["regarding"]


async def test_ev_2_what_is_said_of_another_version_of_the_object_is_an_event_of_its_own():
    client = FakeClient()
    events = broadcaster(client)
    later = MAP.deep_copy()
    later.metadata.resource_version = "6"
    async with running(events):
        for obj in (MAP, later):
            events.recorder("c").event(obj, "Normal", "Created", f"at {obj.metadata.resource_version}", action="Make")
    assert [event["note"] for event in client.created] == ["at 5", "at 6"]


async def test_ev_2_repeats_become_a_series_whatever_their_notes():
    client = FakeClient()
    events = broadcaster(client)
    recorder = events.recorder("c")
    async with running(events):
        for number in range(4):
            recorder.event(MAP, "Warning", "Failed", f"try {number}", action="Sync")
            await anyio.sleep(1)
        recorder.event(MAP, "Warning", "Failed", "x", action="Other")
        events.recorder("d").event(MAP, "Warning", "Failed", "x", action="Sync")
        recorder.event(NODE, "Warning", "Failed", "x", action="Sync")
        await anyio.sleep(1)
        assert len(client.created) == 4
        assert [patch["series"]["count"] for _, patch in client.patched] == [2]
        await anyio.sleep(360)
        assert [patch["series"]["count"] for _, patch in client.patched] == [2, 4]
    assert client.patched[0][0] == f"ns/{client.created[0]['metadata']['name']}"


async def test_names_differ_within_one_microsecond_and_stay_valid():
    client = FakeClient()
    events = broadcaster(client)
    long = ConfigMap.from_dict({"metadata": {"name": "n" * 253, "namespace": "ns"}})
    async with running(events):
        for action in ("A", "B"):
            events.recorder("c").event(long, "Normal", "R", "n", action=action)
    names = [created["metadata"]["name"] for created in client.created]
    assert len(set(names)) == 2
    assert all(len(name) <= 253 for name in names)


async def test_ev_3_long_values_are_cut_to_what_the_api_takes():
    client = FakeClient()
    events = broadcaster(client)
    async with running(events):
        events.recorder("c" * 63).event(MAP, "Normal", "R", "ü" * 2000, action="A")
    assert len(client.created[0]["note"].encode()) <= 1024
    assert client.created[0]["note"].endswith("ü…")
    client = FakeClient()
    events = EventBroadcaster(client, host="h" * 200)  # type: ignore[arg-type]
    async with running(events):
        for api in ("events.k8s.io/v1", "v1"):
            events.recorder("c", api=api).event(MAP, "Normal", "R", "n", action="A")
    assert client.created[0]["reportingInstance"] == "c-" + "h" * 126
    assert client.created[1]["reportingInstance"] == "h" * 128


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"type": "Info"}, "type"),
        ({"reason": ""}, "reason"),
        ({"reason": "r" * 129}, "reason"),
        ({"action": ""}, "action"),
    ],
)
async def test_wrong_arguments_are_refused_by_name(arguments: dict[str, Any], field: str):
    call = {"type": "Normal", "reason": "R", "note": "n", "action": "A", **arguments}
    with pytest.raises(ValueError, match=f"^{field}: "):
        broadcaster(FakeClient()).recorder("c").event(MAP, **call)


@pytest.mark.parametrize("component", ["", "a b", "x" * 64, "-a"])
def test_a_component_must_be_a_qualified_name(component: str):
    with pytest.raises(ValueError, match=r"^component: "):
        EventBroadcaster(FakeClient(), host="h").recorder(component)  # type: ignore[arg-type]


@pytest.mark.rules("EV-1", "EV-3", "U-70")
async def test_ev_3_recording_never_waits_and_drops_beyond_a_bound():
    client = FakeClient()
    client.hang = True
    events = broadcaster(client)
    recorder = events.recorder("c")
    async with running(events):
        for number in range(1500):
            recorder.event(MAP, "Normal", "R", "n", action=f"A{number}")
        assert len(events._queue) == 1000


@pytest.mark.rules("EV-1", "EV-3")
@pytest.mark.parametrize("api", ["events.k8s.io/v1", "v1"])
async def test_ev_3_what_fails_is_tried_twelve_times_ten_seconds_apart_and_then_logged(
    api: Any, capsys: pytest.CaptureFixture[str]
):
    client = FakeClient()
    events = broadcaster(client, random=lambda: 0.3)
    recorder = events.recorder("c", api=api)
    async with running(events):
        client.errors = [ServiceUnavailableError("try later"), OSError("cut")]
        recorder.event(MAP, "Normal", "R", "a", action="A")
        await anyio.sleep(3.1)
        assert (client.tries, client.created) == (2, [])  # the first wait is a random part of 10 s
        await anyio.sleep(10)
        assert [created["action"] for created in client.created] == ["A"]
        client.tries = 0
        client.errors = [OSError("cut") for _ in range(20)]
        recorder.event(MAP, "Normal", "R", "b", action="B")
        await anyio.sleep(3 + 10 * 10 + 1)
        assert client.tries == 12
        assert "event_not_written" in capsys.readouterr().out
        client.errors = []
        recorder.event(MAP, "Normal", "R", "c", action="C")
        await anyio.sleep(1)
        assert [created["action"] for created in client.created] == ["A", "C"]


async def test_ev_3_what_the_server_refuses_is_not_tried_again():
    client = FakeClient()
    events = broadcaster(client)
    async with running(events):
        client.errors = [ForbiddenError("no")]
        events.recorder("c").event(MAP, "Normal", "R", "n", action="B")
        events.recorder("c").event(MAP, "Normal", "R", "n", action="C")
        await anyio.sleep(1)
    assert (client.tries, [created["action"] for created in client.created]) == (2, ["C"])


async def test_ev_2_a_series_whose_event_expired_is_created_again():
    client = FakeClient()
    events = broadcaster(client)
    async with running(events):
        events.recorder("c").event(MAP, "Normal", "R", "n", action="A")
        await anyio.sleep(1)
        client.errors = [NotFoundError("expired")]
        events.recorder("c").event(MAP, "Normal", "R", "n", action="A")
        await anyio.sleep(1)
    assert client.created[1]["series"] == {"count": 2, "lastObservedTime": "2026-01-02T03:04:05.000006Z"}


CORE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Event",
    "metadata": {"namespace": "ns"},
    "source": {"component": "web-controller", "host": "host"},
    "reportingComponent": "web-controller",
    "reportingInstance": "host",
    "involvedObject": {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "web",
        "namespace": "ns",
        "uid": "u1",
        "resourceVersion": "5",
    },
    "message": "made it",
    "count": 1,
    "firstTimestamp": "2026-01-02T03:04:05Z",
    "lastTimestamp": "2026-01-02T03:04:05Z",
    "type": "Normal",
    "reason": "Created",
    "action": "Create",
}


@pytest.mark.rules("EV-1")
async def test_ev_1_events_of_core_are_counted_and_written_anew_once_they_expired():
    client = FakeClient()
    events = broadcaster(client)
    recorder = events.recorder("web-controller", api="v1")
    async with running(events):
        for _ in range(3):
            recorder.event(MAP, "Normal", "Created", "made it", action="Create")
            await anyio.sleep(1)
        client.errors = [NotFoundError("expired")]
        recorder.event(MAP, "Normal", "Created", "made it", action="Create")
        await anyio.sleep(1)
    first, fourth = client.created
    name = first["metadata"].pop("name")
    assert first == CORE
    patch = {"lastTimestamp": "2026-01-02T03:04:05Z", "message": "made it"}
    assert client.patched == [(f"ns/{name}", {"count": 2, **patch}), (f"ns/{name}", {"count": 3, **patch})]
    assert fourth == {**CORE, "count": 4, "metadata": {"namespace": "ns", "name": name}}


async def test_an_unknown_api_is_refused():
    events = broadcaster(FakeClient())
    with pytest.raises(ValueError, match=r"^api: "):
        events.recorder("c", api="v2")  # type: ignore[arg-type]


async def test_ev_3_at_the_end_what_waits_is_written_and_later_calls_do_nothing():
    client = FakeClient()
    events = broadcaster(client)
    recorder = events.recorder("c")
    recorder.event(MAP, "Normal", "R", "before the start", action="A")
    async with running(events):
        for number in range(5):
            recorder.event(MAP, "Normal", "R", "n", action=f"A{number}")
            recorder.event(MAP, "Normal", "R", "n", action="Again")
    assert len(client.created) == 7
    assert client.patched[-1][1]["series"]["count"] == 5
    recorder.event(MAP, "Normal", "R", "late", action="Late")
    await anyio.sleep(1)
    assert len(client.created) == 7


async def test_ev_3_the_flush_at_the_end_is_bounded():
    client = FakeClient()
    client.hang = True
    events = broadcaster(client)
    async with running(events):
        for number in range(5):
            events.recorder("c").event(MAP, "Normal", "R", "n", action=f"A{number}")
    assert asyncio.get_running_loop().time() == pytest.approx(2)


@pytest.mark.rules("EV-3", "MG-2")
async def test_ev_3_at_the_end_an_event_that_waits_for_another_try_does_not_hold_up_the_rest():
    client = FakeClient()
    client.errors = [ServiceUnavailableError("busy")] * 3
    events = broadcaster(client, random=lambda: 0.9)
    recorder = events.recorder("c")
    async with running(events):
        recorder.event(MAP, "Normal", "R", "n", action="Stuck")
        await anyio.sleep(25)  # within the pause after the third try
        recorder.event(MAP, "Normal", "R", "n", action="Stopped")
        await anyio.sleep(0.001)
        client.errors = [ServiceUnavailableError("busy")]
    assert [event["action"] for event in client.created] == ["Stopped"]
    assert client.tries == 5
    assert asyncio.get_running_loop().time() < 26


async def test_an_idle_broadcaster_has_no_timer():
    events = broadcaster(FakeClient())
    async with running(events):
        await anyio.sleep(1)
        timers = [handle for handle in asyncio.get_running_loop()._scheduled if not handle._cancelled]  # type: ignore[attr-defined]
        assert timers == []


@pytest.mark.looptime(False)  # noqa: FBT003
async def test_recording_from_a_worker_thread_wakes_the_writer():
    client = FakeClient()
    events = EventBroadcaster(client, host="h")  # type: ignore[arg-type]
    recorder = events.recorder("c")
    async with running(events):
        await anyio.to_thread.run_sync(lambda: recorder.event(MAP, "Normal", "R", "n", action="A"))
        with anyio.fail_after(30):
            while not client.created:
                await anyio.sleep(0.01)
