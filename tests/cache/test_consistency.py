from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import Cache, CacheOptions, KindOptions
from pyreconcile.cache._consistency import PendingWrites, collect_own_writes

RESOURCE = ConfigMap.resource


def seen(pending: PendingWrites, key: str) -> bool:
    return not pending.on(key)


def test_ry_3_a_write_is_seen_when_the_watch_reaches_its_version():
    pending = PendingWrites()
    pending.written("n/a", "100", "99")
    pending.reached("99")
    assert not seen(pending, "n/a")
    assert seen(pending, "n/b")
    pending.reached("100")
    assert seen(pending, "n/a")
    assert not pending


@pytest.mark.parametrize(("version", "reached"), [("100", "100"), ("99", "100"), ("x", "5"), ("7", "x"), ("", "")])
def test_ry_3_a_write_already_seen_or_without_order_is_not_waited_for(version: str, reached: str):
    pending = PendingWrites()
    pending.written("n/a", version, reached)
    assert not pending


def test_ry_6_a_reader_waits_for_the_writes_of_its_start_only():
    pending = PendingWrites()
    pending.written("n/a", "5", "1")
    (first,) = pending.on("n/a")
    pending.written("n/a", "9", "1")
    pending.reached("5")
    assert first.seen
    assert not seen(pending, "n/a")
    assert [write.key for write in pending.all("n")] == ["n/a"]
    assert pending.all("m") == []


def test_ry_5_a_delete_is_seen_when_the_object_of_its_uid_goes():
    pending = PendingWrites()
    pending.deleted("n/a", "u1", "u1")
    pending.reached("1000")
    assert not seen(pending, "n/a")
    pending.gone("n/a", "u2")
    assert not seen(pending, "n/a")
    pending.gone("n/a", "u1")
    assert not pending


def test_ry_5_a_delete_whose_event_came_before_its_answer_is_not_waited_for():
    pending = PendingWrites()
    pending.deleted("n/a", "u1", "")
    pending.deleted("n/b", "u1", "u2")
    assert not pending


def test_ry_5_a_delete_of_an_own_creation_still_to_come_is_waited_for():
    stored = {"n/a": ""}
    pending = PendingWrites(stored.__getitem__)
    pending.written("n/a", "5", "1")
    pending.deleted("n/a", "u1", "")
    stored["n/a"] = "u1"
    pending.reached("5")
    assert not seen(pending, "n/a")
    pending.gone("n/a", "u1")
    assert not pending


def test_ry_5_a_delete_that_the_selector_leaves_out_is_given_up_at_the_version_of_the_last_write():
    pending = PendingWrites()
    pending.written("n/a", "5", "1", doubtful=True)
    pending.written("n/a", "7", "1", doubtful=True)
    pending.deleted("n/a", "u1", "")
    pending.reached("6")
    assert len(pending.on("n/a")) == 2
    pending.drop(pending.on("n/a")[-1])  # the server has it no more, so it tells not whether the watch will show it
    assert [write.doubtful for write in pending.on("n/a")] == [False]
    pending.reached("7")
    assert not pending


def test_ry_5_a_list_without_the_object_ends_the_wait_unless_it_is_older_than_the_creation():
    pending = PendingWrites()
    pending.written("n/a", "5", "1")
    pending.deleted("n/a", "u1", "")
    pending.reached("4")
    pending.replaced()
    assert len(pending.on("n/a")) == 2
    pending.reached("6")
    pending.replaced()
    assert not pending


def test_ry_3_answers_in_the_other_order_leave_the_newest_write_to_be_waited_for():
    pending = PendingWrites()
    collected = collect_own_writes()
    pending.written("n/a", "8", "1")
    pending.written("n/a", "7", "1")
    newer, older = collected
    pending.reached("7")
    assert (older.seen, newer.seen, seen(pending, "n/a")) == (True, False, False)
    pending.reached("8")
    assert newer.seen
    assert not pending


