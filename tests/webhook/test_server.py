"""The HTTPS server: bodies, types, sizes, certificates, metrics (rules WH-1 to WH-5, MG-12)."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import anyio
import anyio.abc
import pytest
from cryptography import x509

from pyreconcile.api import unstructured
from pyreconcile.certs import CertificateAuthority
from pyreconcile.metrics import Metrics
from pyreconcile.webhook import ServiceReference, WebhookOptions, WebhookServer, admission_review
from pyreconcile.webhook._routes import MAX_BODY
from pyreconcile.webhook._server import _READY_LIMIT

Thing = unstructured("example.dev/v1", "Thing")
PATH = "/validate-example-dev-v1-thing"
REVIEW = admission_review({"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "a"}})
JSON = {"Content-Type": "application/json"}


CLIENTS = CertificateAuthority()


@asynccontextmanager
async def serving(server: WebhookServer) -> AsyncIterator[anyio.Event]:
    stop = anyio.Event()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            await tasks.start(server.run, stop)
            try:
                yield stop
            finally:
                stop.set()


@asynccontextmanager
async def session(server: WebhookServer) -> AsyncIterator[aiohttp.ClientSession]:
    trusted = ssl.create_default_context(cadata=server.ca_bundle.decode())
    async with aiohttp.ClientSession(
        f"https://localhost:{server.port}", connector=aiohttp.TCPConnector(ssl=trusted)
    ) as client:
        yield client


def local(metrics: Metrics | None = None, **options) -> WebhookServer:
    server = WebhookServer(WebhookOptions(bind_address="127.0.0.1:0", **options), metrics=metrics)
    server.add_raw_validator(Thing, lambda request: request.warn("seen"))
    return server


async def ask(client: aiohttp.ClientSession, **kwargs):
    async with client.post(PATH, **kwargs) as response:
        assert response.status == 200  # whatever the verdict (rule WH-4)
        assert response.content_type == "application/json"
        return json.loads(await response.read())


async def test_wh_3_review_over_https_is_answered():
    server = local()
    async with serving(server), session(server) as client:
        answer = await ask(client, json=REVIEW, headers=JSON)
        assert answer["response"] == {
            "uid": REVIEW["request"]["uid"],
            "allowed": True,
            "status": {"code": 200},
            "warnings": ["seen"],
        }
        async with client.post("/nothing", json=REVIEW) as response:
            assert response.status == 404


@pytest.mark.parametrize(
    ("body", "headers", "code", "message"),
    [
        (b"", JSON, 400, "the body is empty"),
        (b"{}", {"Content-Type": "text/plain"}, 400, "must be application/json, not 'text/plain'"),
        (b"{}", {"Content-Type": "application/json; charset=utf-8"}, 400, "must be application/json"),
        (b"{", JSON, 400, "the body is no JSON"),
        (b"{}", JSON, 400, "holds no request"),
        (b" " * MAX_BODY, JSON, 413, "must be smaller than 7340032 bytes"),
    ],
    ids=["empty", "type", "type with parameter", "broken", "no review", "too large"],
)
@pytest.mark.rules("U-66")
async def test_wh_3_bad_body_is_refused_inside_a_review(body, headers, code, message):
    server = local()
    async with serving(server), session(server) as client:
        answer = await ask(client, data=body, headers=headers)
        assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert answer["response"]["allowed"] is False
        assert answer["response"]["status"]["code"] == code
        assert message in answer["response"]["status"]["message"]


V1 = b'"apiVersion":"admission.k8s.io/v1",'
FORMS = {
    "as the API server writes it": b'{"kind":"AdmissionReview",' + V1 + b'"request":{"uid":"a-1","x":1}}',
    "as it writes the older version": b'{"kind":"AdmissionReview",' + V1[:-2] + b'beta1","request":{"uid":"B2"}}',
    "in another order": b"{" + V1 + b'"kind":"AdmissionReview","request":{"uid":"a-1"}}',
    "with an escape": b'{"kind":"AdmissionReview",' + V1 + b'"request":{"uid":"\\u0061"}}',
    "of an unknown version": b'{"kind":"AdmissionReview",' + V1[:-3] + b'2","request":{"uid":"a-1"}}',
    "without a request": b'{"kind":"AdmissionReview",' + V1[:-1] + b"}",
    "no JSON": b"{",
    "empty": b"",
}


@pytest.mark.rules("WH-3", "WH-4")
@pytest.mark.parametrize("body", FORMS.values(), ids=FORMS)
async def test_what_admits_all_answers_byte_for_byte_as_a_validator_without_objections(body):
    server = WebhookServer(WebhookOptions(bind_address="127.0.0.1:0"))
    server.admit_all(Thing)
    server.add_raw_validator(Thing, lambda request: None, path="/checked")
    async with serving(server), session(server) as client:
        found = []
        for path in (PATH, "/checked"):
            async with client.post(path, data=body, headers=JSON) as response:
                found.append((response.status, response.content_type, await response.read()))
        async with client.post(PATH, data=body, headers={"Content-Type": "text/plain"}) as response:
            assert json.loads(await response.read())["response"]["status"]["code"] == 400
        assert (await server.call(PATH, REVIEW))["response"]["allowed"]
    assert found[0] == found[1]


@pytest.mark.rules("U-66")
async def test_wh_3_body_without_length_is_limited_too():
    async def chunks():
        for _ in range(8):
            yield b" " * (1024 * 1024)

    server = local()
    async with serving(server), session(server) as client:
        # The server may close the connection before it has read what it refuses.
        try:
            answer = await ask(client, data=chunks(), headers=JSON)
        except aiohttp.ClientError:
            return
        assert answer["response"]["status"]["code"] == 413


@pytest.mark.rules("U-66")
async def test_wh_3_largest_body_is_read():
    server = local()
    async with serving(server), session(server) as client:
        body = json.dumps(REVIEW).encode()
        answer = await ask(client, data=body + b" " * (MAX_BODY - 1 - len(body)), headers=JSON)
        assert answer["response"]["allowed"] is True


async def test_one_connection_serves_many_requests():
    made, trace = [], aiohttp.TraceConfig()

    async def connected(*_):
        made.append(1)

    trace.on_connection_create_end.append(connected)
    server = local()
    async with serving(server):
        trusted = ssl.create_default_context(cadata=server.ca_bundle.decode())
        async with aiohttp.ClientSession(f"https://localhost:{server.port}", trace_configs=[trace]) as client:
            for _ in range(3):
                await ask(client, json=REVIEW, headers=JSON, ssl=trusted)
    assert made == [1]


@pytest.mark.rules("MT-20", "MT-21", "MT-22", "MT-23", "WH-5")
async def test_metrics_count_requests_latency_and_panics():
    metrics = Metrics()
    server = WebhookServer(WebhookOptions(bind_address="127.0.0.1:0"), metrics=metrics)

    def broken(request):
        value = metrics.registry.get_sample_value("controller_runtime_webhook_requests_in_flight", {"webhook": PATH})
        raise RuntimeError(f"in flight {value:g}")

    server.add_raw_validator(Thing, broken)
    async with serving(server), session(server) as client:
        answer = await ask(client, json=REVIEW, headers=JSON)
    assert answer["response"]["status"]["code"] == 500
    assert "in flight 1" in answer["response"]["status"]["message"]

    def sample(name, **labels):
        return metrics.registry.get_sample_value(f"controller_runtime_webhook_{name}", labels)

    assert sample("requests_total", webhook=PATH, code="200") == 1
    assert sample("requests_total", webhook=PATH, code="500") == 0
    assert sample("requests_in_flight", webhook=PATH) == 0
    assert sample("latency_seconds_count", webhook=PATH) == 1
    assert sample("panics_total") == 1


async def test_handler_is_cut_off_at_the_timeout_that_the_api_server_names():
    server = WebhookServer(WebhookOptions(bind_address="127.0.0.1:0"))

    async def slow(request):
        await anyio.sleep_forever()

    server.add_raw_validator(Thing, slow)
    async with (
        serving(server),
        session(server) as client,
        client.post(f"{PATH}?timeout=1s", json=REVIEW, headers=JSON) as response,
    ):
        answer = json.loads(await response.read())
    assert answer["response"]["status"]["message"] == "the webhook's handler took longer than 1 s"


async def test_wh_1_readiness_needs_a_handshake():
    server = local()
    with pytest.raises(RuntimeError, match="does not listen"):
        await server.check_ready()
    async with serving(server):
        await server.check_ready()
    with pytest.raises(RuntimeError, match="does not listen"):
        _ = server.port


@pytest.mark.rules("WH-1")
@pytest.mark.parametrize(("answer", "error"), [(None, TimeoutError), (b"HTTP/1.1 400 Bad Request\r\n\r\n", OSError)])
async def test_wh_1_readiness_is_not_met_by_a_port_that_does_not_speak_tls(monkeypatch, answer, error):
    assert _READY_LIMIT == 10
    monkeypatch.setattr("pyreconcile.webhook._server._READY_LIMIT", 0.3)

    async def serve(stream):
        async with stream:
            if answer is None:
                await anyio.sleep_forever()
            await stream.receive()
            await stream.send(answer)

    server = local()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        server._port = listener.extra(anyio.abc.SocketAttribute.local_port)
        with pytest.raises(error):
            await server.check_ready()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", ":x", ":70000"])
def test_a_wrong_bind_address_is_refused_at_once(address):
    with pytest.raises(ValueError, match="bind_address"):
        WebhookServer(WebhookOptions(bind_address=address))


async def test_empty_host_serves_every_interface_on_one_port():
    server = WebhookServer(WebhookOptions(bind_address=":0"))
    server.add_raw_validator(Thing, lambda request: None)
    async with serving(server):
        await server.check_ready()
        await (await anyio.connect_tcp("127.0.0.1", server.port)).aclose()


async def test_a_taken_port_is_an_error_and_ends_the_run():
    first = local()
    async with serving(first):
        second = WebhookServer(WebhookOptions(bind_address=f"127.0.0.1:{first.port}"))
        with pytest.raises(OSError, match="address already in use"):
            await second.run(anyio.Event())


async def test_stop_lets_a_running_request_end():
    server = WebhookServer(WebhookOptions(bind_address="127.0.0.1:0"))
    started, release = anyio.Event(), anyio.Event()

    async def wait(request):
        started.set()
        await release.wait()

    server.add_raw_validator(Thing, wait)
    answers = []

    async def post(client):
        answers.append(await ask(client, json=REVIEW, headers=JSON))

    async with serving(server) as stop, session(server) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(post, client)
        await started.wait()
        stop.set()
        release.set()
    assert answers[0]["response"]["allowed"] is True


async def test_cancelling_ends_running_requests_at_once(hanging):
    server = WebhookServer(WebhookOptions(bind_address="127.0.0.1:0"))
    server.add_raw_validator(Thing, hanging.wait)

    async def post():
        async with session(server) as client:
            with pytest.raises(aiohttp.ClientError):
                await ask(client, json=REVIEW, headers=JSON)

    with anyio.fail_after(5):  # well below the 10 s of a graceful end
        async with anyio.create_task_group() as asking:
            async with anyio.create_task_group() as serving_it:
                await serving_it.start(server.run, anyio.Event())
                asking.start_soon(post)
                await hanging.started.wait()
                serving_it.cancel_scope.cancel()
            assert hanging.cancelled.is_set()


def test_generated_certificate_names_hosts_and_service():
    options = WebhookOptions(hosts=("localhost", "10.0.0.7"), service=ServiceReference(namespace="ns", name="svc"))
    authority = x509.load_pem_x509_certificate(WebhookServer(options).ca_bundle)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is True
    maker = CertificateAuthority()
    pair = maker.issue(["localhost", "10.0.0.7", "svc.ns.svc"])
    leaf = x509.load_pem_x509_certificate(pair.certificate)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "svc.ns.svc"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(maker.certificate))
    assert "PRIVATE KEY" not in repr(pair)
    with pytest.raises(ValueError, match="hosts is empty"):
        maker.issue([])


async def served_serial(server):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    stream = await anyio.connect_tcp("127.0.0.1", server.port, ssl_context=context, tls_standard_compatible=False)
    async with stream:
        der = stream.extra(anyio.streams.tls.TLSAttribute.peer_certificate_binary)
    return x509.load_der_x509_certificate(der).serial_number


async def test_mg_12_the_server_takes_up_a_new_certificate_while_it_runs(tmp_path):
    authority = CertificateAuthority()

    def write() -> int:
        pair = authority.issue(["localhost"])
        (tmp_path / "server.pem").write_bytes(pair.certificate)
        (tmp_path / "server.key").write_bytes(pair.key)
        return x509.load_pem_x509_certificate(pair.certificate).serial_number

    first = write()
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    server = local(cert_dir=tmp_path, cert_name="server.pem", key_name="server.key")
    assert server.ca_bundle == authority.certificate
    async with serving(server):
        assert await served_serial(server) == first
        second = write()
        while await served_serial(server) != second:
            await anyio.sleep(0.01)


@pytest.mark.parametrize("behind_service", [False, True])
async def test_a_made_certificate_behind_a_service_is_warned_of(tmp_path, monkeypatch, capsys, behind_service):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    server = local(service=ServiceReference(namespace="system", name="hook") if behind_service else None)
    assert server.ca_bundle
    assert server.ca_bundle
    warnings = capsys.readouterr().out.count("certificate_of_this_process_behind_a_service")
    assert warnings == (1 if behind_service else 0)


@pytest.mark.rules("WH-1")
async def test_the_default_folder_below_the_temporary_one_is_used_when_it_has_a_pair(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert x509.load_pem_x509_certificate(local().ca_bundle).subject.rfc4514_string() == "CN=pyreconcile-ca"
    folder = tmp_path / "k8s-webhook-server" / "serving-certs"
    folder.mkdir(parents=True)
    pair = CertificateAuthority().issue(["localhost"])
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    server = local()
    assert server.ca_bundle == b""
    async with serving(server):
        assert await served_serial(server) == x509.load_pem_x509_certificate(pair.certificate).serial_number


@pytest.mark.rules("WH-1")
async def test_the_default_port_is_9443_and_minus_one_turns_the_server_off():
    assert WebhookOptions().bind_address == ":9443"
    for address in ("-1", "0", ""):
        server = WebhookServer(WebhookOptions(bind_address=address))
        assert not server.enabled
        await server.run(anyio.Event())


async def test_missing_certificate_files_end_the_run(tmp_path):
    with pytest.raises(OSError, match=r"tls\.crt"):
        await local(cert_dir=tmp_path).run(anyio.Event())


async def test_wh_1_with_a_client_ca_a_client_must_show_a_certificate(tmp_path):
    (tmp_path / "client-ca.crt").write_bytes(CLIENTS.certificate)
    server = local(client_ca=tmp_path / "client-ca.crt")
    async with serving(server), session(server) as client:
        with pytest.raises(aiohttp.ClientError):
            await ask(client, json=REVIEW, headers=JSON)
        trusted = ssl.create_default_context(cadata=server.ca_bundle.decode())
        shown = CLIENTS.issue_client("ann", ["g"])
        for name, content in (("client.crt", shown.certificate), ("client.key", shown.key)):
            (tmp_path / name).write_bytes(content)
        trusted.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
        assert (await ask(client, json=REVIEW, headers=JSON, ssl=trusted))["response"]["allowed"]
