"""What the process does, from flags, configuration file and environment: the later give way to the former (LWS §11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from pyreconcile.certs import TLSOptions
from pyreconcile.client import ConnectOptions
from pyreconcile.election import ElectionOptions, own_namespace
from pyreconcile.manager import ManagerOptions
from pyreconcile.webhook import WebhookOptions
from pyreconcile_controllers.leaderworkerset import Settings
from pyreconcile_controllers.lws_manager.configuration import Configuration, ConfigurationError
from pyreconcile_controllers.lws_manager.flags import Flags
from pyreconcile_controllers.lws_manager.tls import VERSIONS, openssl_ciphers
from pyreconcile_controllers.lws_manager.version import user_agent

T = TypeVar("T")

DEFAULT_NAMESPACE: Final = "lws-system"
"""Where the Lease and the Secret are when the process runs outside a pod; in one they are in its own namespace."""

_WEBHOOK_PORT: Final = 9443
_DEFAULT_QPS: Final = 5.0
_DEFAULT_BURST: Final = 10
"""What client-go takes 0 for (``DefaultQPS`` and ``DefaultBurst`` in its rest/config.go)."""
_WORKERS: Final = 4
"""Objects that a controller works on at once; upstream's has one, but a thread of its own for each."""


@dataclass(frozen=True, kw_only=True)
class CertificatePlace:
    """The Secret of the webhooks' certificate, and the Service that it is made for."""

    namespace: str
    secret: str
    service: str

    @property
    def host(self) -> str:
        """The name by which the API server reaches the webhooks."""
        return f"{self.service}.{self.namespace}.svc"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run, and how.

    Attributes:
        manager: options of the manager; those of the webhooks are in ``webhook``.
        settings: those of LeaderWorkerSet's controllers.
        webhook: how webhooks are served; None when they are not.
        certificates: where the webhooks' certificate is kept; None when others provide it.
    """

    manager: ManagerOptions
    settings: Settings
    webhook: WebhookOptions | None
    certificates: CertificatePlace | None


def make_plan(
    flags: Flags, configuration: Configuration, environment: Mapping[str, str], *, namespace: str | None = None
) -> Plan:
    """Return what to run.

    Args:
        flags: win where they are given.
        configuration: what the file says.
        environment: ``ENABLE_WEBHOOKS=false`` turns the webhooks off; for the rest see `Settings.from_environment`.
        namespace: of Lease and Secret; by default the pod's own, else `DEFAULT_NAMESPACE`.

    Raises:
        ConfigurationError: values are not usable, or do not fit together; the message names them.
    """
    namespace = namespace or own_namespace() or DEFAULT_NAMESPACE
    try:
        return _plan(flags, configuration, environment, namespace)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _plan(flags: Flags, configuration: Configuration, environment: Mapping[str, str], namespace: str) -> Plan:
    tls = configuration.tls
    version = VERSIONS[tls.min_version or "VersionTLS12"]
    ciphers = openssl_ciphers(tls.cipher_suites)
    serves = environment.get("ENABLE_WEBHOOKS") != "false"
    internal = configuration.internal_cert_management
    qps = _first(flags.kube_api_qps, configuration.client_connection.qps) or _DEFAULT_QPS
    burst = _first(flags.kube_api_burst, configuration.client_connection.burst) or _DEFAULT_BURST
    if burst < 0:
        raise ConfigurationError(f"kube-api-burst: must not be below 0, and is {burst}")
    webhook = None
    if serves:
        server = configuration.webhook
        webhook = WebhookOptions(
            bind_address=f"{_bracketed(server.host)}:{server.port or _WEBHOOK_PORT}",
            cert_dir=server.cert_dir,
            minimum_version=version,
            ciphers=ciphers,
        )
    manager = ManagerOptions(
        connect=ConnectOptions(
            kubeconfig=flags.kubeconfig or None,
            user_agent=user_agent(environment),
            qps=qps if qps > 0 else None,
            burst=burst,
        ),
        leader_election=_election(flags, configuration, namespace),
        metrics_bind_address=_first(flags.metrics_bind_address, configuration.metrics.bind_address),
        metrics_tls=TLSOptions(minimum_version=version, ciphers=ciphers),
        metrics_authorization=True,
        health_probe_bind_address=_first(
            flags.health_probe_bind_address, configuration.health.health_probe_bind_address
        ),
        liveness_endpoint=_endpoint(configuration.health.liveness_endpoint_name),
        readiness_endpoint=_endpoint(configuration.health.readiness_endpoint_name),
        webhook=webhook,
        max_concurrent_reconciles=_WORKERS,
        handle_signals=True,
    )
    return Plan(
        manager=manager,
        settings=_settings(configuration, environment),
        webhook=webhook,
        certificates=CertificatePlace(
            namespace=namespace, secret=internal.webhook_secret_name, service=internal.webhook_service_name
        )
        if serves and internal.enable
        else None,
    )


def _election(flags: Flags, configuration: Configuration, namespace: str) -> ElectionOptions | None:
    election = configuration.leader_election
    if not _first(flags.leader_elect, election.leader_elect):
        return None
    lock = _first(flags.leader_elect_resource_lock, election.resource_lock)
    if lock != "leases":
        raise ConfigurationError(f"leaderElection.resourceLock: must be 'leases', not {lock!r}: no other kind exists")
    return ElectionOptions(
        name=_first(flags.leader_elect_resource_name, election.resource_name),
        namespace=namespace,
        lease_duration=_first(flags.leader_elect_lease_duration, election.lease_duration),
        renew_deadline=_first(flags.leader_elect_renew_deadline, election.renew_deadline),
        retry_period=_first(flags.leader_elect_retry_period, election.retry_period),
    )


def _settings(configuration: Configuration, environment: Mapping[str, str]) -> Settings:
    if configuration.scheduler_provider is None:
        return Settings.from_environment(environment)
    return Settings.from_environment(
        {**environment, "LEADERWORKERSET_SCHEDULER_PROVIDER": configuration.scheduler_provider}
    )


def _first(flag: T | None, otherwise: T) -> T:
    return otherwise if flag is None else flag


def _endpoint(name: str) -> str:
    return name if name.startswith("/") else f"/{name}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
