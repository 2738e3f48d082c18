"""The manifests, and the manager as they run it: under their roles, with its certificate in their Secret (LWS §11)."""

import json
import signal
import socket
import ssl
import sys
from base64 import b64decode, b64encode
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest
import yaml
from cryptography import x509

from pyreconcile.api.authentication_v1 import TokenRequest
from pyreconcile.api.core_v1 import Secret, Service, ServiceAccount
from pyreconcile.client import ApiError, ConnectOptions, ForbiddenError, MergePatch, connect
from pyreconcile.crd import install_crds
from pyreconcile.testing import ControlPlane, eventually
from pyreconcile.webhook import ServiceReference, WebhookOptions, WebhookServer, webhook_configurations
from pyreconcile_controllers import disaggregatedset, leaderworkerset
from pyreconcile_controllers.disaggregatedset import DisaggregatedSet
from pyreconcile_controllers.disaggregatedset import webhook as disaggregated_webhook
from pyreconcile_controllers.leaderworkerset import LeaderWorkerSet
from pyreconcile_controllers.leaderworkerset import webhook as lws_webhook
from pyreconcile_controllers.lws_manager import (
    CertificatePlace,
    Configuration,
    make_plan,
    parse_configuration,
    parse_flags,
)
from pyreconcile_controllers.lws_manager.rotation import (
    CONFIGURATIONS,
    CertificateMissingError,
    Rotation,
    SecretCertificate,
)

ROOT = Path(__file__).parents[2]
MANIFESTS = list(yaml.safe_load_all((ROOT / "deploy" / "lws" / "manager.yaml").read_text()))
NAMESPACE = "lws-system"
SECRET = f"{NAMESPACE}/lws-webhook-server-cert"


def manifest(kind, name):
    return next(raw for raw in MANIFESTS if (raw["kind"], raw["metadata"]["name"]) == (kind, name))


def test_lws_11_the_manifests_have_upstreams_names():
    found = {(raw["kind"], raw["metadata"]["name"]) for raw in MANIFESTS}
    assert found >= {
        ("Namespace", "lws-system"),
        ("ServiceAccount", "lws-controller-manager"),
        ("Deployment", "lws-controller-manager"),
        ("Service", "lws-webhook-service"),
        ("Service", "lws-controller-manager-metrics-service"),
        ("ConfigMap", "lws-manager-config"),
        ("Secret", "lws-webhook-server-cert"),
        ("ClusterRole", "lws-manager-role"),
        ("ClusterRole", "lws-proxy-role"),
        ("MutatingWebhookConfiguration", "lws-mutating-webhook-configuration"),
        ("ValidatingWebhookConfiguration", "lws-validating-webhook-configuration"),
    }
    deployment = manifest("Deployment", "lws-controller-manager")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["template"]["metadata"]["labels"]["control-plane"] == "controller-manager"


def test_lws_11_the_deployments_arguments_and_its_file_are_understood():
    [container] = manifest("Deployment", "lws-controller-manager")["spec"]["template"]["spec"]["containers"]
    assert (container["name"], container["command"]) == ("manager", ["/manager"])
    config = manifest("ConfigMap", "lws-manager-config")["data"]["controller_manager_config.yaml"]
    plan = make_plan(parse_flags(container["args"]), parse_configuration(config), {}, namespace=NAMESPACE)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert plan.webhook.bind_address == f":{ports['webhook-server']}"
    assert plan.manager.metrics_bind_address == f":{ports['metrics']}"
    probes = [container["livenessProbe"]["httpGet"], container["readinessProbe"]["httpGet"]]
    assert [probe["path"] for probe in probes] == [plan.manager.liveness_endpoint, plan.manager.readiness_endpoint]
    assert {f":{probe['port']}" for probe in probes} == {plan.manager.health_probe_bind_address}


def test_lws_11_the_webhooks_of_the_manifests_are_those_of_the_code():
    server = WebhookServer(
        WebhookOptions(service=ServiceReference(namespace=NAMESPACE, name="lws-webhook-service")),
    )
    lws_webhook.register(server)
    disaggregated_webhook.register(server)
    wanted = {"mutating": {}, "validating": {}}
    for raw in webhook_configurations(
        server, [*lws_webhook.WEBHOOKS, *disaggregated_webhook.WEBHOOKS], mutating_name="m", validating_name="v"
    ):
        wanted["mutating" if raw["kind"].startswith("Mutating") else "validating"] = entries(raw)
    assert entries(manifest("MutatingWebhookConfiguration", lws_webhook.MUTATING_CONFIGURATION)) == wanted["mutating"]
    validating = manifest("ValidatingWebhookConfiguration", lws_webhook.VALIDATING_CONFIGURATION)
    assert entries(validating) == wanted["validating"]


