"""The fault proxy's server: takes requests, makes the faults, and passes the rest on. It lives on a loop of its own."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType

import aiohttp
import anyio
import orjson
from aiohttp import web
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ._components import HOST
from ._proxy_faults import Fault, Faults, status_body
from ._proxy_requests import Matcher, ProxiedRequest, matches
from ._proxy_upstream import Upstream, end_to_end

__all__ = ["ProxyServer"]

_INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_BOOKMARK_WITHIN = 64  # the API server writes an event's type first
_STOP_SECONDS = 1.0


class _Silent(asyncio.Protocol):
    """Takes connections and leaves them alone."""

    def __init__(self, held: list[asyncio.BaseTransport]) -> None:
        self._held = held

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._held.append(transport)


@dataclass(eq=False)
class _Exchange:
    """A request in progress."""

    http: web.BaseRequest
    request: ProxiedRequest

    def cut(self) -> None:
        """Reset the client's connection."""
        if self.http.transport is not None:
            self.http.transport.abort()


class ProxyServer:
    """Serves on one port of the loopback interface. An async context manager; all calls belong on its loop.

    Args:
        upstream: where requests go.
        tls: for HTTPS; None for HTTP.
        clock: monotonic seconds.
    """

    def __init__(self, upstream: Upstream, tls: ssl.SSLContext | None, clock: Callable[[], float]) -> None:
        self.upstream = upstream
        self.log: list[ProxiedRequest] = []
        self._tls = tls
        self._clock = clock
        self._faults = Faults()
        self._changed = anyio.Event()
        self._exchanges: set[_Exchange] = set()
        self._silenced: set[object] = set()
        self._unanswered: list[asyncio.BaseTransport] = []
        self._cuts = 0
        self._blackholes = 0
        self._listener: asyncio.Server | None = None
        # Bound and not listening: nobody else gets the port while connections are refused.
        self._reserved = _bind(0)
        self.port: int = self._reserved.getsockname()[1]

    async def __aenter__(self) -> ProxyServer:
        await self.upstream.__aenter__()
        self._server = web.Server(self._serve, handler_cancellation=True, access_log=None, auto_decompress=False)
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            if self._listener is not None:
                self._listener.close()
            self.drop_connections()
            for held in self._unanswered:
                held.close()
            await self._server.shutdown(_STOP_SECONDS)
            await self.upstream.__aexit__(kind, error, traceback)
            self._reserved.close()

    async def _listen(self) -> None:
        """Take connections, refuse them, or leave them without an answer, as the faults in force say."""
        old, self._listener = self._listener, None
        loop = asyncio.get_running_loop()
        if not self._cuts:
            sock = _bind(self.port)
            if self._blackholes:
                self._listener = await loop.create_server(lambda: _Silent(self._unanswered), sock=sock)
            else:
                self._listener = await loop.create_server(self._server, sock=sock, ssl=self._tls)
        if old is not None:
            old.close()

    # What the test asks for

    async def begin_cut(self) -> None:
        """Reset all connections and refuse new ones."""
        self._cuts += 1
        await self._listen()
        self.drop_connections()

    async def end_cut(self) -> None:
        """Take connections again."""
        self._cuts -= 1
        await self._listen()

    async def begin_blackhole(self, *, new: bool) -> None:
        """Pass nothing on the connections that exist, and with ``new`` none on later ones."""
        self._silenced.update(self._server.connections)
        self._notify()
        if new:
            self._blackholes += 1
            await self._listen()

    async def end_blackhole(self, *, new: bool) -> None:
        """Serve later connections again."""
        if new:
            self._blackholes -= 1
            await self._listen()

    def begin(self, fault: Fault) -> None:
        """Put a fault in force; one that refuses also resets the connections of the requests it picks."""
        self._faults.add(fault)
        if fault.kind == "refuse":
            for exchange in [one for one in self._exchanges if fault.meets(one.request)]:
                self._refuse(exchange, fault)
        self._notify()

    def end(self, fault: Fault) -> None:
        """End a fault."""
        self._faults.remove(fault)
        self._notify()

    def drop_connections(self, match: Matcher | None = None) -> int:
        """Reset the connections of the requests in progress that are picked, without one all; return how many."""
        if match is None:
            connections = self._server.connections
            for connection in connections:
                if connection.transport is not None:
                    connection.transport.abort()
            return len(connections)
        picked = [exchange for exchange in self._exchanges if matches(match, exchange.request)]
        for exchange in picked:
            exchange.cut()
        return len(picked)

    def retarget(self, url: str) -> None:
        """Send later requests somewhere else."""
        self.upstream.url = url.rstrip("/")

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # One request

    async def _serve(self, http: web.BaseRequest) -> web.StreamResponse:
        request = ProxiedRequest.read(
            http.method,
            http.raw_path,
            time=self._clock(),
            user_agent=http.headers.get("User-Agent", ""),
            connection=_peer_port(http),
        )
        exchange = _Exchange(http, request)
        self.log.append(request)
        self._exchanges.add(exchange)
        try:
            return await self._exchange(exchange)
        finally:
            request.ended = self._clock()
            self._exchanges.discard(exchange)

    async def _exchange(self, exchange: _Exchange) -> web.StreamResponse:
        http, request = exchange.http, exchange.request
        body = await http.content.read()
        await self._open(exchange)
        if fault := self._faults.take("refuse", request):
            return self._refuse(exchange, fault)
        if fault := self._faults.take("answer", request):
            return _answer(request, fault.code, "the fault proxy says so", fault.retry_after)
        if http.headers.get("Upgrade"):
            return _answer(request, 501, "the fault proxy passes no upgraded connections (exec, attach, port-forward)")
        headers = end_to_end(http.headers)
        if request.watch:
            headers.popall("Accept-Encoding", None)  # or events could not be told apart
        try:
            answer = await self.upstream.send(http.method, http.raw_path, headers, body)
            async with answer:
                if request.streams and answer.status == 200:
                    return await self._stream(exchange, answer)
                return await self._whole(exchange, answer)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return self._lost(exchange, "upstream")

    async def _whole(self, exchange: _Exchange, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        request = exchange.request
        content = await answer.read()
        if answer.status < 300 and self._faults.take("drop_response", request):
            return self._lost(exchange, "drop_response")
        if fault := self._faults.take("delay_response", request):
            await self._delayed(self._clock(), fault)
        await self._open(exchange)
        request.status, request.received = answer.status, len(content)
        return web.Response(status=answer.status, headers=end_to_end(answer.headers), body=content)

    async def _stream(self, exchange: _Exchange, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        request = exchange.request
        response = web.StreamResponse(status=answer.status, headers=end_to_end(answer.headers))
        await self._open(exchange)
        request.status = answer.status
        send, receive = anyio.create_memory_object_stream[tuple[float, bytes] | None](math.inf)
        try:
            await response.prepare(exchange.http)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pump, answer, request, send)
                whole = await self._deliver(exchange, receive, response)
        except (ConnectionError, ExceptionGroup):
            whole = False  # the client has gone
        if not whole:
            exchange.cut()
        return response

    async def _pump(
        self,
        answer: aiohttp.ClientResponse,
        request: ProxiedRequest,
        send: MemoryObjectSendStream[tuple[float, bytes] | None],
    ) -> None:
        """Take in what the API server sends, with its time; None says that it broke off."""
        with send:
            try:
                if request.watch and answer.content_type == "application/json":
                    async for line in _lines(answer.content):
                        send.send_nowait((self._clock(), line))
                else:
                    async for chunk in answer.content.iter_any():
                        send.send_nowait((self._clock(), chunk))
            except (aiohttp.ClientError, TimeoutError, OSError):
                send.send_nowait(None)

    async def _deliver(
        self,
        exchange: _Exchange,
        receive: MemoryObjectReceiveStream[tuple[float, bytes] | None],
        response: web.StreamResponse,
    ) -> bool:
        """Pass on what came in, when it is due; False when it broke off."""
        request = exchange.request
        with receive:
            async for item in receive:
                if item is None:
                    return False
                arrived, piece = item
                if fault := self._faults.take("delay_stream", request):
                    await self._delayed(arrived, fault)
                await self._open(exchange)
                version = _bookmark(piece) if request.watch else None
                if version is not None and self._faults.take("drop_bookmarks", request):
                    continue
                await response.write(piece)
                request.received += len(piece)
                if version is not None:
                    request.bookmarks.append(version)
        await response.write_eof()
        return True

    async def _delayed(self, arrived: float, fault: Fault) -> None:
        await self._wait(lambda: arrived + fault.seconds if fault in self._faults else 0.0)

    async def _open(self, exchange: _Exchange) -> None:
        """Wait for ever if the connection is in a black hole."""
        connection = exchange.http.protocol
        await self._wait(lambda: math.inf if connection in self._silenced else 0.0)

    async def _wait(self, due: Callable[[], float]) -> None:
        """Wait until a time, which faults that begin or end may change."""
        while (seconds := due() - self._clock()) > 0:
            changed = self._changed
            with anyio.move_on_after(seconds):
                await changed.wait()

    def _refuse(self, exchange: _Exchange, fault: Fault) -> web.StreamResponse:
        fault.use(exchange.request)
        return self._lost(exchange, fault.kind)

    def _lost(self, exchange: _Exchange, why: str) -> web.StreamResponse:
        exchange.request.fault = why
        exchange.cut()
        return web.Response(status=502)  # goes nowhere: the connection is lost


def _peer_port(http: web.BaseRequest) -> int:
    peer = http.transport.get_extra_info("peername") if http.transport is not None else None
    return int(peer[1]) if peer else 0


def _bind(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((HOST, port))
    sock.setblocking(False)  # noqa: FBT003
    return sock


def _answer(request: ProxiedRequest, code: int, message: str, retry_after: int | None = None) -> web.Response:
    request.status = code
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    body = status_body(code, message, retry_after=retry_after)
    return web.Response(status=code, headers=headers, body=body, content_type="application/json")


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Split into lines, ends included."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


def _bookmark(line: bytes) -> str | None:
    """Return the version of a bookmark; None for anything else, also for the one that ends a streaming list."""
    if b'"BOOKMARK"' not in line[:_BOOKMARK_WITHIN]:
        return None
    metadata = orjson.loads(line)["object"]["metadata"]
    if (metadata.get("annotations") or {}).get(_INITIAL_EVENTS_END) == "true":
        return None
    return str(metadata["resourceVersion"])
