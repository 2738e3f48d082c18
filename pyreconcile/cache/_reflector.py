"""List and watch: keeps a sink equal to one scope of a resource on the server (rules RF-1 to RF-18)."""

from __future__ import annotations

import random as _random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import structlog

from pyreconcile.api import PartialObjectMetadata, RawObject, Resource
from pyreconcile.cache._backoff import Backoff
from pyreconcile.cache._failures import is_lost, is_refused, is_unsupported
from pyreconcile.cache._lister import JSON, Lister, is_too_large, is_too_old
from pyreconcile.cache._options import Scope
from pyreconcile.cache._reminder import Reminder
from pyreconcile.cache._store import key_of
from pyreconcile.cache._watching import SILENCE, ReflectorStats, ServerSupport, Sink, Transport
from pyreconcile.client import (
    ApiError,
    InternalServerError,
    TooManyRequestsError,
    error_from_status,
)

INITIAL_EVENTS_END = "k8s.io/initial-events-end"

METADATA_KIND = "PartialObjectMetadata"
"""The kind under which a server sends an object's metadata alone."""

WATCH_SECONDS = (300, 600)
"""The server ends a watch after a random time in this range (runtime contract, section 5.1)."""

WATCH_MARGIN = 5.0
"""Seconds past that time after which the client ends it itself (rule RF-16; kube-rs does the same)."""

SHORT_WATCH = 1.0
"""A watch that ends sooner than this many seconds, with no event, is an error (runtime contract, section 5.1)."""

SLOW_LIST = 10.0
"""Seconds after which a list is worth a log line, and one each time as long as the end of a streaming list is missing
(runtime contract, section 5.1)."""

SLICE = 1 << 18
"""Bytes of events handled before other tasks get their turn (rule RF-17); each event counts as at least 1 KiB."""

FRESH = 1 << 20
"""Bytes of new objects between two calls of ``after_slices``; those of changed ones count a quarter."""

log = structlog.get_logger()


class WatchFailedError(Exception):
    """A watch ended in a way that calls for a fresh list; the message says how."""


