"""The client of the fake: the real one on another transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING

import anyio.lowlevel
import orjson

from pyreconcile.api import KubeObject
from pyreconcile.client import Client, Transport
from pyreconcile.client._core import Settings
from pyreconcile.client._discovery import Discovery
from pyreconcile.client._transport import JSON
from pyreconcile.client._warnings import WarningLog
from pyreconcile.testing._fake._kinds import UntypedKind
from pyreconcile.testing._fake._reads import IndexFunction
from pyreconcile.testing._fake._server import FakeServer

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration


class FakeTransport(Transport):
    """Takes requests to a `FakeServer` in place of a network."""

    def __init__(self, server: FakeServer) -> None:
        # Not the base's: that one is about connections, of which there are none.
        self.server = server
        self._warnings = WarningLog()

    @property
    def host(self) -> str:
        """A name that no host has."""
        return "fake.invalid"

    @property
    def base_url(self) -> str:
        """A URL that leads nowhere."""
        return f"https://{self.host}"

    @property
    def configuration(self) -> Configuration:
        """Settings that lead nowhere."""
        from kubernetes_asyncio.client import Configuration

        return Configuration(host=self.base_url)

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""

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
        """Answer a request at once, after other tasks had a turn."""
        await anyio.lowlevel.checkpoint()
        if guard is not None:
            guard()
        answer, warnings = self.server.request(method, path, query or {}, body, content_type, accept)
        if warnings:
            quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in warnings]
            self._warnings.take([f'299 - "{text}"' for text in quoted])
        return orjson.dumps(answer)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        idle_timeout: float = 330.0,
        accept: str = JSON,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch."""
        await anyio.lowlevel.checkpoint()
        lines = self.server.watch(path, query or {}, accept, idle_timeout)
        try:
            yield lines
        finally:
            await lines.aclose()


class FakeClient(Client):
    """A `Client` of an API server in memory; get one from `fake_client`."""

    @property
    def server(self) -> FakeServer:
        """The server, which all clients made of this one share."""
        transport = self.transport
        assert isinstance(transport, FakeTransport)
        return transport.server


def fake_client(
    *objects: KubeObject,
    kinds: Iterable[type[KubeObject] | UntypedKind] = (),
    indexes: Mapping[tuple[type[KubeObject], str], IndexFunction] | None = None,
    field_manager: str = "pyreconcile",
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    random: Random | None = None,
) -> FakeClient:
    """Return a client of an API server in memory, for unit tests without a control plane.

    It is the client that controllers use, verbs, errors and all; only the server is not there. See `FakeServer` for
    what that one does and does not do.

    Args:
        objects: what is there from the start, with status, and with version 999 where they name none.
        kinds: kinds without a model to serve, beside those of ``objects``.
        indexes: kind and field path of each field that selectors may name, and what gives an object's values.
        field_manager: who owns the fields that this client writes.
        now: the time of day.
        random: of UIDs and made-up names.

    Raises:
        ValueError: an object cannot be there; the message says why.
    """
    transport = FakeTransport(FakeServer(*objects, kinds=kinds, indexes=indexes, now=now, random=random))
    return FakeClient(transport, Settings(field_manager=field_manager), Discovery(transport))
