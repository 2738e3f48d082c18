"""The configuration file of upstream's manager: ``config.lws.x-k8s.io/v1alpha1``, kind Configuration (LWS §11).

Reading is strict: a field that does not exist, one that is there twice, or one of another type is an error. What is
missing, empty or null has its default.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from pyreconcile_controllers.leaderworkerset import SchedulerProvider
from pyreconcile_controllers.lws_manager.durations import parse_duration
from pyreconcile_controllers.lws_manager.tls import VERSIONS, openssl_ciphers

API_VERSION: Final = "config.lws.x-k8s.io/v1alpha1"
KIND: Final = "Configuration"

# api/config/v1alpha1/defaults.go
CERT_DIR: Final = "/tmp/k8s-webhook-server/serving-certs"  # noqa: S108 - where upstream's manifests mount the Secret
LEASE: Final = "b8b2488c.x-k8s.io"
SERVICE: Final = "lws-webhook-service"
SECRET: Final = "lws-webhook-server-cert"  # noqa: S105 - the name of a Secret

PROVIDERS: Final[tuple[str, ...]] = get_args(SchedulerProvider)

_SERVICE_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_SECRET_NAME: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class ConfigurationError(ValueError):
    """The configuration cannot be used; the message names the fields."""


class _Section(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True, frozen=True)


def _duration(value: Any) -> float:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no duration: write a number with a unit, as in '15s'")
    return parse_duration(value)


Seconds = Annotated[float, BeforeValidator(_duration)]
"""A duration in Go's form."""


class Webhook(_Section):
    """Where webhooks are served."""

    port: Annotated[int, Field(ge=0, le=65535)] = 9443
    host: str = ""
    cert_dir: str = CERT_DIR


class LeaderElection(_Section):
    """The election; times are in seconds."""

    leader_elect: bool = True
    lease_duration: Seconds = 15.0
    renew_deadline: Seconds = 10.0
    retry_period: Seconds = 2.0
    resource_lock: str = "leases"
    resource_name: str = LEASE
    resource_namespace: str = ""


class Metrics(_Section):
    """Where metrics are served; ``0`` turns them off."""

    bind_address: str = ":8443"


class Health(_Section):
    """Where the probes are served; ``0`` turns them off."""

    health_probe_bind_address: str = ":8081"
    readiness_endpoint_name: str = "/readyz"
    liveness_endpoint_name: str = "/healthz"


class TLS(_Section):
    """What the servers of webhooks and metrics speak."""

    min_version: str = ""
    cipher_suites: tuple[str, ...] = ()


class InternalCertManagement(_Section):
    """Whether the manager makes the certificate of its webhooks, and for which Service and in which Secret."""

    enable: bool = True
    webhook_service_name: str = SERVICE
    webhook_secret_name: str = SECRET


class GangSchedulingManagement(_Section):
    """Who places groups whole."""

    scheduler_provider: str = ""


class ClientConnection(_Section):
    """Limits of the requests to the API server."""

    qps: float = 500.0
    burst: int = 500


class Configuration(_Section):
    """The whole file."""

    api_version: str = API_VERSION
    kind: str = KIND
    webhook: Webhook = Webhook()
    leader_election: LeaderElection = LeaderElection()
    metrics: Metrics = Metrics()
    health: Health = Health()
    tls: TLS = TLS()
    internal_cert_management: InternalCertManagement = InternalCertManagement()
    gang_scheduling_management: GangSchedulingManagement | None = None
    client_connection: ClientConnection = ClientConnection()

    @property
    def scheduler_provider(self) -> SchedulerProvider | None:
        """Who places groups whole; None when nobody does."""
        gang = self.gang_scheduling_management
        return None if gang is None else gang.scheduler_provider  # type: ignore[return-value] # _check has seen it


