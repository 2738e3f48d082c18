"""`pyreconcile up`, `down` and `status`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest


@pytest.fixture
def command(tmp_path):
    """Run the real command in a process of its own; whatever it leaves is ended."""

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "pyreconcile", *arguments, "--dir", "plane"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    yield run
    run("down")


def test_up_stays_until_down(control_plane, command, tmp_path, gone):
    kubeconfig = str(tmp_path / "plane" / "kubeconfig")
    assert command("status").returncode == 1
    up = command("up", "--nodes", "1", "--feature-gates", "GenericWorkload=true")
    assert (up.returncode, up.stdout) == (0, f"{kubeconfig}\n"), up.stderr

    status = command("status")
    assert status.returncode == 0, status.stdout
    rows = {row.split()[0]: row.split()[1:] for row in status.stdout.splitlines()[1:6]}
    assert set(rows) == {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"}
    assert all(row[2] == "yes" for row in rows.values())
    kubectl = [str(tmp_path / "plane" / "bin" / "kubectl"), "--kubeconfig", kubeconfig]
    nodes = subprocess.run([*kubectl, "get", "nodes", "-o", "name"], capture_output=True, text=True, check=True)
    assert nodes.stdout == "node/node-0\n"
    gangs = subprocess.run([*kubectl, "get", "podgroups.scheduling.k8s.io"], capture_output=True, text=True, check=True)
    assert "No resources found" in gangs.stderr  # the gate brought its API along

    again = command("up")
    assert (again.returncode, again.stdout) == (0, f"{kubeconfig}\n")
    assert "already running" in again.stderr

    os.kill(int(rows["kube-scheduler"][0]), signal.SIGKILL)
    assert gone(int(rows["kube-scheduler"][0]))
    status = command("status")
    assert status.returncode == 1
    assert "no" in next(line for line in status.stdout.splitlines() if line.startswith("kube-scheduler"))

    down = command("down")
    assert (down.returncode, down.stdout) == (0, "stopped the control plane in plane\n"), down.stderr
    assert all(gone(int(row[0]), 0) for row in rows.values())
    assert command("status").returncode == 1
    assert command("down").stdout == "no control plane runs in plane\n"


def test_a_stale_state_file_is_no_running_plane(command, tmp_path):
    (tmp_path / "plane").mkdir()
    state = {"supervisor": os.getpid(), "components": []}
    (tmp_path / "plane" / "plane.json").write_text(json.dumps(state))
    assert command("status").returncode == 1
    assert command("down").stdout == "no control plane runs in plane\n"


def test_a_wrong_gate_is_named(command):
    answer = command("up", "--feature-gates", "GenericWorkload")
    assert answer.returncode == 2
    assert "'GenericWorkload'" in answer.stderr


def test_a_failed_up_says_why_and_leaves_nothing(control_plane, command, tmp_path):
    answer = command("up", "--feature-gates", "NoSuchGate=true")
    assert answer.returncode == 1
    assert "unrecognized feature gate: NoSuchGate" in answer.stderr
    assert command("status").returncode == 1
