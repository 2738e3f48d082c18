"""CRDs and webhook configurations from files, on a real API server."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from base64 import b64decode
from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio
import orjson
import pytest
import yaml

from pyreconcile.api import CustomResource, Spec, Status
from pyreconcile.api.admissionregistration_v1 import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from pyreconcile.api.apiextensions_v1 import CustomResourceDefinition
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.client import ForbiddenError
from pyreconcile.crd import crd_for
from pyreconcile.testing import ControlPlane, ManifestError
from pyreconcile.webhook import Conversions, Denied, Validator, WebhookOptions, WebhookServer

pytestmark = pytest.mark.plane


class NewSpec(Spec):
    host: str = ""


class OldSpec(Spec):
    address: str = ""


@pytest.fixture
async def site(client, tmp_path):
    """A kind of two versions, in a group of this test's own, as a file has it that a generator wrote."""
    group = f"g{secrets.token_hex(3)}.files.example.dev"

    class Site(CustomResource[NewSpec, Status], group=group, version="v1"):
        """The hub."""

    class SiteBeta(CustomResource[OldSpec, Status], group=group, version="v1beta1", kind="Site", storage=False):
        """The spoke."""

    conversions = Conversions(Site, SiteBeta)

    @conversions.register(SiteBeta, Site)
    def up(old: SiteBeta) -> Site:
        return Site(spec=NewSpec(host=old.spec.address))

    @conversions.register(Site, SiteBeta)
    def down(new: Site) -> SiteBeta:
        return SiteBeta(spec=OldSpec(address=new.spec.host))

    raw = crd_for(Site, SiteBeta)
    raw["metadata"]["creationTimestamp"] = None
    folder = tmp_path / "crds"
    folder.mkdir()
    (folder / "site.yaml").write_text(yaml.safe_dump_all([{"kind": "Kustomization"}, raw]))
    yield SimpleNamespace(hub=Site, spoke=SiteBeta, conversions=conversions, raw=raw, group=group, folder=folder)
    await client.delete(CustomResourceDefinition, f"sites.{group}", missing_ok=True)


@asynccontextmanager
async def serving(**options):
    server = WebhookServer(WebhookOptions(bind_address="127.0.0.1:0", **options))
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run, stop)
        yield server
        stop.set()


async def test_te_5_crds_are_created_or_updated_and_every_served_version_is_listed(
    control_plane, client, namespace, site
):
    other = {**site.raw, "metadata": {"name": f"others.{site.group}"}}
    other["spec"] = {**site.raw["spec"], "names": {"kind": "Other", "plural": "others"}}
    (site.folder / "other.json").write_text(json.dumps(other))
    try:
        crds = await control_plane.install_crds(site.folder)
        assert [crd.metadata.name for crd in crds] == [f"others.{site.group}", f"sites.{site.group}"]
        for version in ("v1", "v1beta1"):
            listed = orjson.loads(await client.transport.request("GET", f"/apis/{site.group}/{version}"))
            assert {"others", "sites"} <= {resource["name"] for resource in listed["resources"]}

        # Again, with a column and without a version: an update.
        site.raw["spec"]["versions"] = [version for version in site.raw["spec"]["versions"] if version["storage"]]
        site.raw["spec"]["versions"][0]["additionalPrinterColumns"] = [
            {"name": "Host", "type": "string", "jsonPath": ".spec.host"}
        ]
        (site.folder / "site.yaml").write_text(yaml.safe_dump(site.raw))
        (updated,) = await control_plane.install_crds(str(site.folder / "site.yaml"))
        (version,) = updated.spec.versions
        assert version.additional_printer_columns[0].name == "Host"
        assert updated.metadata.uid == crds[1].metadata.uid
    finally:
        await client.delete(CustomResourceDefinition, f"others.{site.group}", missing_ok=True)


