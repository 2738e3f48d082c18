"""After an outage watches come back when the server does, not when their backoff is over (O-01, O-02, RF-11)."""

from __future__ import annotations

import asyncio
import socket

import anyio
import pytest
from kubernetes_asyncio.client import Configuration

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import Backoff, Cache
from pyreconcile.cache._reachable import Reachability
from pyreconcile.client import ConnectOptions, connect


class Door:
    """A server that refuses connections until a time."""

    def __init__(self, opens: float) -> None:
        self.opens = anyio.current_time() + opens
        self.knocks: list[float] = []

    async def __call__(self, host: str, port: int) -> None:
        self.knocks.append(anyio.current_time())
        if anyio.current_time() < self.opens:
            raise ConnectionRefusedError


async def timed(reachability: Reachability, seconds: float, took: list[float]) -> None:
    began = anyio.current_time()
    await reachability.wait(seconds)
    took.append(anyio.current_time() - began)


@pytest.mark.looptime
async def test_rf_11_a_wait_ends_soon_after_the_server_takes_connections_again():
    door = Door(opens=5.5)
    took: list[float] = []
    await timed(Reachability("https://h:1", knock=door, random=lambda: 0.5), 60, took)
    assert took == pytest.approx([6.5])
    assert len(door.knocks) == 6


@pytest.mark.looptime
async def test_rf_11_a_wait_is_never_longer_than_the_backoff():
    door = Door(opens=100)
    took: list[float] = []
    await timed(Reachability("https://h:1", knock=door, random=lambda: 0.5), 2.5, took)
    assert took == pytest.approx([2.5])


@pytest.mark.looptime
async def test_rf_11_one_looks_for_all_and_another_one_when_it_gives_up():
    door = Door(opens=7.5)
    reachability = Reachability("https://h:1", knock=door, random=lambda: 0.5)
    took: list[float] = []
    async with anyio.create_task_group() as tasks:
        for seconds in (3.2, 60, 60, 60):
            tasks.start_soon(timed, reachability, seconds, took)
    assert took[0] == pytest.approx(3.2)
    assert all(7.5 < seconds < 10 for seconds in took[1:])
    assert len(door.knocks) <= 9


@pytest.mark.looptime
async def test_rf_11_a_server_that_does_not_answer_counts_as_away():
    async def silent(host: str, port: int) -> None:
        await anyio.sleep(1000)

    took: list[float] = []
    await timed(Reachability("https://h:1", knock=silent), 10, took)
    assert took == pytest.approx([10])


@pytest.mark.parametrize("through", ["server", "proxy"])
async def test_rf_11_watches_of_a_cache_come_back_with_the_server_or_the_proxy_before_it(
    through: str, monkeypatch: pytest.MonkeyPatch
):
    connections = 0

    def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.transport.abort()

    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))  # as long as it does not listen, connections are refused
        url = f"127.0.0.1:{door.getsockname()[1]}"
        configuration = Configuration(host=f"http://{url}")
        if through == "proxy":
            configuration.host = "https://api.example:6443"
            configuration.proxy = f"http://me:secret@{url}"
        async with connect(ConnectOptions(configuration=configuration)) as client:
            assert client.transport.dialled_url == f"http://{url}"
            cache, stop = Cache(client), anyio.Event()
            (reflector,) = cache.informer(ConfigMap).reflectors
            monkeypatch.setattr(reflector, "_backoff", Backoff(start=600.0))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cache.run, stop)
                with anyio.fail_after(30):
                    while not reflector.stats.errors.get("ConnectionLostError"):
                        await anyio.sleep(0.01)
                async with await asyncio.start_server(greet, sock=door):
                    with anyio.fail_after(30):  # of the 600 s and more that it would wait
                        while connections < 2:  # the first one only looks
                            await anyio.sleep(0.01)
                    stop.set()
