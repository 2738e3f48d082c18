"""Acting as another user."""

import pytest
import yaml
from aiohttp import web

from pyreconcile.api.authentication_v1 import SelfSubjectReview
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.client import ConfigError, ForbiddenError, Impersonation, connect

ACCOUNT = "system:serviceaccount:default:robot"


def kubeconfig(path, server, **user):
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
async def seen(serve):
    """A server's URL, and the impersonating headers of its last request."""
    headers = []

    async def answer(request):
        headers[:] = [(name, value) for name, value in request.headers.items() if name.startswith("Impersonate")]
        return web.json_response({"items": []})

    return await serve(answer), headers


@pytest.mark.rules("CL-10")
async def test_cl_10_the_as_fields_of_a_kubeconfig_are_sent(tmp_path, seen):
    server, headers = seen
    path = kubeconfig(
        tmp_path / "config",
        server,
        token="t",
        **{"as": "jane", "as-uid": "1", "as-groups": ["dev", "ops"], "as-user-extra": {"Scopes/x": ["a", "b"]}},
    )
    async with connect(kubeconfig=path) as client:
        await client.list(ConfigMap)
        assert headers == [
            ("Impersonate-User", "jane"),
            ("Impersonate-Uid", "1"),
            ("Impersonate-Group", "dev"),
            ("Impersonate-Group", "ops"),
            ("Impersonate-Extra-scopes%2Fx", "a"),
            ("Impersonate-Extra-scopes%2Fx", "b"),
        ]
    async with connect(kubeconfig=path, impersonate=Impersonation(user="joe")) as client:
        await client.list(ConfigMap)
        assert headers == [("Impersonate-User", "joe")]
    async with connect(kubeconfig=kubeconfig(path, server, token="t")) as client:
        await client.list(ConfigMap)
        assert headers == []


async def test_cl_10_impersonation_without_a_user_is_refused(tmp_path):
    path = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", token="t", **{"as-groups": ["dev"]})
    with pytest.raises(ConfigError, match="impersonate: uid, groups and extra need a user"):
        async with connect(kubeconfig=path):
            pass
    with pytest.raises(ValueError, match=r"groups is a list of names, as in groups=\['dev'\]"):
        Impersonation(user="jane", groups="dev")


async def test_cl_10_a_header_cannot_be_smuggled_in(control_plane):
    with pytest.raises(ConfigError, match="header Impersonate-User: its value has a line break"):
        async with connect(kubeconfig=control_plane.kubeconfig, impersonate=Impersonation(user="a\r\nX: y")):
            pass


@pytest.mark.plane
async def test_cl_10_the_server_takes_the_request_for_the_other_users(control_plane, namespace):
    jane = Impersonation(user="jane", groups=["dev", "ops"], extra={"reason": ["a", "b"]})
    async with connect(kubeconfig=control_plane.kubeconfig, impersonate=jane) as client:
        review = await client.create(SelfSubjectReview())
        user = review.status.user_info
        assert (user.username, user.groups, user.extra) == (
            "jane",
            ["dev", "ops", "system:authenticated"],
            {"reason": ["a", "b"]},
        )
        with pytest.raises(ForbiddenError, match='User "jane" cannot list resource "configmaps"'):
            await client.list(ConfigMap, namespace=namespace)
        with pytest.raises(ForbiddenError):
            await anext(client.watch(ConfigMap, namespace=namespace))
    # An administrator's kubeconfig that acts as a service account.
    async with connect(kubeconfig=control_plane.kubeconfig, impersonate=Impersonation(user=ACCOUNT)) as client:
        review = await client.create(SelfSubjectReview())
        assert review.status.user_info.username == ACCOUNT