def test_ry_3_a_write_of_a_key_that_was_given_up_is_still_shown_to_who_waits_for_it():
    pending = PendingWrites()
    collected = collect_own_writes()
    pending.written("n/a", "7", "1")
    pending.written("n/a", "8", "1")
    pending.drop(pending.on("n/a")[0])
    assert (seen(pending, "n/a"), bool(pending)) == (True, True)
    pending.reached("7")
    assert collected[0].seen


@given(st.lists(st.tuples(st.sampled_from(["w", "r"]), st.sampled_from(["a", "b"]), st.integers(1, 40)), max_size=40))
def test_ry_3_pending_is_exactly_what_the_watch_has_not_reached(steps: list[tuple[str, str, int]]):
    pending = PendingWrites()
    collected = collect_own_writes()
    written: list[tuple[str, int]] = []
    reached = 1
    for what, key, number in steps:
        if what == "w":
            # In any order: of two tasks the one with the later write may be first to handle its answer.
            pending.written(key, str(number), str(reached))
            written.append((key, number))
        else:
            reached = max(reached, number)
            pending.reached(str(reached))
        newest = {key: number for key, number in sorted(written, key=lambda write: write[1]) if number > reached}
        assert {write.key: write.number for write in pending.all()} == newest
        assert [write.seen for write in collected] == [number <= reached for _, number in written]
        assert bool(pending) is bool(newest)


@pytest.fixture
def cached(running: Any) -> Any:
    def cached(server: Any, **options: Any) -> Any:
        return running(Cache(server, CacheOptions(**options), clock=anyio.current_time))

    return cached


