"""Objects and lines of any size on a watch, over real connections (rule PX-4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
import yaml

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import Cache, CacheOptions
from pyreconcile.client import Client, connect

MIB = 1 << 20


@asynccontextmanager
async def serving(chunks: list[bytes]) -> AsyncIterator[str]:
    """An HTTP server that answers each request with these chunks, one write each, and then says nothing more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for chunk in chunks:
            writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def kubeconfig(path: Path, url: str) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
    return path


LETTERS = "ü€🙂"
"""Of two, three and four bytes."""


@pytest.fixture
def received(wire: Any, running: Any, tmp_path: Path) -> Any:
    """Sends an object with a text in a watch, cut into chunks by a function, and gives the text that was cached."""

    async def received(text: str, cut: Callable[[bytes], list[bytes]]) -> str:
        obj = {**wire.config_map("big", 6), "data": {"text": text}}
        after = wire.event("ADDED", wire.config_map("after", 7))
        body = b"\n".join([wire.bookmark(5, end=True), orjson.dumps({"type": "ADDED", "object": obj}), after, b""])
        chunks = cut(body)
        assert b"".join(chunks) == body
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(serving(chunks))
            client = await stack.enter_async_context(connect(kubeconfig=kubeconfig(tmp_path / "config", url)))
            cache = await stack.enter_async_context(running(Cache(client, CacheOptions(namespaces=("n",)))))
            informer = cache.informer(ConfigMap)
            with anyio.fail_after(30):
                while informer.last_resource_version != "7":
                    await anyio.sleep(0.01)
            assert informer.last_error is None
            cached: str = (await cache.get(ConfigMap, "n/big")).data["text"]
            return cached

    return received


async def test_px_4_a_chunk_may_end_at_every_byte_of_a_letter(received: Any):
    def cut(body: bytes) -> list[bytes]:
        start = body.index("ü".encode())
        end = start + len(LETTERS.encode()) * 5
        return [body[:start], *(body[at : at + 1] for at in range(start, end)), body[end:]]

    assert await received(LETTERS * 10, cut) == LETTERS * 10


@pytest.mark.rules("RF-17")
@pytest.mark.parametrize("size", [4093, 1 << 18, 64 * MIB])
async def test_px_4_a_line_may_be_of_10_mib(received: Any, size: int):
    text = LETTERS * (10 * MIB // len(LETTERS.encode()) + 1)
    assert len(text.encode()) > 10 * MIB
    assert await received(text, lambda body: [body[at : at + size] for at in range(0, len(body), size)]) == text


@pytest.mark.plane
async def test_px_4_objects_of_1_4_mib_come_by_list_and_by_watch(
    client: Client, namespace: str, things: Any, running: Any
):
    def thing(name: str, letter: str) -> Any:
        # 1.5 MiB is what etcd takes, with what the server adds.
        text = letter * (int(1.4 * MIB) // len(letter.encode()))
        return things.from_dict({"metadata": {"namespace": namespace, "name": name}, "text": text})

    async with running(Cache(client, CacheOptions(namespaces=(namespace,)))) as cache:
        informer = cache.informer(things)
        with anyio.fail_after(30):
            await informer.wait_synced()
        own = client.with_options(reader=cache, write_observer=cache)
        began = time.monotonic()
        for name, letter in (("a", "x"), ("b", "ü"), ("c", "🙂")):
            created = await own.create(thing(name, letter))
            assert (await own.get(things, created.key))["text"] == thing(name, letter)["text"]
        assert time.monotonic() - began < 15
        assert len(orjson.dumps(informer.store.get(f"{namespace}/a"))) > 1.4 * MIB
        assert cache.live_reads == 0
    for streaming in (True, False):
        options = CacheOptions(namespaces=(namespace,), streaming_lists=streaming)
        async with running(Cache(client, options)) as cache:
            # Or an ordinary first list may be of a state before it.
            cache.written(things.resource, created.key, created.metadata.resource_version)
            names = [obj.metadata.name for obj in await cache.list(things)]
            assert names == ["a", "b", "c"]