async def test_te_5_conversions_go_to_the_tests_own_server(control_plane, client, namespace, site):
    async with serving() as server:
        server.add_conversion(site.conversions)
        (crd,) = await control_plane.install_crds(site.folder, server=server)
        conversion = crd.to_dict()["spec"]["conversion"]
        assert conversion["strategy"] == "Webhook"
        assert conversion["webhook"]["clientConfig"]["url"] == f"https://127.0.0.1:{server.port}/convert"
        assert b64decode(conversion["webhook"]["clientConfig"]["caBundle"]) == server.ca_bundle
        metadata = {"name": "a", "namespace": namespace}
        await client.create(site.spoke(metadata=metadata, spec=OldSpec(address="h")))
        assert (await client.get(site.hub, f"{namespace}/a")).spec.host == "h"
        await client.delete(site.hub, f"{namespace}/a")

    # A server that does not convert this kind changes nothing, and one that does not listen cannot be told of.
    async with serving() as server:
        (again,) = await control_plane.install_crds(site.folder, server=server)
        assert again.spec.conversion.strategy != "Webhook"
    deaf = WebhookServer(WebhookOptions(bind_address="127.0.0.1:0"))
    deaf.add_conversion(site.conversions)
    with pytest.raises(RuntimeError, match="does not listen yet"):
        await control_plane.install_crds(site.folder, server=deaf)


async def test_te_5_a_crd_that_is_refused_or_not_served_is_named_by_file_and_document(control_plane, site):
    path = site.folder / "site.yaml"
    with pytest.raises(ManifestError, match=rf"{path}, document 2: after 0 s .*does not serve sites\.{site.group}"):
        await control_plane.install_crds(path, timeout=0)
    site.raw["spec"]["scope"] = "Everywhere"
    path.write_text(yaml.safe_dump(site.raw))
    with pytest.raises(ManifestError, match=rf"{path}, document 1: (.|\n)*scope"):
        await control_plane.install_crds(path)
    del site.raw["spec"]["names"]
    path.write_text(yaml.safe_dump(site.raw))
    with pytest.raises(ManifestError, match=rf"{path}, document 1: (.|\n)*names"):
        await control_plane.install_crds(path)


async def test_te_5_a_control_plane_has_its_crds_when_it_is_entered(control_plane, client, site):
    async with ControlPlane(kubeconfig=control_plane.kubeconfig, crds=[site.folder]) as plane:
        assert plane.existing
        assert await client.list(site.hub) == []
    with pytest.raises(ManifestError, match=r"crds/gone is no file or folder"):
        async with ControlPlane(kubeconfig=control_plane.kubeconfig, crds=str(site.folder / "gone")):
            pass


@pytest.mark.parametrize("way", ["option", "ini"])
def test_te_5_crds_are_named_in_pytests_options(control_plane, site, tmp_path, way):
    (tmp_path / "test_it.py").write_text(
        "from pyreconcile.api import unstructured\n"
        f"Site = unstructured('{site.group}/v1', 'Site')\n"
        "async def test_it(client):\n"
        "    assert await client.list(Site) == []\n"
    )
    ini = "control_plane_crds = crds\n" if way == "ini" else ""
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nasyncio_mode = auto\n{ini}")
    options = [f"--control-plane-kubeconfig={control_plane.kubeconfig}", f"--rootdir={tmp_path}"]
    if way == "option":
        options.append(f"--control-plane-crds={site.folder}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, "-c", str(tmp_path / "pytest.ini"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def configurations(namespace, **client_config):
    """Webhook configurations as a generator writes them: for a Service, without a CA."""
    webhook = {
        "name": "vconfig.files.example.dev",
        "clientConfig": client_config or {"service": {"namespace": "system", "name": "hook", "path": "/check"}},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]},
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    default = {**webhook, "name": "mconfig.files.example.dev", "clientConfig": {"url": "https://elsewhere/fill"}}
    version = "admissionregistration.k8s.io/v1"
    return [
        {"kind": "Service", "apiVersion": "v1"},
        {
            "apiVersion": version,
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": f"m-{namespace}"},
            "webhooks": [default],
        },
        {
            "apiVersion": version,
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": f"v-{namespace}"},
            "webhooks": [webhook],
        },
    ]


class Small(Validator[ConfigMap]):
    def validate_create(self, obj, request):
        if (obj.data or {}).get("size") == "big":
            raise Denied("too big")


def fill_in(obj, request):
    obj.metadata.labels["filled"] = "in"


def config_map(namespace, name, **data):
    return ConfigMap(metadata={"name": name, "namespace": namespace}, data=data)


