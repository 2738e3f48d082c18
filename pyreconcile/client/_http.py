"""One HTTP/1.1 connection: a transport carries the bytes, httptools (llhttp) reads the answers.

A request through aiohttp's session costs 0.23 ms of CPU on a machine where one through this connection costs 0.12 ms,
half of it in the kernel; a controller that writes three times for an object spends most of its time here. What the API
server needs of HTTP is little: keep-alive, one exchange at a time, answers with a length, in chunks, or up to the end.
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import httptools

from pyreconcile.client._tls import TLSTransport

_BUFFER = 1 << 20
"""Bytes of a stream that may wait for their reader before no more are taken from the network."""
_GZIP = 16 + zlib.MAX_WBITS


class LostError(Exception):
    """The connection ended in the middle of an exchange.

    Attributes:
        answered: whether a part of the answer had come.
        sent: whether anything of the request was sent.
    """

    def __init__(self, text: str, *, answered: bool, sent: bool = True) -> None:
        super().__init__(text)
        self.answered = answered
        self.sent = sent


class SilentError(Exception):
    """Nothing came on a stream for its idle limit."""


class Answer:
    """What came back: ``status``, ``headers`` as they were sent, ``body`` (empty while a stream runs)."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def header(self, name: bytes) -> str | None:
        """Return the first header of a name given in lower case, or None."""
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == name), None)

    def all(self, name: bytes) -> list[str]:
        """Return every header of a name given in lower case."""
        return [value.decode("latin-1") for key, value in self.headers if key.lower() == name]

    def text_body(self) -> bytes:
        """Return the body, unpacked if it came compressed.

        Raises:
            LostError: it is not what its header says.
        """
        if self.header(b"content-encoding") != "gzip":
            return self.body
        try:
            return zlib.decompress(self.body, _GZIP)
        except zlib.error as error:
            raise LostError(f"the answer is no gzip: {error}", answered=True) from error


