"""The few plain requests the control plane needs before anything else of ours can talk to it."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

__all__ = ["PlaneHttp"]

_TIMEOUT = aiohttp.ClientTimeout(total=5)


class PlaneHttp:
    """A short-lived session with a plane's servers, as the administrator. An async context manager.

    Args:
        ca: Certificate authority file; None to reach plain HTTP only.
        login: Certificate and key in one PEM file.
    """

    def __init__(self, ca: Path | None, login: Path | None) -> None:
        self._ca = ca
        self._login = login
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> PlaneHttp:
        context = ssl.create_default_context(cafile=self._ca)
        if self._login is not None:
            context.load_cert_chain(self._login)
        connector = aiohttp.TCPConnector(ssl=context)
        self._session = await aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT).__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def request(self, method: str, url: str, body: Any = None) -> tuple[int, Any]:
        """Send one request. The status is 0 when there was no answer; the body is parsed if it is JSON."""
        assert self._session is not None
        try:
            async with self._session.request(method, url, json=body) as response:
                if response.content_type == "application/json":
                    return response.status, await response.json()
                return response.status, await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return 0, str(error)

    async def ok(self, url: str) -> bool:
        """Whether a GET is answered with 200."""
        status, _ = await self.request("GET", url)
        return status == 200