async def test_te_5_webhook_configurations_point_at_the_tests_own_server(
    control_plane, client, namespace, tmp_path, eventually
):
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(configurations(namespace)))

    async def refused():
        try:
            await client.create(config_map(namespace, f"a-{secrets.token_hex(3)}", size="big"))
        except ForbiddenError as error:
            return "too big" in str(error)
        return False

    async def filled():
        return (await client.create(config_map(namespace, "probe"), dry_run=True)).metadata.labels

    async with serving() as server:
        server.add_validator(ConfigMap, Small(), path="/check")
        server.add_defaulter(ConfigMap, fill_in, path="/fill")
        async with control_plane.webhooks(tmp_path, server=server):
            await eventually(refused)
            await eventually(filled)  # the API server learns of the two kinds of configurations apart
            made = await client.create(config_map(namespace, "b"))
            assert made.metadata.labels == {"filled": "in"}
            found = await client.get(ValidatingWebhookConfiguration, f"v-{namespace}")
            where = found.to_dict()["webhooks"][0]["clientConfig"]
            assert where["url"] == f"https://127.0.0.1:{server.port}/check"
            assert "service" not in where
            assert b64decode(where["caBundle"]) == server.ca_bundle
            # Configurations that are there are updated, and later as they were.
            async with control_plane.webhooks(file, server=server, base_url="https://localhost:1"):
                changed = await client.get(ValidatingWebhookConfiguration, f"v-{namespace}")
                assert changed.webhooks[0].client_config.url == "https://localhost:1/check"
            restored = await client.get(ValidatingWebhookConfiguration, f"v-{namespace}")
            assert restored.to_dict()["webhooks"] == found.to_dict()["webhooks"]
        assert await client.find(ValidatingWebhookConfiguration, f"v-{namespace}") is None
        assert await client.find(MutatingWebhookConfiguration, f"m-{namespace}") is None


async def test_te_5_webhook_configurations_are_deleted_after_a_failure_too(control_plane, client, namespace, tmp_path):
    documents = configurations(namespace)
    documents[2]["webhooks"][0]["name"] = "short"
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    async with serving() as server:
        server.add_validator(ConfigMap, Small(), path="/check")
        server.add_defaulter(ConfigMap, fill_in, path="/fill")
        with pytest.raises(ManifestError, match=rf"{file}, document 3: (.|\n)*three segments"):
            async with control_plane.webhooks(file, server=server):
                pass
        assert await client.find(MutatingWebhookConfiguration, f"m-{namespace}") is None

        file.write_text(yaml.safe_dump_all(configurations(namespace)))
        with anyio.move_on_after(30) as scope:
            async with control_plane.webhooks(file, server=server):
                scope.cancel()
                await anyio.sleep_forever()
        assert await client.find(MutatingWebhookConfiguration, f"m-{namespace}") is None


@pytest.mark.rules("TE-5")
async def test_te_5_a_configuration_of_somebody_else_is_put_back(control_plane, client, namespace, tmp_path):
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(configurations(namespace)))
    _, _, real = configurations(namespace)
    real["metadata"]["labels"] = {"real": "yes"}
    real["webhooks"][0] |= {"failurePolicy": "Ignore", "name": "real.files.example.dev"}
    before = await client.create(ValidatingWebhookConfiguration.from_dict(real))
    try:
        async with serving() as server:
            server.add_validator(ConfigMap, Small(), path="/check")
            server.add_defaulter(ConfigMap, fill_in, path="/fill")
            async with control_plane.webhooks(file, server=server):
                during = await client.get(ValidatingWebhookConfiguration, f"v-{namespace}")
                assert "vconfig.files.example.dev" in [webhook.name for webhook in during.webhooks]
        after = await client.get(ValidatingWebhookConfiguration, f"v-{namespace}")
        assert after.to_dict()["webhooks"] == before.to_dict()["webhooks"]
        assert (after.metadata.uid, after.metadata.labels) == (before.metadata.uid, before.metadata.labels)
        assert await client.find(MutatingWebhookConfiguration, f"m-{namespace}") is None
    finally:
        await client.delete(ValidatingWebhookConfiguration, f"v-{namespace}", missing_ok=True)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"url": "https://elsewhere"}, r"webhooks\[0\]\.clientConfig names no path"),
        (
            {"url": "https://elsewhere/other"},
            "path '/other' is not registered at the webhook server.*are: /check, /fill",
        ),
        ({"service": {"path": 3}}, r"service\.path"),
    ],
)
async def test_te_5_a_webhook_that_nothing_serves_is_named_by_file_and_document(
    control_plane, tmp_path, where, message
):
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(configurations("default", **where)))
    async with serving() as server:
        server.add_validator(ConfigMap, Small(), path="/check")
        server.add_defaulter(ConfigMap, fill_in, path="/fill")
        with pytest.raises(ManifestError, match=rf"{file}, document 3: (.|\n)*{message}"):
            async with control_plane.webhooks(file, server=server):
                pass
