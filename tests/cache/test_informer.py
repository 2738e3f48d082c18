from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import structlog

from pyreconcile.api import RawObject
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import Backoff, Informer, InformerStoppedError, Reflector, Scope, ServerSupport, Sink

pytestmark = pytest.mark.looptime


@pytest.fixture
def informing() -> Any:
    @asynccontextmanager
    async def informing(server: Any, *scopes: Scope, handlers: Any = (), **options: Any) -> AsyncIterator[Any]:
        clock = anyio.current_time

        def make(scope: Scope, sink: Sink) -> Reflector:
            backoff = Backoff(clock=clock, random=lambda: 0.0)
            return Reflector(
                server,
                ConfigMap.resource,
                scope,
                sink,
                support=ServerSupport(server.streaming),
                backoff=backoff,
                clock=clock,
            )

        informer = Informer(ConfigMap, scopes or (Scope(),), make, **options)
        for handler in handlers:
            informer.add_handler(handler)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(informer.run)
            yield informer
            tasks.cancel_scope.cancel()

    return informing


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.rules("IN-5", "U-53")
async def test_in_4_5_objects_of_the_first_list_are_told_as_initial(
    fake_server: Any, recorder: Any, informing: Any, streaming: bool
):
    server, handler = fake_server(streaming=streaming), recorder()
    server.put("n/a")
    async with informing(server, handlers=[handler]) as informer:
        (registration,) = informer.registrations
        assert not registration.has_synced
        await registration.wait_synced()
        assert (informer.has_synced, registration.has_synced) == (True, True)
        server.put("n/b")
        assert await handler.wait(2) == [("initial", "n/a"), ("add", "n/b")]
        assert informer.last_resource_version == str(server.version)


@pytest.mark.rules("U-53")
async def test_in_4_an_empty_list_syncs_too(fake_server: Any, recorder: Any, informing: Any):
    async with informing(fake_server(), handlers=[recorder()]) as informer:
        await informer.wait_synced()
        await informer.registrations[0].wait_synced()


async def test_in_4_a_handler_has_synced_only_after_its_calls_were_made(
    fake_server: Any, recorder: Any, informing: Any
):
    server = fake_server()
    for number in range(250):
        server.put(f"n/{number}")
    handler = recorder()
    async with informing(server, handlers=[handler]) as informer:
        await informer.wait_synced()
        assert not informer.registrations[0].has_synced
        await informer.registrations[0].wait_synced()
        assert len(handler.calls) == 250


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.rules("U-48")
async def test_in_2_relist_tells_of_vanished_objects_first_and_of_each_change_once(
    fake_server: Any, recorder: Any, informing: Any, streaming: bool
):
    server, handler = fake_server(streaming=streaming), recorder()
    for key in ("n/changed", "n/gone", "n/same"):
        server.put(key)
    async with informing(server, handlers=[handler]) as informer:
        await handler.wait(3)
        server.hold()
        server.delete("n/gone")
        server.put("n/changed")
        server.put("n/added")
        server.compact()
        server.cut()
        server.release()
        await handler.wait(6)
        await anyio.sleep(100)
        assert handler.calls[3:] == [("vanished", "n/gone"), ("add", "n/added"), ("update", "n/changed")]
        assert informer.store.keys() == ["n/added", "n/changed", "n/same"]


async def test_o_01_delete_while_the_watch_is_cut_is_told_once_with_the_last_known_object(
    fake_server: Any, informing: Any
):
    server = fake_server()
    server.put("n/b", labels={"owner": "me"})
    seen: list[RawObject] = []

    class Deletes:
        def on_add(self, obj: RawObject, *, initial: bool) -> None: ...
        def on_update(self, old: RawObject, new: RawObject) -> None: ...
        def on_delete(self, obj: RawObject, *, state_unknown: bool) -> None:
            assert state_unknown
            seen.append(obj)

    async with informing(server, handlers=[Deletes()]) as informer:
        await informer.wait_synced()
        server.hold()
        server.delete("n/b")
        server.compact()
        server.cut()
        server.release()
        await anyio.sleep(100)
        assert [obj["metadata"]["labels"] for obj in seen] == [{"owner": "me"}]


async def test_in_7_delete_carries_the_object_with_the_deletes_own_version(fake_server: Any, informing: Any):
    server = fake_server()
    server.put("n/a")
    versions: list[str] = []

    class Deletes:
        def on_add(self, obj: RawObject, *, initial: bool) -> None: ...
        def on_update(self, old: RawObject, new: RawObject) -> None: ...
        def on_delete(self, obj: RawObject, *, state_unknown: bool) -> None:
            assert not state_unknown
            versions.append(obj["metadata"]["resourceVersion"])

    async with informing(server, handlers=[Deletes()]) as informer:
        await informer.wait_synced()
        server.delete("n/a")
        await anyio.sleep(1)
        assert versions == [str(server.version)]


