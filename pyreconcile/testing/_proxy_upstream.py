"""The fault proxy's own connections to the API server."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from pyreconcile.client import ConnectOptions, connect

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

__all__ = ["Upstream", "end_to_end"]

_CONNECT_SECONDS = 30.0
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
        "host",
        "expect",
    }
)
"""Headers that concern one connection only, and those that are written anew (RFC 9110, section 7.6.1)."""


def end_to_end(headers: CIMultiDict[str] | CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Return the headers that a proxy passes on."""
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _HOP_BY_HOP)


class Upstream:
    """Sends requests to the API server as the user of a kubeconfig. An async context manager.

    Args:
        options: how to reach the API server, and as whom.
    """

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options
        self._stack = AsyncExitStack()
        self._configuration: Configuration
        self._session: aiohttp.ClientSession
        self._server_name: str | None = None
        self.url = ""

    async def __aenter__(self) -> Upstream:
        async with self._stack:
            # Only for its way of finding settings and credentials, and of renewing them.
            client = await self._stack.enter_async_context(connect(self._options))
            self._configuration = configuration = client.transport.configuration
            self._server_name = configuration.tls_server_name or None
            connector = aiohttp.TCPConnector(ssl=_tls(configuration), limit=0)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
            session = aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            )
            self._session = await self._stack.enter_async_context(session)
            self.url = client.transport.base_url
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> aiohttp.ClientResponse:
        """Send a request and return its answer once the headers are there.

        Raises:
            aiohttp.ClientError, TimeoutError: the API server cannot be reached.
        """
        headers = CIMultiDict(headers)
        # The client certificate says who we are; a token of the client's would contradict it.
        headers.popall("Authorization", None)
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token.strip()
        return await self._session.request(
            method,
            URL(self.url + target, encoded=True),
            headers=headers,
            data=body or None,
            allow_redirects=False,
            server_hostname=self._server_name,
        )


def _tls(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
