"""Notices that a server which refused connections takes them again."""

from __future__ import annotations

import random as _random
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import anyio

PERIOD = 1.0
"""Seconds between two looks, and the longest wait of a watch after one that went well."""

_PORTS = {"http": 80, "https": 443}


class Reachability:
    """Tells the reflectors of a process when they may end their wait early. One of them looks for all.

    A refused connection costs the server nothing, so looking once a second does no harm, and after an outage watches
    come back within two seconds of it where the backoff alone may take a minute. Only refused connections are met in
    this way: a server that answers, however badly, has load to be spared.

    Args:
        url: where connections are opened to: the server's or, since that is what refuses them then, its proxy's.
        period: seconds between two looks.
        knock: makes a connection and closes it; raises OSError when there is none.
        random: a number in [0, 1).
    """

    def __init__(
        self,
        url: str,
        *,
        period: float = PERIOD,
        knock: Callable[[str, int], Awaitable[None]] | None = None,
        random: Callable[[], float] = _random.random,
    ) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS.get(parts.scheme, 443)
        self._period = period
        self._knock = knock or _knock
        self._random = random
        self._looking = False
        self._reached = anyio.Event()

    async def wait(self, seconds: float) -> None:
        """Return after ``seconds``, or a little after the server takes connections, whichever is first."""
        with anyio.move_on_after(seconds):
            await self._until_reached()
            # Not all watches at the same moment.
            await anyio.sleep(self._period * self._random())

    async def _until_reached(self) -> None:
        while self._looking:
            reached = self._reached
            with anyio.move_on_after(self._period):
                await reached.wait()
                return
        self._looking = True
        try:
            while True:
                await anyio.sleep(self._period)
                try:
                    with anyio.fail_after(self._period):
                        await self._knock(self._host, self._port)
                except (OSError, TimeoutError):
                    continue
                break
        finally:
            self._looking = False
        self._reached.set()
        self._reached = anyio.Event()


async def _knock(host: str, port: int) -> None:
    await (await anyio.connect_tcp(host, port)).aclose()