@pytest.mark.looptime
class TestReads:
    async def test_ry_4_get_waits_until_the_watch_shows_the_write(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            assert await cache.find(ConfigMap, "n/a") is None
            server.hold()
            obj = server.put("n/a", data={"x": "1"})
            cache.written(RESOURCE, "n/a", obj["metadata"]["resourceVersion"])
            tasks.start_soon(server.release_after, 3)
            before = anyio.current_time()
            assert await cache.find(ConfigMap, "n/b") is None
            assert anyio.current_time() == before
            found = await cache.get(ConfigMap, "n/a")
            assert (found.data, anyio.current_time() - before) == ({"x": "1"}, pytest.approx(3, abs=0.01))
            assert (cache.own_write_waits, cache.live_reads) == (1, 0)

    async def test_ry_4_list_waits_for_all_pending_keys_of_its_namespace(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            assert await cache.list(ConfigMap) == []
            server.hold()
            for key in ("n/a", "n/b"):
                cache.written(RESOURCE, key, server.put(key)["metadata"]["resourceVersion"])
            before = anyio.current_time()
            assert await cache.list(ConfigMap, namespace="other") == []
            assert anyio.current_time() == before
            tasks.start_soon(server.release_after, 3)
            assert [obj.key for obj in await cache.list(ConfigMap, namespace="n")] == ["n/a", "n/b"]
            assert anyio.current_time() - before == pytest.approx(3, abs=0.01)

    async def test_ry_7_after_the_bound_reads_go_to_the_server_and_are_counted(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server) as cache:
            cache.add_index(ConfigMap, "x", lambda obj: [obj["data"]["x"]])
            await cache.wait_for_sync()
            server.hold()
            obj = server.put("n/a", data={"x": "1"}, labels={"l": "1"})
            server.put("n/b", data={"x": "2"}, labels={"l": "1"})
            cache.written(RESOURCE, "n/a", obj["metadata"]["resourceVersion"])
            before = anyio.current_time()
            assert (await cache.get(ConfigMap, "n/a")).data == {"x": "1"}
            assert anyio.current_time() - before == pytest.approx(5, abs=0.01)
            assert (cache.own_write_waits, cache.live_reads) == (1, 1)
            # Until the watch catches up nobody waits in vain again.
            assert [obj.key for obj in await cache.list(ConfigMap, labels="l=1")] == ["n/a", "n/b"]
            assert [obj.key for obj in await cache.list(ConfigMap, index=("x", "2"))] == ["n/b"]
            assert anyio.current_time() - before == pytest.approx(5, abs=0.01)
            assert cache.live_reads == 3
            server.release()
            await anyio.sleep(1)
            requests = len(server.requests)
            assert (await cache.get(ConfigMap, "n/a")).data == {"x": "1"}
            assert len(server.requests) == requests

    async def test_ry_7_bound_is_an_option(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server, read_timeout=0.5) as cache:
            await cache.find(ConfigMap, "n/a")
            server.hold()
            cache.written(RESOURCE, "n/a", server.put("n/a")["metadata"]["resourceVersion"])
            before = anyio.current_time()
            assert await cache.find(ConfigMap, "n/a")
            assert anyio.current_time() - before == pytest.approx(0.5, abs=0.01)

    async def test_ry_5_read_after_own_delete_finds_nothing(self, fake_server: Any, cached: Any):
        server = fake_server()
        obj = server.put("n/a")
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            assert await cache.find(ConfigMap, "n/a")
            server.hold()
            server.delete("n/a")
            cache.deleted(RESOURCE, "n/a", obj["metadata"]["uid"], None)
            tasks.start_soon(server.release_after, 2)
            assert await cache.find(ConfigMap, "n/a") is None
            assert (cache.own_write_waits, cache.live_reads) == (1, 0)

    async def test_ry_5_delete_and_new_creation_under_one_name(self, fake_server: Any, cached: Any):
        server = fake_server()
        obj = server.put("n/a", uid="old")
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            assert await cache.find(ConfigMap, "n/a")
            server.hold()
            server.delete("n/a")
            cache.deleted(RESOURCE, "n/a", obj["metadata"]["uid"], None)
            obj = server.put("n/a", uid="new")
            cache.written(RESOURCE, "n/a", obj["metadata"]["resourceVersion"])
            tasks.start_soon(anyio.sleep, 1)
            server.release()
            assert (await cache.get(ConfigMap, "n/a")).metadata.uid == "new"

    async def test_ry_5_delete_with_finalizers_is_waited_for_by_version(self, fake_server: Any, cached: Any):
        server = fake_server()
        server.put("n/a")
        async with cached(server) as cache:
            assert await cache.find(ConfigMap, "n/a")
            server.hold()
            obj = server.put("n/a", data={"terminating": "yes"})
            cache.deleted(RESOURCE, "n/a", obj["metadata"]["uid"], obj["metadata"]["resourceVersion"])
            assert cache.informer(ConfigMap).parts[0].pending
            server.release()
            assert (await cache.get(ConfigMap, "n/a")).data == {"terminating": "yes"}

    async def test_ry_5_a_relist_ends_the_wait_for_a_missed_delete(self, fake_server: Any, cached: Any):
        server = fake_server()
        obj = server.put("n/a")
        async with cached(server) as cache:
            assert await cache.find(ConfigMap, "n/a")
            server.hold()
            server.delete("n/a")
            cache.deleted(RESOURCE, "n/a", obj["metadata"]["uid"], None)
            server.compact()
            server.cut()
            server.release()
            assert await cache.find(ConfigMap, "n/a") is None
            assert cache.live_reads == 0

    async def test_ry_4_writes_before_the_kind_was_watched_set_the_version_of_its_first_list(
        self, fake_server: Any, cached: Any
    ):
        server = fake_server(streaming=False)
        async with cached(server) as cache:
            for version in ("9", "10", "8"):
                cache.written(RESOURCE, "n/a", version)
            cache.written(RESOURCE, "n/a", "odd")
            await cache.find(ConfigMap, "n/a")
            lists = [query for _, query in server.requests if "watch" not in query]
            assert lists == [{"resourceVersion": "10"}]

    async def test_ry_7_a_write_that_the_selector_leaves_out_is_not_waited_for(self, fake_server: Any, cached: Any):
        server = fake_server()
        options = {ConfigMap: KindOptions(labels="mine=yes")}
        async with cached(server, by_kind=options) as cache, anyio.create_task_group() as tasks:
            assert await cache.list(ConfigMap) == []
            server.hold()
            other = server.put("n/other")
            cache.written(RESOURCE, "n/other", other["metadata"]["resourceVersion"])
            before = anyio.current_time()
            assert await cache.find(ConfigMap, "n/other") is None
            assert (anyio.current_time(), cache.own_write_waits) == (before, 0)
            mine = server.put("n/mine", labels={"mine": "yes"})
            cache.written(RESOURCE, "n/mine", mine["metadata"]["resourceVersion"])
            tasks.start_soon(server.release_after, 2)
            assert [obj.key for obj in await cache.list(ConfigMap)] == ["n/mine"]
            # One look at the server for each of the two, and one wait for the one that is selected.
            assert (cache.own_write_waits, cache.live_reads) == (1, 2)

    async def test_ry_5_a_delete_that_the_watch_never_shows_is_waited_for_until_the_next_bookmark_at_most(
        self, fake_server: Any, cached: Any
    ):
        server = fake_server()
        async with cached(server, by_kind={ConfigMap: KindOptions(labels="mine=yes")}) as cache:
            await cache.list(ConfigMap)
            obj = server.put("n/other")
            cache.written(RESOURCE, "n/other", obj["metadata"]["resourceVersion"])
            server.delete("n/other")
            cache.deleted(RESOURCE, "n/other", obj["metadata"]["uid"], None)
            before = anyio.current_time()
            assert [await cache.list(ConfigMap) for _ in range(3)] == [[]] * 3
            assert anyio.current_time() - before == pytest.approx(5, abs=0.01)
            server.bookmark()
            await anyio.sleep(1)
            live = cache.live_reads
            assert await cache.list(ConfigMap) == []
            assert (cache.live_reads, bool(cache.informer(ConfigMap).parts[0].pending)) == (live, False)

    async def test_ry_7_a_selector_by_name_tells_from_the_key_what_to_wait_for(self, fake_server: Any, cached: Any):
        server = fake_server()
        options = {ConfigMap: KindOptions(fields="metadata.name!=other")}
        async with cached(server, by_kind=options) as cache:
            await cache.list(ConfigMap)
            server.hold()
            cache.written(RESOURCE, "n/other", server.put("n/other")["metadata"]["resourceVersion"])
            (part,) = cache.informer(ConfigMap).parts
            assert not part.pending
            cache.written(RESOURCE, "n/mine", server.put("n/mine")["metadata"]["resourceVersion"])
            assert [write.doubtful for write in part.pending.all()] == [False]

    async def test_ry_7_live_reads_keep_to_selector_and_transform(self, fake_server: Any, cached: Any):
        server = fake_server()

        def transform(obj: dict[str, Any]) -> dict[str, Any]:
            obj.pop("data", None)
            return obj

        options = {ConfigMap: KindOptions(labels="mine=yes", transform=transform)}
        async with cached(server, by_kind=options) as cache:
            server.put("n/a", labels={"mine": "yes"})
            assert await cache.find(ConfigMap, "n/a")
            server.hold()
            obj = server.put("n/a", labels={"mine": "yes"}, data={"x": "1"})
            cache.written(RESOURCE, "n/a", obj["metadata"]["resourceVersion"])
            assert not (await cache.get(ConfigMap, "n/a")).data
            server.put("n/a", labels={"mine": "no"})
            assert await cache.find(ConfigMap, "n/a") is None
            assert await cache.list(ConfigMap) == []
            assert cache.live_reads == 3

    async def test_ry_6_cancelled_reader_leaves_nothing_behind(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server) as cache:
            await cache.find(ConfigMap, "n/a")
            server.hold()
            cache.written(RESOURCE, "n/a", server.put("n/a")["metadata"]["resourceVersion"])
            with anyio.move_on_after(1) as scope:
                await cache.find(ConfigMap, "n/a")
            assert scope.cancelled_caught
            server.release()
            assert await cache.find(ConfigMap, "n/a")
            assert not cache.informer(ConfigMap).parts[0].pending
