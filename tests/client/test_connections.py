"""The connections below the requests, against servers that speak byte by byte."""

from __future__ import annotations

import asyncio
import gzip

import anyio
import pytest
import structlog
from kubernetes_asyncio.client import Configuration

from pyreconcile.client import ConnectionLostError, connect
from pyreconcile.client._http import LostError
from pyreconcile.client._pool import Connections

GET = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"


def client_at(port, **options):
    return connect(configuration=Configuration(host=f"http://127.0.0.1:{port}"), **options)


def pool_at(port, **options):
    return Connections(Configuration(host=f"http://127.0.0.1:{port}"), **options)


async def head_of(reader):
    return (await reader.readuntil(b"\r\n\r\n")).decode()


def saying(*answers):
    """Answer each request of a connection with the next of these bytes, then close it."""

    async def handle(reader, writer):
        for answer in answers:
            await head_of(reader)
            writer.write(answer)
        await writer.drain()
        await reader.read()

    return handle


def sized(body, *headers, status="200 OK"):
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n" + "".join(f"{header}\r\n" for header in headers)
    return head.encode() + b"\r\n" + body


async def test_closing_ends_requests_and_streams_in_flight_at_once(serve_bytes):
    begun = []

    async def handle(reader, writer):
        head = await head_of(reader)
        if head.startswith("GET /stream"):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n")
        begun.append(head)
        await reader.read()

    naps = []

    async def nap(seconds):
        naps.append(seconds)

    async with client_at(await serve_bytes(handle), sleep=nap) as client:

        async def stream():
            async with client.transport.stream("/stream") as lines:
                return [line async for line in lines]

        tasks = [
            asyncio.ensure_future(wanted)
            for wanted in (client.transport.request("GET", "/x"), client.transport.request("POST", "/x"), stream())
        ]
        with anyio.fail_after(5):
            while len(begun) < 3:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            await client.transport.aclose()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, ConnectionLostError) for outcome in outcomes)
    assert naps == []


async def test_a_connection_that_is_made_while_the_client_closes_is_closed(serve_bytes):
    closed = asyncio.Event()

    async def handle(reader, writer):
        await reader.read()
        closed.set()

    pool = pool_at(await serve_bytes(handle))
    task = asyncio.ensure_future(pool.exchange(GET, 5, idempotent=True))
    await asyncio.sleep(0)
    await pool.aclose()
    with pytest.raises(Exception, match="closed"):
        await task
    with anyio.fail_after(5):
        await closed.wait()
    assert not pool._open


async def test_a_kept_connection_that_the_server_closes_is_forgotten(serve_bytes):
    port = await serve_bytes(saying(sized(b"1")))

    pool = pool_at(port)
    assert (await pool.exchange(GET, 5, idempotent=True)).body == b"1"
    (connection,) = pool._idle
    assert pool._open == {connection}
    connection._transport.abort()
    with anyio.fail_after(5):
        while pool._open:
            await asyncio.sleep(0)
    assert pool._idle == []
    with pytest.raises(LostError):
        await connection.exchange(GET)
    await pool.aclose()


async def test_le_11_the_guard_is_called_before_a_replay_too(serve_bytes):
    seen = []

    async def handle(reader, writer):
        seen.append(await head_of(reader))
        writer.write(sized(b"1"))
        seen.append(await head_of(reader))  # the answer to this one is never given

    pool = pool_at(await serve_bytes(handle))
    await pool.exchange(GET, 5, idempotent=True)
    allowed = [True, False]

    def guard():
        if not allowed.pop(0):
            raise PermissionError("not the leader")

    with pytest.raises(PermissionError):
        await pool.exchange(GET, 5, idempotent=True, guard=guard)
    assert (len(seen), allowed) == (2, [])
    assert len(pool._idle) == 1  # the connection made for the replay stays for others
    await pool.aclose()


def gzipped(body, *headers):
    return sized(gzip.compress(body), *headers)


@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Encoding: gzip"],
        ["content-encoding: gzip", 'warning: 299 - "old"'],
        ['Warning: 299 - "old"', "Content-Encoding: gzip"],
        ['WARNING: 299 - "old"', "CONTENT-ENCODING: gzip"],
    ],
)
async def test_cl_9_answers_are_unpacked_and_warnings_logged_whatever_the_order_of_headers(serve_bytes, headers):
    async with client_at(await serve_bytes(saying(gzipped(b"packed", *headers)))) as client:
        with structlog.testing.capture_logs() as logs:
            assert await client.transport.request("GET", "/x") == b"packed"
    assert [log["text"] for log in logs] == ["old"] * (len(headers) - 1)
