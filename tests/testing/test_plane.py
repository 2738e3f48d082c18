"""How a plane is started: attempts, ports and flags, and what the flags do."""

from __future__ import annotations

import base64
import errno
import ipaddress
import json
import socket
import ssl
from pathlib import Path

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from pyreconcile.api import unstructured
from pyreconcile.api.authentication_v1 import TokenRequest
from pyreconcile.api.core_v1 import Namespace, Pod, Service, ServiceAccount
from pyreconcile.certs import CertificateAuthority
from pyreconcile.client import UnauthorizedError, connect
from pyreconcile.testing import ControlPlane, ControlPlaneError
from pyreconcile.testing._components import Layout, Ports, Tuning, command_lines, kubeconfig_text
from pyreconcile.testing._plane import Plane, Wishes
from pyreconcile.testing._programs import Program
from pyreconcile.testing._readiness import Readiness

Review = unstructured("authentication.k8s.io/v1", "SelfSubjectReview", namespaced=False)


@pytest.fixture
def wishes():
    def make(**changes):
        defaults = {
            "components": ["etcd", "kube-apiserver"],
            "nodes": 0,
            "tuning": Tuning(),
            "start_timeout": 5.0,
            "stop_timeout": 5.0,
            "attach_output": False,
        }
        return Wishes(**{**defaults, **changes})

    return make


@pytest.fixture
def fakes(tmp_path):
    """A folder of programs that are shell scripts."""

    def make(**scripts):
        folder = tmp_path / "programs"
        folder.mkdir(exist_ok=True)
        for name in ("etcd", "kube-apiserver", "kubectl"):
            script = scripts.get(name.replace("-", "_"), "while :; do sleep 0.02; done")
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        return folder

    return make


# TE-1


async def test_te_1_the_environment_sets_time_limits_and_shows_output(fakes, monkeypatch, capfd, tmp_path):
    # Long enough for etcd to speak, also on a busy machine.
    monkeypatch.setenv("KUBEBUILDER_CONTROLPLANE_START_TIMEOUT", "2000ms")
    monkeypatch.setenv("KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT", "200ms")
    monkeypatch.setenv("KUBEBUILDER_ATTACH_CONTROL_PLANE_OUTPUT", "true")
    # Stubborn, so that only SIGKILL after the stop time limit ends it.
    programs = fakes(etcd="trap '' TERM; echo etcd says hello; while :; do sleep 0.02; done")
    with pytest.raises(ControlPlaneError, match=r"not ready within 2 s"), anyio.fail_after(30):
        async with ControlPlane(use_existing=False, programs=programs, directory=tmp_path / "plane"):
            pass
    assert "etcd says hello" in capfd.readouterr().err
    assert not (tmp_path / "plane" / "logs" / "etcd.log").exists()


def test_te_1_time_limits_without_the_environment(monkeypatch):
    for name in ("START", "STOP"):
        monkeypatch.delenv(f"KUBEBUILDER_CONTROLPLANE_{name}_TIMEOUT", raising=False)
    wishes = ControlPlane(use_existing=False)._wishes
    assert (wishes.start_timeout, wishes.stop_timeout) == (60, 20)
    wishes = ControlPlane(use_existing=False, start_timeout=3, stop_timeout=0.5)._wishes
    assert (wishes.start_timeout, wishes.stop_timeout) == (3, 0.5)


# TE-2


async def test_te_2_a_port_that_somebody_took_is_tried_five_times(fakes, tmp_path):
    tries = tmp_path / "tries"
    programs = fakes(etcd=f"echo x >> {tries}; echo listen: address already in use; exit 1")
    with pytest.raises(ControlPlaneError, match=r"etcd ended with code 1(.|\n)*address already in use"):
        async with ControlPlane(use_existing=False, programs=programs, directory=tmp_path / "plane"):
            pass
    assert len(tries.read_text().split()) == 5


async def test_te_2_any_other_end_is_final(fakes, tmp_path):
    tries = tmp_path / "tries"
    programs = fakes(etcd=f"echo x >> {tries}; echo no good; exit 1")
    with pytest.raises(ControlPlaneError, match="no good"):
        async with ControlPlane(use_existing=False, programs=programs, directory=tmp_path / "plane"):
            pass
    assert len(tries.read_text().split()) == 1


