"""The one request path: bytes in, bytes out, over the aiohttp connections of kubernetes_asyncio (decision D3)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import aiohttp
import anyio
import structlog
from yarl import URL

from pyreconcile.client._connection import Connection, UnansweredError, connection_error
from pyreconcile.client._credentials import Credentials
from pyreconcile.client._errors import ApiError, RequestTimeoutError, error_from_answer
from pyreconcile.client._lines import Lines
from pyreconcile.client._warnings import WarningLog

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

    from pyreconcile.client._config import RequestMetrics

JSON = "application/json"
_TRIES = 10
"""Retries of one request at most (rule CL-11)."""
_LOST_WAIT = 1.0
"""Seconds before a request is sent again whose connection was lost (rule CL-11)."""
_LOG_WAIT = 0.05
"""Waits above this many seconds are logged (rule CL-11)."""
_CONNECT_LIMIT = 30.0
"""Seconds for a stream's connection to be made and TLS agreed on."""
_PATH_SAFE = "/:~@!$&'()*+,;="

log = structlog.get_logger()


class Transport:
    """Sends requests to one API server and classifies what goes wrong.

    Made by `connect`. The verbs of `Client` are built on it; use it directly for what they do not cover.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        credentials: Credentials | None = None,
        user_agent: str = "pyreconcile",
        timeout: float = 30.0,
        metrics: RequestMetrics | None = None,
        max_concurrent_requests: int = 128,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._configuration = configuration
        self._credentials = credentials
        self._connection = Connection(configuration, user_agent)
        self._base = str(configuration.host).rstrip("/")
        self._host = self._base.partition("://")[2].partition("/")[0]
        self._metrics = metrics
        self._timeout = timeout
        self._timeouts = {timeout: aiohttp.ClientTimeout(total=timeout)}
        self._slots = asyncio.Semaphore(max_concurrent_requests)
        self._warnings = WarningLog()
        self._sleep = sleep
        self._has_token = bool(configuration.api_key) or configuration.refresh_api_key_hook is not None

    @property
    def host(self) -> str:
        """Host and port of the API server, as metrics name it."""
        return self._host

    @property
    def configuration(self) -> Configuration:
        """The kubernetes_asyncio settings in use, for that library's own API classes."""
        return self._configuration

    @property
    def base_url(self) -> str:
        """The server's URL, without a slash at the end."""
        return self._base

    async def aclose(self) -> None:
        """Close all connections; requests in flight fail."""
        await self._connection.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float | None = None,
        idempotent: bool | None = None,
        guard: Callable[[], None] | None = None,
    ) -> bytes:
        """Send one request and return the body of its answer.

        A 429 or 5xx answer with a Retry-After in whole seconds is waited for and tried again, and so is a connection
        that was lost before any answer of an idempotent request; up to 10 times, and no try begins later than
        ``timeout`` (rule CL-11). On cancellation the connection is closed at once.

        Args:
            method: the HTTP method in capitals.
            path: path from the server's root, not yet percent-encoded.
            query: query parameters.
            body: bytes to send.
            content_type: what ``body`` is.
            accept: the form of answer asked for.
            timeout: seconds for one try; the default is that of the connection.
            idempotent: whether it may be sent twice; by default only GET may.
            guard: called before each try; what it raises ends the request.

        Raises:
            ApiError: one of its kinds, by what the server answered.
            RequestTimeoutError: no full answer within ``timeout``.
            ConnectionLostError: no connection, or it was cut.
        """
        limit = self._timeout if timeout is None else timeout
        url = self._url(path, query)
        headers = {"Accept": accept} if body is None else {"Accept": accept, "Content-Type": content_type}
        again = method == "GET" if idempotent is None else idempotent
        deadline = monotonic() + limit
        tries, renewed = 0, False
        failure: ApiError
        while True:
            loads = self._credentials.loads if self._credentials else 0
            if self._has_token:
                await self._authorize(headers)
            if guard is not None:
                guard()
            try:
                code, answer, retry_after = await self._exchange(method, url, headers, body, limit)
            except ApiError as error:
                self._count("<error>", method)
                if not (again and isinstance(error, UnansweredError)):
                    raise
                failure, wait = error, _LOST_WAIT
            else:
                self._count(str(code), method)
                if 200 <= code < 300:
                    return answer
                failure = error_from_answer(code, answer, retry_after=retry_after)
                if code == 401 and self._credentials is not None and not renewed:
                    renewed = True
                    await self._credentials.renew_refused(loads)
                    continue
                if retry_after is None or not (code == 429 or code >= 500):
                    raise failure
                wait = retry_after
            tries += 1
            if tries > _TRIES or monotonic() + wait > deadline:
                raise failure
            self._retrying(method, failure)
            if wait > _LOG_WAIT:
                log.info("request_retried", method=method, path=path, wait=wait, error=str(failure))
            await self._sleep(wait)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        idle_timeout: float = 330.0,
        accept: str = JSON,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a GET whose answer is read line by line, such as a watch or a log that is followed.

        The lines come whole and without their end, however long they are (rule RF-17); the iterator gives the event
        loop a turn between many lines that arrive together. It ends when the server ends the answer, and also when
        nothing came for ``idle_timeout`` seconds (rule RF-16). Leaving the context closes the connection at once.
        Streams do not count against the limit of concurrent requests. Only refused credentials are tried again.

        Raises:
            ApiError: one of its kinds, when the server refuses to start.
            RequestTimeoutError: no answer began within ``idle_timeout``.
            ConnectionLostError: no connection, or the answer was cut off.
        """
        what, url = f"GET {path}", self._url(path, query)
        # A compressed stream stays so after its first objects; each later event then costs both sides more to pack
        # and unpack than it saves.
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_LIMIT, sock_read=idle_timeout)
        loads = self._credentials.loads if self._credentials else 0
        response = await self._begin(url, dict(headers), timeout, what, idle_timeout)
        try:
            if response.status == 401 and self._credentials is not None:
                response.close()
                await self._credentials.renew_refused(loads)
                response = await self._begin(url, dict(headers), timeout, what, idle_timeout)
            self._warnings.take(response.headers)
            if response.status != 200:
                raise await self._refusal(response, what, idle_timeout)
            _keep_alive(response)
            yield Lines(response.content, partial(connection_error, what=what, host=self._host, answered=True))
        finally:
            response.close()

    async def _begin(
        self, url: URL, headers: dict[str, str], timeout: aiohttp.ClientTimeout, what: str, limit: float
    ) -> aiohttp.ClientResponse:
        if self._has_token:
            await self._authorize(headers)
        try:
            response = await self._connection.send("GET", url, headers, None, timeout)
        except (aiohttp.ClientError, TimeoutError) as error:
            self._count("<error>", "GET")
            raise self._failure(error, what, limit) from error
        self._count(str(response.status), "GET")
        return response

    async def _exchange(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None, limit: float
    ) -> tuple[int, bytes, float | None]:
        timeout = self._timeouts.get(limit)
        if timeout is None:
            timeout = aiohttp.ClientTimeout(total=limit)
        await self._take_slot(method, url, limit)
        response = None
        try:
            response = await self._connection.send(method, url, headers, body, timeout)
            answer = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._failure(error, f"{method} {url.path}", limit, answered=response is not None) from error
        finally:
            if response is not None:
                response.release()
            self._slots.release()
        if "Warning" in response.headers:
            self._warnings.take(response.headers)
        return response.status, answer, _retry_after(response)

    async def _take_slot(self, method: str, url: URL, limit: float) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(limit):
                await self._slots.acquire()
        except TimeoutError as error:
            raise RequestTimeoutError(f"{method} {url.path}: not sent within {limit:g} s", code=0) from error

    async def _authorize(self, headers: dict[str, str]) -> None:
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token.strip()
        if self._credentials is not None:
            self._connection.reload_certificate()

    def _url(self, path: str, query: Mapping[str, str] | None) -> URL:
        text = self._base + quote(path, safe=_PATH_SAFE)
        if query:
            text = f"{text}?{urlencode(query)}"
        return URL(text, encoded=True)

    async def _refusal(self, response: aiohttp.ClientResponse, what: str, limit: float) -> ApiError:
        try:
            body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            return self._failure(error, what, limit, answered=True)
        return error_from_answer(response.status, body, retry_after=_retry_after(response))

    def _failure(
        self, error: aiohttp.ClientError | TimeoutError, what: str, limit: float, *, answered: bool = False
    ) -> ApiError:
        if isinstance(error, TimeoutError):
            return RequestTimeoutError(f"{what}: no answer from {self._host} within {limit:g} s", code=0)
        return connection_error(error, what, self._host, answered=answered)

    def _retrying(self, method: str, failure: ApiError) -> None:
        """For a subclass: a request is about to be sent again."""

    def _count(self, code: str, method: str) -> None:
        if self._metrics is not None:
            self._metrics.request(code=code, method=method, host=self._host)


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    value = response.headers.get("Retry-After") if response.status >= 400 else None
    return float(value) if value is not None and value.isascii() and value.isdigit() else None


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    """Let the kernel find out that the peer of a quiet stream is gone (rule RF-16)."""
    transport = response.connection.transport if response.connection else None
    sock: Any = transport.get_extra_info("socket") if transport else None
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 3)):
        if option := getattr(socket, name, None):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
