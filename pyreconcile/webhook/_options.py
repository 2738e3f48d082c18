"""How the webhook server listens, and under which paths (rules WH-1 and WH-2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyreconcile.api import KubeObject, RawObject, Resource
from pyreconcile.certs import CertificateSource, TLSOptions, TLSVersion

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT", "*"]

CONVERSION_PATH = "/convert"
"""The path of all conversion webhooks (rule WH-2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReference:
    """The Service through which an API server reaches webhooks inside the cluster."""

    namespace: str
    name: str
    port: int = 443


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """How the webhook server listens and what certificate it shows.

    Args:
        bind_address: ``host:port``; an empty host is every interface, port 0 lets the kernel choose. ``0``, ``-1`` or
            an empty text turns the server off (rule WH-1).
        cert_dir: folder with certificate and key (and ``ca.crt``, if it is to go into webhook configurations), taken
            up anew when they change. Without it ``k8s-webhook-server/serving-certs`` below the temporary folder is
            used if it has the files; else a CA and a certificate are made at start.
        cert_name: file of the certificate in that folder.
        key_name: file of the private key in that folder.
        hosts: names and addresses that the made certificate is good for; those of ``service`` are added.
        service: the Service in front of this server, when the manager runs inside the cluster.
        client_ca: file with the CA of client certificates; when given, clients must show one.
        minimum_version: the oldest version of TLS that is spoken.
        ciphers: what may be used with TLS 1.2, as OpenSSL names it.
        certificates: where the certificate comes from, in place of ``cert_dir`` and of one made here.

    Raises:
        ValueError: a value is not of that form; the message names the field.
    """

    bind_address: str = ":9443"
    cert_dir: Path | str | None = None
    cert_name: str = "tls.crt"
    key_name: str = "tls.key"
    hosts: Sequence[str] = ("localhost", "127.0.0.1", "::1")
    service: ServiceReference | None = None
    client_ca: Path | str | None = None
    minimum_version: TLSVersion = "TLSv1.2"
    ciphers: str | None = None
    certificates: CertificateSource | None = None

    def __post_init__(self) -> None:
        split_address(self.bind_address)
        self.tls  # noqa: B018 - checks the names

    @property
    def tls(self) -> TLSOptions:
        """What of it is about the certificate."""
        return TLSOptions(
            cert_dir=self.cert_dir,
            cert_name=self.cert_name,
            key_name=self.key_name,
            hosts=self.hosts,
            client_ca=self.client_ca,
            minimum_version=self.minimum_version,
            ciphers=self.ciphers,
        )


def mutating_path(kind: type[KubeObject]) -> str:
    """Return the path of a kind's mutating webhook, as in ``/mutate-apps-v1-deployment`` (rule WH-2)."""
    return f"/mutate-{_suffix(kind.resource)}"


def validating_path(kind: type[KubeObject]) -> str:
    """Return the path of a kind's validating webhook, as in ``/validate--v1-pod`` (rule WH-2)."""
    return f"/validate-{_suffix(kind.resource)}"


def _suffix(resource: Resource) -> str:
    return f"{resource.group.replace('.', '-')}-{resource.version}-{resource.kind.lower()}"


def service_hosts(service: ServiceReference | None) -> list[str]:
    if service is None:
        return []
    short = f"{service.name}.{service.namespace}.svc"
    return [short, f"{short}.cluster.local", f"{service.name}.{service.namespace}", service.name]


def split_address(address: str) -> tuple[str, int] | None:
    if address in ("", "0", "-1"):
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"bind_address {address!r} must be 'host:port' or ':port', as in ':9443', or '0' for none")
    return host.removeprefix("[").removesuffix("]"), int(port)


def rule_for(kind: type[KubeObject], operations: Sequence[Operation], *, sub_resource: str = "") -> RawObject:
    """Return the rule that names the resource of a kind, or a sub-resource of it, in webhooks and policies."""
    resource = kind.resource
    return {
        "apiGroups": [resource.group],
        "apiVersions": [resource.version],
        "resources": [f"{resource.plural}/{sub_resource}" if sub_resource else resource.plural],
        "operations": list(operations),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
    }
