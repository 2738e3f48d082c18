"""Informers that keep nothing but metadata, beside those of whole objects."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pyreconcile.api import Unstructured, metadata_only, unstructured
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import Cache, CacheOptions, KindOptions
from pyreconcile.client import Client, MergePatch

Metadata = metadata_only(ConfigMap)
ACCEPT = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
ACCEPT_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class Asked:
    """Passes requests on to a real server and notes which form they ask for."""

    def __init__(self, client: Client) -> None:
        self._transport = client.transport
        self.accepts: list[str] = []

    @property
    def transport(self) -> Any:
        return self

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        self.accepts.append(options.get("accept", ""))
        return await self._transport.request(method, path, **options)

    def stream(self, path: str, **options: Any) -> Any:
        self.accepts.append(options.get("accept", ""))
        return self._transport.stream(path, **options)


@pytest.mark.plane
@pytest.mark.rules("CA-1", "CA-10", "RF-10")
@pytest.mark.parametrize("streaming", [True, False])
async def test_ca_10_only_metadata_comes_from_the_server_on_all_paths(
    client: Client, namespace: str, recorder: Any, running: Any, streaming: bool
):
    asked, handler = Asked(client), recorder()
    options = CacheOptions(namespaces=(namespace,), fields="metadata.name!=kube-root-ca.crt", streaming_lists=streaming)
    cache = Cache(asked, options)
    # The cache is told of it, or an ordinary first list may be of a state before it.
    await client.with_options(write_observer=cache).create(
        ConfigMap(metadata={"name": "a", "namespace": namespace, "labels": {"x": "1"}}, data={"k": "v"})
    )
    registration = cache.informer(ConfigMap, metadata_only=True).add_handler(handler)
    async with running(cache):
        await registration.wait_synced()
        observed = client.with_options(reader=cache, write_observer=cache)
        await observed.create(ConfigMap(metadata={"name": "b", "namespace": namespace}, data={"k": "v"}))
        changed = await observed.patch(Metadata, f"{namespace}/a", _label("2"))
        got = await observed.get(Metadata, f"{namespace}/a")
        assert (got.api_version, got.kind, got.metadata.labels) == ("v1", "ConfigMap", {"x": "2"})
        assert got.metadata.resource_version == changed.metadata.resource_version
        assert [obj.metadata.name for obj in await observed.list(Metadata, labels="x=2")] == ["a"]
        await observed.delete(Metadata, f"{namespace}/b")
        assert await observed.find(Metadata, f"{namespace}/b") is None
        calls = await handler.wait(4, seconds=30)
        assert [change for change, _ in calls] == ["initial", "add", "update", "delete"]
        assert cache.get_raw(Metadata, f"{namespace}/a").keys() == {"apiVersion", "kind", "metadata"}
        assert set(asked.accepts) == ({ACCEPT} if streaming else {ACCEPT, ACCEPT_LIST})
        assert cache.live_reads == 0
        (reflector,) = cache.informer(Metadata).reflectors
        assert (reflector.stats.streaming_lists, reflector.stats.lists) == ((1, 0) if streaming else (0, 1))


def _label(value: str) -> Any:
    return MergePatch({"metadata": {"labels": {"x": value}}})


@pytest.mark.looptime
class TestForms:
    @pytest.fixture
    def cached(self, running: Any) -> Any:
        def cached(server: Any, **options: Any) -> Any:
            return running(Cache(server, CacheOptions(**options), clock=anyio.current_time, random=lambda: 0.0))

        return cached

    @pytest.mark.rules("CA-1")
    async def test_ca_1_metadata_has_an_informer_of_its_own_and_all_other_forms_share_one(
        self, fake_server: Any, cached: Any
    ):
        server = fake_server()
        server.put("n/a", data={"x": "1"})
        plain: type[Unstructured] = unstructured("v1", "ConfigMap")
        async with cached(server) as cache:
            assert (await cache.get(ConfigMap, "n/a")).data == {"x": "1"}
            assert (await cache.get(plain, "n/a"))["data"] == {"x": "1"}
            assert cache.informer(plain) is cache.informer(ConfigMap)
            assert len(server.requests) == 1
            metadata = cache.informer(ConfigMap, metadata_only=True)
            assert metadata is cache.informer(Metadata)
            assert metadata is cache.informer(metadata_only(plain))
            assert metadata is not cache.informer(ConfigMap)
            assert len(cache.informers) == 2

    async def test_ca_9_the_forms_are_removed_apart(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server) as cache:
            for kind in (ConfigMap, Metadata):
                await cache.list(kind)
            cache.remove_informer(Metadata)
            await anyio.sleep(1)
            assert server.open_streams == 1
            assert cache.informers == (cache.informer(ConfigMap),)

    async def test_ca_4_options_of_a_kind_hold_for_its_metadata_unless_that_has_its_own(
        self, fake_server: Any, cached: Any
    ):
        server = fake_server()
        server.put("n/a", labels={"x": "1"})
        server.put("n/b", labels={"x": "2"})
        for by_kind, names in (
            ({ConfigMap: KindOptions(labels="x=1")}, ["n/a"]),
            ({ConfigMap: KindOptions(labels="x=1"), Metadata: KindOptions(labels="x=2")}, ["n/b"]),
        ):
            async with cached(server, by_kind=by_kind) as cache:
                assert cache.informer(ConfigMap).parts[0].scope.labels == "x=1"
                await cache.list(Metadata)
                assert cache.informer(Metadata).store.keys() == names

    async def test_ry_4_a_write_is_waited_for_in_both_forms(self, fake_server: Any, cached: Any):
        server = fake_server()
        async with cached(server) as cache:
            for kind in (ConfigMap, Metadata):
                await cache.list(kind)
            server.hold()
            obj = server.put("n/a")
            cache.written(ConfigMap.resource, "n/a", obj["metadata"]["resourceVersion"])
            for kind in (ConfigMap, Metadata):
                assert cache.informer(kind).parts[0].pending
            server.release()
            for kind in (ConfigMap, Metadata):
                assert await cache.find(kind, "n/a")
            obj = server.delete("n/a")
            cache.deleted(ConfigMap.resource, "n/a", obj["metadata"]["uid"], None)
            for kind in (ConfigMap, Metadata):
                assert await cache.find(kind, "n/a") is None