class HTTPConnection(asyncio.Protocol):
    """Carries one exchange after the other; made by the pool, which tells it the loop's time.

    Attributes:
        deadline: loop time at which the pool ends the exchange in hand.
        generation: which of the pool's client certificates it was made with.
        idle_since: loop time at which the last exchange ended.
        used: whether it carried an exchange before.
    """

    __slots__ = (
        "_chunks",
        "_closed",
        "_headers",
        "_loop",
        "_on_lost",
        "_parser",
        "_status",
        "_streaming",
        "_transport",
        "_tunnelling",
        "_waiter",
        "deadline",
        "generation",
        "idle_since",
        "used",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, on_lost: Callable[[HTTPConnection], None]) -> None:
        self.deadline = 0.0
        self.generation = 0
        self.idle_since = 0.0
        self.used = False
        self._loop = loop
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[Answer] | None = None
        self._streaming: ByteStream | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._chunks: list[bytes] = []
        self._status = 0
        self._closed = False
        self._tunnelling = False

    # -- exchanges -------------------------------------------------------------------------------------------------

    async def exchange(self, request: bytes) -> Answer:
        """Send a request and return its whole answer. A cancelled exchange closes the connection.

        Raises:
            LostError: the connection ended before that.
            TimeoutError: the pool ended it at ``deadline``.
        """
        self._begin(request)
        assert self._waiter is not None
        try:
            return await self._waiter
        except asyncio.CancelledError:
            self.abort()
            raise

    async def stream(self, request: bytes, idle_limit: float) -> tuple[Answer, ByteStream]:
        """Send a request and return the head of its answer, and the body as it comes; raises as `exchange`."""
        self._streaming = stream = ByteStream(self, self._loop, idle_limit)
        if isinstance(self._transport, TLSTransport):
            self._transport.poll()
        return await self.exchange(request), stream

    async def tunnel(self, request: bytes) -> asyncio.Transport:
        """Send a CONNECT and return the transport, which then reaches the server and is no longer this object's.

        Raises:
            LostError: the proxy refused, or the connection ended.
        """
        self._tunnelling = True
        answer = await self.exchange(request)
        transport = self._transport
        if answer.status != 200 or transport is None:
            self.abort()
            what = request.partition(b" HTTP/")[0].decode()
            raise LostError(f"the proxy answered {answer.status} to {what}", answered=True)
        self._release()
        return transport

    def _begin(self, request: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise LostError("the connection was closed", answered=False, sent=False)
        self._status = 0
        self._headers = []
        self._chunks = []
        self._waiter = self._loop.create_future()
        transport.write(request)

    @property
    def reusable(self) -> bool:
        """Whether another exchange can follow."""
        transport = self._transport
        return not self._closed and transport is not None and not transport.is_closing()

    @property
    def busy(self) -> bool:
        """Whether an answer is being waited for."""
        return self._waiter is not None

    def expire(self) -> None:
        """End the exchange in hand with a TimeoutError."""
        self._fail(TimeoutError())
        self.abort()

    def abort(self) -> None:
        """Close at once, without a word to the peer; an exchange in hand fails with a LostError."""
        self._closed = True
        if self._waiter is not None or self._streaming is not None:
            self._fail(LostError("it was closed here", answered=bool(self._status)))
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Take nothing more from the network until `resume`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on after `pause`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Have the kernel find out when the peer of a quiet connection is gone (rule RF-16)."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        sock: Any = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 3)):
            if option := getattr(socket, name, None):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def data_received(self, data: bytes) -> None:
        """Read a piece of an answer; bytes that nobody asked for end the connection."""
        parser = self._parser
        if parser is None or (self._waiter is None and self._streaming is None):
            self.abort()
            return
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(LostError(f"the answer is no HTTP: {error}", answered=True))
            self.abort()
        except httptools.HttpParserUpgrade:
            self._fail(LostError("the answer leaves HTTP, which was not asked for", answered=True))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is under way."""
        self._closed = True
        if exc is None and self._status >= 200 and not self._is_delimited():
            self._complete()  # such an answer ends with its connection
        else:
            text = str(exc) or type(exc).__name__ if exc is not None else "the server closed it"
            self._fail(LostError(text, answered=bool(self._status)))
        self._on_lost(self)
        self._release()

    def _release(self) -> None:
        # The cache has live objects frozen, and nothing collects the cycles among them.
        self._transport = None
        self._parser = None

    def _is_delimited(self) -> bool:
        names = {name.lower() for name, _ in self._headers}
        return b"content-length" in names or b"transfer-encoding" in names

    # -- httptools' callbacks --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Refuse an answer that nobody asked for, also when it comes together with the one before."""
        if self._waiter is None and self._streaming is None:
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Take the status; for a stream, that is what its opener waits for."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:  # the answer proper is still to come
            self._headers = []
            return
        self._status = status
        if self._tunnelling or (self._streaming is not None and status == 200):
            self._answer(Answer(status, self._headers))

    def on_body(self, chunk: bytes) -> None:
        """Keep a part of the body, or hand it to the stream."""
        if self._streaming is not None and self._status == 200:
            self._streaming.feed(chunk)
        else:
            self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._status >= 200:
            if self._parser is not None and not self._parser.should_keep_alive():
                self._closed = True
            self._complete()

    def _complete(self) -> None:
        stream, self._streaming = self._streaming, None
        if stream is not None and self._status == 200:
            stream.end(None)
            return
        chunks = self._chunks
        self._answer(Answer(self._status, self._headers, chunks[0] if len(chunks) == 1 else b"".join(chunks)))
        self._chunks = []

    def _answer(self, answer: Answer) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        stream, self._streaming = self._streaming, None
        if stream is not None:
            stream.end(error)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


class ByteStream:
    """The body of an answer as it comes; the reader's pace is the network's."""

    def __init__(self, connection: HTTPConnection, loop: asyncio.AbstractEventLoop, idle_limit: float) -> None:
        self._connection = connection
        self._loop = loop
        self._idle_limit = idle_limit
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._last = loop.time()
        self._watch: asyncio.TimerHandle | None = None

    async def readany(self) -> bytes:
        """Return what has come, waiting for some; empty at the end.

        Raises:
            LostError: the answer broke off.
            SilentError: nothing came for the idle limit.
        """
        if self._watch is None and not self._ended:
            self._last = self._loop.time()
            self._watch = self._loop.call_later(self._idle_limit, self._check)
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            self._waiter = self._loop.create_future()
            await self._waiter
        chunks = self._chunks
        data = chunks.popleft() if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            self._last = self._loop.time()
            self._connection.resume()
        return data

    def feed(self, chunk: bytes) -> None:
        """Take a part of the body. For the connection alone."""
        self._last = self._loop.time()
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > _BUFFER and not self._paused:
            self._paused = True
            self._connection.pause()
        self._wake()

    def end(self, error: Exception | None) -> None:
        """No more will come. For the connection alone."""
        if not self._ended:
            self._ended = True
            self._error = error
            self.close()
            self._wake()

    def close(self) -> None:
        """Stop watching for silence."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _check(self) -> None:
        # One timer a stream, not one a chunk. A reader that has not yet taken what came is no silence of the server.
        quiet = 0.0 if self._chunks else self._loop.time() - self._last
        self._watch = None
        if quiet >= self._idle_limit:
            self.end(SilentError())
        else:
            self._watch = self._loop.call_later(self._idle_limit - quiet, self._check)
