"""The real API server converts through us: a kind of two versions, stored as one (rules WH-9, WH-10, MG-1)."""

from __future__ import annotations

import secrets
import socket
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from pyreconcile.api import CustomResource, Spec, Status, unstructured
from pyreconcile.api.apiextensions_v1 import CustomResourceDefinition
from pyreconcile.certs import CertificateAuthority
from pyreconcile.client import ApiError, Client, NotFoundError
from pyreconcile.controller import Builder, Request
from pyreconcile.crd import crd_for, install_crds
from pyreconcile.manager import Manager, ManagerOptions
from pyreconcile.testing import eventually, running
from pyreconcile.webhook import (
    BundleInjector,
    ConversionError,
    Conversions,
    WebhookOptions,
    WebhookServer,
    conversion_config,
    install_conversion,
)

pytestmark = pytest.mark.plane


class NewSpec(Spec):
    host: str = ""
    port: int = 0


class OldSpec(Spec):
    address: str = ""


class Kinds:
    """A kind of its own for each test: CRDs are the whole cluster's."""

    def __init__(self) -> None:
        group = f"c{secrets.token_hex(3)}.convert.example.dev"

        class Site(CustomResource[NewSpec, Status], group=group, version="v1"):
            """The hub, which is stored."""

        class SiteBeta(CustomResource[OldSpec, Status], group=group, version="v1beta1", kind="Site", storage=False):
            """The spoke."""

        self.hub: Any = Site
        self.spoke: Any = SiteBeta
        self.crd = f"sites.{group}"
        self.conversions = Conversions(Site, SiteBeta)

        @self.conversions.register(SiteBeta, Site)
        def up(old: SiteBeta) -> Site:
            host, _, port = old.spec.address.partition(":")
            if not port:
                raise ConversionError("spec.address: write host:port")
            return Site(metadata=old.metadata, spec=NewSpec(host=host, port=int(port)))

        @self.conversions.register(Site, SiteBeta)
        def down(new: Site) -> SiteBeta:
            return SiteBeta(spec=OldSpec(address=f"{new.spec.host}:{new.spec.port}"))


@pytest.fixture
async def kinds(client: Client) -> AsyncIterator[Kinds]:
    made = Kinds()
    yield made
    await client.delete(CustomResourceDefinition, made.crd, missing_ok=True)


@pytest.fixture
def held_port() -> Iterator[int]:
    """A port on which one server after the other can listen, and that nobody else gets in between."""
    with socket.socket() as held:  # bound, not listening: servers of this user may bind it too
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@asynccontextmanager
async def serving(kinds: Kinds, **options: Any) -> AsyncIterator[WebhookServer]:
    server = WebhookServer(WebhookOptions(**{"bind_address": "127.0.0.1:0", **options}))
    server.add_conversion(kinds.conversions)
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run, stop)
        yield server
        stop.set()


def beta(kinds: Kinds, namespace: str, name: str, address: str) -> Any:
    return kinds.spoke.from_dict(
        {
            "metadata": {"name": name, "namespace": namespace, "labels": {"l": "1"}, "finalizers": ["example.dev/f"]},
            "spec": {"address": address},
        }
    )


async def release(client: Client, obj: Any) -> None:
    from pyreconcile.client import MergePatch

    await client.patch(type(obj), obj.key, MergePatch({"metadata": {"finalizers": None}}))


async def test_wh_9_objects_are_written_and_read_in_either_version(client: Client, namespace: str, kinds: Kinds):
    async with serving(kinds) as server:
        config = conversion_config(server)
        await install_crds(client, [crd_for(kinds.hub, kinds.spoke, conversion=config)])
        old = await client.create(beta(kinds, namespace, "a", "example.dev:81"))
        assert old.spec.address == "example.dev:81"
        new = await client.get(kinds.hub, old.key)
        assert (new.spec.host, new.spec.port) == ("example.dev", 81)
        assert (new.metadata.uid, new.metadata.labels) == (old.metadata.uid, {"l": "1"})
        assert new.metadata.finalizers == ["example.dev/f"]
        new.spec.port = 82
        await client.update(new)
        assert [one.spec.address for one in await client.list(kinds.spoke, namespace=namespace)] == ["example.dev:82"]
        with pytest.raises(ApiError, match=r"spec\.address: write host:port"):
            await client.create(beta(kinds, namespace, "b", "no port"))
        await release(client, new)


