"""The control plane itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from pyreconcile.api import unstructured
from pyreconcile.api.core_v1 import ConfigMap, Namespace, Node
from pyreconcile.client import ConnectionLostError, ForbiddenError, connect
from pyreconcile.testing import ControlPlane, ControlPlaneError

RoleBinding = unstructured("rbac.authorization.k8s.io/v1", "RoleBinding")


def config_map(namespace, name="a", **metadata):
    return ConfigMap.from_dict({"metadata": {"name": name, "namespace": namespace, **metadata}})


async def test_te_6_serves_with_ready_nodes_and_the_real_version(control_plane, client, eventually):
    version = json.loads(await client.transport.request("GET", "/version"))
    assert version["gitVersion"].startswith("v1.37")

    async def usable():  # a test before this one may have taken a node away
        nodes = await client.list(Node)
        ready = (any(c.type == "Ready" and c.status == "True" for c in node.status.conditions) for node in nodes)
        return nodes and all(ready) and not any(node.spec.taints for node in nodes)

    await eventually(usable)


async def test_te_4_a_user_may_do_only_what_is_bound(own_plane):
    namespace = "users-test"
    admin = connect(kubeconfig=own_plane.kubeconfig)
    user = connect(kubeconfig=await own_plane.add_user("reader", ["team"]))
    async with admin as admin, user as user:
        await admin.create(Namespace.from_dict({"metadata": {"name": namespace}}))
        await admin.create(config_map(namespace))
        with pytest.raises(ForbiddenError, match='User "reader" cannot get resource "configmaps"'):
            await user.get(ConfigMap, f"{namespace}/a")
        binding = {
            "metadata": {"name": "team", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "team"}],
        }
        await admin.create(RoleBinding.from_dict(binding))
        with anyio.fail_after(30):
            while True:  # the authorizer's cache hears of the binding a moment later
                try:
                    assert (await user.get(ConfigMap, f"{namespace}/a")).metadata.name == "a"
                    break
                except ForbiddenError:
                    await anyio.sleep(0.05)
        with pytest.raises(ForbiddenError):
            await user.delete(ConfigMap, f"{namespace}/a")
        await admin.delete(Namespace, namespace)


async def test_te_6_dependents_of_a_deleted_owner_are_collected(client, namespace, eventually):
    owner = await client.create(config_map(namespace, "owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}
    await client.create(config_map(namespace, "child", ownerReferences=[reference]))
    await client.delete(ConfigMap, f"{namespace}/owner")

    async def collected():
        return await client.find(ConfigMap, f"{namespace}/child") is None

    await eventually(collected)


async def test_te_2_two_planes_side_by_side_share_nothing_and_leave_nothing(own_plane, gone):
    async with ControlPlane(use_existing=False) as plane:
        assert plane.url != own_plane.url
        async with connect(kubeconfig=plane.kubeconfig) as one, connect(kubeconfig=own_plane.kubeconfig) as other:
            await one.create(config_map("default", "side-by-side"))
            assert await other.find(ConfigMap, "default/side-by-side") is None
        assert plane.components == ("etcd", "kube-apiserver")
        pids = [plane.pid(name) for name in plane.components]
        directory, kubeconfig = plane.directory, plane.kubeconfig
        assert kubeconfig.stat().st_mode & 0o077 == 0

        # A component can be killed and comes back on its port, with its data.
        await plane.kill("kube-apiserver")
        async with connect(kubeconfig=kubeconfig) as cut_off:
            with pytest.raises(ConnectionLostError):
                await cut_off.get(ConfigMap, "default/side-by-side")
        await plane.restart("kube-apiserver")
        async with connect(kubeconfig=kubeconfig) as again:
            assert (await again.get(ConfigMap, "default/side-by-side")).metadata.name == "side-by-side"
        pids.append(plane.pid("kube-apiserver"))
        assert len(set(pids)) == 3
    assert all(gone(pid, 0) for pid in pids)
    assert not directory.exists()


_OWNER = """
import os
import time
import anyio
from pyreconcile.testing import ControlPlane

