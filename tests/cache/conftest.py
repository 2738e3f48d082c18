"""Servers to list and watch from: one that plays a script, and one that keeps objects."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import orjson
import pytest

from pyreconcile.api import RawObject, Unstructured, unstructured
from pyreconcile.api.selectors import LabelSelector
from pyreconcile.cache import key_of
from pyreconcile.client import ApiError, Client, ExpiredError, InvalidError, NotFoundError
from pyreconcile.crd import install_crds

SILENT = "silent"


def config_map(name: str, version: int, namespace: str = "n", **labels: str) -> RawObject:
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": f"u-{name}"}
    metadata["resourceVersion"] = str(version)
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def list_answer(objects: list[RawObject], version: int | str, token: str = "", kind: str = "ConfigMapList") -> bytes:
    items = [{name: value for name, value in obj.items() if name not in ("apiVersion", "kind")} for obj in objects]
    metadata = {"resourceVersion": str(version), **({"continue": token} if token else {})}
    return orjson.dumps({"apiVersion": "v1", "kind": kind, "metadata": metadata, "items": items})


def event(change: str, obj: RawObject) -> bytes:
    return orjson.dumps({"type": change, "object": obj})


def bookmark(version: int, *, end: bool = False, kind: str = "ConfigMap") -> bytes:
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return event("BOOKMARK", {"apiVersion": "v1", "kind": kind, "metadata": metadata})


def error_event(code: int, reason: str) -> bytes:
    return event("ERROR", {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason})


class Scripted:
    """Answers lists and watches from a script and keeps what was asked.

    A list's answer is bytes, or an error to raise. A watch is an error that refuses it, or a list of steps: a line,
    an error that breaks the stream, a number of seconds to wait, or SILENT. A watch beyond the script is silent.
    """

    def __init__(self, *, lists: list[Any] | None = None, watches: list[Any] | None = None) -> None:
        self.lists = deque(lists or [])
        self.watches = deque(watches or [])
        self.listed: list[dict[str, str]] = []
        self.watched: list[dict[str, str]] = []
        self.times: list[float] = []
        self.open_streams = 0

    @property
    def transport(self) -> Scripted:
        return self

    async def request(self, method: str, path: str, *, query: Mapping[str, str] | None = None, **_: Any) -> bytes:
        assert method == "GET"
        self.listed.append(dict(query or {}))
        self.times.append(anyio.current_time())
        answer = self.lists.popleft() if self.lists else await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()
        if isinstance(answer, Exception):
            raise answer
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str] | None = None, idle_timeout: float = 330.0, **_: Any
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.watched.append(dict(query or {}))
        self.times.append(anyio.current_time())
        steps = self.watches.popleft() if self.watches else [SILENT]
        await anyio.lowlevel.checkpoint()
        if isinstance(steps, Exception):
            raise steps
        self.open_streams += 1
        try:
            yield self._play(steps, idle_timeout)
        finally:
            self.open_streams -= 1

    async def _play(self, steps: list[Any], idle_timeout: float) -> AsyncIterator[bytes]:
        for step in steps:
            if isinstance(step, bytes):
                yield step
            elif isinstance(step, Exception):
                raise step
            else:
                seconds = idle_timeout if step == SILENT else float(step)
                await anyio.sleep(min(seconds, idle_timeout))
                if seconds >= idle_timeout:
                    return


class FakeServer:
    """Keeps the objects of one kind and serves lists and watches of them, faults included."""

    def __init__(self, kind: str = "ConfigMap", *, streaming: bool = True) -> None:
        self.kind = kind
        self.streaming = streaming
        self.objects: dict[str, RawObject] = {}
        self.history: list[tuple[int, str, RawObject]] = []
        self.version = 10
        self.oldest = 0
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.failure: ApiError | None = None
        self.answer_after = 0.0
        self.held = False
        self.open_streams = 0
        self._generation = 0
        self._changed = anyio.Event()

    @property
    def transport(self) -> FakeServer:
        return self

    def put(self, key: str, *, uid: str = "", labels: dict[str, str] | None = None, **fields: Any) -> RawObject:
        namespace, _, name = key.rpartition("/")
        self.version += 1
        old = self.objects.get(key)
        obj: RawObject = {"apiVersion": "v1", "kind": self.kind, "metadata": {"name": name}, **fields}
        if namespace:
            obj["metadata"]["namespace"] = namespace
        obj["metadata"]["uid"] = uid or (old["metadata"]["uid"] if old else f"u{self.version}")
        obj["metadata"]["resourceVersion"] = str(self.version)
        if labels:
            obj["metadata"]["labels"] = labels
        self.objects[key] = obj
        self._happened("MODIFIED" if old else "ADDED", obj)
        return obj

    def delete(self, key: str) -> RawObject:
        self.version += 1
        obj = copy.deepcopy(self.objects.pop(key))
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._happened("DELETED", obj)
        return obj

    def bookmark(self) -> None:
        metadata = {"resourceVersion": str(self.version)}
        self._happened("BOOKMARK", {"apiVersion": "v1", "kind": self.kind, "metadata": metadata})

    def compact(self) -> None:
        """Move on and forget the history: versions up to now are expired."""
        self.version += 1
        self.oldest = self.version
        self.history.clear()

    def cut(self) -> None:
        """End all streams."""
        self._generation += 1
        self._wake()

    def hold(self) -> None:
        """Deliver nothing on watches until `release`."""
        self.held = True

    def release(self) -> None:
        self.held = False
        self._wake()

    async def release_after(self, seconds: float) -> None:
        await anyio.sleep(seconds)
        self.release()

    def _happened(self, change: str, obj: RawObject) -> None:
        self.history.append((self.version, change, copy.deepcopy(obj)))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, accept: str = "", **_: Any
    ) -> bytes:
        query = dict(query or {})
        self.requests.append((path, query))
        await anyio.sleep(self.answer_after)
        if self.failure is not None:
            raise self.failure
        namespace, name = _parts(path)
        if name:
            key = f"{namespace}/{name}" if namespace else name
            if key not in self.objects:
                raise NotFoundError(f"{key} not found")
            return orjson.dumps(self.objects[key])
        objects = self._selected(namespace, query)
        if "PartialObjectMetadata" in accept:
            return list_answer([_metadata_of(obj) for obj in objects], self.version, kind="PartialObjectMetadataList")
        return list_answer(objects, self.version, kind=f"{self.kind}List")

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str] | None = None, accept: str = "", **_: Any
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        query = dict(query or {})
        self.requests.append((path, query))
        await anyio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        if "sendInitialEvents" in query and not self.streaming:
            raise InvalidError("sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
        start = int(query.get("resourceVersion") or 0)
        if "sendInitialEvents" not in query and start < self.oldest:
            raise ExpiredError("too old resource version")
        self.open_streams += 1
        try:
            yield self._watch(_parts(path)[0], query, partial="PartialObjectMetadata" in accept)
        finally:
            self.open_streams -= 1

    async def _watch(self, namespace: str, query: dict[str, str], *, partial: bool) -> AsyncIterator[bytes]:
        form = _metadata_of if partial else lambda obj: obj
        generation = self._generation
        if "sendInitialEvents" in query:
            position = self.version
            for obj in self._selected(namespace, query):
                yield event("ADDED", form(obj))
            yield bookmark(position, end=True, kind="PartialObjectMetadata" if partial else self.kind)
            sent = len(self.history)
        else:
            position = int(query["resourceVersion"])
            sent = next((at for at, entry in enumerate(self.history) if entry[0] > position), len(self.history))
        selector = LabelSelector.parse(query.get("labelSelector", ""))
        while generation == self._generation:
            while sent < len(self.history) and not self.held and generation == self._generation:
                _, change, obj = self.history[sent]
                sent += 1
                metadata = obj["metadata"]
                if change == "BOOKMARK" or (
                    (not namespace or metadata["namespace"] == namespace)
                    and selector.matches(metadata.get("labels") or {})
                ):
                    yield event(change, form(obj))
            changed = self._changed
            if generation == self._generation and (sent == len(self.history) or self.held):
                await changed.wait()
            if sent > len(self.history):
                return

    def _selected(self, namespace: str, query: Mapping[str, str]) -> list[RawObject]:
        selector = LabelSelector.parse(query.get("labelSelector", ""))
        return [
            obj
            for key, obj in sorted(self.objects.items())
            if (not namespace or obj["metadata"]["namespace"] == namespace)
            and selector.matches(obj["metadata"].get("labels") or {})
        ]


def _metadata_of(obj: RawObject) -> RawObject:
    return {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": obj["metadata"]}


def _parts(path: str) -> tuple[str, str]:
    words = path.strip("/").split("/")[2:]
    namespace = words[1] if len(words) > 2 and words[0] == "namespaces" else ""
    rest = words[2:] if namespace else words
    return namespace, rest[1] if len(rest) > 1 else ""


class Recorder:
    """A handler that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.told = anyio.Event()

    def on_add(self, obj: RawObject, *, initial: bool) -> None:
        self._note("initial" if initial else "add", obj)

    def on_update(self, old: RawObject, new: RawObject) -> None:
        self._note("resync" if old is new else "update", new)

    def on_delete(self, obj: RawObject, *, state_unknown: bool) -> None:
        self._note("vanished" if state_unknown else "delete", obj)

    def _note(self, change: str, obj: RawObject) -> None:
        self.calls.append((change, key_of(obj)))
        self.told.set()
        self.told = anyio.Event()

    async def wait(self, count: int, *, seconds: float = 10) -> list[tuple[Any, ...]]:
        with anyio.fail_after(seconds):
            while len(self.calls) < count:
                await self.told.wait()
        return self.calls


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture
def fake_server() -> type[FakeServer]:
    return FakeServer


