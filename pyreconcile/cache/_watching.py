"""What a reflector works with: the transport, the sink, and what it notes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from pyreconcile.api import RawObject
from pyreconcile.cache._lister import JSON, Requests
from pyreconcile.cache._reachable import Reachability

SILENCE = 70.0
"""Seconds without a byte after which a watch counts as dead.

The server sends a bookmark about once a minute, so a live watch is seldom silent for longer. HTTP/1.1 has no ping that
would tell; ending a watch that was merely quiet costs one request and no list.
"""


class Transport(Requests, Protocol):
    """What a reflector needs of the client's transport."""

    def stream(
        self, path: str, *, query: Mapping[str, str] | None = None, idle_timeout: float = SILENCE, accept: str = JSON
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a stream of lines in the form asked for; ``idle_timeout`` is the longest silence in seconds."""


class Sink(Protocol):
    """Takes what a reflector sees, in order."""

    def prepare(self, obj: RawObject) -> RawObject:
        """Make a parsed object ready, before `replace` or `apply` is called with it; an error stops the round."""

    async def replace(self, objects: Mapping[str, RawObject], version: str) -> None:
        """Take the full state at a version: all objects by their keys."""

    def apply(self, change: str, obj: RawObject) -> None:
        """Take one change: ADDED, MODIFIED or DELETED, with the object after it (or last, when deleted)."""

    def progressed(self, version: str) -> None:
        """Everything up to this version has been given."""


@dataclass(slots=True)
class ServerSupport:
    """What was learnt about the server, shared by all reflectors of a process (rule RF-5).

    ``reachability`` ends their waits when a server that refused connections takes them again.
    """

    streaming_list: bool = True
    reachability: Reachability | None = None


@dataclass(slots=True)
class ReflectorStats:
    """Counters of one reflector; they only grow."""

    lists: int = 0
    streaming_lists: int = 0
    watches: int = 0
    events: int = 0
    bookmarks: int = 0
    bytes: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    causes: dict[str, int] = field(default_factory=dict)
    """Why there was a list, and how often: ``start``, or the error before it."""
