"""Small HTTP servers that answer oddly, a count of requests, and a custom resource."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, settings
from kubernetes_asyncio.client import Configuration

from pyreconcile.client import Client, connect

# A busy machine is no failure.
settings.register_profile("client", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("client")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[str]]]:
    """Start a server on the loopback interface; gives its URL."""
    async with AsyncExitStack() as stack:

        async def start(handler: Handler) -> str:
            async def route(request: web.Request) -> web.StreamResponse:
                return await handler(request)

            app = web.Application()
            app.router.add_route("*", "/{path:.*}", route)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            return f"http://{host}:{port}"

        yield start


Exchange = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def serve_bytes() -> AsyncIterator[Callable[..., Awaitable[int]]]:
    """Start a server on the loopback interface that handles each connection as given; gives its port."""
    async with AsyncExitStack() as stack:

        async def start(handler: Exchange, *, tls: ssl.SSLContext | None = None) -> int:
            async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                with suppress(OSError, asyncio.IncompleteReadError):
                    await handler(reader, writer)
                writer.transport.abort()

            server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
            stack.callback(server.close)
            return int(server.sockets[0].getsockname()[1])

        yield start


@pytest.fixture
async def client_of(serve: Callable[[Handler], Awaitable[str]]) -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    """Return a client of a loopback server with the given handler."""
    async with AsyncExitStack() as stack:

        async def make(handler: Handler, **options: Any) -> Client:
            configuration = Configuration(host=await serve(handler))
            return await stack.enter_async_context(connect(configuration=configuration, **options))

        yield make


class RequestLog:
    """Remembers method and code of each request."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []

    def request(self, *, code: str, method: str, host: str) -> None:
        self.requests.append((method, code))

    def take(self) -> list[tuple[str, str]]:
        """Return what came since the last call."""
        taken, self.requests = self.requests, []
        return taken


@pytest.fixture
def requests() -> RequestLog:
    """The requests of ``logged``."""
    return RequestLog()


@pytest.fixture
async def logged(client: Client, requests: RequestLog) -> AsyncIterator[Client]:
    """A client of the control plane whose requests are counted."""
    async with connect(
        configuration=client.transport.configuration, metrics=requests, field_manager="client-tests"
    ) as connected:
        yield connected
