"""Small HTTP servers that answer oddly, a count of requests, and a custom resource."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kubernetes_asyncio.client import Configuration

from pyreconcile.client import Client, connect

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
    running: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
    servers: list[asyncio.Server] = []

    async def start(handler: Exchange, *, tls: ssl.SSLContext | None = None) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            running[task] = writer
            try:
                with suppress(OSError, EOFError):
                    await handler(reader, writer)
            finally:
                writer.transport.abort()
                del running[task]

        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
        servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    yield start
    for server in servers:
        server.close()
    tasks = list(running)
    for writer in running.values():
        writer.transport.abort()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # lets the transports close their sockets


class Certificate:
    """A certificate that signs itself, and its key, as files."""

    def __init__(self, folder: Path, name: str, host: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        self.path, self.key = str(folder / f"{name}.crt"), str(folder / f"{name}.key")
        form = serialization.Encoding.PEM
        Path(self.path).write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(form))
        none = serialization.NoEncryption()
        Path(self.key).write_bytes(key.private_bytes(form, serialization.PrivateFormat.PKCS8, none))

    def server(self) -> ssl.SSLContext:
        """Return the context of a server that shows this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path, self.key)
        return context


@pytest.fixture
def certificate(tmp_path: Path) -> Callable[..., Certificate]:
    """Make a certificate and its key."""

    def make(name: str = "server", *, host: str = "server.test") -> Certificate:
        return Certificate(tmp_path, name, host)

    return make


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
