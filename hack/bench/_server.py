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
_WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})


class WatchEndedError(RuntimeError):
    """A watch of the driver ended, so that what it saw is not complete."""


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Return the labels and values of one series in Prometheus's text format."""
    return [
        (dict(_LABEL.findall(match[2] or "")), float(match[3]))
        for line in text.splitlines()
        if line.startswith(name) and (match := _SAMPLE.match(line)) and match[1] == name
    ]


class Server(RawServer):
    """An API server that can count, and whose watches must not end."""

    async def count_writes(self, *resources: str) -> float:
        """Return how many write requests for these resources the API server has had so far, refused ones too."""
        async with self.session.get(f"{self.url}/metrics") as answer:
            text = await answer.text()
        return sum(
            value
            for labels, value in samples(text, "apiserver_request_total")
            if labels.get("resource") in resources and labels.get("verb") in _WRITES
        )

    async def endless(self, path: str, version: str) -> AsyncIterator[bytes]:
        """Yield the lines of a watch.

        Raises:
            WatchEndedError: the server ended it.
        """
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "7200"}
        async with self.lines(path, query) as lines:
            async for line in lines:
                yield line
        raise WatchEndedError(f"the watch of {path} ended")


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
        async for line in self.server.endless(self.path, version):
            now, event = time.perf_counter(), orjson.loads(line)
            if event["type"] == "DELETED":
                self.objects.pop(event["object"]["metadata"]["name"], None)
            elif event["type"] in ("ADDED", "MODIFIED"):
                self._take(event["object"], now)
            else:
                raise WatchEndedError(f"the watch of {self.path} told {line.decode()}")
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
