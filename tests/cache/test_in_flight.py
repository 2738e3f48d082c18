"""Readers and writes that are under way, or of which no answer tells what became of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.api import metadata_only
from pyreconcile.api.core_v1 import ConfigMap, Pod
from pyreconcile.cache import Cache, CacheOptions, KindOptions, OwnerVersions, drop_fields
from pyreconcile.cache._consistency import PendingWrites
from pyreconcile.client import (
    AlreadyExistsError,
    ApiError,
    Client,
    ConflictError,
    ConnectionLostError,
    InternalServerError,
    MergePatch,
    NotFoundError,
    RequestTimeoutError,
    ServiceUnavailableError,
    connect,
)
from pyreconcile.client._errors import may_be_done
from pyreconcile.testing import ControlPlane, FaultProxy, Match

RESOURCE = ConfigMap.resource


@pytest.fixture
def cached(running: Any) -> Any:
    def cached(server: Any, **options: Any) -> Any:
        return running(Cache(server, CacheOptions(**options), clock=anyio.current_time))

    return cached


@pytest.mark.looptime
class TestInFlight:
    @pytest.mark.parametrize(("key", "waits"), [("n/a", True), ("n/b", False), ("m/a", False)])
    async def test_ry_4_get_waits_for_a_write_of_its_key_and_then_for_its_version(
        self, fake_server: Any, cached: Any, key: str, waits: bool
    ):
        server = fake_server()
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            await cache.list(ConfigMap)
            write = cache.begin(RESOURCE, "n/a")

            async def answer() -> None:
                await anyio.sleep(1)
                server.hold()
                obj = server.put("n/a", data={"x": "1"})
                cache.end(write)
                cache.written(RESOURCE, "n/a", obj["metadata"]["resourceVersion"])
                await anyio.sleep(2)
                server.release()

            tasks.start_soon(answer)
            before = anyio.current_time()
            found = await cache.find(ConfigMap, key)
            assert anyio.current_time() - before == pytest.approx(3 if waits else 0, abs=0.01)
            assert (found is not None) is waits
            assert (cache.own_write_waits, cache.live_reads) == (int(waits), 0)

    @pytest.mark.parametrize(
        ("key", "namespace", "waits"),
        [("n/a", "", True), ("n/a", "n", True), ("n/a", "m", False), ("n/", "", True), ("n/", "n", True)],
    )
    async def test_ry_4_list_waits_for_all_keys_of_its_kind(
        self, fake_server: Any, cached: Any, key: str, namespace: str, waits: bool
    ):
        server = fake_server()
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            await cache.list(ConfigMap)
            write = cache.begin(RESOURCE, key)

            async def answer() -> None:
                await anyio.sleep(1)
                server.hold()
                obj = server.put("n/a")
                cache.end(write)
                cache.written(RESOURCE, "n/a", obj["metadata"]["resourceVersion"])
                await anyio.sleep(2)
                server.release()

            tasks.start_soon(answer)
            before = anyio.current_time()
            assert len(await cache.list(ConfigMap, namespace=namespace)) == int(waits)
            assert anyio.current_time() - before == pytest.approx(3 if waits else 0, abs=0.01)

    @pytest.mark.parametrize("answered", [True, False])
    async def test_ry_4_a_kind_first_read_while_a_write_is_under_way_shows_it_afterwards(
        self, fake_server: Any, cached: Any, answered: bool
    ):
        server = fake_server()
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            write = cache.begin(RESOURCE, "n/a")
            assert await cache.list(ConfigMap) == []
            server.hold()
            obj = server.put("n/a")
            cache.end(write, unknown=not answered)
            if answered:
                cache.written(RESOURCE, "n/a", obj["metadata"]["resourceVersion"])
            tasks.start_soon(server.release_after, 2)
            before = anyio.current_time()
            assert await cache.find(ConfigMap, "n/a")
            assert anyio.current_time() - before == pytest.approx(2, abs=0.01)

    async def test_ry_4_several_writes_of_a_key_are_all_waited_for(self, fake_server: Any, cached: Any):
        async with cached(fake_server()) as cache, anyio.create_task_group() as tasks:
            await cache.list(ConfigMap)
            writes = [cache.begin(RESOURCE, "n/a"), cache.begin(RESOURCE, "n/a")]

            async def refuse() -> None:
                for write in writes:
                    await anyio.sleep(1)
                    cache.end(write)

            tasks.start_soon(refuse)
            before = anyio.current_time()
            assert await cache.find(ConfigMap, "n/a") is None
            assert anyio.current_time() - before == pytest.approx(2, abs=0.01)
            assert not cache.informer(ConfigMap).parts[0].pending

    async def test_ry_5_a_delete_is_waited_for_before_and_after_its_answer(self, fake_server: Any, cached: Any):
        server = fake_server()
        obj = server.put("n/a")
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            assert await cache.find(ConfigMap, "n/a")
            write = cache.begin(RESOURCE, "n/a")

            async def answer() -> None:
                await anyio.sleep(1)
                server.hold()
                server.delete("n/a")
                cache.end(write)
                cache.deleted(RESOURCE, "n/a", obj["metadata"]["uid"], None)
                await anyio.sleep(1)
                server.release()

            tasks.start_soon(answer)
            before = anyio.current_time()
            assert await cache.find(ConfigMap, "n/a") is None
            assert anyio.current_time() - before == pytest.approx(2, abs=0.01)

    async def test_ry_5_a_delete_that_fails_holds_nobody(self, fake_server: Any, cached: Any):
        server = fake_server()
        server.put("n/a")
        async with cached(server) as cache:
            assert await cache.find(ConfigMap, "n/a")
            cache.end(cache.begin(RESOURCE, "n/a"))
            before = anyio.current_time()
            assert await cache.find(ConfigMap, "n/a")
            assert await cache.list(ConfigMap)
            assert (anyio.current_time(), cache.own_write_waits, cache.live_reads) == (before, 0, 0)

    async def test_ry_6_a_reader_does_not_wait_for_writes_that_begin_after_it(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            await cache.list(ConfigMap)
            first = cache.begin(RESOURCE, "n/a")

            async def others() -> None:
                await anyio.sleep(1)
                cache.begin(RESOURCE, "n/a")
                second = cache.begin(RESOURCE, "n/b")
                server.hold()
                obj = server.put("n/b")
                cache.end(second)
                cache.written(RESOURCE, "n/b", obj["metadata"]["resourceVersion"])
                cache.end(first)

            tasks.start_soon(others)
            before = anyio.current_time()
            assert await cache.list(ConfigMap) == []
            assert anyio.current_time() - before == pytest.approx(1, abs=0.01)

    async def test_ry_6_a_reader_that_is_cancelled_gets_its_own_end(self, fake_server: Any, cached: Any):
        async with cached(fake_server()) as cache:
            await cache.list(ConfigMap)
            write = cache.begin(RESOURCE, "n/a")
            with pytest.raises(TimeoutError), anyio.fail_after(1):
                await cache.find(ConfigMap, "n/a")
            cache.end(write)
            assert await cache.find(ConfigMap, "n/a") is None

    async def test_ry_7_a_write_that_takes_too_long_gives_live_reads(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server) as cache:
            await cache.list(ConfigMap)
            write = cache.begin(RESOURCE, "n/a")
            server.hold()
            server.put("n/a")
            before = anyio.current_time()
            assert await cache.find(ConfigMap, "n/a")
            assert anyio.current_time() - before == pytest.approx(5, abs=0.01)
            assert len(await cache.list(ConfigMap)) == 1
            assert anyio.current_time() - before == pytest.approx(5, abs=0.01)
            assert cache.live_reads == 2
            cache.end(write)

    async def test_ry_7_live_reads_of_metadata_give_metadata(self, fake_server: Any, cached: Any):
        server, kind = fake_server(), metadata_only(ConfigMap)
        by_kind = {kind: KindOptions(transform=drop_fields("metadata.labels"))}
        async with cached(server, by_kind=by_kind) as cache:
            await cache.list(kind)
            cache.begin(RESOURCE, "n/a")
            server.hold()
            server.put("n/a", data={"x": "1"}, labels={"x": "1"})
            raw = await cache.find_raw(kind, "n/a")
            assert raw.keys() == {"apiVersion", "kind", "metadata"}
            assert "labels" not in raw["metadata"]
            assert (await cache.list_raw(kind)) == [raw]

    async def test_ry_7_live_lists_at_the_same_time_are_joined_and_begin_after_their_readers(
        self, fake_server: Any, cached: Any
    ):
        server = fake_server()
        async with cached(server) as cache:
            await cache.list(ConfigMap)
            server.hold()
            write = cache.begin(RESOURCE, "n/a")
            await cache.list(ConfigMap)  # in vain, so from now on nobody waits
            server.answer_after = 1
            requests, began = len(server.requests), anyio.current_time()
            took: list[float] = []

            async def read(after: float, *, given_up_at: float = 100) -> None:
                await anyio.sleep(after)
                with anyio.move_on_after(given_up_at - after):
                    expected = len(server.objects)
                    assert len(await cache.list(ConfigMap)) >= expected
                    took.append(anyio.current_time() - began)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, 0)
                await anyio.sleep(0.1)
                server.put("n/a")
                # Two of them give up, one of which was about to list for all.
                for given_up_at in (0.5, 1.4, 100, 100, 100):
                    tasks.start_soon(partial(read, 0, given_up_at=given_up_at))
                    await anyio.sleep(0.01)
            assert took == pytest.approx([1, 2.51, 2.51, 2.51])
            assert len(server.requests) == requests + 3
            cache.end(write)

    async def test_ry_7_a_live_list_that_fails_fails_for_all_it_was_made_for(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server) as cache:
            await cache.list(ConfigMap)
            server.hold()
            write = cache.begin(RESOURCE, "n/a")
            await cache.list(ConfigMap)
            server.answer_after, server.failure = 1, ServiceUnavailableError("down")
            errors: list[float] = []

            async def read() -> None:
                with pytest.raises(ServiceUnavailableError):
                    await cache.list(ConfigMap)
                errors.append(anyio.current_time() - began)

            began = anyio.current_time()
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(read)
            assert errors == pytest.approx([1] * 4)
            server.failure = None
            assert await cache.list(ConfigMap) == []
            cache.end(write)


@pytest.mark.looptime
class TestUnknown:
    async def test_o_03_a_creation_without_answer_is_looked_up_once_and_waited_for(self, fake_server: Any, cached: Any):
        server = fake_server()
        server.put("n/old")
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            assert len(await cache.list(ConfigMap)) == 1
            server.hold()
            write = cache.begin(RESOURCE, "n/")
            server.put("n/random")
            cache.end(write, unknown=True)
            requests = len(server.requests)
            tasks.start_soon(server.release_after, 3)
            before = anyio.current_time()
            assert await cache.find(ConfigMap, "n/old")
            assert anyio.current_time() == before
            assert [obj.key for obj in await cache.list(ConfigMap, namespace="n")] == ["n/old", "n/random"]
            assert anyio.current_time() - before == pytest.approx(3, abs=0.01)
            for _ in range(5):
                assert len(await cache.list(ConfigMap)) == 2
            ((_, query),) = server.requests[requests:]
            assert "resourceVersion" not in query
            assert (cache.live_reads, cache.own_write_waits) == (1, 1)

    @pytest.mark.parametrize("key", ["n/", "n/a"])
    async def test_o_03_a_creation_that_was_not_done_delays_nobody(self, fake_server: Any, cached: Any, key: str):
        server = fake_server()
        server.put("n/old")
        async with cached(server) as cache:
            await cache.list(ConfigMap)
            cache.end(cache.begin(RESOURCE, key), unknown=True)
            before = anyio.current_time()
            assert [obj.key for obj in await cache.list(ConfigMap)] == ["n/old"]
            assert (anyio.current_time(), cache.live_reads) == (before, 1)

    @pytest.mark.parametrize("done", [True, False])
    async def test_o_03_an_update_without_answer_is_waited_for_if_it_was_done(
        self, fake_server: Any, cached: Any, done: bool
    ):
        server = fake_server()
        server.put("n/a", data={"x": "1"})
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            await cache.list(ConfigMap)
            server.hold()
            write = cache.begin(RESOURCE, "n/a")
            if done:
                server.put("n/a", data={"x": "2"})
            cache.end(write, unknown=True)
            tasks.start_soon(server.release_after, 3)
            before = anyio.current_time()
            assert (await cache.get(ConfigMap, "n/a")).data == {"x": "2" if done else "1"}
            assert anyio.current_time() - before == pytest.approx(3 if done else 0, abs=0.01)
            assert not cache.informer(ConfigMap).parts[0].pending

    async def test_o_03_a_delete_without_answer_is_waited_for_if_it_was_done(self, fake_server: Any, cached: Any):
        server = fake_server()
        server.put("n/a")
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            await cache.list(ConfigMap)
            cache.end(cache.begin(RESOURCE, "n/a"), unknown=True)
            assert await cache.find(ConfigMap, "n/a")
            server.hold()
            write = cache.begin(RESOURCE, "n/a")
            server.delete("n/a")
            cache.end(write, unknown=True)
            tasks.start_soon(server.release_after, 3)
            assert await cache.find(ConfigMap, "n/a") is None
            assert cache.own_write_waits == 1

    async def test_o_03_a_reader_during_the_flight_learns_of_its_unknown_end(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            await cache.list(ConfigMap)
            server.hold()
            write = cache.begin(RESOURCE, "n/")

            async def lose() -> None:
                await anyio.sleep(1)
                server.put("n/x")
                cache.end(write, unknown=True)
                await anyio.sleep(1)
                server.release()

            tasks.start_soon(lose)
            assert [obj.key for obj in await cache.list(ConfigMap)] == ["n/x"]
            assert cache.own_write_waits == 1

    async def test_o_03_as_long_as_the_server_does_not_tell_reads_are_errors(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server) as cache:
            await cache.list(ConfigMap)
            server.put("n/a")
            cache.end(cache.begin(RESOURCE, "n/"), unknown=True)
            server.failure = ServiceUnavailableError("down")
            for _ in range(2):
                with pytest.raises(ServiceUnavailableError):
                    await cache.list(ConfigMap)
            server.failure = None
            assert [obj.key for obj in await cache.list(ConfigMap)] == ["n/a"]

    async def test_ry_7_questions_to_a_slow_server_count_to_the_bound(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server, by_kind={ConfigMap: KindOptions(labels="mine=yes")}) as cache:
            await cache.list(ConfigMap)
            server.hold()
            server.answer_after = 2
            for name in "abc":
                cache.end(cache.begin(RESOURCE, f"n/{name}"), unknown=True)
            cache.written(RESOURCE, "n/d", server.put("n/d", labels={"mine": "yes"})["metadata"]["resourceVersion"])
            before = anyio.current_time()
            assert [obj.key for obj in await cache.list(ConfigMap)] == ["n/d"]
            assert anyio.current_time() - before == pytest.approx(5 + 2, abs=0.01)
            # What was not answered is asked again.
            server.answer_after = 0
            server.release()
            assert [obj.key for obj in await cache.list(ConfigMap)] == ["n/d"]
            assert not cache.informer(ConfigMap).parts[0].pending

    @pytest.mark.parametrize("others", [(), ("m/",)])
    async def test_ry_7_many_questions_are_asked_by_one_list(self, fake_server: Any, cached: Any, others: tuple[str]):
        server = fake_server()
        server.put("n/gone", labels={"mine": "yes"})
        async with cached(server, by_kind={ConfigMap: KindOptions(labels="mine=yes")}) as cache:
            await cache.list(ConfigMap)
            server.hold()
            for key in ("n/done", "n/not", "n/gone", *others):
                cache.end(cache.begin(RESOURCE, key), unknown=True)
            server.put("n/done", labels={"mine": "yes"})
            server.put("m/x", labels={"mine": "yes"})
            server.delete("n/gone")
            for name, labels in (("mine", {"mine": "yes"}), ("other", None)):
                obj = server.put(f"n/{name}", labels=labels)
                cache.written(RESOURCE, f"n/{name}", obj["metadata"]["resourceVersion"])
            requests, live = len(server.requests), cache.live_reads

            async def release() -> None:
                await anyio.sleep(2)
                [(path, query)] = server.requests[requests:]
                assert (path.endswith("/n/configmaps"), query["labelSelector"]) == (not others, "mine=yes")
                pending = {write.key for write in cache.informer(ConfigMap).parts[0].pending.all()}
                assert pending == {"n/done", "n/gone", "n/mine", *(["m/x"] if others else [])}
                server.release()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(release)
                assert [obj.key for obj in await cache.list(ConfigMap)] == ["m/x", "n/done", "n/mine"]
            assert cache.live_reads == live + 1

    async def test_ry_7_a_list_over_namespaces_has_one_bound(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server, namespaces=("m", "n")) as cache:
            await cache.list(ConfigMap)
            server.hold()
            server.put("m/a")
            obj = server.put("n/a")
            cache.written(RESOURCE, "n/a", obj["metadata"]["resourceVersion"])
            write = cache.begin(RESOURCE, "m/a")

            async def end() -> None:
                await anyio.sleep(3)
                cache.end(write)

            before = anyio.current_time()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(end)
                assert [obj.key for obj in await cache.list(ConfigMap)] == ["m/a", "n/a"]
            assert anyio.current_time() - before == pytest.approx(5, abs=0.01)

    async def test_o_03_the_version_of_a_write_whose_answer_cannot_be_read_is_looked_up(
        self, fake_server: Any, cached: Any
    ):
        server = fake_server()
        server.put("n/a", data={"x": "1"})
        async with cached(server) as cache, anyio.create_task_group() as tasks:
            await cache.list(ConfigMap)
            server.hold()
            write = cache.begin(RESOURCE, "n/a")
            server.put("n/a", data={"x": "2"})
            cache.end(write)
            cache.lost(RESOURCE, "n/a")
            tasks.start_soon(server.release_after, 3)
            assert (await cache.get(ConfigMap, "n/a")).data == {"x": "2"}
            assert (cache.live_reads, cache.own_write_waits) == (1, 1)

    async def test_o_03_a_write_before_the_kind_is_watched_makes_the_first_list_a_consistent_one(
        self, fake_server: Any, cached: Any
    ):
        server = fake_server(streaming=False)
        async with cached(server) as cache:
            cache.end(cache.begin(RESOURCE, "n/a"), unknown=True)
            await cache.list(ConfigMap)
            lists = [query for _, query in server.requests if "watch" not in query]
            assert lists == [{"limit": "500"}]


@pytest.mark.rules("RY-5")
@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (ConnectionLostError("cut"), True),
        (ConnectionLostError("no one there", refused=True), False),
        (RequestTimeoutError("no answer", code=0), True),
        (RequestTimeoutError("gateway", code=504), True),
        (InternalServerError("etcdserver: request timed out"), True),
        (InternalServerError('failed calling webhook "x"'), False),
        (ConflictError("other version"), False),
        (AlreadyExistsError("there"), False),
        (NotFoundError("gone"), False),
        (PermissionError("the guard says no"), False),
        (KeyboardInterrupt(), True),
        (ApiError("proxy", code=502), True),
    ],
)
def test_ry_5_an_outcome_is_unknown_when_the_server_may_have_done_it(error: BaseException, unknown: bool):
    assert may_be_done(error) is unknown


@given(st.lists(st.tuples(st.sampled_from(["n/a", "n/b", "n/", "m/a"]), st.booleans()), max_size=12))
def test_ry_4_nothing_is_left_of_flights_that_have_ended(steps: list[tuple[str, bool]]):
    pending = PendingWrites()
    flying = []
    for key, begin in steps:
        if begin or not flying:
            flying.append(pending.begin(key))
        else:
            pending.end(flying.pop(0))
        assert sorted(write.key for write in pending.all()) == sorted(flight.key for flight in flying)
        assert [write.key for write in pending.on("n/a")] == ["n/a"] * sum(f.key == "n/a" for f in flying)
    for flight in flying:
        pending.end(flight)
        assert flight.seen
    assert not pending


class Owners:
    """An owner and its cache, for `OwnerVersions`."""

    def __init__(self, server: Any, cache: Cache) -> None:
        self.server, self.cache = server, cache
        self.versions = OwnerVersions(cache)
        self.owner = self.named("o", "u1")

    @staticmethod
    def named(name: str, uid: str) -> ConfigMap:
        return ConfigMap(metadata={"name": name, "namespace": "n", "uid": uid})


@pytest.mark.looptime
async def test_ry_2_a_controller_can_tell_whether_the_cache_shows_what_it_wrote_for_an_owner(
    fake_server: Any, cached: Any
):
    server = fake_server()
    async with cached(server) as cache:
        await cache.list(ConfigMap)
        bench = Owners(server, cache)
        versions, owner = bench.versions, bench.owner
        assert versions.behind("n/o") == []
        server.hold()
        for number in range(3):
            versions.wrote(owner, ConfigMap.from_dict(server.put(f"n/{number}")))
        versions.wrote(owner, ConfigMap.from_dict(server.objects["n/0"]))
        assert versions.behind("n/o") == [ConfigMap]
        assert versions.behind("n/other") == []
        server.release()
        await anyio.sleep(1)
        assert versions.behind("n/o") == []

        server.hold()
        versions.wrote(owner, ConfigMap.from_dict(server.put("n/0")))
        versions.forget("n/o", uid="u2")
        assert versions.behind("n/o") == [ConfigMap]
        versions.forget("n/o", uid="u1")
        versions.forget("n/o")
        assert versions.behind("n/o") == []
        # A new owner of the same name inherits nothing.
        versions.wrote(owner, ConfigMap.from_dict(server.put("n/0")))
        versions.wrote(bench.named("o", "u2"), ConfigMap.from_dict({"metadata": {"name": "x", "resourceVersion": "1"}}))
        assert versions.behind("n/o") == []
        with pytest.raises(ValueError, match="no order"):
            versions.wrote(owner, ConfigMap.from_dict({"metadata": {"name": "x", "resourceVersion": "v1"}}))


@pytest.mark.plane
@pytest.mark.rules("RY-4", "RY-7")
async def test_ry_7_every_verb_is_waited_for(client: Client, namespace: str, running: Any):
    """Each write is followed by a read through a watch that lags."""
    async with running(Cache(client, CacheOptions(namespaces=(namespace,)))) as cache:
        own = client.with_options(reader=cache, write_observer=cache)
        await own.list(Pod)
        container = {"name": "c", "image": "i"}
        pod = await own.create(
            Pod(
                metadata={"name": "p", "namespace": namespace},
                spec={"containers": [container], "schedulerName": "nobody"},
            )
        )
        seen = [(await own.get(Pod, pod.key)).metadata.resource_version == pod.metadata.resource_version]
        pod.metadata.labels["a"] = "1"
        pod = await own.update(pod)
        seen.append((await own.get(Pod, pod.key)).metadata.labels == {"a": "1"})
        pod = await own.patch(pod, MergePatch({"metadata": {"labels": {"a": "2"}}}))
        seen.append((await own.get(Pod, pod.key)).metadata.labels == {"a": "2"})
        applied = Pod(metadata={"name": "p", "namespace": namespace, "labels": {"b": "1"}})
        await own.apply(applied)
        seen.append((await own.get(Pod, pod.key)).metadata.labels["b"] == "1")
        pod = await own.get(Pod, pod.key)
        await own.update_status(pod, phase="Running", message="hello")
        seen.append((await own.get(Pod, pod.key)).status.message == "hello")
        await own.create_subresource(
            Pod, pod.key, "eviction", {"metadata": {"name": "p", "namespace": namespace}, "apiVersion": "policy/v1"}
        )
        evicted = await own.find(Pod, pod.key)
        seen.append(evicted is None or evicted.metadata.deletion_timestamp is not None)
        await own.delete(Pod, pod.key, grace_period_seconds=0, missing_ok=True)
        seen.append(await own.find(Pod, pod.key) is None)
        assert seen == [True] * 7


@pytest.mark.plane
@pytest.mark.rules("RY-4", "RY-5")
async def test_o_03_a_lost_answer_leads_to_no_second_creation(
    control_plane: ControlPlane, client: Client, namespace: str, running: Any
):
    """The child has a random name; its creation is done, the answer lost, and the watch three tenths behind."""
    async with FaultProxy(control_plane.kubeconfig) as proxy, connect(proxy.connect_options()) as through:
        options = {ConfigMap: KindOptions(fields="metadata.name!=kube-root-ca.crt")}
        async with running(Cache(through, CacheOptions(namespaces=(namespace,), by_kind=options))) as cache:
            own = through.with_options(reader=cache, write_observer=cache)
            child = ConfigMap(metadata={"generate_name": "child-", "namespace": namespace})

            async def ensure() -> None:
                if not await own.list(ConfigMap):
                    await own.create(child)

            assert await own.list(ConfigMap) == []
            creates = Match(resource="configmaps", verb="create")
            watches = Match(resource="configmaps", verb="watch")
            with proxy.delay_stream(watches, seconds=0.3):
                with proxy.drop_response(creates, times=1), pytest.raises(ConnectionLostError):
                    await ensure()
                for _ in range(5):
                    await ensure()
            made = [obj.metadata.name async for obj in client.list(ConfigMap, namespace=namespace)]
            assert len([name for name in made if name.startswith("child-")]) == 1
            assert len(proxy.requests(creates)) == 1
            assert cache.live_reads == 1
