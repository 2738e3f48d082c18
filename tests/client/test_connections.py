"""The connections below the requests, against servers that speak byte by byte."""

from __future__ import annotations

import asyncio
import base64
import errno
import gc
import gzip
import random
import socket
import ssl
import threading

import anyio
import pytest
import structlog
from kubernetes_asyncio.client import Configuration

from pyreconcile.client import ConnectionLostError, RequestTimeoutError, UnauthorizedError, connect
from pyreconcile.client._errors import may_be_done
from pyreconcile.client._http import Answer, HTTPConnection, LostError
from pyreconcile.client._pool import Connections

GET = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"

# Time goes on only when nothing has come from the network for so many turns of the loop.
virtual_time = pytest.mark.looptime(noop_cycles=10_000)


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
        with anyio.fail_after(30):
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
    task = asyncio.ensure_future(pool.exchange(GET, 30, idempotent=True))
    await asyncio.sleep(0)
    await pool.aclose()
    with pytest.raises(Exception, match="closed"):
        await task
    with anyio.fail_after(30):
        await closed.wait()
    assert not pool._open


async def test_a_kept_connection_that_the_server_closes_is_forgotten(serve_bytes):
    port = await serve_bytes(saying(sized(b"1")))

    pool = pool_at(port)
    assert (await pool.exchange(GET, 30, idempotent=True)).body == b"1"
    (connection,) = pool._idle
    assert pool._open == {connection}
    connection._transport.abort()
    with anyio.fail_after(30):
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
    await pool.exchange(GET, 30, idempotent=True)
    allowed = [True, False]

    def guard():
        if not allowed.pop(0):
            raise PermissionError("not the leader")

    with pytest.raises(LostError) as caught:  # the server may have done it
        await pool.exchange(GET, 30, idempotent=True, guard=guard)
    assert isinstance(caught.value.__cause__, PermissionError)
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


INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"


async def test_interim_answers_are_passed_over(serve_bytes):
    async with client_at(await serve_bytes(saying(INTERIM + INTERIM + sized(b"1"), sized(b"2")))) as client:
        assert await client.transport.request("GET", "/x") == b"1"
        assert await client.transport.request("GET", "/x") == b"2"


async def test_an_interim_answer_is_no_part_of_the_answer(serve_bytes):
    async def handle(reader, writer):
        await head_of(reader)
        writer.write(INTERIM)
        await writer.drain()

    pool = pool_at(await serve_bytes(handle))
    with pytest.raises(LostError) as caught:
        await pool.exchange(GET, 30, idempotent=True)
    assert not caught.value.answered
    await pool.aclose()


async def test_an_answer_that_nobody_asked_for_ends_the_connection(serve_bytes):
    """Else it would be taken for the answer of the next request."""
    pool = pool_at(await serve_bytes(saying(sized(b"mine") + sized(b"another's"))))
    for _ in range(2):
        assert (await pool.exchange(GET, 30, idempotent=False)).body == b"mine"
        assert pool._idle == []
    late = pool_at(await serve_bytes(saying(sized(b"mine") + b"\r\n" + sized(b"an")[:20])))
    for _ in range(2):
        assert (await late.exchange(GET, 30, idempotent=False)).body == b"mine"
        assert late._idle == []
    await pool.aclose()
    await late.aclose()


async def test_an_answer_that_changes_the_protocol_is_an_error(serve_bytes):
    switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nmore"
    async with client_at(await serve_bytes(saying(switch))) as client:
        with pytest.raises(ConnectionLostError, match="leaves HTTP"), anyio.fail_after(30):
            await client.transport.request("GET", "/x")
        await asyncio.sleep(0)
        assert not client.transport._connections._open