class Reflector:
    """Keeps a sink up to date until it is cancelled.

    Args:
        transport: sends requests and opens streams.
        resource: what to watch.
        scope: namespace and selectors.
        sink: takes state and changes.
        support: what is known about the server, shared by the reflectors of a process.
        first_version: version of the first list: ``"0"`` any state the server has at hand, ``""`` the newest, else
            one that is not older.
        lists: bounds how many initial lists run at once (rule RF-18).
        backoff: the wait after an error.
        silence: seconds without a byte after which a watch is taken for dead.
        after_slices: called each time about 1 MiB of objects has come in.
        on_error: called after each list or watch that failed; what it raises is logged.
        retry_internal_errors: seconds for which watches that end with an internal error are opened again at the same
            version (rule RF-12).
        random: a number in [0, 1).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        scope: Scope,
        sink: Sink,
        *,
        support: ServerSupport | None = None,
        first_version: str = "0",
        lists: anyio.Semaphore | None = None,
        backoff: Backoff | None = None,
        silence: float = SILENCE,
        after_slices: Callable[[], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
        retry_internal_errors: float = 0.0,
        random: Callable[[], float] = _random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._resource = resource
        self._path = resource.path(scope.namespace)
        self._scope = scope
        self._sink = sink
        self._support = support or ServerSupport()
        self._lists = lists or anyio.Semaphore(1)
        self._accept = PartialObjectMetadata.media_type if scope.metadata_only else JSON
        self._sent_kind = METADATA_KIND if scope.metadata_only else resource.kind
        self._lister = Lister(transport, resource, scope, prepare=sink.prepare, after_slices=after_slices)
        self._clock = clock
        self._random = random
        self._backoff = backoff or Backoff(clock=clock, random=random)
        self._silence = silence
        self._after_slices = after_slices
        self._on_error = on_error
        self._retry_internal_errors = retry_internal_errors
        self._internal_errors_since: float | None = None
        self._first_version = first_version
        self._version: str | None = None
        self._expired = False
        self._work = 0
        self._fresh = 0
        self._listing = False
        self._lasted = False
        self._opened = False
        self._moved = False
        self._worked = False
        self._holds_slot = False
        self._log = log.bind(kind=self._resource.kind, namespace=scope.namespace)
        self._end_is_missing = Reminder(self._log, "streaming_list_end_missing", SLOW_LIST)
        self.stats = ReflectorStats()
        self.last_error: Exception | None = None
        self._last_contact = clock()
        self._down_since: float | None = clock()

    @property
    def down_for(self) -> float:
        """Seconds since the last watch ended, 0 while one is open."""
        return 0.0 if self._down_since is None else self._clock() - self._down_since

    @property
    def received_bytes(self) -> int:
        """Bytes of objects received, by lists and watches."""
        return self.stats.bytes + self._lister.received

    @property
    def silent_for(self) -> float:
        """Seconds since the server last sent anything."""
        return self._clock() - self._last_contact

    @property
    def version(self) -> str:
        """The version up to which the sink has seen everything; empty before the first list."""
        return self._version or ""

    async def run(self) -> None:
        """List and watch for ever. Errors are logged, kept in ``last_error`` and followed by a wait.

        Cancelled: closes the stream at once, without waiting for the server.
        """
        while True:
            refused = False
            try:
                await self._round()
            except Exception as error:
                self._failed(error)
                refused = is_refused(error)
                if is_too_old(error) and self._worked:
                    # The server answers, and waits came before the reconnect: the list need not wait again. Once
                    # only, or a server that expires every version would be listed without pause.
                    self._worked = False
                    continue
            await self._wait(refused=refused)

    async def _wait(self, *, refused: bool) -> None:
        seconds = self._backoff.next()
        reachability = self._support.reachability
        if refused and reachability is not None:
            await reachability.wait(seconds)
        else:
            await anyio.sleep(seconds)

    async def _round(self) -> None:
        cause = "start" if self.last_error is None else type(self.last_error).__name__
        self.stats.causes[cause] = self.stats.causes.get(cause, 0) + 1
        await self._lists.acquire()
        self._holds_slot = True
        try:
            if not await self._streaming_list():
                await self._plain_list()
        finally:
            self._release_slot()
        while True:
            await self._follow(self.version, listing=False)

    async def _streaming_list(self) -> bool:
        """List by a watch and go on with it; False when an ordinary list is due (rules RF-2 to RF-5)."""
        while self._support.streaming_list:
            start = "" if self._expired else self.version
            self.stats.streaming_lists += 1
            self._listing = True
            try:
                with self._end_is_missing:
                    await self._follow(start, listing=True)
            except Exception as error:
                if not self._listing:
                    raise
                if is_lost(error) or isinstance(error, TooManyRequestsError):
                    self._failed(error)
                    await self._wait(refused=is_refused(error))
                    continue
                if start and (is_too_old(error) or is_too_large(error)):
                    self._expired = True
                    continue
                if is_unsupported(error):
                    self._support.streaming_list = False
                self._log.debug("streaming_list_failed", error=str(error))
                return False
            if self._listing:
                # A server that does not know streaming lists ignores the parameter and never sends the mark.
                self._log.debug("streaming_list_unfinished")
                return False
            return True
        return False

    async def _plain_list(self) -> None:
        version = "" if self._expired else self.version or self._first_version
        self.stats.lists += 1
        began = self._clock()
        try:
            objects, listed = await self._lister.fetch(version)
        except ApiError as error:
            if not version or not (is_too_old(error) or is_too_large(error)):
                raise
            self._note(error)
            self._expired = True
            self.stats.lists += 1
            objects, listed = await self._lister.fetch("")
        if (seconds := self._clock() - began) > SLOW_LIST:
            self._log.info("list_slow", seconds=round(seconds, 1), objects=len(objects))
        await self._replace(objects, listed)

    async def _replace(self, objects: Mapping[str, RawObject], version: str) -> None:
        await self._sink.replace(objects, version)
        self._version = version
        self._expired = False
        self._listing = False
        self._end_is_missing.stop()
        self._last_contact = self._clock()
        self._release_slot()

    def _release_slot(self) -> None:
        if self._holds_slot:
            self._holds_slot = False
            self._lists.release()

    async def _follow(self, start: str, *, listing: bool) -> None:
        """Watch from a version to the end of the stream; returns when the next watch may follow without a list."""
        try:
            lasted = await self._watch(start, listing=listing)
        except Exception as error:
            internal = self._is_internal(error)
            if self._listing or not (internal or is_lost(error) or isinstance(error, TooManyRequestsError)):
                raise
            # RF-11: the version is still good, so a new list would only add load.
            if internal or isinstance(error, TooManyRequestsError) or not self._lasted:
                self._failed(error)
                await self._wait(refused=is_refused(error))
            else:
                self._note(error)
            return
        if not lasted:
            raise WatchFailedError(f"watch of {self._resource.plural} ended within {SHORT_WATCH:g} s and without event")

    async def _watch(self, start: str, *, listing: bool) -> bool:
        low, high = WATCH_SECONDS
        seconds = int(low + (high - low) * self._random())
        query = {
            **self._scope.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        if start:
            query["resourceVersion"] = start
        if listing:
            query["sendInitialEvents"] = "true"
            query["resourceVersionMatch"] = "NotOlderThan"
        self.stats.watches += 1
        self._lasted = self._opened = self._moved = False
        began = self._clock()
        received = self.stats.events + self.stats.bookmarks
        try:
            # Two limits: a silent stream, and one that a proxy keeps alive past the server's own end (RF-16).
            with anyio.move_on_after(seconds + WATCH_MARGIN):
                async with self._transport.stream(
                    self._path, query=query, idle_timeout=self._silence, accept=self._accept
                ) as lines:
                    self._opened = True
                    self._down_since = None
                    self._last_contact = self._clock()
                    await self._read(lines, known=start not in ("", "0"), listing=listing)
        finally:
            if self._down_since is None:
                self._down_since = self._clock()
            self._moved = self.stats.events + self.stats.bookmarks > received
            self._lasted = self._moved or self._clock() - began >= SHORT_WATCH
            self._worked = self._worked or self._lasted
        return self._lasted

    async def _read(self, lines: AsyncIterator[bytes], *, known: bool, listing: bool) -> None:
        sink = self._sink
        stats = self.stats
        kind = self._sent_kind
        initial: dict[str, RawObject] | None = {} if listing else None
        after_slices = self._after_slices
        async for line in lines:
            self._last_contact = self._clock()
            event: dict[str, Any] = orjson.loads(line)
            change: str = event["type"]
            obj: RawObject = event["object"]
            if change == "ERROR":
                raise error_from_status(obj)
            try:
                version: str = obj["metadata"]["resourceVersion"]
                if obj["kind"] != kind:
                    raise ValueError(obj["kind"])
            except (KeyError, TypeError, ValueError):
                self._log.warning("event_dropped", change=change, reason="not an object of this kind")
                continue
            if change == "BOOKMARK":
                stats.bookmarks += 1
                if initial is not None:
                    annotations = obj["metadata"].get("annotations") or {}
                    if annotations.get(INITIAL_EVENTS_END) != "true":
                        continue
                    await self._replace(initial, version)
                    initial = None
                known = True
                self._version = version
                sink.progressed(version)
            elif change in ("ADDED", "MODIFIED", "DELETED"):
                stats.events += 1
                if kind is METADATA_KIND:
                    obj["apiVersion"], obj["kind"] = self._resource.api_version, self._resource.kind
                obj = sink.prepare(obj)
                if initial is not None:
                    if change == "DELETED":
                        initial.pop(key_of(obj), None)
                    else:
                        initial[key_of(obj)] = obj
                else:
                    sink.apply(change, obj)
                    # RF-15: after a watch from nowhere the first ADDED events come in any order.
                    known = known or change != "ADDED"
                    if known:
                        self._version = version
                        sink.progressed(version)
            else:
                self._log.warning("event_dropped", change=change, reason="unknown type")
            length = len(line)
            stats.bytes += length
            size = 1024 + length
            self._fresh += size if change == "ADDED" else size >> 2
            if self._fresh > FRESH:
                self._fresh = 0
                if after_slices is not None:
                    after_slices()
            self._work += size
            if self._work > SLICE:
                self._work = 0
                await anyio.lowlevel.checkpoint()

    def _is_internal(self, error: Exception) -> bool:
        """Tell whether the stream ended with an internal error that is worth another watch at the same version."""
        if not isinstance(error, InternalServerError) or not self._opened:
            return False
        if self._internal_errors_since is None or self._moved:
            self._internal_errors_since = self._clock()
        return self._clock() - self._internal_errors_since < self._retry_internal_errors

    def _failed(self, error: Exception) -> None:
        self._note(error)
        self._log.warning("watch_failed", error=f"{type(error).__name__}: {error}")
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:
                self._log.exception("watch_error_handler_failed")

    def _note(self, error: Exception) -> None:
        self.last_error = error
        name = type(error).__name__
        self.stats.errors[name] = self.stats.errors.get(name, 0) + 1
