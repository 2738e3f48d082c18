"""The service account of a pod."""

import json
import shutil

from pyreconcile.api.core_v1 import ServiceAccount
from pyreconcile.client import connect


async def test_cl_10_in_a_pod_the_service_account_is_used(client, namespace, tmp_path, monkeypatch):
    account = await client.create(ServiceAccount.from_dict({"metadata": {"name": "robot", "namespace": namespace}}))
    answer = await client.create_subresource(
        ServiceAccount, account.key, "token", {"apiVersion": "authentication.k8s.io/v1", "spec": {}}
    )
    (tmp_path / "token").write_text(answer["status"]["token"])
    shutil.copy(client.transport.configuration.ssl_ca_cert, tmp_path / "ca.crt")
    module = "kubernetes_asyncio.config.incluster_config"
    monkeypatch.setattr(f"{module}.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(f"{module}.SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
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
