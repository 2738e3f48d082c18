"""The connections to one server: opening them with TLS or through a proxy, keeping them for the next request."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from pyreconcile.client._errors import ConnectionLostError, UnauthorizedError
from pyreconcile.client._http import Answer, ByteStream, HTTPConnection, LostError
from pyreconcile.client._proxy import proxy_for
from pyreconcile.client._tls import can_watch_sockets, connect_tls

_IDLE_LIMIT = 60.0
"""Seconds after which an unused connection is not used again; kube-apiserver closes them after 90 (its IdleTimeout)."""
_CONNECT_LIMIT = 30.0
"""Seconds for a connection to be made and TLS agreed on."""


class UnansweredError(ConnectionLostError):
    """The connection was lost after the request was sent and before any part of an answer came."""


class ConnectError(Exception):
    """No connection could be made.

    Attributes:
        refused: nothing listens there.
        late: not within its time.
        sent: the request was sent before, over a connection that was lost.
    """

    def __init__(self, error: OSError | LostError) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.refused = isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
        self.late = isinstance(error, TimeoutError)
        self.sent = False


class ServerSettings(Protocol):
    """What is needed of the settings; kubernetes_asyncio's ``Configuration`` has it all, under these names."""

    host: str | None
    ssl_ca_cert: str | None
    cert_file: str | None
    key_file: str | None
    verify_ssl: bool
    disable_strict_ssl_verification: bool
    tls_server_name: str | None
    proxy: str | None
    proxy_headers: dict[str, str] | None


