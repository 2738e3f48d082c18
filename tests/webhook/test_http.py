"""The HTTP side of the webhook server: what a client may send, and how connections end."""

import ssl
from contextlib import asynccontextmanager

import anyio
import pytest

from pyreconcile.webhook import WebhookOptions, WebhookServer, _http
from pyreconcile.webhook._http import HTTPServer, Request, Response

LIMIT = 1000


def get(path: str = "/", *headers: str, version: str = "1.1", body: bytes = b"", method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: a", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Answers:
    """What the server was asked, and what it says: by default the body that it got."""

    def __init__(self):
        self.requests: list[Request] = []
        self.give = self.echo

    async def __call__(self, request: Request) -> Response:
        self.requests.append(request)
        return await self.give(request)

    async def echo(self, request: Request) -> Response:
        return Response(200, b"too long" if request.body is None else request.body, "text/plain")


class Peer:
    """A client that says what it wants and reads what there is."""

    def __init__(self, stream):
        self.stream = stream
        self.read = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send(data)

    async def answer(self, *, bodiless: bool = False) -> tuple[int, dict[str, str], bytes]:
        """Read one answer."""
        while b"\r\n\r\n" not in self.read:
            self.read += await self.stream.receive()
        head, _, self.read = self.read.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        length = 0 if bodiless else int(headers.get("Content-Length", "0"))
        while len(self.read) < length:
            self.read += await self.stream.receive()
        body, self.read = self.read[:length], self.read[length:]
        return int(first.split(" ")[1]), headers, body

    async def is_closed(self) -> bool:
        """Wait for the end of the connection."""
        try:
            return self.read == b"" and not await self.stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return True


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture(scope="module")
def context() -> ssl.SSLContext:
    return WebhookServer(WebhookOptions(bind_address="127.0.0.1:0")).certificates.context


@asynccontextmanager
async def connected(port: int):
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with anyio.fail_after(20):
        stream = await anyio.connect_tcp("127.0.0.1", port, ssl_context=trusting, tls_standard_compatible=False)
        async with stream:
            yield Peer(stream)


@pytest.fixture
def serving(answers, context):
    return HTTPServer(answers, limit=lambda path: LIMIT).listening("127.0.0.1", 0, context=context, grace=5)


async def test_a_connection_carries_one_request_after_the_other(serving, answers):
    async with serving as port, connected(port) as peer:
        for body in (b"one", b"two"):
            await peer.send(get("/a/b?timeout=10s&x", "Content-Type: text/x", body=body))
            status, headers, given = await peer.answer()
            assert (status, given) == (200, body)
            assert "Connection" not in headers
            assert headers["Date"].endswith(" GMT")
    request = answers.requests[0]
    assert (request.path, request.query, request.headers[b"content-type"]) == ("/a/b", "timeout=10s&x", b"text/x")


async def test_requests_sent_at_once_are_answered_in_order_and_one_at_a_time(serving, answers):
    running = 0

    async def slowly(request):
        nonlocal running
        running += 1
        assert running == 1
        await anyio.sleep(0.01)
        running -= 1
        return await answers.echo(request)

    answers.give = slowly
    bodies = [bytes([65 + i]) * 100 for i in range(20)]
    async with serving as port, connected(port) as peer:
        await peer.send(b"".join(get(body=body) for body in bodies))
        assert [(await peer.answer())[2] for _ in bodies] == bodies


async def test_a_body_in_chunks_and_in_pieces_is_put_together(serving):
    async with serving as port, connected(port) as peer:
        for part in (b"POST / HT", b"TP/1.1\r\nHost: a\r\nTransfer-Enc", b"oding: chunked\r\n\r\n3\r\nab"):
            await peer.send(part)
            await anyio.sleep(0.01)
        await peer.send(b"c\r\n2\r\nde\r\n0\r\n\r\n")
        assert (await peer.answer())[2] == b"abcde"


@pytest.mark.parametrize(("size", "given"), [(LIMIT - 1, b"x" * (LIMIT - 1)), (LIMIT, b"too long")])
async def test_a_body_that_is_too_long_is_read_past(serving, size, given):
    async with serving as port, connected(port) as peer:
        await peer.send(get(body=b"x" * size))
        assert (await peer.answer())[2] == given
        await peer.send(get(body=b"next"))
        assert (await peer.answer())[2] == b"next"


async def test_a_body_far_too_long_ends_the_connection_before_its_own_end(serving):
    async with serving as port, connected(port) as peer:
        await peer.send(get("/", f"Content-Length: {10**9}") + b"x" * (2 * LIMIT + 1))
        status, headers, given = await peer.answer()
        assert (status, headers["Connection"], given) == (200, "close", b"too long")
        assert await peer.is_closed()


async def test_a_client_that_waits_before_its_body_is_told_to_send_it(serving):
    async with serving as port, connected(port) as peer:
        await peer.send(get("/", "Expect: 100-continue", "Content-Length: 2"))
        assert (await peer.answer())[0] == 100
        await peer.send(b"ok")
        assert (await peer.answer())[2] == b"ok"


@pytest.mark.parametrize("sent", [get(version="1.0"), get("/", "Connection: close")], ids=["HTTP/1.0", "close"])
async def test_a_client_that_wants_one_answer_gets_one(serving, sent):
    async with serving as port, connected(port) as peer:
        await peer.send(sent)
        assert (await peer.answer())[1]["Connection"] == "close"
        assert await peer.is_closed()


async def test_head_is_answered_without_a_body(serving):
    async with serving as port, connected(port) as peer:
        await peer.send(get(method="HEAD", body=b"four"))
        assert (await peer.answer(bodiless=True))[1]["Content-Length"] == "4"
        await peer.send(get(body=b"next"))
        assert (await peer.answer())[2] == b"next"


async def test_an_upgrade_is_not_taken_up(serving):
    async with serving as port, connected(port) as peer:
        await peer.send(get("/", "Connection: Upgrade", "Upgrade: h2c", method="GET"))
        assert (await peer.answer())[:1] == (200,)
        assert await peer.is_closed()


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"\x16\x03\x01\r\n\r\n", 400), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400), (get("/", "X: " + "y" * 70_000), 431)],
    ids=["no HTTP", "HTTP/2", "large headers"],
)
async def test_what_cannot_be_served_is_answered_and_ends_the_connection(serving, answers, sent, status):
    async with serving as port, connected(port) as peer:
        await peer.send(sent)
        assert (await peer.answer())[0] == status
        assert await peer.is_closed()
    assert answers.requests == []