@pytest.mark.looptime
async def test_te_2_health_is_looked_at_each_100_ms(fakes, wishes, tmp_path):
    looks = []

    async def ready():
        looks.append(round(anyio.current_time() - start, 6))
        return len(looks) == 4

    folder = fakes()
    names = ["etcd", "kube-apiserver", "kubectl"]
    programs = {name: Program(folder / name) for name in names}
    (tmp_path / "plane").mkdir()
    plane = Plane(tmp_path / "plane", scratch=False, programs=programs, wishes=wishes())
    start = anyio.current_time()
    await plane._poll(ready)
    plane._processes.kill()
    plane._processes._close()
    plane._ports.close()
    assert looks == pytest.approx([0, 0.1, 0.2, 0.3])


def test_te_2_ports_are_held_until_the_plane_ends():
    ports, others = Ports(), Ports()
    chosen = set(ports.by_name.values())
    assert len(chosen | set(others.by_name.values())) == 2 * len(chosen)
    others.close()
    for port in chosen:
        with socket.socket() as stranger, pytest.raises(OSError) as refused:
            stranger.bind(("127.0.0.1", port))
        assert refused.value.errno == errno.EADDRINUSE
    ports.close()
    for port in chosen:
        with socket.socket() as stranger:
            stranger.bind(("127.0.0.1", port))


async def test_te_2_one_component_can_be_restarted_while_others_are_down(control_plane):
    async with ControlPlane(use_existing=False) as plane:
        with pytest.raises(ControlPlaneError, match="is running already"):
            await plane.__aenter__()
        with pytest.raises(ValueError, match="64"):
            await plane.add_user("u" * 65)
        await plane.kill("kube-apiserver")
        await plane.kill("etcd")
        await plane.restart("etcd")
        await plane.restart("kube-apiserver")
        async with connect(kubeconfig=plane.kubeconfig) as client:
            assert await client.get(Namespace, "default")
    with pytest.raises(ControlPlaneError, match="components: none"):
        plane.pid("etcd")


# TE-3


def test_te_3_the_flags():
    ports = Ports()
    lines = command_lines(Layout(Path("/plane")), ports, Tuning(extra_args={"kube-apiserver": ["--v=4"]}))
    ports.close()
    assert {"--unsafe-no-fsync", "--data-dir=/plane/etcd"} <= set(lines["etcd"])
    server = lines["kube-apiserver"]
    assert server[-1] == "--v=4"
    assert {
        "--service-cluster-ip-range=10.0.0.0/24",
        "--allow-privileged=true",
        "--disable-admission-plugins=ServiceAccount",
        "--authorization-mode=RBAC",
        "--client-ca-file=/plane/pki/ca.crt",
        "--cert-dir=/plane/pki",
        "--tls-cert-file=/plane/pki/server.crt",
        "--tls-private-key-file=/plane/pki/server.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-account-key-file=/plane/pki/sa.pub",
        "--service-account-signing-key-file=/plane/pki/sa.key",
        f"--etcd-servers=http://127.0.0.1:{ports['etcd']}",
        f"--secure-port={ports['kube-apiserver']}",
    } <= set(server)


def test_te_3_the_processes_have_these_flags(own_plane):
    for name in own_plane.components:
        if name != "kwok":
            running = Path(f"/proc/{own_plane.pid(name)}/cmdline").read_text().split("\0")
            wanted = command_lines(Layout(own_plane.directory), own_plane._plane._ports, Tuning())[name]
            assert set(wanted) <= set(running)


class Answers:
    """Answers of a server that is starting, by the end of the path."""

    def __init__(self):
        self.good = set()

    async def ok(self, url):
        return any(url.endswith(path) for path in self.good)


async def test_te_3_ready_means_with_the_namespace_default():
    http = Answers()
    readiness = Readiness(http, "https://plane")
    assert not await readiness.serving()
    http.good.add("/readyz")
    assert not await readiness.serving()
    http.good.add("/api/v1/namespaces/default")
    assert await readiness.serving()


@pytest.fixture
async def admin(own_plane):
    async with connect(kubeconfig=own_plane.kubeconfig) as client:
        yield client


