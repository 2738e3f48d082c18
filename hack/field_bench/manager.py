"""The manager of a program under test: it serves nothing, sees one namespace, and ends on SIGTERM."""

from __future__ import annotations

from pyreconcile import ManagerOptions
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import CacheOptions, KindOptions
from pyreconcile.client import ConnectOptions
from pyreconcile.election import ElectionOptions


def config_maps_of(namespace: str) -> CacheOptions:
    """Return options for one namespace without the ConfigMap that every namespace is given."""
    others = KindOptions(fields="metadata.name!=kube-root-ca.crt")
    return CacheOptions(namespaces=(namespace,), by_kind={ConfigMap: others})


def manager_options(
    kubeconfig: str, cache: CacheOptions, *, leader_election: ElectionOptions | None = None
) -> ManagerOptions:
    """Return the options of the manager."""
    return ManagerOptions(
        connect=ConnectOptions(kubeconfig=kubeconfig),
        cache=cache,
        leader_election=leader_election,
        metrics_bind_address="0",
        health_probe_bind_address="0",
        handle_signals=True,
    )