class Proxy:
    """Takes a CONNECT, remembers its head, and passes bytes on to a port, whatever was asked for."""

    def __init__(self, port, answer=b"HTTP/1.1 200 OK\r\n\r\n"):
        self.port = port
        self.answer = answer
        self.heads = []

    async def __call__(self, reader, writer):
        self.heads.append(await head_of(reader))
        writer.write(self.answer)
        if b" 200 " not in self.answer:
            await reader.read()
            return
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.port)

        async def copy(source, sink):
            while data := await source.read(1 << 16):
                sink.write(data)
            sink.close()

        try:
            await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))
        finally:
            to_writer.transport.abort()


def settings_through(proxy_port, certificate, login=""):
    settings = Configuration(host="https://server.test:6443")
    settings.proxy = f"http://{login}127.0.0.1:{proxy_port}"
    settings.ssl_ca_cert = certificate.path
    return settings


async def test_a_proxy_is_asked_for_a_tunnel_and_tls_goes_through_it(serve_bytes, certificate):
    shown = certificate()
    server = await serve_bytes(saying(sized(b"1"), sized(b"2")), tls=shown.server())
    proxy = Proxy(server, INTERIM + b"HTTP/1.1 200 Connection established\r\n\r\n")
    port = await serve_bytes(proxy)
    async with connect(configuration=settings_through(port, shown, "me:s%40crt@")) as client:
        assert await client.transport.request("GET", "/x") == b"1"
        assert await client.transport.request("GET", "/x") == b"2"
        (connection,) = client.transport._connections._open
    (head,) = proxy.heads
    assert head.splitlines()[0] == "CONNECT server.test:6443 HTTP/1.1"
    assert f"Proxy-Authorization: Basic {base64.b64encode(b'me:s@crt').decode()}" in head.splitlines()
    # Nothing of the connection that carried the CONNECT is left.
    gc.collect()
    left = [found for found in gc.get_objects() if isinstance(found, HTTPConnection)]
    assert [found for found in left if found is not connection and found._tunnelling] == []


async def test_a_proxy_may_be_reached_over_tls_itself(serve_bytes, certificate, monkeypatch):
    shown, proxys = certificate(), certificate("proxy", host="localhost")
    monkeypatch.setenv("SSL_CERT_FILE", proxys.path)
    proxy = Proxy(await serve_bytes(saying(sized(b"1"), sized(b"2")), tls=shown.server()))
    settings = settings_through(0, shown)
    settings.proxy = f"https://localhost:{await serve_bytes(proxy, tls=proxys.server())}"
    async with connect(configuration=settings) as client:
        assert await client.transport.request("GET", "/x") == b"1"
        assert await client.transport.request("GET", "/x") == b"2"
    assert len(proxy.heads) == 1


async def test_a_proxy_that_refuses_is_named_with_its_status(serve_bytes, certificate):
    proxy = Proxy(0, sized(b"no", status="403 Forbidden"))
    async with connect(configuration=settings_through(await serve_bytes(proxy), certificate(), "me:secret@")) as client:
        with pytest.raises(ConnectionLostError, match=r"answered 403 to CONNECT server\.test:6443") as caught:
            await client.transport.request("POST", "/x")
    assert "secret" not in str(caught.value)
    assert not may_be_done(caught.value)


async def test_a_proxy_carries_plain_http_as_it_is(serve_bytes):
    heads = []

    async def proxy(reader, writer):
        while True:
            heads.append(await head_of(reader))
            writer.write(sized(b"1"))

    settings = Configuration(host="http://server.test:8080")
    settings.proxy = f"http://me:secret@127.0.0.1:{await serve_bytes(proxy)}"
    async with connect(configuration=settings) as client:
        assert await client.transport.request("GET", "/x", query={"a": "b"}) == b"1"
    lines = heads[0].splitlines()
    assert lines[:2] == ["GET http://server.test:8080/x?a=b HTTP/1.1", "Host: server.test:8080"]
    assert "Proxy-Authorization: Basic bWU6c2VjcmV0" in lines


NEVER_SENT = [
    socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    OSError(errno.EHOSTUNREACH, "No route to host"),
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    TimeoutError(errno.ETIMEDOUT, "Connection timed out"),
    ssl.SSLCertVerificationError(1, "certificate verify failed"),
    None,  # no connection within the request's time
]