@pytest.mark.rules("WH-9", "MG-1")
async def test_mg_1_conversions_are_served_before_the_cache_lists_what_needs_them(
    manager_options: ManagerOptions, client: Client, namespace: str, kinds: Kinds, held_port: int
):
    seen: list[str] = []
    address = f"127.0.0.1:{held_port}"
    async with serving(kinds, bind_address=address) as server:
        await install_crds(client, [crd_for(kinds.hub, kinds.spoke, conversion=conversion_config(server))])
        await client.create(beta(kinds, namespace, "a", "h:1"))
        # The next server on this port is another one, so its CA has to be told.
    options = replace(manager_options, webhook=WebhookOptions(bind_address=address))
    async with Manager(options) as manager:
        assert manager.webhooks is not None
        manager.webhooks.add_conversion(kinds.conversions)
        await client.live.apply(
            unstructured("apiextensions.k8s.io/v1", "CustomResourceDefinition", namespaced=False).from_dict(
                {
                    "metadata": {"name": kinds.crd},
                    "spec": {"conversion": conversion_config(manager.webhooks, base_url=f"https://{address}")},
                }
            ),
            field_manager="test",
        )

        async def look(request: Request) -> None:
            found = await manager.client.get(kinds.spoke, request.key)
            seen.append(found.spec.address)

        Builder(manager).for_(kinds.spoke).named(f"beta-{namespace}").complete(look)
        async with running(manager):
            await eventually(lambda: seen)
        assert seen[0] == "h:1"
        stored = beta(kinds, namespace, "a", "")
        async with serving(kinds) as server:
            await install_conversion(client, server, kinds.hub)
            await eventually(lambda: _released(client, stored))


async def _released(client: Client, obj: Any) -> bool:
    try:
        await release(client, obj)
    except ApiError:  # the API server has not noticed the new address yet
        return False
    return True


@pytest.mark.rules("WH-9", "WH-10")
async def test_wh_10_conversion_is_installed_beside_what_others_own_and_written_only_when_it_changes(
    client: Client, namespace: str, kinds: Kinds
):
    async with serving(kinds) as server:
        with pytest.raises(NotFoundError):
            await install_conversion(client, server, kinds.hub)
        await install_crds(client, [kinds.hub, kinds.spoke])
        await install_conversion(client, server, kinds.hub, kinds.spoke)
        first = await client.get(CustomResourceDefinition, kinds.crd)
        assert first.spec.conversion is not None
        assert first.spec.conversion.strategy == "Webhook"
        await install_conversion(client, server, kinds.hub)
        await install_crds(client, [kinds.hub, kinds.spoke])  # owns all but the conversion, and leaves it alone
        again = await client.get(CustomResourceDefinition, kinds.crd)
        assert again.metadata.resource_version == first.metadata.resource_version

    bare = WebhookServer(WebhookOptions(bind_address="127.0.0.1:0"))
    with pytest.raises(ValueError, match="call add_conversion before"):
        conversion_config(bare)


@pytest.mark.rules("WH-10")
async def test_wh_10_a_new_ca_is_injected_while_the_server_runs(
    client: Client, namespace: str, kinds: Kinds, tmp_path: Any
):
    def publish() -> bytes:
        authority = CertificateAuthority()
        pair = authority.issue(["127.0.0.1"])
        for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", authority.certificate)):
            (tmp_path / name).write_bytes(content)
        return authority.certificate

    async def injected() -> bytes:
        crd = await client.get(CustomResourceDefinition, kinds.crd)
        webhook = crd.to_dict()["spec"]["conversion"]["webhook"]
        return b64decode(webhook["clientConfig"]["caBundle"])

    first = publish()
    async with serving(kinds, cert_dir=tmp_path) as server:
        await install_crds(client, [kinds.hub, kinds.spoke])

        async def put() -> None:
            await install_conversion(client, server, kinds.hub)

        await put()
        assert await injected() == first
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            await tasks.start(BundleInjector(server, put).run, stop)
            second = publish()

            async def done() -> bool:
                return await injected() == second

            await eventually(done)
            # What is in place works: the API server trusts the new certificate.
            created: Any = None

            async def converts() -> bool:
                nonlocal created
                try:
                    created = await client.create(beta(kinds, namespace, "a", "h:1"))
                except ApiError:
                    return False
                return True

            await eventually(converts)
            assert (await client.get(kinds.hub, created.key)).spec.port == 1
            await release(client, created)
            stop.set()
