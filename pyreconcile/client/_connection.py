"""HTTP connections: kubernetes_asyncio's TLS and proxy settings, and the aiohttp session that sends."""

from __future__ import annotations

import base64
import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from pyreconcile.client._errors import ConnectionLostError

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration


class UnansweredError(ConnectionLostError):
    """The connection was lost after the request was sent and before any part of an answer came."""


class Connection:
    """The connections to one server.

    kubernetes_asyncio's rest client makes the TLS context and the connector. Its own session asks the environment
    for proxies and ~/.netrc for passwords in a thread on each request (0.6 ms of CPU), so a second session sends on
    the same connector, with the proxy looked up once.
    """

    def __init__(self, configuration: Configuration, user_agent: str) -> None:
        self._configuration = configuration
        self._traces: list[aiohttp.TraceConfig] = []
        self._headers = {"User-Agent": user_agent, "Accept-Encoding": "gzip"}
        self._retired: list[Any] = []
        self._options: dict[str, Any] = {}
        if configuration.tls_server_name:
            self._options["server_hostname"] = configuration.tls_server_name
        proxy, proxy_headers = _proxy(configuration)
        if proxy is not None:
            self._options["proxy"] = proxy
            self._options["proxy_headers"] = proxy_headers
        self._open()

    def _open(self) -> None:
        from kubernetes_asyncio.client.rest import RESTClientObject

        configuration = self._configuration
        self._certificate = configuration.cert_file
        # 0 lifts the limit of connections: a hundred watches must not keep requests waiting. Requests have their own.
        self._rest: Any = RESTClientObject(configuration, maxsize=0)
        self._session = aiohttp.ClientSession(
            connector=self._rest.pool_manager.connector,
            connector_owner=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            skip_auto_headers=("Content-Type",),
        )
        self._session.trace_configs.extend(self._traces)

    def trace(self, trace: aiohttp.TraceConfig) -> None:
        """Have requests traced from now on."""
        trace.freeze()
        self._traces.append(trace)
        self._session.trace_configs.append(trace)

    async def send(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Send a request and return the answer once its headers are there."""
        return await self._session.request(
            method, url, headers=headers, data=body, timeout=timeout, allow_redirects=False, **self._options
        )

    def reload_certificate(self) -> None:
        """Use a client certificate that an exec plugin has changed, for connections made from now on."""
        if self._configuration.cert_file != self._certificate:
            self._retired += [self._session, self._rest]
            self._open()

    async def aclose(self) -> None:
        """Close all connections."""
        for session in (*self._retired, self._session, self._rest):
            await session.close()


def _proxy(configuration: Configuration) -> tuple[URL | None, Mapping[str, str] | None]:
    headers: dict[str, str] = dict(configuration.proxy_headers or {})
    text: str | None = configuration.proxy or _proxy_of_environment(URL(str(configuration.host)))
    if not text:
        return None, None
    url = URL(text)
    if url.user:
        login = f"{url.user}:{url.password or ''}".encode()
        headers.setdefault("Proxy-Authorization", f"Basic {base64.b64encode(login).decode()}")
        url = url.with_user(None)
    return url, headers or None


def _proxy_of_environment(server: URL) -> str | None:
    if not server.host or proxy_bypass(server.host):
        return None
    return getproxies().get(server.scheme)


def connection_error(error: aiohttp.ClientError, what: str, host: str, *, answered: bool) -> ConnectionLostError:
    """Return the error for a request that got no answer, or, when ``answered``, one whose answer broke off."""
    if isinstance(error, aiohttp.ClientConnectorError):
        refused = error.os_error.errno == errno.ECONNREFUSED
        reason = "connection refused" if refused else str(error.os_error) or str(error)
        return ConnectionLostError(f"{what}: cannot connect to {host}: {reason}", refused=refused)
    text = str(error) or type(error).__name__
    if not answered:
        return UnansweredError(f"{what}: the connection to {host} was lost before an answer came: {text}")
    return ConnectionLostError(f"{what}: the answer of {host} broke off: {text}")