@pytest.mark.rules("RY-5")
@pytest.mark.parametrize("failure", NEVER_SENT, ids=str)
async def test_ry_5_a_write_that_was_never_sent_is_not_done(monkeypatch, failure):
    async def dial(*args, **options):
        if failure is None:
            await asyncio.sleep(60)
        raise failure

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", dial)
    async with client_at(1) as client:
        with pytest.raises((ConnectionLostError, RequestTimeoutError)) as caught:
            await client.transport.request("POST", "/x", timeout=0.05)
    assert caught.value.unsent
    assert not may_be_done(caught.value)
    assert isinstance(caught.value, RequestTimeoutError) is (failure is None or isinstance(failure, TimeoutError))


async def test_a_certificate_for_another_name_is_a_typed_error(serve_bytes, certificate):
    shown = certificate(host="other.test")
    settings = Configuration(host=f"https://127.0.0.1:{await serve_bytes(saying(sized(b'1')), tls=shown.server())}")
    settings.ssl_ca_cert = shown.path
    async with connect(configuration=settings) as client:
        with pytest.raises(ConnectionLostError, match=r"cannot connect to 127.* certificate") as caught:
            await client.transport.request("POST", "/x")
    assert not may_be_done(caught.value)
    settings.tls_server_name = "other.test"
    async with connect(configuration=settings) as client:
        assert await client.transport.request("POST", "/x") == b"1"


@pytest.mark.rules("RY-5")
async def test_ry_5_a_write_that_was_cut_and_then_not_sent_again_may_be_done(serve_bytes, monkeypatch):
    loop = asyncio.get_running_loop()

    async def dial(*args, **options):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    async def handle(reader, writer):
        await head_of(reader)
        writer.write(sized(b"1"))
        await head_of(reader)
        monkeypatch.setattr(loop, "create_connection", dial)

    async with client_at(await serve_bytes(handle)) as client:
        await client.transport.request("GET", "/x")
        with pytest.raises(ConnectionLostError) as caught:
            await client.transport.request("PATCH", "/x", idempotent=True)
    assert caught.value.refused
    assert may_be_done(caught.value)


@virtual_time
async def test_each_address_of_a_name_has_its_share_of_the_time(serve_bytes, monkeypatch):
    loop = asyncio.get_running_loop()
    port, tried, real = await serve_bytes(saying(sized(b"1"))), [], loop.create_connection

    async def look_up(host, port, **options):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (9, 8, 1)]

    async def dial(factory, address, port, **options):
        tried.append((address, round(loop.time() - began, 3)))
        if address != "127.0.0.1":
            await asyncio.sleep(60)
        return await real(factory, address, port, **options)

    monkeypatch.setattr(loop, "getaddrinfo", look_up)
    monkeypatch.setattr(loop, "create_connection", dial)
    async with connect(configuration=Configuration(host=f"http://server.test:{port}")) as client:
        began = loop.time()
        assert await client.transport.request("GET", "/x", timeout=0.6) == b"1"
    assert tried == [("127.0.0.9", 0.0), ("127.0.0.8", 0.2), ("127.0.0.1", 0.4)]


