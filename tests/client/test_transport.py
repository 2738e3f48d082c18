"""The request path against servers that answer oddly."""

import asyncio
import gc
import socket
import warnings
from contextlib import suppress

import anyio
import pytest
import structlog
from aiohttp import web
from kubernetes_asyncio.client import Configuration

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.client import (
    BadRequestError,
    ConnectionLostError,
    ConnectOptions,
    ExpiredError,
    InternalServerError,
    MergePatch,
    RequestTimeoutError,
    ServiceUnavailableError,
    TooManyRequestsError,
    connect,
)

RAW = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "ns", "resourceVersion": "5"}}


class Recorder:
    def __init__(self):
        self.requests = []

    def request(self, *, code, method, host):
        self.requests.append((method, code))


class Naps(list):
    async def __call__(self, seconds):
        self.append(seconds)


class Script:
    """Answers requests one after the other; the last answer repeats."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.seen = []

    async def __call__(self, request):
        self.seen.append((request.method, request.path_qs, dict(request.headers), await request.read()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)


def answer(status=200, body=None, headers=None, text=None):
    async def give(_):
        if text is not None:
            return web.Response(status=status, text=text, headers=headers)
        return web.json_response(RAW if body is None else body, status=status, headers=headers)

    return give


async def cut(request):
    request.transport.abort()
    return web.Response()


@pytest.fixture
def naps():
    """The waits between tries, which take no time."""
    return Naps()


# Time goes on only when nothing has come from the network for so many turns of the loop.
virtual_time = pytest.mark.looptime(noop_cycles=10_000)


async def test_cl_11_429_with_retry_after_is_waited_for(client_of, naps):
    script = Script(answer(429, headers={"Retry-After": "3"}), answer(503, headers={"Retry-After": "2"}), answer())
    metrics = Recorder()
    client = await client_of(script, sleep=naps, metrics=metrics)
    created = await client.create(ConfigMap.from_dict(RAW))
    assert created.metadata.resource_version == "5"
    assert naps == [3, 2]
    assert metrics.requests == [("POST", "429"), ("POST", "503"), ("POST", "200")]
    assert len({body for *_, body in script.seen}) == 1


@pytest.mark.parametrize("headers", [None, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, {"Retry-After": "1.5"}])
async def test_cl_11_without_whole_seconds_nothing_is_tried_again(client_of, naps, headers):
    script = Script(answer(429, headers=headers))
    client = await client_of(script, sleep=naps)
    with pytest.raises(TooManyRequestsError):
        await client.get(ConfigMap, "ns/x")
    assert (len(script.seen), naps) == (1, [])


async def test_cl_11_other_answers_with_retry_after_are_not_tried_again(client_of, naps):
    script = Script(answer(400, headers={"Retry-After": "1"}))
    client = await client_of(script, sleep=naps)
    with pytest.raises(BadRequestError):
        await client.get(ConfigMap, "ns/x")
    assert len(script.seen) == 1


async def test_cl_11_retries_end_after_ten(client_of, naps):
    script = Script(answer(500, headers={"Retry-After": "0"}))
    client = await client_of(script, sleep=naps)
    with pytest.raises(InternalServerError):
        await client.get(ConfigMap, "ns/x")
    assert (len(script.seen), len(naps)) == (11, 10)


async def test_cl_11_a_wait_beyond_the_timeout_is_not_begun(client_of, naps):
    script = Script(answer(429, headers={"Retry-After": "60"}))
    client = await client_of(script, sleep=naps)
    with pytest.raises(TooManyRequestsError) as caught:
        await client.get(ConfigMap, "ns/x")
    assert (naps, caught.value.retry_after) == ([], 60)


async def test_cl_11_a_get_whose_connection_is_cut_is_sent_again(client_of, naps):
    script = Script(cut, cut, cut, answer())
    client = await client_of(script, sleep=naps)
    assert (await client.get(ConfigMap, "ns/x")).metadata.name == "x"
    assert naps
    assert set(naps) == {1.0}


async def test_cl_11_a_create_whose_connection_is_cut_is_not_sent_again(client_of, naps):
    script = Script(cut)
    client = await client_of(script, sleep=naps)
    with pytest.raises(ConnectionLostError, match="before an answer came") as caught:
        await client.create(ConfigMap.from_dict(RAW))
    assert not caught.value.refused
    assert (len(script.seen), naps) == (1, [])


async def test_cl_11_an_apply_whose_connection_is_cut_is_sent_again(client_of, naps):
    script = Script(answer(404), cut, answer())
    client = await client_of(script, sleep=naps)
    await client.apply(ConfigMap.from_dict({"metadata": {"name": "x", "namespace": "ns"}, "data": {"a": "1"}}))
    assert [method for method, *_ in script.seen] == ["GET", "PATCH", "PATCH"]


async def test_cl_11_waits_above_50_ms_are_logged(client_of, naps, capsys):
    script = Script(answer(503, headers={"Retry-After": "0"}), answer(503, headers={"Retry-After": "1"}), answer())
    client = await client_of(script, sleep=naps)
    await client.get(ConfigMap, "ns/x")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "request_retried" in line]
    assert "wait=1" in line
    assert "path=/api/v1/namespaces/ns/configmaps/x" in line


async def test_an_answer_that_breaks_off_is_not_tried_again(client_of, naps):
    async def half(request):
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"{")
        request.transport.abort()
        return response

    script = Script(half)
    client = await client_of(script, sleep=naps)
    with pytest.raises(ConnectionLostError, match="broke off"):
        await client.get(ConfigMap, "ns/x")
    assert (len(script.seen), naps) == (1, [])


async def test_a_refused_connection_is_told_apart():
    metrics = Recorder()
    with socket.socket() as silent:  # bound, so that nobody else gets the port, and not listening
        silent.bind(("127.0.0.1", 0))
        configuration = Configuration(host=f"http://127.0.0.1:{silent.getsockname()[1]}")
        async with connect(configuration=configuration, metrics=metrics) as client:
            with pytest.raises(ConnectionLostError, match="connection refused") as caught:
                await client.get(ConfigMap, "ns/x")
    assert caught.value.refused
    assert metrics.requests == [("GET", "<error>")]


@virtual_time
async def test_a_request_without_an_answer_times_out(client_of):
    release = asyncio.Event()

    async def silent(_):
        await release.wait()
        return web.Response()

    client = await client_of(silent, timeout=0.2)
    with pytest.raises(RequestTimeoutError, match=r"no answer from 127.* within 0\.2 s") as caught:
        await client.get(ConfigMap, "ns/x")
    assert caught.value.code == 0
    release.set()


async def test_requests_beyond_the_limit_wait_and_time_out(client_of):
    release, running = asyncio.Event(), 0

    async def slow(_):
        nonlocal running
        running += 1
        await release.wait()
        return web.json_response(RAW)

    client = await client_of(slow, max_concurrent_requests=2)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.get(ConfigMap, "ns/x")) for _ in range(2)]
        with anyio.fail_after(30):
            while running < 2:
                await asyncio.sleep(0.01)
        with pytest.raises(RequestTimeoutError, match="not sent") as caught:
            await client.transport.request("GET", "/api", timeout=0.1)
        assert caught.value.unsent
        release.set()
    assert [task.result().metadata.name for task in tasks] == ["x", "x"]


async def test_a_cancelled_request_gives_its_place_to_others(client_of):
    release = asyncio.Event()

    async def first_slow(request):
        if request.path == "/slow":
            await release.wait()
        return web.json_response(RAW)

    client = await client_of(first_slow, max_concurrent_requests=1)
    with anyio.move_on_after(0.1) as scope:
        await client.transport.request("GET", "/slow")
    assert scope.cancelled_caught
    await client.transport.request("GET", "/fast")
    release.set()


async def test_many_watches_do_not_keep_requests_waiting(client_of):
    open_streams = 0

    async def handler(request):
        nonlocal open_streams
        if "watch" not in request.query:
            return web.json_response(RAW)
        response = web.StreamResponse()
        await response.prepare(request)
        open_streams += 1
        await response.write(b'{"type":"ADDED"}\n')
        await asyncio.sleep(60)
        return response

    client = await client_of(handler, max_concurrent_requests=1)

    async def watch():
        async with client.transport.stream("/api/v1/pods", query={"watch": "true"}) as lines:
            async for _ in lines:
                await asyncio.sleep(60)

    async with anyio.create_task_group() as group:
        for _ in range(120):
            group.start_soon(watch)
        with anyio.fail_after(20):
            while open_streams < 120:
                await asyncio.sleep(0.02)
            await client.get(ConfigMap, "ns/x")
        group.cancel_scope.cancel()


async def test_er_3_an_html_error_page_is_a_typed_error(client_of):
    client = await client_of(answer(503, text="<html><b>Bad</b> gateway</html>"))
    with pytest.raises(ServiceUnavailableError, match="503 Service Unavailable: <html>"):
        await client.get(ConfigMap, "ns/x")


async def test_redirects_are_not_followed(client_of):
    script = Script(answer(302, headers={"Location": "/elsewhere"}))
    client = await client_of(script)
    with pytest.raises(Exception, match="302"):
        await client.get(ConfigMap, "ns/x")
    assert len(script.seen) == 1


async def test_cl_9_warnings_are_logged_once_per_text(client_of):
    header = '299 - "v1 Widget is \\"old\\"", 299 - "another"'
    client = await client_of(answer(headers={"Warning": header}))
    with structlog.testing.capture_logs() as logs:
        await client.get(ConfigMap, "ns/x")
        await client.get(ConfigMap, "ns/x")
    assert [log["text"] for log in logs] == ['v1 Widget is "old"', "another"]


async def test_cl_8a_a_list_starts_over_once_after_410_on_continue(client_of):
    def page(names, token=""):
        items = [{"metadata": {"name": name, "namespace": "ns", "uid": name}} for name in names]
        return answer(body={"kind": "ConfigMapList", "metadata": {"continue": token}, "items": items})

    gone = answer(410, body={"kind": "Status", "reason": "Expired", "code": 410, "message": "too old"})
    for read in ("await", "async for"):
        script = Script(page("ab", "1"), gone, page("ab", "2"), page("cd"))
        client = await client_of(script)
        listing = client.list(ConfigMap, namespace="ns", limit=2)
        found = await listing if read == "await" else [obj async for obj in listing]
        assert [(obj.kind, obj.api_version, obj.metadata.name) for obj in found] == [
            ("ConfigMap", "v1", name) for name in "abcd"
        ]
        paths = [path.partition("?")[2] for _, path, *_ in script.seen]
        assert paths == ["limit=2", "limit=2&continue=1", "limit=2", "limit=2&continue=2"]
        script = Script(page("ab", "1"), gone, page("ab", "2"), gone)
        client = await client_of(script)
        with pytest.raises(ExpiredError):
            await client.list(ConfigMap, limit=2)


@pytest.mark.parametrize(("options", "query"), [({}, "limit=500"), ({"limit": 0}, ""), ({"limit": 7}, "limit=7")])
async def test_cl_8a_pages_hold_500_objects_unless_told(client_of, options, query):
    script = Script(answer(body={"kind": "ConfigMapList", "metadata": {}, "items": None}))
    client = await client_of(script)
    assert await client.list(ConfigMap, **options) == []
    assert [path.partition("?")[2] for _, path, *_ in script.seen] == [query]


async def test_cl_10_there_is_no_rate_limit_and_answers_of_429_are_counted(client_of, naps):
    script = Script(answer(429), answer())
    metrics = Recorder()
    client = await client_of(script, sleep=naps, metrics=metrics)
    with pytest.raises(TooManyRequestsError):
        await client.get(ConfigMap, "ns/x")
    # Ten times the burst that client-go allows before it makes requests wait.
    async with asyncio.TaskGroup() as tasks:
        for _ in range(100):
            tasks.create_task(client.get(ConfigMap, "ns/x"))
    assert naps == []
    assert metrics.requests == [("GET", "429"), *[("GET", "200")] * 100]


async def test_cl_10_a_rate_that_was_asked_for_holds_for_requests_watches_and_tries_again(client_of, naps):
    script = Script(answer())
    # A token in a thousand seconds: whatever time the test takes, the waits are known to the second.
    client = await client_of(script, sleep=naps, qps=0.001, burst=3)
    for _ in range(3):
        await client.get(ConfigMap, "ns/x")
    assert naps == []
    with structlog.testing.capture_logs() as logs:
        await client.get(ConfigMap, "ns/x")
    assert naps == [pytest.approx(1000, abs=60)]
    (entry,) = (entry for entry in logs if entry["event"] == "request_throttled")
    assert (entry["method"], entry["path"], entry["wait"]) == ("GET", "/api/v1/namespaces/ns/configmaps/x", naps[0])
    async with client.transport.stream("/watch") as lines:
        assert [line async for line in lines]
    assert naps[1:] == [pytest.approx(2000, abs=60)]
    script.answers = [answer(429, headers={"Retry-After": "3"}), answer()]
    await client.get(ConfigMap, "ns/x")
    assert naps[2:] == [pytest.approx(3000, abs=60), 3, pytest.approx(4000, abs=60)]


@pytest.mark.parametrize(
    ("options", "fault"),
    [({"qps": 0}, "^qps: must be above 0, or None for no limit, not 0"), ({"burst": 0}, "^burst: must be at least 1")],
)
def test_cl_10_a_rate_that_no_request_could_keep_to_is_refused(options, fault):
    with pytest.raises(ValueError, match=fault):
        ConnectOptions(**options)


async def test_query_path_and_headers_as_sent(client_of):
    script = Script(answer())
    client = await client_of(script, user_agent="tests/1", field_manager="me")
    await client.patch(ConfigMap, "ns/system:a%b c", MergePatch({"data": {"ä": "1"}}), field_validation="Strict")
    ((method, path, headers, body),) = script.seen
    assert (method, path) == (
        "PATCH",
        "/api/v1/namespaces/ns/configmaps/system:a%25b%20c?fieldManager=me&fieldValidation=Strict",
    )
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert headers["User-Agent"] == "tests/1"
    assert "Authorization" not in headers
    assert body == '{"data":{"ä":"1"}}'.encode()


async def test_le_11_the_write_guard_is_called_before_every_try_of_a_write_and_never_for_reads(client_of, naps):
    script = Script(answer(429, headers={"Retry-After": "0"}), answer())
    client = await client_of(script, sleep=naps)
    allowed = [True, False]

    def guard():
        if not allowed.pop(0):
            raise PermissionError("not the leader")

    fenced = client.with_options(write_guard=guard)
    with pytest.raises(PermissionError):
        await fenced.update(ConfigMap.from_dict(RAW))
    assert len(script.seen) == 1
    await fenced.get(ConfigMap, "ns/x")
    assert len(script.seen) == 2


class Ends:
    """Remembers how writes ended."""

    def __init__(self):
        self.calls = []

    def begin(self, resource, key):
        return key

    def end(self, write, *, unknown=False):
        self.calls.append((write, unknown))

    def written(self, resource, key, resource_version):
        self.calls.append((key, resource_version))

    deleted = written

    def lost(self, resource, key):
        self.calls.append((key, "lost"))


UNREADABLE = {**RAW, "metadata": {**RAW["metadata"], "labels": 5}}
WRITES = {
    "create": lambda client: client.create(ConfigMap.from_dict(RAW)),
    "update": lambda client: client.update(ConfigMap.from_dict(RAW)),
    "patch": lambda client: client.patch(ConfigMap, "ns/x", MergePatch({})),
    "apply": lambda client: client.apply(ConfigMap.from_dict(RAW), subresource="status"),
    "set_scale": lambda client: client.set_scale(ConfigMap, "ns/x", 1),
    "subresource": lambda client: client.subresource(ConfigMap, "ns/x", "status").update(ConfigMap.from_dict(RAW)),
    "delete": lambda client: client.delete(ConfigMap, "ns/x"),
}


@pytest.mark.rules("RY-5")
@pytest.mark.parametrize("verb", WRITES)
async def test_ry_5_a_write_whose_answer_cannot_be_read_has_an_unknown_outcome(client_of, verb):
    ends = Ends()
    script = Script(answer(text="no JSON") if verb == "delete" else answer(body=UNREADABLE))
    client = (await client_of(script)).with_options(write_observer=ends)
    with pytest.raises(ValueError):
        await WRITES[verb](client)
    assert len(script.seen) == (2 if verb == "apply" else 1)
    assert ends.calls == [("ns/x", False), ("ns/x", "lost")]
    with suppress(ValueError):  # nothing is stored, and the answer to a delete is not looked at
        await WRITES[verb](client.with_options(dry_run=True))
    assert len(ends.calls) == 2


async def test_le_11_the_write_guard_is_called_after_the_wait_for_a_turn(client_of):
    release, seen = asyncio.Event(), []

    async def slow(request):
        seen.append(request.method)
        await release.wait()
        return web.json_response(RAW)

    client = await client_of(slow, max_concurrent_requests=1)
    leading = True

    def guard():
        if not leading:
            raise PermissionError("not the leader")

    fenced = client.with_options(write_guard=guard)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(client.get(ConfigMap, "ns/x"))
        with anyio.fail_after(30):
            while not seen:
                await asyncio.sleep(0.01)
        writing = group.create_task(asyncio.wait([asyncio.ensure_future(fenced.update(ConfigMap.from_dict(RAW)))]))
        await asyncio.sleep(0.05)
        leading = False
        release.set()
    ((done,), _) = writing.result()
    assert isinstance(done.exception(), PermissionError)
    assert reading.result().metadata.name == "x"
    assert seen == ["GET"]
    leading = True
    await fenced.update(ConfigMap.from_dict(RAW))
    assert seen == ["GET", "PUT"]


@virtual_time
async def test_rf_16_a_silent_stream_ends(client_of):
    async def quiet(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\ntwo")
        await asyncio.sleep(60)
        return response

    client = await client_of(quiet)
    with anyio.fail_after(30):
        async with client.transport.stream("/x", idle_timeout=0.2) as lines:
            assert [line async for line in lines] == [b"one"]


async def test_a_stream_that_does_not_begin_times_out(client_of):
    async def silent(_):
        await asyncio.sleep(60)
        return web.Response()

    client = await client_of(silent)
    with pytest.raises(RequestTimeoutError):
        async with client.transport.stream("/x", idle_timeout=0.2):
            pass


async def test_a_stream_that_is_cut_raises(client_of):
    async def cut_later(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\ntwo")
        await asyncio.sleep(0.05)
        request.transport.abort()
        return response

    client = await client_of(cut_later)
    async with client.transport.stream("/x") as lines:
        assert await anext(lines) == b"one"
        with pytest.raises(ConnectionLostError, match="broke off"):
            await anext(lines)


async def test_a_stream_refused_is_a_typed_error(client_of):
    client = await client_of(answer(410, body={"kind": "Status", "reason": "Expired", "code": 410}))
    with pytest.raises(ExpiredError):
        async with client.transport.stream("/x"):
            pass


async def test_a_timeout_of_the_caller_inside_a_stream_stays_the_callers(client_of):
    async def quiet(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(60)
        return response

    client = await client_of(quiet)

    async def wait_a_little():
        async with client.transport.stream("/x") as lines:
            with anyio.fail_after(0.05):
                await anext(lines)

    with pytest.raises(TimeoutError):
        await wait_a_little()


async def test_rf_17_a_line_beyond_any_buffer_comes_whole(client_of):
    size = 5_000_000

    async def big(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x" * size + b"\n")
        return response

    client = await client_of(big)
    async with client.transport.stream("/x") as lines:
        assert [len(line) async for line in lines] == [size]


async def test_rf_16_streams_have_tcp_keep_alive(client_of, monkeypatch):
    async def quiet(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x\n")
        await asyncio.sleep(60)
        return response

    client = await client_of(quiet)
    seen, real = [], socket.socket.setsockopt

    def setsockopt(self, *args):
        seen.append(args)
        return real(self, *args)

    monkeypatch.setattr(socket.socket, "setsockopt", setsockopt)
    async with client.transport.stream("/x"):
        pass
    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in seen


async def test_leaving_connect_closes_everything_without_warnings(serve):
    async def handler(request):
        return web.json_response(RAW)

    url = await serve(handler)
    gc.collect()  # what earlier tests left is not meant
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with connect(configuration=Configuration(host=url)) as client:
            await client.get(ConfigMap, "ns/x")
        gc.collect()
        await asyncio.sleep(0)
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []
    with pytest.raises(RuntimeError, match="closed"):
        await client.get(ConfigMap, "ns/x")