async def test_in_8_a_handler_finds_its_event_in_the_store(fake_server: Any, informing: Any):
    server = fake_server()
    found: list[bool] = []

    class Reads:
        def on_add(self, obj: RawObject, *, initial: bool) -> None:
            found.append(informer.store.get("n/a") is obj)

        def on_update(self, old: RawObject, new: RawObject) -> None: ...
        def on_delete(self, obj: RawObject, *, state_unknown: bool) -> None:
            found.append(informer.store.get("n/a") is None)

    async with informing(server, handlers=[Reads()]) as informer:
        await informer.wait_synced()
        server.put("n/a")
        await anyio.sleep(1)
        server.delete("n/a")
        await anyio.sleep(1)
        assert found == [True, True]


@pytest.mark.rules("U-50")
async def test_in_10_late_handler_gets_every_stored_object_and_every_later_event_once(
    fake_server: Any, recorder: Any, informing: Any
):
    server, early, late = fake_server(), recorder(), recorder()
    server.put("n/a")
    async with informing(server, handlers=[early]) as informer:
        await informer.wait_synced()
        server.put("n/b")
        await early.wait(2)
        server.put("n/a")
        registration = informer.add_handler(late)
        assert not registration.has_synced
        await registration.wait_synced()
        server.delete("n/b")
        await late.wait(4)
        assert late.calls == [("initial", "n/a"), ("initial", "n/b"), ("update", "n/a"), ("delete", "n/b")]


@pytest.mark.rules("U-50")
async def test_in_11_removed_handler_hears_nothing_more(fake_server: Any, recorder: Any, informing: Any):
    server, kept, removed = fake_server(), recorder(), recorder()
    async with informing(server, handlers=[kept]) as informer:
        registration = informer.add_handler(removed)
        await registration.wait_synced()
        server.put("n/a")
        await kept.wait(1)
        heard = list(removed.calls)
        registration.remove()
        registration.remove()
        server.put("n/b")
        await kept.wait(2)
        await anyio.sleep(1)
        assert removed.calls == heard
        assert len(informer.registrations) == 1


async def test_in_11_a_handler_may_remove_itself_and_add_another(fake_server: Any, recorder: Any, informing: Any):
    server, other = fake_server(), recorder()
    server.put("n/a")
    server.put("n/b")

    class Once(type(other)):  # type: ignore[misc]
        def on_add(self, obj: RawObject, *, initial: bool) -> None:
            super().on_add(obj, initial=initial)
            registration.remove()
            informer.add_handler(other)

    once = Once()
    async with informing(server) as informer:
        registration = informer.add_handler(once)
        await other.wait(2)
        assert once.calls == [("initial", "n/a")]
        assert other.calls == [("initial", "n/a"), ("initial", "n/b")]


async def test_in_11_a_stopped_informer_takes_no_handler_and_lets_waiters_go(
    scripted: Any, fake_server: Any, recorder: Any, informing: Any
):
    server = fake_server()
    server.failure = ServerDownError("down")
    async with informing(server, handlers=[recorder()]) as informer, anyio.create_task_group() as tasks:
        errors: list[str] = []

        async def wait(what: Any) -> None:
            with pytest.raises(InformerStoppedError):
                await what.wait_synced()
            errors.append("stopped")

        tasks.start_soon(wait, informer)
        tasks.start_soon(wait, informer.registrations[0])
        await anyio.sleep(5)
        assert errors == []
        informer.stop()
    assert errors == ["stopped", "stopped"]
    with pytest.raises(InformerStoppedError, match="has stopped"):
        informer.add_handler(recorder())


class ServerDownError(RuntimeError):
    """Any failure of the server."""


@pytest.mark.rules("U-51")
async def test_in_12_a_handler_that_raises_is_logged_and_counted_and_the_rest_goes_on(
    fake_server: Any, recorder: Any, informing: Any
):
    server, good = fake_server(), recorder()

    class Bad(type(good)):  # type: ignore[misc]
        def on_add(self, obj: RawObject, *, initial: bool) -> None:
            if obj["metadata"]["name"] == "odd":
                raise LookupError("no")
            super().on_add(obj, initial=initial)

    bad = Bad()
    server.put("n/odd")
    with structlog.testing.capture_logs() as logs:
        async with informing(server) as informer:
            registration = informer.add_handler(bad, name="mine")
            informer.add_handler(good)
            await registration.wait_synced()
            server.put("n/fine")
            await bad.wait(1)
            await good.wait(2)
            assert (bad.calls, registration.errors, registration.failing) == ([("add", "n/fine")], 1, False)
    assert [(log["handler"], log["name"]) for log in logs if log["event"] == "event_handler_failed"] == [
        ("mine", "odd")
    ]


