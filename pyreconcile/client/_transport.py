"""The one request path: bytes in, bytes out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import anyio
import anyio.to_thread
import structlog

from pyreconcile.client._credentials import Credentials
from pyreconcile.client._errors import ApiError, RequestTimeoutError, error_from_answer
from pyreconcile.client._http import Answer, LostError
from pyreconcile.client._lines import Lines
from pyreconcile.client._pool import ConnectError, Connections, UnansweredError, connection_error
from pyreconcile.client._settings import PlainSettings
from pyreconcile.client._warnings import WarningLog

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

    from pyreconcile.client._config import RequestMetrics
    from pyreconcile.workqueue import RateLimiter

JSON = "application/json"
_TRIES = 10
"""Retries of one request at most (rule CL-11)."""
_LOST_WAIT = 1.0
"""Seconds before a request is sent again whose connection was lost (rule CL-11)."""
_LOG_WAIT = 0.05
"""Waits above this many seconds are logged (rule CL-11)."""
_LOG_THROTTLED = 1.0
"""Waits for the client's own rate limit are logged above this many seconds (client-go: extraLongThrottleLatency)."""
_UNPACKED_HERE = 128 << 10
"""Bytes of gzip up to which the event loop does the unpacking: some 10 ms (rule PX-3)."""
_PATH_SAFE = "/:~@!$&'()*+,;="
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/:~@!$&'()*+,;=_.-]*")
_QUERIES = 256
"""Encoded queries remembered at most; most writes share a few."""

log = structlog.get_logger()


