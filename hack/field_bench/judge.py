"""The judge: an independent client that writes down what happens to objects. It uses nothing of the framework."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import anyio
import orjson

from hack.raw_server import JSON, MERGE_PATCH, RawServer, RefusedError

Object = dict[str, Any]

_RETRY = 0.2


@dataclass(frozen=True)
class Seen:
    """One change of an object.

    Attributes:
        time: when it came, in the seconds of ``time.monotonic``.
        change: ADDED, MODIFIED or DELETED.
        object: the object after it.
    """

    time: float
    change: str
    object: Object

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.object["metadata"]["name"])


@dataclass
class Record:
    """What the judge saw of the objects of one path, in order."""

    changes: list[Seen] = field(default_factory=list)

    def of(self, change: str, *, since: float = 0.0) -> list[Seen]:
        """Return the changes of one sort."""
        return [seen for seen in self.changes if seen.change == change and seen.time >= since]


class Judge:
    """Reads, writes and watches past the proxy. An async context manager.

    Args:
        kubeconfig: of an administrator.
        url: of the API server, if not the one in the kubeconfig.
    """

    def __init__(self, kubeconfig: Path, *, url: str = "") -> None:
        self._connection = RawServer.connect(kubeconfig, url=url)
        self._server: RawServer

    async def __aenter__(self) -> Judge:
        self._server = await self._connection.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._connection.__aexit__(*error)

    async def request(
        self, method: str, path: str, body: Object | bytes | None = None, *, content_type: str = JSON
    ) -> Object:
        """Send one request and return the answer.

        Raises:
            RefusedError: the answer is no success.
        """
        answer: Object = await self._server.call(method, path, body, content_type=content_type)
        return answer

    async def create(self, path: str, obj: Object | bytes) -> Object:
        """Create an object."""
        return await self.request("POST", path, obj)

    async def get(self, path: str) -> Object | None:
        """Return an object, or None."""
        try:
            return await self.request("GET", path)
        except RefusedError as error:
            if error.code == 404:
                return None
            raise

    async def patch(self, path: str, change: Object) -> Object:
        """Send a merge patch."""
        return await self.request("PATCH", path, change, content_type=MERGE_PATCH)

    async def delete(self, path: str) -> None:
        """Delete an object, or all of a path; none is fine."""
        try:
            await self.request("DELETE", path, {"gracePeriodSeconds": 0})
        except RefusedError as error:
            if error.code != 404:
                raise

    async def list(self, path: str) -> dict[str, Object]:
        """Return the objects of a path by name."""
        answer = await self.request("GET", path)
        return {item["metadata"]["name"]: item for item in answer["items"]}

    async def create_namespace(self, name: str) -> None:
        """Create a namespace."""
        await self.create("/api/v1/namespaces", {"metadata": {"name": name}})

    async def create_crd(self, group: str, kind: str, *, scope: str = "Namespaced") -> str:
        """Create a CRD without a schema, if there is none, wait until it is served, and return its plural."""
        plural = f"{kind.lower()}s"
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        version = {"name": "v1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
        names = {"plural": plural, "kind": kind}
        spec = {"group": group, "scope": scope, "names": names, "versions": [version]}
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        try:
            await self.create(path, {"metadata": {"name": f"{plural}.{group}"}, "spec": spec})
        except RefusedError as error:
            if error.code != 409:
                raise
        with anyio.fail_after(30):
            while True:
                try:
                    await self.list(f"/apis/{group}/v1/{plural}")
                except RefusedError:
                    await anyio.sleep(0.1)
                else:
                    return plural

    @asynccontextmanager
    async def watching(self, path: str, query: Mapping[str, str] | None = None) -> AsyncIterator[Record]:
        """Write down all changes of a path's objects while the block runs; entered once the watch is open."""
        record = Record()
        async with anyio.create_task_group() as tasks:
            await tasks.start(lambda *, task_status: self._watch(path, dict(query or {}), record, task_status.started))
            yield record
            tasks.cancel_scope.cancel()

    async def _watch(self, path: str, query: dict[str, str], record: Record, started: Callable[[], None]) -> None:
        known: dict[str, Object] = {}
        version = ""
        while True:
            try:
                if not version:
                    version = await self._compare(path, query, known, record, first=not known)
                asked = {**query, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
                async with self._server.lines(path, asked) as lines:
                    started()
                    started = _nothing
                    async for line in lines:
                        event = orjson.loads(line)
                        if event["type"] == "ERROR":
                            version = ""
                            break
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            _note(record, event["type"], event["object"], known)
            except (aiohttp.ClientError, RefusedError, OSError):
                pass
            await anyio.sleep(_RETRY)

    async def _compare(
        self, path: str, query: Mapping[str, str], known: dict[str, Object], record: Record, *, first: bool
    ) -> str:
        answer = await self.request("GET", f"{path}?{urlencode(query)}")
        present = {item["metadata"]["uid"]: item for item in answer["items"]}
        if first:
            known.update(present)
        for uid in [uid for uid in known if uid not in present]:
            _note(record, "DELETED", known[uid], known)
        for uid, item in present.items():
            old = known.get(uid)
            if old is None or old["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
                _note(record, "ADDED" if old is None else "MODIFIED", item, known)
        return str(answer["metadata"]["resourceVersion"])


def _nothing() -> None:
    pass


def _note(record: Record, change: str, obj: Object, known: dict[str, Object]) -> None:
    record.changes.append(Seen(time.monotonic(), change, obj))
    if change == "DELETED":
        known.pop(obj["metadata"]["uid"], None)
    else:
        known[obj["metadata"]["uid"]] = obj
