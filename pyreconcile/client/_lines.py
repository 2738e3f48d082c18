"""Whole lines out of a stream of bytes, with no limit on their length."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pyreconcile.client._http import LostError, SilentError

_TURN = 256
"""Lines handed out in a row before other tasks get a turn (rule RF-17)."""


class ByteSource(Protocol):
    """Where the bytes come from."""

    async def readany(self) -> bytes:
        """Return the bytes that have arrived, waiting for some; empty at the end."""


class Lines:
    """Iterates over the lines of a byte stream, without their line ends; empty lines are left out.

    A last line without its end is handed out when the stream ended properly. Silence beyond the stream's own idle
    limit counts as its end (rule RF-16).
    """

    def __init__(self, source: ByteSource, failure: Callable[[LostError], Exception]) -> None:
        self._source = source
        self._failure = failure
        self._ready: deque[bytes] = deque()
        self._begun: list[bytes] = []
        self._in_a_row = 0
        self._ended = False

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> bytes:
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            await self._read()
        self._in_a_row += 1
        if self._in_a_row >= _TURN:
            self._in_a_row = 0
            await asyncio.sleep(0)
        return self._ready.popleft()

    async def _read(self) -> None:
        try:
            chunk = await self._source.readany()
        except SilentError:
            self._ended = True
            return
        except LostError as error:
            self._ended = True
            raise self._failure(error) from error
        if not chunk:
            self._ended = True
            chunk = b"\n"
        first, *rest = chunk.split(b"\n")
        self._begun.append(first)
        if not rest:
            return
        line = b"".join(self._begun)
        last = rest.pop()
        self._begun = [last] if last else []
        if line:
            self._ready.append(line)
        self._ready.extend(filter(None, rest))