@pytest.mark.rules("U-49")
async def test_in_13_each_handler_is_resynced_after_its_own_period(fake_server: Any, recorder: Any, informing: Any):
    server, often, seldom, never = fake_server(), recorder(), recorder(), recorder()
    server.put("n/a")
    async with informing(server, resync=lambda: 35.0) as informer:
        informer.add_handler(often, resync=0.01)
        informer.add_handler(seldom)
        informer.add_handler(never, resync=0)
        await informer.wait_synced()
        await anyio.sleep(36.5)
        assert often.calls.count(("resync", "n/a")) == 36
        assert seldom.calls == [("initial", "n/a"), ("resync", "n/a")]
        assert never.calls == [("initial", "n/a")]
        assert len(server.requests) == 1


async def test_in_14_objects_a_relist_shows_unchanged_go_only_to_handlers_that_asked_for_resync(
    fake_server: Any, recorder: Any, informing: Any
):
    server, asked, plain = fake_server(), recorder(), recorder()
    server.put("n/a")
    async with informing(server, resync=lambda: 36000.0) as informer:
        informer.add_handler(asked, resync=3600)
        informer.add_handler(plain)
        await informer.wait_synced()
        server.put("n/b")
        await plain.wait(2)
        server.compact()
        server.cut()
        await anyio.sleep(100)
        assert plain.calls == [("initial", "n/a"), ("add", "n/b")]
        assert asked.calls == [("initial", "n/a"), ("add", "n/b"), ("resync", "n/a"), ("resync", "n/b")]


@pytest.mark.rules("IN-18")
async def test_o_04_bookmarks_reach_no_handler(fake_server: Any, recorder: Any, informing: Any):
    server, handler = fake_server(), recorder()
    async with informing(server, handlers=[handler]) as informer:
        await informer.wait_synced()
        server.version += 5
        server.bookmark()
        await anyio.sleep(1)
        assert (handler.calls, informer.last_resource_version) == ([], str(server.version))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.rules("U-45")
async def test_in_6_transform_runs_once_per_object_on_all_paths(fake_server: Any, informing: Any, streaming: bool):
    server = fake_server(streaming=streaming)
    server.put("n/a", data={"x": "1"})
    told: list[RawObject] = []

    def transform(obj: RawObject) -> RawObject:
        obj["times"] = obj.get("times", 0) + 1
        obj.pop("data", None)
        return obj

    class Keeps:
        def on_add(self, obj: RawObject, *, initial: bool) -> None:
            told.append(obj)

        def on_update(self, old: RawObject, new: RawObject) -> None:
            told.append(new)

        def on_delete(self, obj: RawObject, *, state_unknown: bool) -> None:
            told.append(obj)

    async with informing(server, Scope(transform=transform)) as informer:
        informer.add_handler(Keeps(), resync=20)
        await informer.wait_synced()
        server.put("n/b", data={"x": "1"})
        server.put("n/b", data={"x": "2"})
        await anyio.sleep(30)
        assert [obj["times"] for obj in informer.store.values()] == [1, 1]
        server.delete("n/b")
        server.hold()
        server.delete("n/a")
        server.release()
        server.cut()
        await anyio.sleep(100)
    assert {obj["times"] for obj in told} == {1}
    assert not any("data" in obj for obj in told)


@pytest.mark.rules("U-45")
async def test_in_6_an_error_of_the_transform_stops_the_round_and_leaves_the_store(
    fake_server: Any, recorder: Any, informing: Any
):
    server, handler = fake_server(), recorder()
    server.put("n/a")
    faulty = True

    def transform(obj: RawObject) -> RawObject:
        if faulty and obj["metadata"]["name"] == "b":
            raise ValueError("cannot")
        return obj

    async with informing(server, Scope(transform=transform), handlers=[handler]) as informer:
        await informer.wait_synced()
        server.put("n/b")
        await anyio.sleep(10)
        assert isinstance(informer.last_error, ValueError)
        assert informer.store.keys() == ["n/a"]
        faulty = False
        await handler.wait(2)
        assert handler.calls == [("initial", "n/a"), ("add", "n/b")]


