"""The TLS transport: whole messages both ways, streams read in polls, and how connections end."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import pytest
from kubernetes_asyncio.client import Configuration

from pyreconcile.client import connect
from pyreconcile.client._errors import ConnectionLostError
from pyreconcile.client._tls import TLSTransport, connect_tls
from pyreconcile.testing import eventually


def settings_for(port, certificate):
    settings = Configuration(host=f"https://127.0.0.1:{port}")
    settings.ssl_ca_cert, settings.tls_server_name = certificate.path, "server.test"
    return settings


async def read_head(reader):
    return await reader.readuntil(b"\r\n\r\n")


def sized(body):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Echo(asyncio.Protocol):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.lost: list[Exception | None] = []

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


@contextlib.asynccontextmanager
async def dialled(port, certificate):
    context = ssl.create_default_context(cafile=certificate.path)
    transport = await connect_tls(asyncio.get_running_loop(), "127.0.0.1", port, context, "server.test")
    protocol = Echo()
    transport.start(protocol)
    try:
        yield transport, protocol
    finally:
        transport.abort()


async def test_messages_of_many_records_arrive_whole_both_ways(serve_bytes, certificate):
    shown = certificate()
    body = bytes(range(256)) * 40_000  # 10 MB, more than the buffers of both sides

    async def handle(reader, writer):
        head = await read_head(reader)
        size = int(next(line for line in head.splitlines() if line.lower().startswith(b"content-length")).split()[1])
        got = await reader.readexactly(size)
        writer.write(sized(got))
        await writer.drain()
        await reader.read()

    port = await serve_bytes(handle, tls=shown.server())
    async with connect(configuration=settings_for(port, shown)) as client:
        assert await client.transport.request("POST", "/x", body=body) == body
        (connection,) = client.transport._connections._open
        assert isinstance(connection._transport, TLSTransport)


async def test_a_busy_stream_is_read_in_polls_and_a_calm_one_at_once(serve_bytes, certificate):
    shown = certificate()
    go_on = asyncio.Event()

    async def handle(reader, writer):
        for number in range(400):
            writer.write(b"%d\n" % number)
            await asyncio.sleep(0.0005)
        await go_on.wait()
        writer.write(b"calm\n")
        await reader.read()

    async with dialled(await serve_bytes(handle, tls=shown.server()), shown) as (transport, protocol):
        transport.poll()
        await eventually(lambda: protocol.data.endswith(b"399\n"))
        assert protocol.data == b"".join(b"%d\n" % number for number in range(400))
        await eventually(lambda: transport._timer is None)  # back to being told
        go_on.set()
        await eventually(lambda: protocol.data.endswith(b"calm\n"))


async def test_nothing_is_read_while_paused_and_nothing_is_lost(serve_bytes, certificate):
    shown = certificate()
    told = asyncio.Event()

    async def handle(reader, writer):
        writer.write(b"a" * 200_000)
        await writer.drain()
        await told.wait()
        writer.write(b"b")
        await reader.read()

    async with dialled(await serve_bytes(handle, tls=shown.server()), shown) as (transport, protocol):
        await eventually(lambda: protocol.data)
        transport.pause_reading()
        transport.pause_reading()
        before = len(protocol.data)
        told.set()
        await asyncio.sleep(0.05)
        assert len(protocol.data) == before
        transport.resume_reading()
        transport.resume_reading()
        await eventually(lambda: protocol.data == b"a" * 200_000 + b"b")


async def test_the_protocol_is_told_once_how_the_connection_ended(serve_bytes, certificate):
    shown = certificate()

    async def goodbye(reader, writer):
        writer.write(b"x")
        writer.close()
        await writer.wait_closed()

    async def cut(reader, writer):
        writer.write(b"x")
        await writer.drain()
        await reader.readexactly(1)
        sock = writer.get_extra_info("socket")
        sock.shutdown(2)
        writer.transport.abort()

    async with dialled(await serve_bytes(goodbye, tls=shown.server()), shown) as (transport, protocol):
        await eventually(lambda: protocol.lost)
        assert protocol.data == b"x"
        assert protocol.lost == [None]
        assert transport.is_closing()
        transport.write(b"late")
        transport.close()
        transport.pause_reading()
        transport.resume_reading()
    assert protocol.lost == [None]

    async with dialled(await serve_bytes(cut, tls=shown.server()), shown) as (transport, protocol):
        await eventually(lambda: protocol.data == b"x")
        transport.write(b"1")
        await eventually(lambda: protocol.lost)
        assert len(protocol.lost) == 1
        assert protocol.lost[0] is not None


async def test_close_says_goodbye(serve_bytes, certificate):
    shown = certificate()
    ended: list[bytes] = []

    async def handle(reader, writer):
        ended.append(await reader.read())

    async with dialled(await serve_bytes(handle, tls=shown.server()), shown) as (transport, protocol):
        transport.write(b"hello")
        transport.close()
        await eventually(lambda: ended == [b"hello"])
        await eventually(lambda: protocol.lost == [None])


async def test_a_handshake_that_fails_or_breaks_off_says_so_and_leaves_no_socket(serve_bytes, certificate):
    shown, other = certificate(), certificate("other")

    async def handle(reader, writer):
        await reader.read()

    async def hang_up(reader, writer):
        await reader.read(1)

    port = await serve_bytes(handle, tls=shown.server())
    async with connect(configuration=settings_for(port, other)) as client:
        with pytest.raises(ConnectionLostError, match="certificate verify failed"):
            await client.transport.request("GET", "/x")
    async with connect(configuration=settings_for(await serve_bytes(hang_up), shown)) as client:
        with pytest.raises(ConnectionLostError, match=r"during the TLS handshake|reset"):
            await client.transport.request("GET", "/x")
