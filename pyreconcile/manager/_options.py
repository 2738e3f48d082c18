"""What a manager is configured with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyreconcile.api import KubeObject
from pyreconcile.cache import CacheOptions
from pyreconcile.certs import TLSOptions
from pyreconcile.client import ConnectOptions
from pyreconcile.election import ElectionOptions
from pyreconcile.events import EventsApi
from pyreconcile.manager._http import parse_address
from pyreconcile.webhook import WebhookOptions

_ENDPOINT = re.compile(r"(/[A-Za-z0-9._~-]+)+")


@dataclass(frozen=True, kw_only=True)
class ManagerOptions:
    """How a manager runs.

    Addresses are ``HOST:PORT`` or ``:PORT`` for every interface; port 0 lets the system choose, and ``0`` or an empty
    text turns the server off.

    Args:
        connect: how to reach the API server.
        cache: what is cached.
        uncached: kinds that clients read from the server all the same; a base such as ``Unstructured`` stands for all
            its classes (rule CL-1).
        leader_election: takes part in an election when given; without it this process acts at once.
        metrics_bind_address: where ``/metrics`` is served (default ``:8080``; rule MG-9).
        metrics_tls: serves the metrics over TLS when given. Without a ``cert_dir``, the files in
            ``k8s-metrics-server/serving-certs`` below the temporary folder are used, or a certificate is made.
        metrics_authorization: whether a caller must send a bearer token whose owner may ``get`` the path; the API
            server is asked, for which the account needs the ClusterRole ``system:auth-delegator`` (rule MG-10).
            Only with ``metrics_tls``: others could read the tokens.
        health_probe_bind_address: where ``/healthz`` and ``/readyz`` are served (default ``:8081``).
        liveness_endpoint, readiness_endpoint: the paths of the two probes.
        debug_bind_address: where tasks, memory, queues and informers of this process are shown (off by default; rule
            MG-11). Whoever reaches it sees them, so name a host that is local: ``127.0.0.1:6060``.
        events_api: how events are written: ``events.k8s.io/v1`` (the default), or ``v1`` for the older ones of core,
            which some tools still look for alone (rules EV-1, EV-2).
        webhook: serves admission webhooks when given.
        graceful_shutdown_timeout: seconds that everything has to end in good order; 0 does not wait, a negative
            number waits for ever (default 30; rule MG-5).
        max_concurrent_reconciles: the default for all controllers.
        max_concurrent_reconciles_by_kind: defaults by ``Kind.group`` (``Kind`` for core) of a controller's own kind.
        skip_name_validation: whether controllers may have the name of another one of this process (rule RC-7).
        handle_signals: whether SIGTERM and SIGINT stop the manager; only on the main thread (rule MG-7).

    Raises:
        ValueError: a value is not usable; the message names the field.
    """

    connect: ConnectOptions = field(default_factory=ConnectOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    uncached: Sequence[type[KubeObject]] = ()
    leader_election: ElectionOptions | None = None
    metrics_bind_address: str = ":8080"
    metrics_tls: TLSOptions | None = None
    metrics_authorization: bool = False
    health_probe_bind_address: str = ":8081"
    liveness_endpoint: str = "/healthz"
    readiness_endpoint: str = "/readyz"
    debug_bind_address: str = "0"
    events_api: EventsApi = "events.k8s.io/v1"
    webhook: WebhookOptions | None = None
    graceful_shutdown_timeout: float = 30.0
    max_concurrent_reconciles: int = 1
    max_concurrent_reconciles_by_kind: Mapping[str, int] = field(default_factory=dict)
    skip_name_validation: bool = False
    handle_signals: bool = False

    def __post_init__(self) -> None:
        parse_address("metrics_bind_address", self.metrics_bind_address)
        parse_address("health_probe_bind_address", self.health_probe_bind_address)
        parse_address("debug_bind_address", self.debug_bind_address)
        for name in ("liveness_endpoint", "readiness_endpoint"):
            if not _ENDPOINT.fullmatch(path := getattr(self, name)):
                raise ValueError(f"{name}: {path!r} is no path; write it as in '/healthz'")
        if self.liveness_endpoint == self.readiness_endpoint:
            raise ValueError(f"readiness_endpoint: {self.readiness_endpoint!r} is the liveness_endpoint already")
        if self.events_api not in ("events.k8s.io/v1", "v1"):
            raise ValueError(f"events_api: must be 'events.k8s.io/v1' or 'v1', not {self.events_api!r}")
        if self.metrics_authorization and self.metrics_tls is None:
            raise ValueError(
                "metrics_authorization: needs metrics_tls, because callers send their tokens; "
                "metrics_tls=TLSOptions() makes a certificate"
            )
        if self.max_concurrent_reconciles < 1:
            raise ValueError(f"max_concurrent_reconciles: must be at least 1, not {self.max_concurrent_reconciles}")
        for kind, number in self.max_concurrent_reconciles_by_kind.items():
            if number < 1:
                raise ValueError(f"max_concurrent_reconciles_by_kind: {kind!r} must be at least 1, not {number}")