class Transport:
    """Sends requests to one API server and classifies what goes wrong.

    Made by `connect`. The verbs of `Client` are built on it; use it directly for what they do not cover.
    """

    def __init__(
        self,
        configuration: Configuration | PlainSettings,
        *,
        credentials: Credentials | None = None,
        user_agent: str = "pyreconcile",
        timeout: float = 30.0,
        metrics: RequestMetrics | None = None,
        max_concurrent_requests: int = 128,
        rate_limiter: RateLimiter | None = None,
        extra_headers: Iterable[tuple[str, str]] = (),
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._configuration = configuration
        self._as_configuration: Configuration | None = None
        self._credentials = credentials
        self._connections = Connections(configuration, resolved=self._resolved)
        self._base = str(configuration.host).rstrip("/")
        self._host, _, path = self._base.partition("://")[2].partition("/")
        self._prefix = self._connections.target_prefix + (f"/{path}" if path else "")
        self._static = {"Host": self._host, "User-Agent": user_agent, **self._connections.extra_headers}
        self._extra = b"".join(_header_line(name, value) for name, value in extra_headers)
        self._heads: dict[tuple[str, ...], bytes] = {}
        self._queries: dict[tuple[tuple[str, str], ...], str] = {}
        self._metrics = metrics
        self._timeout = timeout
        self._slots = asyncio.Semaphore(max_concurrent_requests)
        self._rate_limiter = rate_limiter
        self._warnings = WarningLog()
        self._sleep = sleep
        self._has_token = bool(configuration.api_key) or configuration.refresh_api_key_hook is not None

    @property
    def host(self) -> str:
        """Host and port of the API server, as metrics name it."""
        return self._host

    @property
    def configuration(self) -> Configuration:
        """The settings in use as kubernetes_asyncio's, for that library's own API classes; importing it takes 0.3 s."""
        if isinstance(self._configuration, PlainSettings):
            if self._as_configuration is None:
                self._as_configuration = self._configuration.for_kubernetes_asyncio()
            return self._as_configuration
        return self._configuration

    @property
    def base_url(self) -> str:
        """The server's URL, without a slash at the end."""
        return self._base

    @property
    def dialled_url(self) -> str:
        """Scheme, host and port that connections are opened to: the server's, or the proxy's if there is one."""
        return self._connections.dialled_url

    async def aclose(self) -> None:
        """Close all connections; requests in flight fail."""
        await self._connections.aclose()

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
            guard: called directly before each sending; what it raises ends the request.

        Raises:
            ApiError: one of its kinds, by what the server answered.
            RequestTimeoutError: no full answer within ``timeout``.
            ConnectionLostError: no connection, or it was cut.
        """
        limit = self._timeout if timeout is None else timeout
        target = self._target(path, query)
        head = self._head("gzip", accept, content_type if body is not None else "")
        again = method == "GET" if idempotent is None else idempotent
        deadline = monotonic() + limit
        tries, renewed = 0, False
        failure: ApiError
        unanswered: ApiError | None = None
        while True:
            loads = self._credentials.loads if self._credentials else 0
            login = await self._authorize() if self._has_token else b""
            try:
                answer = await self._exchange(method, target, head + login, body, limit, idempotent=again, guard=guard)
            except ApiError as error:
                self._count("<error>", method)
                if unanswered is not None:
                    error.unsent = False
                if not (again and isinstance(error, UnansweredError)) or self._connections.closed:
                    raise
                failure, wait = error, _LOST_WAIT
                if not error.unsent:
                    unanswered = error
            except Exception as refusal:
                if unanswered is not None:  # what became of the earlier try is the graver news
                    raise unanswered from refusal
                raise
            else:
                code = answer.status
                self._count(str(code), method)
                if 200 <= code < 300:
                    return answer.body
                retry_after = _retry_after(answer)
                failure = error_from_answer(code, answer.body, retry_after=retry_after)
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
        target = self._target(path, query)
        # A compressed stream stays so after its first objects; each later event then costs both sides more to pack
        # and unpack than it saves.
        head = self._head("identity", accept, "")
        renewed = False
        while True:
            loads = self._credentials.loads if self._credentials else 0
            login = await self._authorize() if self._has_token else b""
            if self._rate_limiter is not None:
                await self._take_token(self._rate_limiter, "GET", target)
            opening = self._connections.stream(self._message("GET", target, head + login, None), idle_timeout)
            try:
                answer, body = await opening.__aenter__()
            except (ConnectError, LostError, TimeoutError) as error:
                self._count("<error>", "GET")
                raise self._failure(error, f"GET {path}", idle_timeout) from error
            try:
                self._count(str(answer.status), "GET")
                if answer.status == 401 and self._credentials is not None and not renewed:
                    renewed = True
                    await self._credentials.renew_refused(loads)
                    continue
                self._warnings.take(answer.all(b"warning"))
                if answer.status != 200:
                    raise error_from_answer(answer.status, answer.body, retry_after=_retry_after(answer))
                yield Lines(body, lambda error: self._failure(error, f"GET {path}", idle_timeout))
            finally:
                await opening.__aexit__(None, None, None)
            return

    async def _exchange(
        self,
        method: str,
        target: str,
        head: bytes,
        body: bytes | None,
        limit: float,
        *,
        idempotent: bool,
        guard: Callable[[], None] | None,
    ) -> Answer:
        await self._take_slot(method, target, limit)
        try:
            answer = await self._connections.exchange(
                self._message(method, target, head, body), limit, idempotent=idempotent, guard=guard
            )
            for name, value in answer.headers:
                if len(name) == 7 and name.lower() == b"warning":
                    self._warnings.take((value.decode("latin-1"),))
                elif len(name) == 16 and name.lower() == b"content-encoding":
                    answer.body = (
                        answer.text_body()
                        if len(answer.body) < _UNPACKED_HERE
                        else await anyio.to_thread.run_sync(answer.text_body)
                    )
        except (ConnectError, LostError, TimeoutError) as error:
            raise self._failure(error, f"{method} {target.partition('?')[0]}", limit) from error
        finally:
            self._slots.release()
        return answer

    async def _take_token(self, limiter: RateLimiter, method: str, target: str) -> None:
        """Wait for what the client's own limit of requests says; a token is taken even if the wait is cancelled."""
        wait = limiter.when("")
        if wait > _LOG_THROTTLED:
            log.info("request_throttled", method=method, path=target.partition("?")[0], wait=wait)
        if wait:
            await self._sleep(wait)

    async def _take_slot(self, method: str, target: str, limit: float) -> None:
        if self._rate_limiter is not None:
            await self._take_token(self._rate_limiter, method, target)
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(limit):
                await self._slots.acquire()
        except TimeoutError as error:
            path = target.partition("?")[0]
            late = RequestTimeoutError(f"{method} {path}: not sent within {limit:g} s", code=0)
            late.unsent = True
            raise late from error

    async def _authorize(self) -> bytes:
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if self._credentials is not None:
            self._connections.reload_certificate()
        return _header_line("Authorization", token.strip()) if token else b""

    # -- the message -----------------------------------------------------------------------------------------------

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        if _PLAIN_PATH.fullmatch(path) is None:
            path = quote(path, safe=_PATH_SAFE)
        if not query:
            return self._prefix + path
        items = tuple(query.items())
        encoded = self._queries.get(items)
        if encoded is None:
            if len(self._queries) >= _QUERIES:
                self._queries.clear()
            encoded = self._queries[items] = urlencode(query)
        return f"{self._prefix}{path}?{encoded}"

    def _head(self, *names: str) -> bytes:
        """Return the header lines that are the same for many requests."""
        head = self._heads.get(names)
        if head is None:
            encoding, accept, content_type = names
            headers = {**self._static, "Accept": accept, "Accept-Encoding": encoding, "Content-Type": content_type}
            head = b"".join(_header_line(name, value) for name, value in headers.items() if value) + self._extra
            self._heads[names] = head
        return head

    def _message(self, method: str, target: str, head: bytes, body: bytes | None) -> bytes:
        begin = f"{method} {target} HTTP/1.1\r\n".encode("latin-1")
        if body is not None:
            return b"%b%bContent-Length: %d\r\n\r\n%b" % (begin, head, len(body), body)
        # What changes something has a length even when it has no body.
        return b"%b%b\r\n" % (begin, head if method == "GET" else head + b"Content-Length: 0\r\n")

    # -- outcomes --------------------------------------------------------------------------------------------------

    def _failure(self, error: Exception, what: str, limit: float) -> ApiError:
        if isinstance(error, ConnectError) and error.late:
            late = RequestTimeoutError(f"{what}: no connection to {self._host} in time", code=0)
            late.unsent = not error.sent
            return late
        if isinstance(error, TimeoutError):
            return RequestTimeoutError(f"{what}: no answer from {self._host} within {limit:g} s", code=0)
        return connection_error(error, what, self._host)

    def _retrying(self, method: str, failure: ApiError) -> None:
        """For a subclass: a request is about to be sent again."""

    def _resolved(self, host: str, seconds: float) -> None:
        """For a subclass: a host name was looked up."""

    def _count(self, code: str, method: str) -> None:
        if self._metrics is not None:
            self._metrics.request(code=code, method=method, host=self._host)


def _header_line(name: str, value: str) -> bytes:
    if "\r" in value or "\n" in value:
        raise ValueError(f"header {name}: its value has a line break")
    return f"{name}: {value}\r\n".encode("latin-1")


def _retry_after(answer: Answer) -> float | None:
    value = answer.header(b"retry-after") if answer.status >= 400 else None
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