def entries(configuration):
    found = {}
    for webhook in configuration["webhooks"]:
        where = webhook["clientConfig"]["service"]
        rules = [{key: rule[key] for key in ("apiGroups", "operations", "resources")} for rule in webhook["rules"]]
        found[webhook["name"]] = (where["name"], where["path"], rules, webhook.get("objectSelector"))
    return found


async def apply_all(client, *, except_for=()):
    for raw in MANIFESTS:
        if raw["kind"] not in except_for:
            kind = await client.kind_for(raw["apiVersion"], raw["kind"])
            await client.apply(kind.from_dict(raw), field_manager="kubectl")


def reserved():
    """A socket with a port that nobody is given by chance; a server, which sets SO_REUSEADDR too, may listen there."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", 0))
    return found


# Upstream's role: what our manager may do where upstream's manifests stay in place.
EDIT = {"create", "delete", "get", "list", "patch", "update", "watch"}
UPSTREAM = {
    "nodes": EDIT - {"create", "delete"},
    "pods": EDIT,
    "services": EDIT,
    "secrets": {"get", "list", "update", "watch"},
    "events": EDIT - {"delete"},
    "mutatingwebhookconfigurations": {"get", "list", "update", "watch"},
    "validatingwebhookconfigurations": {"get", "list", "update", "watch"},
    "controllerrevisions": EDIT,
    "statefulsets": EDIT,
    "leases": EDIT,
    "leaderworkersets": EDIT,
    "disaggregatedsets": EDIT,
    "disaggregatedsetrolescalers": EDIT,
    "tokenreviews": {"create"},
    "subjectaccessreviews": {"create"},
}


def test_lws_11_the_roles_ask_for_nothing_that_upstreams_do_not_have_but_podgroups():
    more = {}
    for role in (raw for raw in MANIFESTS if raw["kind"] in ("Role", "ClusterRole")):
        for rule in role["rules"]:
            for resource in rule.get("resources", ()):
                base, _, part = resource.partition("/")
                allowed = {"get", "patch", "update"} if part else UPSTREAM.get(base, set())
                if missing := set(rule["verbs"]) - allowed:
                    more[resource] = missing
    assert more == {"podgroups": EDIT}


class Cluster:
    """A control plane with the manifests, where the API server reaches the Service at this machine's port."""

    def __init__(self, client, folder, sockets):
        self.client = client
        self.folder = folder
        self.webhook_port, self.metrics_port, self.probe_port = (one.getsockname()[1] for one in sockets)
        self.log = folder / "manager.log"

    async def prepare(self, kubeconfig):
        await install_crds(self.client, [*leaderworkerset.MODELS, *disaggregatedset.MODELS])
        await apply_all(self.client)
        # Nothing forwards the Service's address here; the API server asks a name directly.
        patch = {"spec": {"type": "ExternalName", "externalName": "localhost", "clusterIP": None, "ports": None}}
        await self.client.patch(Service, f"{NAMESPACE}/lws-webhook-service", MergePatch(patch))
        for kind, name in CONFIGURATIONS:
            raw = (await self.client.get(kind, name)).to_dict()
            for webhook in raw["webhooks"]:
                webhook["clientConfig"]["service"]["port"] = self.webhook_port
            await self.client.update(kind.from_dict(raw))
        account = self.client.subresource(ServiceAccount, f"{NAMESPACE}/lws-controller-manager", "token", TokenRequest)
        self.token = (await account.create(TokenRequest(spec={}))).status.token
        config = yaml.safe_load(kubeconfig.read_text())
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": self.token}}]
        self.kubeconfig = self.folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(config))
        self.file = self.folder / "config.yaml"
        text = manifest("ConfigMap", "lws-manager-config")["data"]["controller_manager_config.yaml"]
        self.file.write_text(f"{text}webhook:\n  port: {self.webhook_port}\ntls:\n  minVersion: VersionTLS13\n")

    @asynccontextmanager
    async def manager(self):
        command = [sys.executable, "-m", "pyreconcile_controllers.lws_manager", f"--config={self.file}"]
        command += ["--zap-log-level=2", "--zap-encoder=json", f"--kubeconfig={self.kubeconfig}"]
        command += [f"--metrics-bind-address=127.0.0.1:{self.metrics_port}"]
        command += [f"--health-probe-bind-address=127.0.0.1:{self.probe_port}"]
        with self.log.open("wb") as output:
            process = await anyio.open_process(command, stdin=None, stdout=output, stderr=output)
        async with process:
            try:
                yield process
                process.send_signal(signal.SIGTERM)
                with anyio.fail_after(60):
                    await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()

    async def secret(self):
        data = (await self.client.get(Secret, SECRET)).data or {}
        return {name: b64decode(value) for name, value in data.items()}

    async def bundles(self):
        found = []
        for kind, name in CONFIGURATIONS:
            raw = (await self.client.get(kind, name)).to_dict()
            found += [b64decode(one["clientConfig"].get("caBundle", "")) for one in raw["webhooks"]]
        return found

    async def trusts(self):
        """Whether every webhook names the CA that the Secret has; gives the CA."""
        authority = (await self.secret()).get("ca.crt")
        return authority if authority and set(await self.bundles()) == {authority} else None

    async def admits(self):
        """Whether the webhooks answer: a set gets its defaults."""
        try:
            probe = await self.client.create(lws("probe"), dry_run=True)
        except ApiError:
            return False
        return probe.spec.network_config is not None


