"""Metrics over TLS, and for those only who may read them (rules MG-9, MG-10)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from pyreconcile.api import ObjectMeta
from pyreconcile.api.core_v1 import ServiceAccount
from pyreconcile.api.rbac_v1 import ClusterRole, ClusterRoleBinding
from pyreconcile.certs import CertificateAuthority, TLSOptions
from pyreconcile.client import Client, ConnectionLostError
from pyreconcile.manager import Manager, ManagerOptions
from pyreconcile.manager._access import AccessReview
from pyreconcile.testing import eventually, running

Get = Callable[..., Any]


@asynccontextmanager
async def reading(manager: Manager, *, trust: bytes | None = None) -> AsyncIterator[Get]:
    """Run the manager; give a function that reads the metrics with a token and returns status and body."""
    stop = anyio.Event()
    tls: ssl.SSLContext | bool = False if trust is None else ssl.create_default_context(cadata=trust.decode())
    with anyio.fail_after(20):
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
            anyio.create_task_group() as tasks,
        ):
            await tasks.start(manager.run, stop)

            async def get(token: str = "", path: str = "/metrics", scheme: str = "https") -> tuple[int, str]:
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                url = f"{scheme}://localhost:{manager.metrics_port}{path}"
                async with session.get(url, headers=headers) as response:
                    return response.status, await response.text()

            yield get
            stop.set()


def write_pair(folder: Path) -> bytes:
    folder.mkdir(parents=True, exist_ok=True)
    authority = CertificateAuthority()
    pair = authority.issue(["localhost"])
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    return authority.certificate


async def test_mg_9_the_default_is_port_8080_in_plain_http_and_zero_is_off(local_manager: Callable[..., Any]):
    assert (ManagerOptions().metrics_bind_address, ManagerOptions().metrics_tls) == (":8080", None)
    async with local_manager(metrics_bind_address="127.0.0.1:0") as manager, reading(manager) as get:
        assert (await get(scheme="http"))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await get()
    async with local_manager(metrics_bind_address="0") as manager:
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            await tasks.start(manager.run, stop)
            assert manager.metrics_port == 0
            stop.set()


async def test_mg_9_without_a_certificate_tls_makes_one(
    local_manager: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with (
        local_manager(metrics_bind_address="127.0.0.1:0", metrics_tls=TLSOptions()) as manager,
        reading(manager) as get,
    ):
        status, body = await get()
        assert status == 200
        assert "python_info" in body
        with pytest.raises(aiohttp.ClientError):
            await get(scheme="http")


@pytest.mark.parametrize("place", ["cert_dir", "default"])
async def test_mg_9_files_are_served_from_a_folder_or_the_default_one(
    local_manager: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / ("mine" if place == "cert_dir" else "k8s-metrics-server/serving-certs")
    trust = write_pair(folder)
    options = TLSOptions(cert_dir=folder) if place == "cert_dir" else TLSOptions()
    async with (
        local_manager(metrics_bind_address="127.0.0.1:0", metrics_tls=options) as manager,
        reading(manager, trust=trust) as get,
    ):
        assert (await get())[0] == 200


async def test_mg_9_a_certificate_that_is_not_there_is_an_error_at_start(
    local_manager: Callable[..., Any], tmp_path: Path
):
    options = TLSOptions(cert_dir=tmp_path)
    async with local_manager(metrics_bind_address="127.0.0.1:0", metrics_tls=options) as manager:
        with anyio.fail_after(5), pytest.raises(OSError, match=r"tls\.crt"):
            await manager.run()


def test_mg_10_tokens_are_not_asked_for_in_the_clear():
    with pytest.raises(ValueError, match=r"^metrics_authorization: needs metrics_tls"):
        ManagerOptions(metrics_authorization=True)


@pytest.fixture
def manager_options(manager_options: ManagerOptions) -> ManagerOptions:
    return replace(
        manager_options,
        metrics_bind_address="127.0.0.1:0",
        metrics_tls=TLSOptions(),
        metrics_authorization=True,
    )


async def token_of(client: Client, namespace: str, name: str) -> str:
    await client.create(ServiceAccount(metadata=ObjectMeta(name=name, namespace=namespace)))
    answer = await client.create_subresource(
        ServiceAccount,
        f"{namespace}/{name}",
        "token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    )
    return str(answer["status"]["token"])


@pytest.mark.plane
async def test_mg_10_the_api_server_decides_by_token_path_and_verb(manager: Manager, client: Client, namespace: str):
    reader = await token_of(client, namespace, "reader")
    stranger = await token_of(client, namespace, "stranger")
    name = f"metrics-{namespace}"
    role = {"metadata": {"name": name}, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]}
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": namespace}
    binding = {
        "metadata": {"name": name},
        "subjects": [subject],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
    }
    await client.create(ClusterRole.from_dict(role))
    await client.create(ClusterRoleBinding.from_dict(binding))
    try:
        async with running(manager), aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:

            async def status(method: str, token: str, path: str = "/metrics") -> int:
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                url = f"https://127.0.0.1:{manager.metrics_port}{path}"
                async with session.request(method, url, headers=headers) as response:
                    return response.status

            assert await status("GET", "") == 401
            assert await status("GET", "no-token-of-anybody") == 401
            assert await status("GET", stranger) == 403

            async def reader_may() -> bool:  # the authorizer learns of the binding a moment later
                return await code(AccessReview(lambda: client.transport), reader) == 200

            await eventually(reader_may)
            assert await status("GET", reader) == 200
            assert await status("POST", reader) == 403  # the verb counts
            assert await status("GET", reader, "/other") == 403  # the path counts
            await client.delete(ClusterRoleBinding, name)
            assert await status("GET", reader) == 200  # remembered
    finally:
        await client.delete(ClusterRoleBinding, name, missing_ok=True)
        await client.delete(ClusterRole, name)


async def test_mg_10_without_an_api_server_nobody_gets_in(local_manager: Callable[..., Any]):
    async with (
        local_manager(
            metrics_bind_address="127.0.0.1:0", metrics_tls=TLSOptions(), metrics_authorization=True
        ) as manager,
        reading(manager) as get,
    ):
        status, body = await get("some-token")
        assert status == 500
        assert "python_info" not in body
        assert "some-token" not in body


class FakeServer:
    """Knows one good token, and who may read."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.allowed = True
        self.hangs = False
        self.takes: float = 0

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, timeout: float | None = None
    ) -> bytes:
        kind = path.rpartition("/")[2]
        self.asked.append(kind)
        if self.hangs:
            await anyio.sleep_forever()
        await anyio.sleep(self.takes)
        assert body is not None
        spec = orjson.loads(body)["spec"]
        if kind == "tokenreviews":
            user = {"username": "ann", "groups": ["g"], "uid": "1", "extra": {"k": ["v"]}}
            return orjson.dumps({"status": {"authenticated": spec["token"] == "good", "user": user}})
        assert spec["user"] == "ann"
        assert spec["nonResourceAttributes"]["verb"] == "get"
        assert spec["extra"] == {"k": ["v"]}
        return orjson.dumps({"status": {"allowed": self.allowed}})

    def count(self) -> tuple[int, int]:
        return self.asked.count("tokenreviews"), self.asked.count("subjectaccessreviews")


