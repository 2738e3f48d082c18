"""Kinds known by name only."""

import secrets

import anyio
import pytest
from aiohttp import web

from pyreconcile.api import Unstructured, unstructured
from pyreconcile.api.apps_v1 import Deployment
from pyreconcile.client import UnknownKindError

pytestmark = pytest.mark.plane

CRD = unstructured(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", plural="customresourcedefinitions", namespaced=False
)


async def test_kinds_with_a_model_need_no_request(logged, requests):
    assert await logged.kind_for("apps/v1", "Deployment") is Deployment
    assert requests.take() == []


async def test_cl_12_two_requests_read_all_kinds(logged, requests):
    kind = await logged.kind_for("flowcontrol.apiserver.k8s.io/v1", "FlowSchema")
    assert issubclass(kind, Unstructured)
    assert (kind.resource.plural, kind.resource.namespaced) == ("flowschemas", False)
    assert requests.take() == [("GET", "200")] * 2
    assert await logged.kind_for("flowcontrol.apiserver.k8s.io/v1", "FlowSchema") is kind
    assert requests.take() == []
    assert await logged.list(kind)


async def test_cl_12_a_crd_installed_later_is_found(logged, requests):
    group = f"g{secrets.token_hex(3)}.tests.dev"
    with pytest.raises(UnknownKindError, match="is its CRD installed"):
        await logged.kind_for(f"{group}/v1", "Mouse")
    crd = {
        "metadata": {"name": f"mice.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": "mice", "singular": "mouse", "kind": "Mouse", "listKind": "MouseList"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    }
    created = await logged.create(CRD.from_dict(crd))
    try:
        with anyio.fail_after(20):
            while True:
                try:
                    kind = await logged.kind_for(f"{group}/v1", "Mouse")
                    break
                except UnknownKindError:
                    await anyio.sleep(0.05)
        assert (kind.resource.plural, kind.resource.namespaced) == ("mice", False)
        requests.take()
        await logged.kind_for(f"{group}/v1", "Mouse")
        assert requests.take() == []
    finally:
        await logged.delete(created)


async def test_cl_12_a_server_without_aggregated_discovery_is_asked_one_group_at_a_time(client_of):
    paths = []

    async def old(request):
        paths.append(request.path)
        if request.path == "/apis/labs.example.dev/v3":
            resources = [
                {"name": "mice", "kind": "Mouse", "namespaced": True},
                {"name": "mice/status", "kind": "Mouse", "namespaced": True},
            ]
            return web.json_response({"kind": "APIResourceList", "resources": resources})
        if request.path == "/api":
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        if request.path == "/apis":
            return web.json_response({"kind": "APIGroupList", "groups": [{"name": "labs.example.dev"}]})
        return web.json_response({"kind": "Status", "reason": "NotFound", "code": 404}, status=404)

    client = await client_of(old)
    kind = await client.kind_for("labs.example.dev/v3", "Mouse")
    assert kind.resource.plural == "mice"
    with pytest.raises(UnknownKindError):
        await client.kind_for("labs.example.dev/v4", "Mouse")
    assert paths == ["/api", "/apis", "/apis/labs.example.dev/v3", "/apis/labs.example.dev/v4"]