async def test_a_changed_client_certificate_is_used_for_all_that_follows(serve_bytes, certificate, tmp_path):
    shown, old, new = certificate(), certificate("old"), certificate("new")
    broken = tmp_path / "broken.crt"
    broken.write_text("no certificate")
    context = shown.server()
    for each in (old, new):
        context.load_verify_locations(each.path)
    context.verify_mode = ssl.CERT_REQUIRED
    seen, release = [], asyncio.Event()

    async def handle(reader, writer):
        subject = dict(pair for (pair,) in writer.get_extra_info("peercert")["subject"])
        while True:
            head = await head_of(reader)
            seen.append(subject["commonName"])
            if head.startswith("GET /slow"):
                await release.wait()
            writer.write(sized(b"1"))

    settings = Configuration(host=f"https://127.0.0.1:{await serve_bytes(handle, tls=context)}")
    settings.ssl_ca_cert, settings.tls_server_name = shown.path, "server.test"
    settings.cert_file, settings.key_file = old.path, old.key
    pool = Connections(settings)
    with anyio.fail_after(30):
        slow = asyncio.ensure_future(pool.exchange(GET.replace(b"/x", b"/slow"), 30, idempotent=True))
        await pool.exchange(GET, 30, idempotent=True)
        while len(seen) < 2:
            await asyncio.sleep(0.01)
        settings.cert_file = str(broken)
        for _ in range(2):
            with pytest.raises(UnauthorizedError, match=r"broken\.crt cannot be used"):
                pool.reload_certificate()
        await pool.exchange(GET, 30, idempotent=True)
        settings.cert_file, settings.key_file = new.path, new.key
        pool.reload_certificate()
        release.set()
        await slow
        assert pool._idle == []
        for _ in range(2):
            await pool.exchange(GET, 30, idempotent=True)
    assert seen == ["old", "old", "old", "new", "new"]
    assert len(pool._open) == 1
    await pool.aclose()


async def test_a_broken_gzip_is_an_error_of_the_answer(serve_bytes):
    broken = sized(gzip.compress(b"packed" * 100)[:-9], "Content-Encoding: gzip")
    async with client_at(await serve_bytes(saying(broken))) as client:
        with pytest.raises(ConnectionLostError, match="no gzip") as caught:
            await client.transport.request("POST", "/x")
    assert may_be_done(caught.value)


async def test_an_answer_without_length_ends_with_its_connection(serve_bytes):
    async def handle(reader, writer):
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nto the")
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.write(b" end")
        writer.close()
        await writer.wait_closed()

    async with client_at(await serve_bytes(handle)) as client:
        for _ in range(2):
            assert await client.transport.request("GET", "/x") == b"to the end"


async def test_a_connection_that_the_server_wants_closed_is_not_kept(serve_bytes):
    pool = pool_at(await serve_bytes(saying(sized(b"1", "Connection: close"), sized(b"2"))))
    for _ in range(2):
        assert (await pool.exchange(GET, 30, idempotent=True)).body == b"1"
        assert pool._idle == []
    await pool.aclose()


@pytest.mark.rules("CL-11")
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_cl_11_only_a_repeatable_request_takes_another_connection_when_a_kept_one_is_dead(serve_bytes, method):
    heads = []

    async def handle(reader, writer):
        heads.append(await head_of(reader))
        writer.write(sized(b"1"))
        heads.append(await head_of(reader))  # and closes without an answer

    naps = []

    async def nap(seconds):
        naps.append(seconds)

    async with client_at(await serve_bytes(handle), sleep=nap) as client:
        await client.transport.request("GET", "/x")
        if method == "GET":
            assert await client.transport.request("GET", "/x") == b"1"
        else:
            with pytest.raises(ConnectionLostError, match="before an answer came"):
                await client.transport.request("POST", "/x")
    assert [head.partition(" ")[0] for head in heads] == (["GET"] * 3 if method == "GET" else ["GET", "POST"])
    assert naps == []


async def test_a_stream_takes_no_more_than_a_mebibyte_ahead_of_its_reader(serve_bytes):
    written, line, lines = 0, b"x" * 65535 + b"\n", 320

    async def handle(reader, writer):
        nonlocal written
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(lines):
            writer.write(line)
            await writer.drain()
            written += 1
        writer.close()
        await writer.wait_closed()

    pool = pool_at(await serve_bytes(handle))
    with anyio.fail_after(30):
        async with pool.stream(GET, 30) as (answer, body):
            assert answer.status == 200
            while not body._paused:
                await asyncio.sleep(0.01)
            before = -1
            while written > before:
                before = written
                await asyncio.sleep(0.05)
            assert written < lines
            assert body._size < 2 << 20
            size = 0
            while chunk := await body.readany():
                size += len(chunk)
    assert size == lines * len(line)
    await pool.aclose()