class Connections:
    """The open connections to one server.

    Args:
        settings: where the server is, and how it and this client prove who they are.
        resolved: told the name and the seconds of each look-up of a host name.
    """

    def __init__(self, settings: ServerSettings, *, resolved: Callable[[str, float], None] | None = None) -> None:
        self._settings = settings
        self._resolved = resolved
        self._url = urlsplit(str(settings.host))
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise ValueError(f"host {settings.host!r}: write it as https://name:port")
        self._proxy, self._proxy_headers = proxy_for(self._url, settings.proxy, settings.proxy_headers)
        to_proxy = self._proxy is not None and self._proxy.scheme == "https"
        self._proxy_tls = ssl.create_default_context() if to_proxy else None
        self._idle: list[HTTPConnection] = []
        self._open: set[HTTPConnection] = set()
        self._closed = False
        self._sweep: asyncio.TimerHandle | None = None
        self._generation = 0
        self._certificate = settings.cert_file
        self._tls = _tls_context(settings) if self._url.scheme == "https" else None

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed

    @property
    def dialled_url(self) -> str:
        """Scheme, host and port that connections are opened to: the server's, or the proxy's if there is one."""
        url = self._url if self._proxy is None else self._proxy
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"

    @property
    def target_prefix(self) -> str:
        """What comes before the path in a request: something only when a proxy carries plain HTTP."""
        return f"http://{self._url.netloc}" if self._proxy is not None and self._tls is None else ""

    @property
    def extra_headers(self) -> dict[str, str]:
        """Headers for the proxy, when requests go to it as they are."""
        return self._proxy_headers if self._proxy is not None and self._tls is None else {}

    async def exchange(
        self, request: bytes, limit: float, *, idempotent: bool, guard: Callable[[], None] | None = None
    ) -> Answer:
        """Send a request and return its answer.

        A kept connection that turns out to be closed by the server is replaced when that is safe.

        Args:
            request: head and body.
            limit: seconds until the answer must be whole.
            idempotent: whether the server may get the request twice.
            guard: called directly before each sending; what it raises ends the exchange.

        Raises:
            ConnectError, LostError, TimeoutError: by what went wrong.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit
        lost: LostError | None = None
        while True:
            try:
                connection = self._take(loop) or await self._connect(loop, deadline)
            except (ConnectError, RuntimeError) as error:
                if guard is not None and lost is None:
                    guard()  # one that may not write learns that, rather than that it could not
                if isinstance(error, ConnectError):
                    error.sent = lost is not None
                raise
            if guard is not None:
                try:
                    guard()
                except BaseException as refusal:
                    self._keep(connection, loop)
                    if lost is not None:  # what became of the first sending is the graver news
                        raise lost from refusal
                    raise
            connection.deadline = deadline
            if self._sweep is None or deadline < self._sweep.when():
                self._sweep_at(loop, deadline)
            try:
                answer = await connection.exchange(request)
            except LostError as error:
                again = (idempotent and not error.answered) or not error.sent
                if not (connection.used and again) or self._closed:
                    raise
                if error.sent:
                    lost = error
                continue
            self._keep(connection, loop)
            return answer

    @asynccontextmanager
    async def stream(self, request: bytes, limit: float) -> AsyncIterator[tuple[Answer, ByteStream]]:
        """Send a GET and give the head of its answer, and the body as it comes; closed at once at the end.

        Args:
            request: the head.
            limit: seconds until the answer must begin, and longest silence in it.

        Raises:
            ConnectError, LostError, TimeoutError: by what went wrong.
        """
        loop = asyncio.get_running_loop()
        connection = await self._connect(loop, loop.time() + limit)
        stream = None
        try:
            async with asyncio.timeout(limit):
                answer, stream = await connection.stream(request, limit)
            yield answer, stream
        finally:
            if stream is not None:
                stream.close()
            connection.abort()

    def reload_certificate(self) -> None:
        """Use a client certificate that an exec plugin has changed, for requests sent from now on.

        Connections made with another one are closed, those in use at the end of their exchange.

        Raises:
            UnauthorizedError: it cannot be used; the next call tries again.
        """
        certificate = self._settings.cert_file
        if certificate == self._certificate:
            return
        if self._url.scheme == "https":
            try:
                self._tls = _tls_context(self._settings)
            except OSError as error:  # ssl.SSLError is one
                raise UnauthorizedError(f"the client certificate {certificate} cannot be used: {error}") from error
        self._certificate = certificate
        self._generation += 1
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    async def aclose(self) -> None:
        """Close all connections; requests in flight fail."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # lets the transports close their sockets

    # -- keeping ---------------------------------------------------------------------------------------------------

    def _take(self, loop: asyncio.AbstractEventLoop) -> HTTPConnection | None:
        if self._closed:
            raise RuntimeError("the connection to the API server is closed")
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and loop.time() - connection.idle_since < _IDLE_LIMIT:
                return connection
            connection.abort()
        return None

    def _keep(self, connection: HTTPConnection, loop: asyncio.AbstractEventLoop) -> None:
        if connection.reusable and connection.generation == self._generation and not self._closed:
            connection.used = True
            connection.idle_since = loop.time()
            self._idle.append(connection)
        else:
            connection.abort()

    def _lost(self, connection: HTTPConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _expire(self) -> None:
        # One timer for all exchanges: setting and cancelling one for each would cost more than sending it.
        loop = asyncio.get_running_loop()
        now = loop.time()
        busy = [connection for connection in self._open if connection.busy and connection.deadline]
        for connection in busy:
            if connection.deadline <= now:
                connection.expire()
        later = [connection.deadline for connection in busy if connection.deadline > now]
        self._sweep = None
        if later:
            self._sweep_at(loop, min(later))

    def _sweep_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = loop.call_at(when, self._expire)

    # -- opening ---------------------------------------------------------------------------------------------------

    async def _connect(self, loop: asyncio.AbstractEventLoop, deadline: float) -> HTTPConnection:
        if self._closed:
            raise RuntimeError("the connection to the API server is closed")
        deadline = min(deadline, loop.time() + _CONNECT_LIMIT)
        generation = self._generation
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self._open_connection(loop, deadline)
        except (OSError, LostError) as error:
            raise ConnectError(error) from error
        if self._closed:
            connection.abort()
            raise ConnectError(LostError("the client was closed", answered=False))
        connection.generation = generation
        if connection.reusable:  # else it was lost already, and `_lost` will not be called again
            self._open.add(connection)
        return connection

    async def _open_connection(self, loop: asyncio.AbstractEventLoop, deadline: float) -> HTTPConnection:
        if self._proxy is None:
            return await self._dial(loop, self._url, self._tls, self._settings.tls_server_name, deadline)
        connection = await self._dial(loop, self._proxy, self._proxy_tls, None, deadline)
        if self._tls is None:
            return connection
        return await self._tunnel(loop, connection)

    async def _dial(
        self,
        loop: asyncio.AbstractEventLoop,
        url: SplitResult,
        tls: ssl.SSLContext | None,
        name: str | None,
        deadline: float,
    ) -> HTTPConnection:
        host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        failure: OSError | None = None
        addresses = await self._addresses(loop, host, port)
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            now = loop.time()
            try:
                # Each has an even share of the time left, lest the first that is silent have all of it.
                async with asyncio.timeout_at(now + (deadline - now) / left):
                    if tls is not None and self._proxy is None and can_watch_sockets(loop):
                        transport = await connect_tls(loop, address, port, tls, name or host)
                        connection = HTTPConnection(loop, self._lost)
                        transport.start(connection)
                        return connection
                    _, connection = await loop.create_connection(
                        lambda: HTTPConnection(loop, self._lost),
                        address,
                        port,
                        ssl=tls,
                        server_hostname=(name or host) if tls is not None else None,
                    )
            except OSError as error:
                failure = error
            else:
                return connection
        raise failure or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")

    async def _addresses(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[str]:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            began = loop.time()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            if self._resolved is not None:
                self._resolved(host, loop.time() - began)
            return list(dict.fromkeys(str(entry[4][0]) for entry in found))
        return [host]

    async def _tunnel(self, loop: asyncio.AbstractEventLoop, connection: HTTPConnection) -> HTTPConnection:
        """Ask the proxy for a way to the server, and agree on TLS over it."""
        port = self._url.port or 443
        target = f"{self._url.hostname}:{port}"
        if ":" in (self._url.hostname or ""):
            target = f"[{self._url.hostname}]:{port}"
        head = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in self._proxy_headers.items())
        transport = await connection.tunnel(f"{head}\r\n".encode("latin-1"))
        assert self._tls is not None
        inner = HTTPConnection(loop, self._lost)
        name = self._settings.tls_server_name or self._url.hostname
        secure = await loop.start_tls(transport, inner, self._tls, server_hostname=name)
        assert secure is not None
        inner.connection_made(secure)
        return inner


def _tls_context(settings: ServerSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    context.set_alpn_protocols(["http/1.1"])
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, keyfile=settings.key_file)
    if not settings.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def connection_error(error: Exception, what: str, host: str) -> ConnectionLostError:
    """Return the error for a request that failed with a `ConnectError` or a `LostError`."""
    if isinstance(error, ConnectError):
        reason = "connection refused" if error.refused else str(error)
        text = f"{what}: cannot connect to {host}: {reason}"
        failure = ConnectionLostError(text, refused=error.refused)
        failure.unsent = not error.sent
        return failure
    if isinstance(error, LostError) and not error.answered:
        text = f"{what}: the connection to {host} was lost before an answer came: {error}"
        return UnansweredError(text, unsent=not error.sent)
    return ConnectionLostError(f"{what}: the answer of {host} broke off: {error}")