async def main():
    async with ControlPlane(use_existing=False) as plane:
        # A child that inherited everything must not keep the plane alive.
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        print(plane.directory, child, *[plane.pid(name) for name in plane.components], flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def test_te_2_killing_the_owner_leaves_nothing(control_plane, gone):  # the fixture builds the programs first
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True) as owner:
        directory, child, *pids = owner.stdout.readline().split()
        assert len(pids) == 2
        owner.kill()
        try:
            assert all(gone(int(pid)) for pid in pids)
            end = time.monotonic() + 30
            while Path(directory).exists():
                assert time.monotonic() < end
                time.sleep(0.02)
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_te_2_killing_the_supervisor_takes_the_components_along(control_plane, gone):
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True) as owner:
        directory, child, *pids = owner.stdout.readline().split()
        status = Path(f"/proc/{pids[0]}/status").read_text()
        supervisor = int(next(line for line in status.splitlines() if line.startswith("PPid")).split()[1])
        assert supervisor not in (1, owner.pid)
        os.kill(supervisor, signal.SIGKILL)
        assert all(gone(int(pid)) for pid in pids)
        os.kill(int(child), signal.SIGKILL)
        owner.kill()
    shutil.rmtree(directory)  # with both gone nobody else does


async def test_te_2_a_failed_start_shows_the_last_log_lines_and_keeps_the_log(control_plane, tmp_path):
    plane = ControlPlane(
        use_existing=False, extra_args={"kube-apiserver": ["--no-such-flag"]}, directory=tmp_path / "p"
    )
    with pytest.raises(ControlPlaneError, match=r"kube-apiserver ended with code 1(.|\n)*unknown flag: --no-such-flag"):
        async with plane:
            pass
    assert "unknown flag" in (tmp_path / "p" / "logs" / "kube-apiserver.log").read_text()


async def test_te_1_the_start_time_limit_is_kept(control_plane):
    with pytest.raises(ControlPlaneError, match=r"not ready within 0.05 s; logs are in (\S+)") as failure:
        async with ControlPlane(use_existing=False, start_timeout=0.05):
            pass
    kept = Path(str(failure.value).split("logs are in ")[1].split()[0]).parent
    assert kept.name.startswith("pyreconcile-plane-")
    shutil.rmtree(kept)


async def test_te_1_an_unknown_component_or_wrong_duration_is_named(monkeypatch, control_plane):
    with pytest.raises(ValueError, match="kube-proxy"):
        async with ControlPlane(use_existing=False, extra_args={"kube-proxy": []}):
            pass
    monkeypatch.setenv("KUBEBUILDER_CONTROLPLANE_START_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="KUBEBUILDER_CONTROLPLANE_START_TIMEOUT='soon'"):
        ControlPlane()
    with pytest.raises(ValueError, match="nodes=-1"):
        ControlPlane(nodes=-1)


async def test_te_1_a_directory_with_other_files_is_refused(control_plane, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "precious").write_text("mine")
    with pytest.raises(ControlPlaneError, match="is not empty"):
        async with ControlPlane(use_existing=False, directory=tmp_path):
            pass
    assert (tmp_path / "logs" / "precious").read_text() == "mine"


async def test_te_1_an_existing_cluster_is_used_and_left_alone(monkeypatch, own_plane):
    monkeypatch.setenv("USE_EXISTING_CLUSTER", "true")
    monkeypatch.setenv("KUBECONFIG", str(own_plane.kubeconfig))
    async with ControlPlane(nodes=2) as plane:
        assert plane.existing
        assert plane.kubeconfig == own_plane.kubeconfig
        assert plane.components == ()
        with pytest.raises(ControlPlaneError, match="started here"):
            await plane.add_user("x")
        with pytest.raises(ControlPlaneError, match="was not started by this control plane"):
            await plane.kill("etcd")
    async with connect(kubeconfig=own_plane.kubeconfig) as client:
        assert await client.get(Namespace, "default")


async def test_te_6_gang_scheduling_gate_brings_its_api(control_plane):
    from pyreconcile.testing._components import Layout, Ports, Tuning, command_lines

    ports = Ports()
    lines = command_lines(Layout(Path("/x")), ports, Tuning(feature_gates={"GenericWorkload": True}))
    ports.close()
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        assert "--feature-gates=GenericWorkload=true" in lines[name]
    assert "--runtime-config=scheduling.k8s.io/v1beta1=true" in lines["kube-apiserver"]
