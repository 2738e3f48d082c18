"""Kinds known by name only."""

import secrets

import anyio
import pytest
from aiohttp import web

from pyreconcile.api import Unstructured, unstructured
from pyreconcile.api.apps_v1 import Deployment
from pyreconcile.client import ServiceUnavailableError, UnknownKindError

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
        with anyio.fail_after(30):
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


def discovery_of(groups):
    """The aggregated answer for group → version → (freshness, kinds)."""
    items = [
        {
            "metadata": {"name": group},
            "versions": [
                {
                    "version": version,
                    "freshness": freshness,
                    "resources": [
                        {"resource": f"{kind.lower()}s", "responseKind": {"kind": kind}, "scope": "Namespaced"}
                        for kind in kinds
                    ],
                }
                for version, (freshness, kinds) in versions.items()
            ],
        }
        for group, versions in groups.items()
    ]
    return web.json_response({"kind": "APIGroupDiscoveryList", "items": items})


def unavailable():
    return web.json_response(
        {"kind": "Status", "reason": "ServiceUnavailable", "code": 503, "message": "no backend"}, status=503
    )


async def test_cl_12_a_group_that_fails_does_not_hide_the_others(client_of):
    async def partial(request):
        if request.path == "/api":
            return discovery_of({"": {"v1": ("Current", ["Thing"])}})
        if request.path == "/apis":
            return discovery_of(
                {
                    "down.example.dev": {"v1": ("Stale", [])},
                    "slow.example.dev": {"v1": ("Stale", ["Snail"])},
                    "up.example.dev": {"v1": ("Current", ["Mouse"]), "v2": ("Current", ["Mouse"])},
                }
            )
        return unavailable()

    client = await client_of(partial)
    assert (await client.kind_for("up.example.dev/v2", "Mouse")).resource.plural == "mouses"
    assert (await client.kind_for("slow.example.dev/v1", "Snail")).resource.plural == "snails"
    with pytest.raises(ServiceUnavailableError, match="no backend"):
        await client.kind_for("down.example.dev/v1", "Mole")
    served = await client.served_kinds()
    assert {str(resource.gvk) for resource in served.resources} == {
        "v1 Thing",
        "slow.example.dev/v1 Snail",
        "up.example.dev/v1 Mouse",
        "up.example.dev/v2 Mouse",
    }
    assert set(served.failures) == {"down.example.dev/v1", "slow.example.dev/v1"}
    assert isinstance(served.failures["down.example.dev/v1"], ServiceUnavailableError)


async def test_cl_12_failures_are_partial_without_aggregated_discovery_too(client_of):
    async def old(request):
        if request.path == "/api":
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        if request.path == "/apis":
            versions = [{"groupVersion": "down.example.dev/v1"}, {"groupVersion": "up.example.dev/v1"}]
            return web.json_response({"kind": "APIGroupList", "groups": [{"name": "x", "versions": versions}]})
        if request.path in ("/api/v1", "/apis/up.example.dev/v1"):
            resource = {"name": "mice", "kind": "Mouse", "namespaced": False}
            return web.json_response({"kind": "APIResourceList", "resources": [resource]})
        return unavailable()

    served = await (await client_of(old)).served_kinds()
    assert [(str(r.gvk), r.plural, r.namespaced) for r in served.resources] == [
        ("v1 Mouse", "mice", False),
        ("up.example.dev/v1 Mouse", "mice", False),
    ]
    assert list(served.failures) == ["down.example.dev/v1"]


async def test_cl_12_a_version_that_vanishes_drops_its_group(client_of):
    versions = {"v1": ["Mouse"]}
    paths = []

    async def changing(request):
        paths.append(request.path)
        if request.path == "/api":
            return discovery_of({})
        if request.path == "/apis":
            return discovery_of({"labs.example.dev": {name: ("Current", kinds) for name, kinds in versions.items()}})
        _, _, group, version = request.path.split("/")
        if group != "labs.example.dev" or version not in versions:
            return web.json_response({"kind": "Status", "reason": "NotFound", "code": 404}, status=404)
        resources = [{"name": f"{kind.lower()}s", "kind": kind, "namespaced": True} for kind in versions[version]]
        return web.json_response({"kind": "APIResourceList", "resources": resources})

    client = await client_of(changing)
    old = await client.kind_for("labs.example.dev/v1", "Mouse")
    versions.clear()
    versions["v2"] = ["Mouse", "Rat"]
    assert (await client.kind_for("labs.example.dev/v2", "Rat")).resource.plural == "rats"
    assert await client.kind_for("labs.example.dev/v1", "Mouse") is old
    with pytest.raises(UnknownKindError):
        await client.kind_for("labs.example.dev/v1", "Rat")
    with pytest.raises(UnknownKindError, match=r"no kind Mouse in labs\.example\.dev/v1"):
        await client.kind_for("labs.example.dev/v1", "Mouse")
    paths.clear()
    assert (await client.kind_for("labs.example.dev/v2", "Mouse")).resource.version == "v2"
    assert paths == ["/apis/labs.example.dev/v2"]


async def test_cl_12_all_kinds_of_the_server(client):
    served = await client.served_kinds()
    assert Deployment.resource in served.resources