def lws(name, **spec):
    template = {"spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
    whole = {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}, **spec}
    return LeaderWorkerSet.from_dict({"metadata": {"name": name, "namespace": "default"}, "spec": whole})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("manager")


@asynccontextmanager
async def deployed(folder):
    plane = ControlPlane(use_existing=False, nodes=2, controller_manager=True, scheduler=True)
    with reserved() as webhook, reserved() as metrics, reserved() as probe:
        async with plane, connect(ConnectOptions(kubeconfig=plane.kubeconfig)) as client:
            cluster = Cluster(client, folder, (webhook, metrics, probe))
            await cluster.prepare(plane.kubeconfig)
            yield cluster


async def test_lws_11_the_manager_works_under_the_roles_of_the_manifests(folder):
    async with deployed(folder) as cluster:
        async with cluster.manager() as process:
            authority = await eventually(cluster.trusts, timeout=60, interval=0.1, what="the CA is in place")
            await eventually(cluster.admits, timeout=60, interval=0.1, what="the webhooks answer")
            assert process.returncode is None
            await check_that_sets_come_up(cluster)
            await check_that_bad_sets_are_refused(cluster)
            await check_the_description(cluster)
            await check_metrics_and_probes(cluster)
            await check_that_the_ca_is_put_back(cluster, authority)
            await check_that_a_lost_certificate_is_made_anew(cluster, authority)
        assert process.returncode == 0
    events = [json.loads(line) for line in cluster.log.read_text().splitlines()]
    assert not [event for event in events if event["level"] in ("error", "critical")]
    assert not [event for event in events if "orbidden" in str(event)]  # the roles are enough
    assert b"PRIVATE KEY" not in cluster.log.read_bytes()


async def check_that_sets_come_up(cluster):
    await cluster.client.create(lws("demo"))

    async def available():
        status = (await cluster.client.get(LeaderWorkerSet, "default/demo")).status
        return any(one.type == "Available" and one.status == "True" for one in (status.conditions if status else ()))

    await eventually(available, timeout=60, interval=0.1, what="the set is available")


async def check_that_bad_sets_are_refused(cluster):
    with pytest.raises(ForbiddenError, match="product of replicas and worker replicas"):
        await cluster.client.create(
            lws(
                "bad",
                replicas=1_000_000,
                leaderWorkerTemplate={
                    **lws("x").spec.leader_worker_template.to_dict(),
                    "size": 1_000_000,
                },
            )
        )
    role = {
        "name": "a",
        "spec": lws("x").spec.to_dict()
        | {
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"partition": 1},
            }
        },
    }
    raw = {"metadata": {"name": "bad", "namespace": "default"}, "spec": {"roles": [role, {**role, "name": "b"}]}}
    with pytest.raises(ForbiddenError, match=r"vdisaggregatedset\.kb\.io"):
        await cluster.client.create(DisaggregatedSet.from_dict(raw))