async def test_ca_5_namespaces_are_merged_and_a_relist_of_one_leaves_the_others(
    fake_server: Any, recorder: Any, informing: Any
):
    server, handler = fake_server(), recorder()
    for key in ("n/a", "m/a", "other/a"):
        server.put(key)
    async with informing(server, Scope("n"), Scope("m"), handlers=[handler]) as informer:
        await informer.wait_synced()
        assert informer.store.keys() == ["m/a", "n/a"]
        server.hold()
        server.delete("m/a")
        server.compact()
        server.cut()
        server.release()
        await handler.wait(3)
        await anyio.sleep(100)
        assert handler.calls[2:] == [("vanished", "m/a")]
        assert informer.store.keys() == ["n/a"]


async def test_in_5_a_namespace_that_syncs_first_tells_later_events_as_not_initial(
    fake_server: Any, recorder: Any, informing: Any
):
    server, handler = fake_server(), recorder()
    lists = server.stream

    @asynccontextmanager
    async def stream(path: str, **options: Any) -> AsyncIterator[Any]:
        if "/slow/" in path:
            await anyio.sleep(50)
        async with lists(path, **options) as lines:
            yield lines

    server.stream = stream
    server.put("slow/a")
    async with informing(server, Scope("n"), Scope("slow"), handlers=[handler]) as informer:
        await anyio.sleep(10)
        server.put("n/b")
        await handler.wait(1)
        assert (handler.calls, informer.has_synced) == ([("add", "n/b")], False)
        await informer.wait_synced()
        assert await handler.wait(2) == [("add", "n/b"), ("initial", "slow/a")]


async def test_in_9_a_handler_with_much_to_do_does_not_hold_up_the_others(
    fake_server: Any, recorder: Any, informing: Any
):
    server = fake_server()
    for number in range(300):
        server.put(f"n/{number:03}")
    first, second = recorder(), recorder()
    leads: list[int] = []
    on_add = first.on_add

    def watching(obj: RawObject, *, initial: bool) -> None:
        on_add(obj, initial=initial)
        leads.append(len(first.calls) - len(second.calls))

    first.on_add = watching
    async with informing(server, handlers=[first, second]) as informer:
        await informer.registrations[1].wait_synced()
        assert max(leads) <= 100
        assert first.calls == second.calls == sorted(first.calls)


async def test_in_15_indexes_can_be_added_while_running(fake_server: Any, informing: Any):
    server = fake_server()
    server.put("n/a", data={"x": "1"})
    async with informing(server) as informer:
        await informer.wait_synced()
        informer.add_index("x", lambda obj: [obj["data"]["x"]])
        server.put("n/b", data={"x": "1"})
        await anyio.sleep(1)
        assert informer.store.index_keys("x", "1") == ["n/a", "n/b"]


@pytest.mark.parametrize("streaming", [True, False])
async def test_rf_17_a_long_list_leaves_other_tasks_their_turns_and_comes_in_one_step(
    fake_server: Any, informing: Any, streaming: bool
):
    server = fake_server(streaming=streaming)
    for number in range(3000):
        server.put(f"n/{number}")
    async with informing(server) as informer:
        turns, sizes = 0, set()
        while not informer.has_synced:
            turns += 1
            sizes.add(len(informer.store))
            await anyio.lowlevel.checkpoint()
        assert turns >= 14
        assert sizes == {0}


@pytest.mark.rules("RF-3", "IN-1", "IN-18")
@pytest.mark.parametrize("streaming", [True, False])
async def test_in_1_a_relist_is_one_step_for_readers_of_store_and_index(
    fake_server: Any, recorder: Any, informing: Any, streaming: bool
):
    server, handler = fake_server(streaming=streaming), recorder()
    for number in range(1000):
        server.put(f"n/{number:04}", data={"round": "1"})
    async with informing(server, Scope("n"), Scope("m"), handlers=[handler]) as informer:
        informer.add_index("round", lambda obj: [obj["data"]["round"]])
        await informer.wait_synced()
        await anyio.sleep(2)
        server.hold()
        for number in range(0, 1000, 2):
            server.delete(f"n/{number:04}")
        for number in range(1001, 1500, 2):
            server.put(f"n/{number:04}", data={"round": "2"})
        for number in range(1, 1000, 2):
            server.put(f"n/{number:04}", data={"round": "2"})
        server.compact()
        server.cut()
        server.release()
        seen = set()
        for _ in range(1000):
            store = informer.store
            seen.add((len(store), *(len(store.index_keys("round", value)) for value in "12")))
            await anyio.lowlevel.checkpoint()
        await handler.wait(1000 + 500 + 750)
        assert seen == {(1000, 1000, 0), (750, 0, 750)}
        changes = [change for change, _ in handler.calls[1000:]]
        assert (changes[:500], set(changes[500:])) == (["vanished"] * 500, {"add", "update"})
        assert informer.store.index_values("round") == ["2"]
        server.delete("n/0001")
        await handler.wait(2251)
        assert len(informer.store.index_keys("round", "2")) == 749
