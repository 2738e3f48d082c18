"""The API server as the driver sees it: counts of writes, and mirrors of collections."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import orjson
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from hack.raw_server import RawServer

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_RESUME = 0.01  # seconds between two watches
_WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})


class WatchFailedError(RuntimeError):
    """A watch of the driver cannot go on, so that what it saw is not complete."""


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Return the labels and values of one series in Prometheus's text format."""
    return [
        (dict(_LABEL.findall(match[2] or "")), float(match[3]))
        for line in text.splitlines()
        if line.startswith(name) and (match := _SAMPLE.match(line)) and match[1] == name
    ]


class Server(RawServer):
    """An API server that can count, and whose watches do not end."""

    async def count_writes(self, *resources: str) -> float:
        """Return how many write requests for these resources the API server has had so far, refused ones too."""
        async with self.session.get(f"{self.url}/metrics") as answer:
            text = await answer.text()
        return sum(
            value
            for labels, value in samples(text, "apiserver_request_total")
            if labels.get("resource") in resources and labels.get("verb") in _WRITES
        )

    async def watch(self, path: str, version: str) -> AsyncIterator[dict[str, Any]]:
        """Yield the events after a version, from as many watches as it takes.

        An API server that is short of CPU ends the watches of clients that seem slow to it; the next watch begins where
        that one ended, so nothing is missed.

        Raises:
            WatchFailedError: the server cannot go on from there.
        """
        while True:
            query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "7200"}
            async with self.lines(path, query) as lines:
                async for line in lines:
                    event: dict[str, Any] = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise WatchFailedError(f"the watch of {path} told {line.decode()}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    yield event
            await anyio.sleep(_RESUME)


@dataclass
class Mirror:
    """The newest state of every object of a collection, by name, and when each was first seen and first Ready."""

    server: Server
    path: str
    keep: bool = True
    """Whether to keep the objects themselves."""
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    async def follow(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """List, report started, and watch until cancelled."""
        listed = await self.server.call("GET", self.path)
        now = time.perf_counter()
        for item in listed["items"]:
            self._take(item, now)
        version = listed["metadata"]["resourceVersion"]
        del listed
        task_status.started()
        async for event in self.server.watch(self.path, version):
            if event["type"] == "DELETED":
                self.objects.pop(event["object"]["metadata"]["name"], None)
            else:
                self._take(event["object"], time.perf_counter())
            self._changed.set()

    def _take(self, item: dict[str, Any], now: float) -> None:
        name = item["metadata"]["name"]
        if self.keep:
            self.objects[name] = item
        self.first.setdefault(name, now)
        if item.get("status", {}).get("phase") == "Ready":
            self.ready.setdefault(name, now)

    async def until(self, condition: Callable[[], bool], *, within: float) -> float:
        """Wait until a condition on this mirror holds; return the seconds that it took.

        Raises:
            TimeoutError: it took longer than ``within`` seconds.
        """
        start = time.perf_counter()
        with anyio.fail_after(within):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()
        return time.perf_counter() - start