async def test_nonsense_behind_a_request_lets_its_answer_pass(serving, answers):
    release = anyio.Event()

    async def wait(request):
        await release.wait()
        return await answers.echo(request)

    answers.give = wait
    async with serving as port, connected(port) as peer:
        await peer.send(get(body=b"good") + b"\x00\x00\r\n\r\n")
        while not answers.requests:
            await anyio.sleep(0.01)
        release.set()
        status, headers, given = await peer.answer()
        assert (status, headers["Connection"], given) == (200, "close", b"good")
        assert await peer.is_closed()


async def test_a_failure_of_the_server_is_500_and_logged(serving, answers, capsys):
    async def fail(request):
        raise RuntimeError("secret")

    answers.give = fail
    async with serving as port, connected(port) as peer:
        await peer.send(get())
        status, _, given = await peer.answer()
        assert (status, given) == (500, b"the webhook server failed")
        answers.give = answers.echo
        await peer.send(get(body=b"next"))
        assert (await peer.answer())[2] == b"next"
    assert "webhook_request_failed" in capsys.readouterr().out


async def test_a_client_that_goes_away_cancels_its_request(serving, answers, hanging):
    answers.give = hanging.wait
    async with serving as port:
        async with connected(port) as peer:
            await peer.send(get())
            await hanging.started.wait()
        await hanging.cancelled.wait()


async def test_a_client_that_does_not_read_is_not_answered_further_until_it_does(serving, answers):
    large = b"x" * (8 << 20)
    answered = 0

    async def give(request):
        nonlocal answered
        answered += 1
        return Response(200, large)

    answers.give = give
    async with serving as port, connected(port) as peer:
        await peer.send(get() * 6)
        await anyio.sleep(0.2)
        assert answered <= 2
        for _ in range(6):
            assert (await peer.answer())[2] == large


async def test_a_quiet_connection_is_closed(serving, answers, monkeypatch):
    assert _http.KEEP_ALIVE > 90  # the API server's own limit
    monkeypatch.setattr(_http, "_SWEEP", 0.02)

    async def slowly(request):
        monkeypatch.setattr(_http, "KEEP_ALIVE", 0.1)  # not before: a busy machine connects and then asks no faster
        await anyio.sleep(0.3)
        return await answers.echo(request)

    answers.give = slowly
    async with serving as port, connected(port) as peer:
        await peer.send(get(body=b"longer than that"))
        assert (await peer.answer())[2] == b"longer than that"
        assert await peer.is_closed()


async def test_the_end_closes_quiet_connections_and_lets_running_requests_end(serving, answers):
    started, release = anyio.Event(), anyio.Event()

    async def wait(request):
        started.set()
        await release.wait()
        return await answers.echo(request)

    answers.give = wait
    async with anyio.create_task_group() as tasks:
        stop = anyio.Event()

        async def serve(*, task_status):
            async with serving as port:
                task_status.started(port)
                await stop.wait()

        port = await tasks.start(serve)
        async with connected(port) as quiet, connected(port) as busy:
            await busy.send(get(body=b"last"))
            await started.wait()
            stop.set()
            assert await quiet.is_closed()
            with pytest.raises(OSError):
                await anyio.connect_tcp("127.0.0.1", port)
            release.set()
            status, headers, given = await busy.answer()
            assert (status, headers["Connection"], given) == (200, "close", b"last")


async def test_the_end_waits_no_longer_than_it_may(answers, context, hanging):
    answers.give = hanging.wait
    server = HTTPServer(answers, limit=lambda path: LIMIT)
    async with anyio.create_task_group() as tasks:

        async def ask(port):
            async with connected(port) as peer:
                await peer.send(get())
                assert await peer.is_closed()

        async with server.listening("127.0.0.1", 0, context=context, grace=0.1) as port:
            tasks.start_soon(ask, port)
            await hanging.started.wait()
        assert hanging.cancelled.is_set()
