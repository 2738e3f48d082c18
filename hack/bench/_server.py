"""The API server as the driver sees it: plain requests, and mirrors of collections.

The driver uses none of pyreconcile's own client, so that a fault or a gain there cannot hide in the measurement.
"""

from __future__ import annotations

import base64
import re
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import orjson
import yaml
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})


class RefusedError(RuntimeError):
    """The API server did not do what was asked.

    Attributes:
        status: the HTTP status of its answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class WatchEndedError(RuntimeError):
    """A watch of the driver ended, so that what it saw is not complete."""


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Return the labels and values of one series in Prometheus's text format."""
    return [
        (dict(_LABEL.findall(match[2] or "")), float(match[3]))
        for line in text.splitlines()
        if line.startswith(name) and (match := _SAMPLE.match(line)) and match[1] == name
    ]


@dataclass(frozen=True)
class Server:
    """Requests to one API server."""

    url: str
    session: aiohttp.ClientSession

    @classmethod
    @asynccontextmanager
    async def connect(cls, kubeconfig: Path) -> AsyncIterator[Server]:
        """Connect with the client certificate of a kubeconfig while the block runs."""
        config = yaml.safe_load(await anyio.Path(kubeconfig).read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        context = ssl.create_default_context(cadata=_material(cluster, "certificate-authority"))
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair:
            pair.write(_material(user, "client-certificate") + "\n" + _material(user, "client-key"))
            pair.flush()
            context.load_cert_chain(pair.name)
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            yield cls(cluster["server"], session)

    async def call(self, method: str, path: str, body: object = None, *, content: str = JSON) -> Any:
        """Send a request and return the parsed answer.

        Raises:
            RefusedError: the answer is not a success.
        """
        data = None if body is None else orjson.dumps(body)
        async with self.session.request(
            method, self.url + path, data=data, headers={"Content-Type": content}
        ) as answer:
            text = await answer.read()
            if answer.status >= 400:
                said = text[:500].decode(errors="replace")
                raise RefusedError(f"{method} {path}: {answer.status} {said}", answer.status)
            return orjson.loads(text)

    async def count_writes(self, *resources: str) -> float:
        """Return how many write requests for these resources the API server has had so far, refused ones too."""
        async with self.session.get(f"{self.url}/metrics") as answer:
            text = await answer.text()
        return sum(
            value
            for labels, value in samples(text, "apiserver_request_total")
            if labels.get("resource") in resources and labels.get("verb") in _WRITES
        )

    async def lines(self, path: str, version: str) -> AsyncIterator[bytes]:
        """Yield the lines of a watch.

        Raises:
            WatchEndedError: the server ended it.
        """
        address = f"{self.url}{path}?watch=1&resourceVersion={version}&timeoutSeconds=7200"
        rest = b""
        async with self.session.get(address) as answer:
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line
        raise WatchEndedError(f"the watch of {path} ended")


def _material(entry: Mapping[str, str], key: str) -> str:
    if path := entry.get(key):
        return Path(path).read_text()
    return base64.b64decode(entry[f"{key}-data"]).decode()


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
        async for line in self.server.lines(self.path, version):
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