class _StrictLoader(yaml.SafeLoader):
    """Takes no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise ConfigurationError(f"line {key.start_mark.line + 1}: field {key.value!r} is there already")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def load_configuration(path: str | None) -> Configuration:
    """Read a file; without one, return the defaults.

    Raises:
        OSError: the file cannot be read.
        ConfigurationError: it is not of the form, or says what cannot be; the message begins with the path.
    """
    if not path:
        return Configuration()
    try:
        return parse_configuration(Path(path).read_bytes())
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def parse_configuration(content: bytes | str) -> Configuration:
    """Read YAML or JSON.

    Raises:
        ConfigurationError: it is not of the form, or says what cannot be.
    """
    try:
        documents = [found for found in yaml.load_all(content, _StrictLoader) if found is not None]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"this is no YAML: {' '.join(str(error).split())}") from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise ConfigurationError("this must be one document with fields at its top")
    raw = documents[0]
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if raw.get(field) != wanted:
            raise ConfigurationError(f"{field}: must be {wanted!r}, not {raw.get(field)!r}")
    try:
        configuration = Configuration.model_validate(_without_zeros(raw))
    except ValidationError as error:
        raise ConfigurationError("; ".join(_texts(error))) from None
    errors = _check(configuration)
    if errors:
        raise ConfigurationError("; ".join(errors))
    return configuration


def _without_zeros(raw: dict[str, Any]) -> dict[str, Any]:
    """Leave out what Go takes for not given: null, empty texts, and durations of nothing."""
    return {
        key: _without_zeros(value) if isinstance(value, dict) else tuple(value) if isinstance(value, list) else value
        for key, value in raw.items()
        if value is not None and value != "" and not _is_zero_duration(key, value)
    }


def _is_zero_duration(key: str, value: Any) -> bool:
    return key in ("leaseDuration", "renewDeadline", "retryPeriod") and value in ("0", "0s")


def _texts(error: ValidationError) -> list[str]:
    texts = []
    for one in error.errors(include_url=False):
        path = ".".join(map(str, one["loc"]))
        if one["type"] == "extra_forbidden":
            texts.append(f"unknown field {path!r}")
        else:
            texts.append(f"{path}: {one['msg'].removeprefix('Value error, ')}")
    return texts


def _check(configuration: Configuration) -> list[str]:
    errors = []
    gang = configuration.gang_scheduling_management
    if gang is not None:
        if not gang.scheduler_provider:
            errors.append("gangSchedulingManagement.schedulerProvider: must be set when gang scheduling is enabled")
        elif gang.scheduler_provider not in PROVIDERS:
            known = " or ".join(map(repr, PROVIDERS))
            errors.append(
                f"gangSchedulingManagement.schedulerProvider: must be {known}, not {gang.scheduler_provider!r}"
            )
    certificates = configuration.internal_cert_management
    if certificates.enable:
        if not _SERVICE_NAME.fullmatch(certificates.webhook_service_name):
            errors.append(
                f"internalCertManagement.webhookServiceName: {certificates.webhook_service_name!r} is no DNS-1035 label"
            )
        if not _SECRET_NAME.fullmatch(certificates.webhook_secret_name):
            errors.append(
                f"internalCertManagement.webhookSecretName: {certificates.webhook_secret_name!r} is no DNS-1123 name"
            )
    if configuration.client_connection.burst < 0:
        errors.append(f"clientConnection.burst: must not be below 0, and is {configuration.client_connection.burst}")
    return errors + _check_tls(configuration.tls)


def _check_tls(tls: TLS) -> list[str]:
    errors = []
    if tls.min_version and tls.min_version not in VERSIONS:
        errors.append(f"tls.minVersion: must be {' or '.join(VERSIONS)}, not {tls.min_version!r}")
    if tls.min_version == "VersionTLS13" and tls.cipher_suites:
        errors.append("tls.cipherSuites: may not be given with minVersion VersionTLS13, which has its own")
    try:
        openssl_ciphers(tls.cipher_suites)
    except ValueError as error:
        errors.append(f"tls.cipherSuites: {error}")
    return errors