@virtual_time
async def test_each_exchange_ends_at_its_own_deadline(serve_bytes):
    async def silent(reader, writer):
        await reader.read()

    pool, ended = pool_at(await serve_bytes(silent)), []
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def ask(limit):
        with pytest.raises(TimeoutError):
            await pool.exchange(GET, limit, idempotent=True)
        ended.append(loop.time() - began)

    await asyncio.gather(*map(ask, (0.3, 0.1, 0.2, 0.15)))
    assert ended == pytest.approx([0.1, 0.15, 0.2, 0.3], abs=0.001)
    assert pool._sweep is None
    await asyncio.sleep(0)
    assert not pool._open
    await pool.aclose()


@pytest.mark.rules("RF-16")
async def test_rf_16_the_kernel_asks_after_30_seconds_each_15_and_gives_up_after_3(serve_bytes, monkeypatch):
    seen, real = [], socket.socket.setsockopt

    def setsockopt(self, *args):
        seen.append(args)
        return real(self, *args)

    port = await serve_bytes(saying(sized(b"1\n")))
    monkeypatch.setattr(socket.socket, "setsockopt", setsockopt)
    async with client_at(port) as client, client.transport.stream("/x"):
        pass
    wanted = [("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 3)]
    there = [(socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in wanted if hasattr(socket, name)]
    assert {(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *there} <= set(seen)


@pytest.mark.rules("PX-1")
@pytest.mark.parametrize("through_proxy", [False, True])
async def test_px_1_a_request_cancelled_at_any_turn_leaves_nothing(serve_bytes, certificate, through_proxy):
    here = 0

    async def handle(reader, writer):
        nonlocal here
        here += 1
        try:
            await head_of(reader)
            writer.write(sized(b"1"))
            await reader.read()
        finally:
            here -= 1

    shown = certificate()
    port = await serve_bytes(handle, tls=shown.server())
    if through_proxy:
        settings = settings_through(await serve_bytes(Proxy(port)), shown)
    else:
        settings = Configuration(host=f"https://127.0.0.1:{port}")
        settings.ssl_ca_cert, settings.tls_server_name = shown.path, "server.test"
    cancelled = 0
    for turns in range(1000):
        async with connect(configuration=settings, max_concurrent_requests=1) as client:
            pool, slots = client.transport._connections, client.transport._slots
            task = asyncio.ensure_future(client.transport.request("GET", "/x"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            assert not slots.locked()
            for _ in range(3):
                await asyncio.sleep(0)
            assert pool._open == set(pool._idle)
            assert not any(connection.busy for connection in pool._open)
        if outcome == b"1":
            break
        assert isinstance(outcome, asyncio.CancelledError)
        cancelled += 1
    assert cancelled > 5
    with anyio.fail_after(30):
        while here:
            await asyncio.sleep(0.01)


@pytest.mark.rules("PX-3")
async def test_px_3_a_large_answer_is_unpacked_beside_the_event_loop(serve_bytes, monkeypatch):
    threads, real = [], Answer.text_body

    def text_body(self):
        threads.append(threading.current_thread() is threading.main_thread())
        return real(self)

    monkeypatch.setattr(Answer, "text_body", text_body)
    small, large = b"x" * 1000, random.Random(1).randbytes(1 << 20)
    packed = [sized(gzip.compress(each, 1), "Content-Encoding: gzip") for each in (small, large)]
    broken = sized(gzip.compress(large, 1)[:-9], "Content-Encoding: gzip")
    async with client_at(await serve_bytes(saying(*packed, broken))) as client:
        assert await client.transport.request("GET", "/x") == small
        assert await client.transport.request("GET", "/x") == large
        with pytest.raises(ConnectionLostError, match="no gzip"):
            await client.transport.request("GET", "/x")
    assert threads == [True, False, False]
