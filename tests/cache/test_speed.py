"""The event loop stays responsive while much comes in (rules RF-17, PX-3). CPU time is measured, not the clock."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pyreconcile.api import RawObject
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import Cache, CacheOptions

COUNT = 8000
MANY = 100_000


@pytest.fixture(autouse=True)
def _own_garbage_only() -> Iterator[None]:
    # What the test run itself has piled up is not what is measured.
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def burst(scripted: Any, wire: Any) -> Callable[[], Any]:
    """Makes a server with many objects of 2 kB in some sixty dicts each, and an update for each of them."""

    def obj(number: int, version: int) -> Any:
        parts = [{"name": f"p{part}", "value": {"text": f"{number}"}} for part in range(30)]
        return {**wire.config_map(f"c{number:05}", version), "parts": parts}

    added = [wire.event("ADDED", obj(number, number + 1)) for number in range(COUNT)]
    updated = [wire.event("MODIFIED", obj(number, COUNT + 2 + number)) for number in range(COUNT)]
    return lambda: scripted(watches=[[*added, wire.bookmark(COUNT + 1, end=True), *updated, wire.SILENT]])


class Counter:
    """A handler that counts what is added."""

    def __init__(self) -> None:
        self.added = 0

    def on_add(self, obj: RawObject, *, initial: bool) -> None:
        self.added += 1

    def on_update(self, old: RawObject, new: RawObject) -> None: ...
    def on_delete(self, obj: RawObject, *, state_unknown: bool) -> None: ...


async def longest_stall(until: Any) -> float:
    """Seconds of CPU that passed at most between two turns of this task."""
    longest, last = 0.0, time.thread_time()
    while not until():
        await anyio.lowlevel.checkpoint()
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    return longest


async def least(measure: Callable[[], Awaitable[float]], *, enough: float) -> float:
    """The least of three measurements, or the first that is below ``enough``.

    What a busy machine adds to one, such as the time of a hypervisor, is not in all of them; what we do is.
    """
    seconds = math.inf
    for _ in range(3):
        if seconds >= enough:
            seconds = min(seconds, await measure())
    return seconds


@pytest.mark.rules("RF-17")
async def test_px_3_the_loop_never_stands_still_for_50_ms(burst: Any, recorder: Any, running: Any):
    async def measure() -> float:
        cache = Cache(burst())
        cache.add_index(ConfigMap, "first", lambda obj: [obj["parts"][0]["value"]["text"]])
        handler = recorder()
        cache.informer(ConfigMap).add_handler(handler)
        frozen = gc.get_freeze_count()
        async with running(cache):
            with anyio.fail_after(60):
                stall = await longest_stall(lambda: len(handler.calls) == 2 * COUNT)
            assert gc.get_freeze_count() > frozen + COUNT
        return stall

    assert await least(measure, enough=0.05) < 0.05


@pytest.mark.rules("RF-17")
@pytest.mark.parametrize("streaming", [True, False])
async def test_px_3_a_first_list_of_100_000_objects_never_holds_up_the_loop_for_50_ms(
    scripted: Any, wire: Any, running: Any, streaming: bool
):
    objects = (wire.config_map(f"c{number:06}", number + 1, f"n{number % 50:02}", app="web") for number in range(MANY))
    if streaming:
        added = [wire.event("ADDED", obj) for obj in objects]
        answers = {"watches": [[*added, wire.bookmark(MANY + 1, end=True), wire.SILENT]]}
    else:
        answers = {"lists": [wire.list_answer(list(objects), MANY + 1)]}
    gc.freeze()

    async def measure() -> float:
        cache = Cache(scripted(**answers), CacheOptions(streaming_lists=streaming))
        cache.add_index(ConfigMap, "app", lambda obj: [obj["metadata"]["labels"]["app"]])
        handler, late = Counter(), Counter()
        informer = cache.informer(ConfigMap)
        informer.add_handler(handler)
        async with running(cache):
            with anyio.fail_after(60):
                stall = await longest_stall(lambda: handler.added == MANY)
                informer.add_handler(late)
                stall = max(stall, await longest_stall(lambda: late.added == MANY))
            assert len(informer.store) == MANY
        return stall

    assert await least(measure, enough=0.05) < 0.05


async def test_in_16_reading_does_not_start_a_list_or_a_task(fake_server: Any, running: Any):
    server = fake_server()
    server.put("n/a")
    async with running(Cache(server)) as cache:
        await cache.get(ConfigMap, "n/a")
        before = len(server.requests)

        async def measure() -> float:
            start = time.thread_time()
            for _ in range(1000):
                await cache.find_raw(ConfigMap, "n/a")
            return time.thread_time() - start

        assert await least(measure, enough=0.05) < 0.05
        assert len(server.requests) == before
