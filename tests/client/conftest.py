"""A client on the control plane that KUBECONFIG names, and small HTTP servers that answer oddly."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web
from kubernetes_asyncio.client import Configuration

from pyreconcile.api.core_v1 import Namespace
from pyreconcile.client import Client, connect

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with connect(field_manager="client-tests") as connected:
        yield connected


@pytest.fixture
async def namespace(client: Client) -> AsyncIterator[str]:
    name = f"client-{uuid.uuid4().hex[:8]}"
    await client.create(Namespace.from_dict({"metadata": {"name": name}}))
    yield name
    await client.delete(Namespace, name)


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[str]]]:
    """Start a server on the loopback interface; gives its URL."""
    async with AsyncExitStack() as stack:

        async def start(handler: Handler) -> str:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", handler)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            return f"http://{host}:{port}"

        yield start


@pytest.fixture
async def client_of(serve: Callable[[Handler], Awaitable[str]]) -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    """Return a client of a loopback server with the given handler."""
    async with AsyncExitStack() as stack:

        async def make(handler: Handler, **options: Any) -> Client:
            configuration = Configuration(host=await serve(handler))
            return await stack.enter_async_context(connect(configuration=configuration, **options))

        yield make