async def test_te_3_the_certificates_are_of_the_planes_own_ca(own_plane, tmp_path):
    pki = own_plane.directory / "pki"
    port = int(own_plane.url.rpartition(":")[2])
    context = ssl.create_default_context(cafile=pki / "ca.crt")
    stream = await anyio.connect_tcp("127.0.0.1", port, ssl_context=context)  # the host name is checked as well
    shown = x509.load_der_x509_certificate(stream.extra(anyio.streams.tls.TLSAttribute.peer_certificate_binary))
    await stream.aclose()
    authority = x509.load_pem_x509_certificate((pki / "ca.crt").read_bytes())
    shown.verify_directly_issued_by(authority)
    for key in ("server.key", "sa.key", "admin.pem"):
        assert (pki / key).stat().st_mode & 0o077 == 0
    # Another CA's certificate is nobody's.
    stranger = CertificateAuthority().issue_client("admin", ["system:masters"])
    text = kubeconfig_text(own_plane.url, (pki / "ca.crt").read_bytes(), "admin", stranger)
    (tmp_path / "kubeconfig").write_text(text)
    async with connect(kubeconfig=tmp_path / "kubeconfig") as client:
        with pytest.raises(UnauthorizedError):
            await client.get(Namespace, "default")


async def test_te_3_services_have_addresses_of_the_range(admin):
    metadata = {"generate_name": "te-3-", "namespace": "default"}
    made = await admin.create(Service(metadata=metadata, spec={"ports": [{"port": 80}]}))
    assert ipaddress.ip_address(made.spec.cluster_ip) in ipaddress.ip_network("10.0.0.0/24")
    await admin.delete(Service, made.key)


async def test_te_3_pods_may_be_privileged_and_need_no_service_account(admin):
    pod = Pod.from_dict(
        {
            "metadata": {"name": "te-3", "namespace": "default"},
            "spec": {
                "serviceAccountName": "is-not-there",
                "containers": [{"name": "a", "image": "a", "securityContext": {"privileged": True}}],
            },
        }
    )
    made = await admin.create(pod, dry_run=True)
    assert made.spec.containers[0].security_context.privileged
    assert not made.spec.volumes  # no token either


async def test_te_3_tokens_have_our_issuer_and_key(own_plane, admin, tmp_path):
    account = await admin.create(ServiceAccount(metadata={"generate_name": "te-3-", "namespace": "default"}))
    tokens = admin.subresource(ServiceAccount, account.key, "token", TokenRequest)
    token = (await tokens.create(TokenRequest(spec={"audiences": []}))).status.token
    header, payload, signature = token.split(".")

    def decoded(part):
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))

    assert json.loads(decoded(payload))["iss"] == "https://kubernetes.default.svc"
    raw = decoded(signature)
    r, s = (int.from_bytes(half, "big") for half in (raw[:32], raw[32:]))
    public = load_pem_public_key((own_plane.directory / "pki" / "sa.pub").read_bytes())
    public.verify(encode_dss_signature(r, s), f"{header}.{payload}".encode(), ec.ECDSA(SHA256()))

    kubeconfig = own_plane.kubeconfig.read_text()
    start = kubeconfig.index("    client-certificate-data")
    end = kubeconfig.index("contexts:")
    (tmp_path / "kubeconfig").write_text(f"{kubeconfig[:start]}    token: {token}\n{kubeconfig[end:]}")
    async with connect(kubeconfig=tmp_path / "kubeconfig") as client:
        who = (await client.create(Review.from_dict({}))).to_dict()["status"]["userInfo"]
    assert who["username"] == f"system:serviceaccount:default:{account.metadata.name}"
    await admin.delete(ServiceAccount, account.key)


# TE-4


async def test_te_4_users_are_client_certificates_and_the_administrator_is_a_master(own_plane, admin):
    async def who(client):
        user = (await client.create(Review.from_dict({}))).to_dict()["status"]["userInfo"]
        return user["username"], set(user["groups"])

    assert await who(admin) == ("admin", {"system:masters", "system:authenticated"})
    kubeconfig = await own_plane.add_user("dev:ops", ["team", "other"])
    assert kubeconfig.stat().st_mode & 0o077 == 0
    async with connect(kubeconfig=kubeconfig) as user:
        assert await who(user) == ("dev:ops", {"team", "other", "system:authenticated"})