def request(token: str, path: str = "/metrics") -> web.BaseRequest:
    return make_mocked_request("GET", path, {"Authorization": f"bearer {token}"})


def fake_review() -> tuple[FakeServer, AccessReview]:
    server = FakeServer()
    return server, AccessReview(lambda: server, clock=lambda: asyncio.get_running_loop().time())


async def code(review: AccessReview, token: str, path: str = "/metrics") -> int:
    refusal = await review.refusal(request(token, path))
    return 200 if refusal is None else refusal.status


@pytest.mark.looptime
async def test_mg_10_tokens_are_remembered_a_minute_permissions_five_refusals_half_a_minute():
    server, review = fake_review()
    assert await code(review, "good") == 200
    await anyio.sleep(59)
    assert await code(review, "good") == 200
    assert server.count() == (1, 1)
    await anyio.sleep(2)
    assert await code(review, "good") == 200
    assert server.count() == (2, 1)
    await anyio.sleep(238)
    server.allowed = False
    assert await code(review, "good") == 200  # 299 s
    await anyio.sleep(2)
    assert await code(review, "good") == 403
    server.allowed = True
    await anyio.sleep(29)
    assert await code(review, "good") == 403
    await anyio.sleep(2)
    assert await code(review, "good") == 200
    assert await code(review, "good", "/other") == 200
    assert server.count()[1] == 4  # each path by itself


@pytest.mark.looptime
async def test_mg_10_bad_tokens_are_remembered_too_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pyreconcile.manager._access._REMEMBERED", 20)
    server, review = fake_review()
    for _ in range(3):
        assert await code(review, "bad") == 401
    assert server.count() == (1, 0)
    for number in range(50):
        assert await code(review, f"bad-{number}") == 401
    assert len(review._users.bad._values) == 20
    assert {len(key) for key in review._users.bad._values} == {32}  # hashes, no tokens


@pytest.mark.rules("MG-10")
@pytest.mark.looptime
async def test_mg_10_a_flood_of_bad_tokens_is_refused_and_costs_a_good_caller_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pyreconcile.manager._access._REMEMBERED", 20)
    server, review = fake_review()
    server.takes = 1
    assert await code(review, "good") == 200
    codes: list[int] = []

    async def flood(token: str) -> None:
        codes.append(await code(review, token))

    for _ in range(10):  # each round takes a second
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(flood, f"bad-{len(codes)}-{number}")
    assert (codes.count(401), codes.count(503)) == (4 * 10, 16 * 10)
    assert server.count() == (1 + 4 * 10, 1)
    assert await code(review, "good") == 200
    assert server.count() == (1 + 4 * 10, 1)  # still remembered
    await anyio.sleep(60)
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(flood, f"last-{number}")
        await anyio.sleep(0.5)
        assert await code(review, "good") == 200  # asked again, beside them


@pytest.mark.rules("MG-10")
@pytest.mark.looptime
async def test_mg_10_a_token_is_asked_about_once_at_a_time():
    server, review = fake_review()
    server.takes = 1
    codes: list[int] = []

    async def ask() -> None:
        codes.append(await code(review, "good"))

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(ask)
    assert codes == [200] * 50
    assert server.count() == (1, 1)


@pytest.mark.rules("MG-10")
@pytest.mark.looptime
async def test_mg_10_both_questions_share_the_ten_seconds():
    server, review = fake_review()
    server.takes = 6
    assert await code(review, "good") == 500
    assert asyncio.get_running_loop().time() == 10
    assert server.count() == (1, 1)


@pytest.mark.looptime
async def test_mg_10_the_questions_take_ten_seconds_at_most():
    server, review = fake_review()
    server.hangs = True
    assert await code(review, "good") == 500
    assert asyncio.get_running_loop().time() == 10


async def test_mg_10_an_error_of_the_api_server_is_500_and_not_remembered():
    server, review = fake_review()
    failing = [ConnectionLostError("cut")]
    ask = server.request

    async def flaky(*args: Any, **options: Any) -> bytes:
        if failing:
            raise failing.pop()
        return await ask(*args, **options)

    server.request = flaky  # type: ignore[method-assign]
    assert await code(review, "good") == 500
    assert await code(review, "good") == 200
