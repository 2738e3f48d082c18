"""HTTP/1.1 for the webhook server: asyncio carries the bytes, httptools (llhttp) reads the requests.

The API server asks for every pod that is made, so that a request costs what its handler costs is worth a page of code:
through aiohttp's server one costs 0.14 ms of CPU beside its handler, through this one 0.06 ms. What a webhook needs of
HTTP is little: keep-alive, bodies with a length or in chunks, one answer for each request.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import Any, Final, NamedTuple, cast

import anyio
import httptools
import structlog
from anyio.abc import TaskGroup

# The API server's transport drops idle connections after 90 s; ours must live longer, or a request may meet a
# connection that is just being closed.
KEEP_ALIVE: Final = 120.0
"""Seconds after which a connection that carries no request is closed."""

_SWEEP = 10.0  # seconds between two looks for such connections
_HANDSHAKE = 10.0  # seconds that TLS may take to begin
_GOODBYE = 5.0  # seconds that TLS may take to end
_HEAD = 64 * 1024  # bytes that the request line and the headers may have
_JOINED = 64 * 1024  # bytes of a body up to which copying it behind its head costs less than a second write

_log = structlog.get_logger()


class Request(NamedTuple):
    """What was asked: ``path`` and ``query`` as they were sent, headers by lower-case name (the last one counts).

    ``body`` is None when it is longer than the limit of its path.
    """

    path: str
    query: str
    headers: dict[bytes, bytes]
    body: bytes | None


class Response(NamedTuple):
    """What is answered."""

    status: int
    body: bytes
    content_type: str = "application/json"


def text(status: int, message: str) -> Response:
    """Return an answer in plain words."""
    return Response(status, message.encode(), "text/plain; charset=utf-8")


class HTTPServer:
    """Accepts connections and has their requests answered, those of one connection one after the other.

    Args:
        answer: gives the answer to a request; a client that goes away cancels it.
        limit: bytes below which the body for a path must be; longer ones are read past, but not kept.
    """

    def __init__(self, answer: Callable[[Request], Awaitable[Response]], *, limit: Callable[[str], int]) -> None:
        self.answer = answer
        self.limit = limit
        self._tasks: TaskGroup | None = None
        self._connections: set[_Connection] = set()
        self._second = 0
        self._heads: dict[tuple[int, str, bool], bytes] = {}  # of this second: they tell the time
        self._empty = anyio.Event()

    @asynccontextmanager
    async def listening(
        self, host: str | None, port: int, *, context: ssl.SSLContext, grace: float, sock: socket.socket | None = None
    ) -> AsyncIterator[int]:
        """Serve while the block runs, on ``sock`` if there is one; gives the port.

        Leaving the block lets running requests end, for ``grace`` seconds at most; an exception or cancellation of it
        ends them at once.

        Raises:
            OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        where: dict[str, Any] = {"sock": sock} if sock is not None else {"host": host, "port": port}
        server = await loop.create_server(
            lambda: _Connection(self, loop),
            ssl=context,
            ssl_handshake_timeout=_HANDSHAKE,
            ssl_shutdown_timeout=_GOODBYE,
            **where,
        )
        failure: Exception | None = None  # kept from the task group, which would wrap it
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._sweep, loop)
            try:
                yield server.sockets[0].getsockname()[1]
                server.close()
                with anyio.move_on_after(grace):
                    await self._finish()
            except Exception as error:
                failure = error
            finally:
                self._tasks = None
                server.close()
                for connection in [*self._connections]:
                    connection.abort()
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def opened(self, connection: _Connection) -> bool:
        """Take a connection in; False when there is no time for it any more."""
        if self._tasks is None:
            return False
        self._connections.add(connection)
        self._tasks.start_soon(connection.run)
        return True

    def closed(self, connection: _Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        if not any(other.busy for other in self._connections):
            self._empty.set()

    def head(self, response: Response, *, last: bool) -> bytes:
        """Return the head of an answer; ``last`` tells the client that the connection ends with it."""
        now = int(time())
        if self._second != now:
            self._second = now
            self._heads.clear()
        kind = (response.status, response.content_type, last)
        head = self._heads.get(kind)
        if head is None:
            lines = [
                f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
                f"Date: {formatdate(now, usegmt=True)}",
                f"Content-Type: {response.content_type}",
                *(["Connection: close"] if last else []),
                "Content-Length: ",
            ]
            head = self._heads[kind] = "\r\n".join(lines).encode("ascii")
        return b"%b%d\r\n\r\n" % (head, len(response.body))

    async def _finish(self) -> None:
        self._empty = anyio.Event()
        for connection in [*self._connections]:
            connection.finish()
        if any(connection.busy for connection in self._connections):
            await self._empty.wait()

    async def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        # One timer for all connections, not one for each request.
        while True:
            await anyio.sleep(_SWEEP)
            for connection in [*self._connections]:
                if not connection.busy and loop.time() - connection.quiet_since > KEEP_ALIVE:
                    connection.abort()


class _Connection(asyncio.Protocol):
    """One connection; its requests wait in a queue for `run`.

    Attributes:
        busy: whether an answer is due, or still on its way while the connection is being closed.
        quiet_since: loop time of the last answer.
    """

    __slots__ = (
        "_body",
        "_closing",
        "_head_size",
        "_headers",
        "_limit",
        "_loop",
        "_parser",
        "_path",
        "_query",
        "_read",
        "_requests",
        "_scope",
        "_server",
        "_target",
        "_transport",
        "_waiter",
        "_writable",
        "busy",
        "quiet_since",
    )

    def __init__(self, server: HTTPServer, loop: asyncio.AbstractEventLoop) -> None:
        self.busy = False
        self.quiet_since = loop.time()
        self._server = server
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._scope: anyio.CancelScope | None = None
        self._requests: deque[tuple[Request, bool, bool]] = deque()  # with: keep the connection, leave the body out
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._closing = False
        self._begin()

    def _begin(self) -> None:
        self._target = b""
        self._path = self._query = ""
        self._headers: dict[bytes, bytes] = {}
        self._head_size = 0
        self._body: list[bytes] = []
        self._read = 0
        self._limit = 0

    # -- answering -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Answer request after request, until the connection ends."""
        with anyio.CancelScope() as self._scope:
            while self._transport is not None:
                if not self._requests:
                    self.busy = False
                    if self._closing:
                        self._transport.close()
                        return
                    self._waiter = self._loop.create_future()
                    await self._waiter
                    continue
                request, keep, bodiless = self._requests.popleft()
                if not self._requests:
                    self._transport.resume_reading()
                response = await self._answer(request)
                self._closing = self._closing or not keep
                self._write(response, bodiless=bodiless)
                if self._writable is not None:
                    await self._writable
                self.quiet_since = self._loop.time()
                if self._closing and self._transport is not None:
                    self._transport.close()
                    return

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._server.answer(request)
        except Exception as error:
            _log.exception("webhook_request_failed", path=request.path, error=type(error).__name__)
            return text(500, "the webhook server failed")

    def _write(self, response: Response, *, bodiless: bool = False) -> None:
        transport = self._transport
        if transport is None:
            return
        head, body = self._server.head(response, last=self._closing), b"" if bodiless else response.body
        if len(body) <= _JOINED:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)

    def finish(self) -> None:
        """Take no further request; an answer that is due is still given."""
        self._closing = True
        if not self.busy and self._transport is not None:
            self._transport.close()
        self._wake()

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to answer. The kernel finds out when the peer of a quiet connection is gone."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not self._server.opened(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request; what is no HTTP is answered with 400, and ends the connection."""
        if self._parser is None or self._closing:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.finish()  # the request itself is answered as any other
        except httptools.HttpParserError as error:
            self._refuse(400, f"this is no HTTP: {error}")

    def pause_writing(self) -> None:
        """Have `run` wait: the client does not read."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Have `run` go on."""
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what is under way: nobody would read its answer."""
        self._transport = None
        self._parser = None  # it and this object refer to one another
        self.busy = False
        if self._scope is not None:
            self._scope.cancel()
        self._server.closed(self)

    # -- httptools' callbacks --------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        """Keep a part of the target."""
        self._target += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers[name.lower()] = value
        self._count(len(name) + len(value))

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > _HEAD:
            self._refuse(431, f"request line and headers must be smaller than {_HEAD} bytes")

    def on_headers_complete(self) -> None:
        """Learn how long the body may be, and tell a client that waits for it to send it."""
        self._path, _, self._query = self._target.decode("latin-1").partition("?")
        self._limit = self._server.limit(self._path)
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, chunk: bytes) -> None:
        """Keep a part of the body, unless it is too long by now."""
        self._read += len(chunk)
        if self._read < self._limit:
            self._body.append(chunk)
        else:
            self._body.clear()
            if self._read > 2 * self._limit and not self._closing:
                # Enough was read past for whoever sends a body that is only somewhat too long.
                self.on_message_complete()
                self.finish()

    def on_message_complete(self) -> None:
        """The request is whole: queue it."""
        if self._closing or self._parser is None:
            return
        body = self._body
        request = Request(
            self._path,
            self._query,
            self._headers,
            None if self._read >= self._limit else body[0] if len(body) == 1 else b"".join(body),
        )
        self._requests.append((request, self._parser.should_keep_alive(), self._parser.get_method() == b"HEAD"))
        if self.busy and self._transport is not None:
            self._transport.pause_reading()  # a second one waits; one more must not
        self.busy = True
        self._begin()
        self._wake()

    def _refuse(self, status: int, message: str) -> None:
        if not self._closing:
            self._closing = True
            if not self.busy:  # an answer that is due still goes first, and ends the connection
                self._write(text(status, message))
            self._wake()