async def check_the_description(cluster):
    command = [sys.executable, "-m", "pyreconcile", "lws", "describe", "demo", "-o", "json"]
    done = await anyio.run_process([*command, "--kubeconfig", str(cluster.kubeconfig)])
    found = json.loads(done.stdout)
    assert (found["readyReplicas"], [len(group["pods"]) for group in found["groups"]]) == (2, [2, 2])


async def check_metrics_and_probes(cluster):
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
        for path in ("healthz", "readyz"):
            async with session.get(f"http://127.0.0.1:{cluster.probe_port}/{path}") as response:
                assert (response.status, await response.text()) == (200, "ok")
        url = f"https://127.0.0.1:{cluster.metrics_port}/metrics"
        async with session.get(url) as response:
            assert response.status == 401
        async with session.get(url, headers={"Authorization": f"Bearer {cluster.token}"}) as response:
            assert response.status == 200
            text = await response.text()
    for line in (
        'controller_runtime_webhook_requests_total{code="200"',
        'controller_runtime_reconcile_total{controller="leaderworkerset"',
        'controller_runtime_reconcile_total{controller="pod"',
        "workqueue_depth{",
        "rest_client_requests_total{",
        "process_cpu_seconds_total",
    ):
        assert line in text
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode, old.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    for port in (cluster.metrics_port, cluster.webhook_port):
        with pytest.raises((ssl.SSLError, anyio.BrokenResourceError)):
            await anyio.connect_tcp("127.0.0.1", port, ssl_context=old)


async def check_that_the_ca_is_put_back(cluster, authority):
    kind, name = CONFIGURATIONS[0]
    raw = (await cluster.client.get(kind, name)).to_dict()
    for webhook in raw["webhooks"]:
        webhook["clientConfig"].pop("caBundle")
    await cluster.client.update(kind.from_dict(raw))
    assert await eventually(cluster.trusts, timeout=60, interval=0.05, what="the CA is put back") == authority


async def check_that_a_lost_certificate_is_made_anew(cluster, authority):
    await cluster.client.patch(Secret, SECRET, MergePatch({"data": None}))

    async def renewed():
        found = await cluster.trusts()
        return found if found and found != authority else None

    await eventually(renewed, timeout=60, interval=0.05, what="another CA is in place")
    await eventually(cluster.admits, timeout=60, interval=0.05, what="the webhooks show the new certificate")


@pytest.fixture
def place(namespace):
    return CertificatePlace(namespace=namespace, secret="lws-webhook-server-cert", service="lws-webhook-service")


async def test_lws_11_of_two_managers_at_once_one_writes_and_both_show_the_same(client, place):
    await client.create(Secret(metadata={"name": place.secret, "namespace": place.namespace}))
    sources = [SecretCertificate(), SecretCertificate()]
    async with anyio.create_task_group() as tasks:
        for source in sources:
            tasks.start_soon(Rotation(client, place, source, configurations=()).ensure)
    assert sources[0].read() == sources[1].read()
    assert sources[0].ca_bundle == sources[1].ca_bundle
    [server] = x509.load_pem_x509_certificates(sources[0].read().certificate)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [place.host]
    before = await client.get(Secret, f"{place.namespace}/{place.secret}")
    await Rotation(client, place, SecretCertificate(), configurations=()).ensure()
    after = await client.get(Secret, f"{place.namespace}/{place.secret}")
    assert after.metadata.resource_version == before.metadata.resource_version


async def test_lws_11_other_entries_of_the_secret_stay(client, place):
    data = {"mine": b64encode(b"kept").decode()}
    await client.create(Secret(metadata={"name": place.secret, "namespace": place.namespace}, data=data))
    await Rotation(client, place, SecretCertificate(), configurations=()).ensure()
    found = (await client.get(Secret, f"{place.namespace}/{place.secret}")).data
    assert set(found) == {"mine", "ca.crt", "ca.key", "tls.crt", "tls.key"}
    assert found["mine"] == data["mine"]


async def test_lws_11_a_secret_that_is_not_there_is_named_with_what_to_do(client, place):
    with pytest.raises(CertificateMissingError, match=rf"Secret {place.namespace}/{place.secret} is not there: apply"):
        await Rotation(client, place, SecretCertificate(), configurations=()).ensure()


def test_lws_11_the_default_file_is_the_one_of_the_manifests():
    config = manifest("ConfigMap", "lws-manager-config")["data"]["controller_manager_config.yaml"]
    assert parse_configuration(config) == Configuration()
