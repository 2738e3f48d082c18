"""Credentials that the real API server checks."""

import json
import shutil
import sys
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pyreconcile.api.core_v1 import Namespace, ServiceAccount
from pyreconcile.client import connect

pytestmark = pytest.mark.plane


async def test_cl_10_in_a_pod_the_service_account_is_used(client, namespace, tmp_path, monkeypatch):
    account = await client.create(ServiceAccount.from_dict({"metadata": {"name": "robot", "namespace": namespace}}))
    answer = await client.create_subresource(
        ServiceAccount, account.key, "token", {"apiVersion": "authentication.k8s.io/v1", "spec": {}}
    )
    (tmp_path / "token").write_text(answer["status"]["token"])
    shutil.copy(client.transport.configuration.ssl_ca_cert, tmp_path / "ca.crt")
    monkeypatch.setattr("pyreconcile.client._config._ACCOUNT", tmp_path)
    host, _, port = client.transport.host.rpartition(":")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    async with connect() as pod:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        body = json.dumps(review).encode()
        who = json.loads(
            await pod.transport.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=body)
        )
    assert who["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:robot"


def unknown_certificate(folder):
    """Write a certificate that no cluster knows, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nobody")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (folder / "crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


async def test_exec_plugin_certificates_are_renewed_when_refused(client, tmp_path):
    settings = client.transport.configuration
    unknown_certificate(tmp_path)
    (tmp_path / "plugin.py").write_text(
        "import json, pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "parts = {'clientCertificateData': 'crt', 'clientKeyData': 'key'}\n"
        "status = {name: (folder / file).read_text() for name, file in parts.items()}\n"
        "kind = {'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential'}\n"
        "print(json.dumps({**kind, 'status': status}))\n"
    )
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-S", str(tmp_path / "plugin.py"), str(tmp_path)],
    }
    cluster = {"server": client.transport.base_url, "certificate-authority": settings.ssl_ca_cert}
    content = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"exec": plugin}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(content))
    async with connect(kubeconfig=tmp_path / "config") as renewing:
        shutil.copy(settings.cert_file, tmp_path / "crt")
        shutil.copy(settings.key_file, tmp_path / "key")
        assert (await renewing.get(Namespace, "default")).metadata.name == "default"
