"""The command lines of the control plane's components, and the small files they want."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from pyreconcile.certs import CertificateAuthority, KeyPair

from ._errors import ControlPlaneError
from ._programs import COMPONENTS

__all__ = [
    "HOST",
    "Layout",
    "Ports",
    "Tuning",
    "command_lines",
    "kubeconfig_text",
    "node",
    "write_files",
    "write_private",
]

HOST = "127.0.0.1"
LOCK = ".pyreconcile-plane.lock"
STAGES = Path(__file__).with_name("stages.yaml")
_SERVED = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_GANG_GATE = "GenericWorkload"
_GANG_API = "scheduling.k8s.io/v1beta1"


class Ports:
    """Ports of the loopback interface, chosen by the kernel and held for the life of the plane.

    Each is bound here without listening, and the component binds it too (SO_REUSEPORT), so no other process can get
    hold of it in between, or while a component restarts (TE-2).
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.by_name: dict[str, int] = {}
        for name in _SERVED:
            held = self._stack.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((HOST, 0))
            self.by_name[name] = held.getsockname()[1]

    def __getitem__(self, name: str) -> int:
        return self.by_name[name]

    def close(self) -> None:
        """Give the ports back."""
        self._stack.close()


@dataclass(frozen=True)
class Layout:
    """Where the files of a plane are."""

    root: Path

    @classmethod
    def at(cls, directory: Path) -> Layout:
        """The layout of a directory, which may be relative."""
        return cls(directory.absolute())

    def check_ours(self) -> None:
        """Refuse a directory with files of somebody else: ``clear`` would remove some. Raises ControlPlaneError."""
        if not self.lock.exists() and any(self.root.iterdir()):
            raise ControlPlaneError(f"{self.root} is not empty and is no control plane's directory: choose another")

    def clear(self) -> None:
        """Remove what an earlier plane left."""
        self.state.unlink(missing_ok=True)
        for leftover in ("etcd", "logs", "pki", "users"):
            shutil.rmtree(self.root / leftover, ignore_errors=True)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.root / "kubeconfig"

    @property
    def state(self) -> Path:
        """What a detached plane says about itself."""
        return self.root / "plane.json"

    @property
    def lock(self) -> Path:
        """Locked for as long as the plane runs."""
        return self.root / LOCK

    def log(self, component: str) -> Path:
        """A component's log file."""
        return self.root / "logs" / f"{component}.log"

    def pki(self, name: str) -> Path:
        """A certificate or key."""
        return self.root / "pki" / name


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What the user asks of the components."""

    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    runtime_config: Mapping[str, bool] = field(default_factory=dict)
    extra_args: Mapping[str, Sequence[str]] = field(default_factory=dict)
    extra_stages: Sequence[Path] = ()

    def __post_init__(self) -> None:
        unknown = set(self.extra_args) - set(COMPONENTS)
        if unknown:
            raise ValueError(f"extra_args names no component: {sorted(unknown)}; the components are {COMPONENTS}")


def kubeconfig_text(url: str, ca: bytes, user: str, pair: KeyPair) -> str:
    """A kubeconfig that needs no other file."""

    def b64(data: bytes) -> str:
        return base64.b64encode(data).decode()

    cluster = {"server": url, "certificate-authority-data": b64(ca)}
    login = {"client-certificate-data": b64(pair.certificate), "client-key-data": b64(pair.key)}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "pyreconcile", "cluster": cluster}],
            "users": [{"name": user, "user": login}],
            "contexts": [{"name": "pyreconcile", "context": {"cluster": "pyreconcile", "user": user}}],
            "current-context": "pyreconcile",
        },
        sort_keys=False,
    )


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file that only its owner may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def write_files(layout: Layout, authority: CertificateAuthority, url: str) -> None:
    """Write certificates, the administrator's kubeconfig and the scheduler's configuration."""
    server = authority.issue(
        [HOST, "localhost", "10.0.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    )
    tokens = ec.generate_private_key(ec.SECP256R1())
    for name, content in {
        "ca.crt": authority.certificate,
        "server.crt": server.certificate,
        "server.key": server.key,
        "sa.pub": tokens.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "sa.key": tokens.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    }.items():
        write_private(layout.pki(name), content)
    admin = authority.issue_client("admin", ["system:masters"])
    write_private(layout.pki("admin.pem"), admin.certificate + admin.key)
    write_private(layout.kubeconfig, kubeconfig_text(url, authority.certificate, "admin", admin))
    scheduler = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(layout.kubeconfig), "qps": 1000, "burst": 2000},
        "leaderElection": {"leaderElect": False},
        # The default waits up to 10 s before an unschedulable pod is tried again: long for a test.
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
    }
    write_private(layout.root / "scheduler.yaml", json.dumps(scheduler))
    (layout.root / "logs").mkdir(exist_ok=True)


def _gates(tuning: Tuning) -> list[str]:
    gates = ",".join(f"{name}={str(on).lower()}" for name, on in sorted(tuning.feature_gates.items()))
    return [f"--feature-gates={gates}"] if gates else []


def command_lines(layout: Layout, ports: Ports, tuning: Tuning) -> dict[str, list[str]]:
    """Each component's flags (TE-3). Gates go to all three Kubernetes components: half of a gate is worse than none."""
    gates = _gates(tuning)
    runtime = dict(tuning.runtime_config)
    if tuning.feature_gates.get(_GANG_GATE):
        runtime.setdefault(_GANG_API, True)
    runtime_text = ",".join(f"{name}={str(on).lower()}" for name, on in sorted(runtime.items()))
    etcd_url = f"http://{HOST}:{ports['etcd']}"
    serving = [
        f"--tls-cert-file={layout.pki('server.crt')}",
        f"--tls-private-key-file={layout.pki('server.key')}",
        f"--bind-address={HOST}",
        "--permit-port-sharing=true",
        "--profiling=false",
    ]
    lines = {
        "etcd": [
            f"--data-dir={layout.root / 'etcd'}",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls=http://{HOST}:0",
            f"--initial-advertise-peer-urls=http://{HOST}:0",
            f"--initial-cluster=default=http://{HOST}:0",
            "--socket-reuse-port",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ],
        "kube-apiserver": [
            f"--etcd-servers={etcd_url}",
            f"--secure-port={ports['kube-apiserver']}",
            *serving,
            # No address of this machine is needed, so a machine without a network will do.
            f"--advertise-address={HOST}",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={layout.root / 'pki'}",
            f"--client-ca-file={layout.pki('ca.crt')}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged=true",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={layout.pki('sa.pub')}",
            f"--service-account-signing-key-file={layout.pki('sa.key')}",
            "--etcd-count-metric-poll-period=0",
            "--etcd-db-metric-poll-interval=0",
            *([f"--runtime-config={runtime_text}"] if runtime_text else []),
            *gates,
        ],
        "kube-controller-manager": [
            f"--kubeconfig={layout.kubeconfig}",
            f"--secure-port={ports['kube-controller-manager']}",
            *serving,
            "--leader-elect=false",
            "--use-service-account-credentials=false",
            f"--service-account-private-key-file={layout.pki('sa.key')}",
            f"--root-ca-file={layout.pki('ca.crt')}",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            *gates,
        ],
        "kube-scheduler": [
            f"--config={layout.root / 'scheduler.yaml'}",
            f"--secure-port={ports['kube-scheduler']}",
            *serving[:-1],
            *gates,
        ],
        "kwok": [
            f"--kubeconfig={layout.kubeconfig}",
            *(f"--config={path}" for path in (STAGES, *tuning.extra_stages)),
            "--manage-all-nodes=true",
            "--node-lease-duration-seconds=40",
        ],
    }
    # Last wins, so the user's flags come last.
    return {name: [*flags, *tuning.extra_args.get(name, ())] for name, flags in lines.items()}


def node(index: int) -> dict[str, Any]:
    """A simulated node: 64 CPUs, 256 GiB, 8 GPUs, pod addresses of its own; two zones in turns."""
    name = f"node-{index}"
    cidr = f"10.{64 + index // 16}.{index % 16 * 16}.0/20"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
                "topology.kubernetes.io/region": "local",
                "topology.kubernetes.io/zone": f"zone-{index % 2}",
            },
        },
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": f"10.63.{index // 250}.{index % 250 + 1}"},
                {"type": "Hostname", "address": name},
            ]
        },
    }