@pytest.fixture
def recorder() -> type[Recorder]:
    return Recorder


@pytest.fixture
def wire() -> Any:
    """Functions that make objects, lists and events, and the step SILENT of a script."""

    class Wire:
        config_map = staticmethod(config_map)
        list_answer = staticmethod(list_answer)
        event = staticmethod(event)
        bookmark = staticmethod(bookmark)
        error_event = staticmethod(error_event)
        SILENT = globals()["SILENT"]

    return Wire


@pytest.fixture
def running() -> Any:
    """Run a cache (or anything with ``run(stop, task_status=…)``) inside a block."""

    @asynccontextmanager
    async def run(cache: Any) -> AsyncIterator[Any]:
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            await tasks.start(lambda *, task_status: cache.run(stop, task_status=task_status))
            try:
                yield cache
            finally:
                stop.set()

    return run


@pytest.fixture
def thing(namespace: str) -> tuple[type[Unstructured], RawObject]:
    """A kind of the test's own without size limit, as config maps have one of 1 MiB; and its CRD, not installed."""
    group = f"{namespace}.example.dev"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    crd = {
        "metadata": {"name": f"things.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    return unstructured(f"{group}/v1", "Thing"), crd


@pytest.fixture
async def things(client: Client, thing: tuple[type[Unstructured], RawObject]) -> AsyncIterator[type[Unstructured]]:
    """The kind ``thing`` while it is served."""
    kind, crd = thing
    (installed,) = await install_crds(client, [crd])
    yield kind
    await client.delete(installed)
