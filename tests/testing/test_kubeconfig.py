"""The kubeconfig of a cluster that is there already."""

import os

import pytest
import yaml

from pyreconcile.api.core_v1 import Namespace
from pyreconcile.client import connect
from pyreconcile.testing import ControlPlane, ControlPlaneError


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def existing(monkeypatch):
    def names(*paths):
        monkeypatch.setenv("USE_EXISTING_CLUSTER", "true")
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, paths)))

    return names


async def test_te_1_several_kubeconfigs_of_an_existing_cluster_are_used_together(control_plane, tmp_path, existing):
    content = yaml.safe_load(control_plane.kubeconfig.read_text())
    context = content["contexts"][0]["context"]
    names = write(
        tmp_path / "names" / "config",
        {
            "current-context": "mine",
            "contexts": [{"name": "mine", "context": context}],
            "clusters": content["clusters"],
        },
    )
    users = write(tmp_path / "users" / "config", {"current-context": "other", "users": content["users"]})
    existing(names, tmp_path / "missing", users)
    async with ControlPlane() as plane:
        assert plane.existing
        assert plane.kubectl[-1] == f"--kubeconfig={plane.kubeconfig}"
        assert plane.kubeconfig.parent.stat().st_mode & 0o077 == 0
        async with connect(kubeconfig=plane.kubeconfig) as client:
            assert await client.get(Namespace, "default")
        merged = plane.kubeconfig
    assert not merged.exists()


async def test_te_1_the_first_file_decides_and_paths_stay_relative_to_their_file(tmp_path, existing):
    first = write(
        tmp_path / "a" / "config",
        {
            "current-context": "one",
            "clusters": [{"name": "c", "cluster": {"server": "https://a", "certificate-authority": "ca.crt"}}],
            "users": [{"name": "u", "user": {"exec": {"command": "./login"}}}],
        },
    )
    second = write(
        tmp_path / "b" / "config",
        {
            "current-context": "two",
            "clusters": [{"name": "c", "cluster": {"server": "https://b"}}],
            "users": [
                {"name": "v", "user": {"client-certificate": "/etc/x.crt", "client-key": "x.key", "tokenFile": "t"}},
                {"name": "w", "user": {"exec": {"command": "aws"}}},
            ],
        },
    )
    existing(first, second)
    async with ControlPlane() as plane:
        merged = yaml.safe_load(plane.kubeconfig.read_text())
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert merged["current-context"] == "one"
    assert merged["clusters"] == [
        {"name": "c", "cluster": {"server": "https://a", "certificate-authority": f"{a}/ca.crt"}}
    ]
    assert [entry["user"] for entry in merged["users"]] == [
        {"exec": {"command": f"{a}/login"}},
        {"client-certificate": "/etc/x.crt", "client-key": f"{b}/x.key", "tokenFile": f"{b}/t"},
        {"exec": {"command": "aws"}},
    ]


async def test_te_1_one_file_of_a_list_that_exists_is_used_as_it_is(control_plane, tmp_path, existing):
    existing(tmp_path / "missing", control_plane.kubeconfig)
    async with ControlPlane() as plane:
        assert plane.kubeconfig == control_plane.kubeconfig


async def test_te_1_what_is_wrong_with_a_list_is_said(tmp_path, existing):
    existing(tmp_path / "x", tmp_path / "y")
    with pytest.raises(ControlPlaneError, match="use `async with"):
        _ = ControlPlane().kubeconfig
    with pytest.raises(ControlPlaneError, match="but there is no such file"):
        await ControlPlane().__aenter__()
    (tmp_path / "x").write_text("[]")
    (tmp_path / "y").write_text("- 1")
    with pytest.raises(ControlPlaneError, match="y is no kubeconfig"):
        await ControlPlane().__aenter__()
    (tmp_path / "y").write_text("{")
    with pytest.raises(ControlPlaneError, match="y cannot be read"):
        await ControlPlane().__aenter__()
