"""What an operator sets for all InferenceServices of a manager."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from pyreconcile_controllers.environment import read_fields

PREFIX: Final = "INFERENCESERVICE_"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where services are reachable, and how patient a rollout is.

    Args:
        gateway: the Gateway that routes attach to, as ``namespace/name``.
        ingress_domain: the domain under which each service gets a host, ``<name>-<namespace>.<domain>``.
        url_scheme: ``http`` or ``https``, in the URLs of the status.
        storage_initializer: image of the init container that fetches a model.
        progress_deadline: seconds that a revision may take to make progress before it has failed (KServe §1.9 item 4).
        propagation: seconds until every proxy has learnt of new weights or endpoints. Pods that lost their traffic
            are kept this long and their own grace period in addition (KServe §1.9 item 7).
        discovery_period: seconds between two looks whether the cluster has HTTPRoutes.
        ready_follows_candidate: whether a new revision that is not ready makes the whole service not ready, as with
            Knative. By default Ready speaks of the revisions that serve, and LatestDeploymentReady of the new one.
    """

    gateway: str = "kserve/kserve-ingress-gateway"
    ingress_domain: str = "example.com"
    url_scheme: str = "http"
    storage_initializer: str = "kserve/storage-initializer:v0.20.0"
    progress_deadline: int = 600
    propagation: float = 5.0
    discovery_period: float = 10.0
    ready_follows_candidate: bool = False

    def __post_init__(self) -> None:
        namespace, _, name = self.gateway.partition("/")
        if not (namespace and name) or "/" in name:
            raise ValueError(f"gateway: {self.gateway!r} is not of the form namespace/name")
        if self.url_scheme not in ("http", "https"):
            raise ValueError(f"url_scheme: must be 'http' or 'https', not {self.url_scheme!r}")
        if self.progress_deadline < 1:
            raise ValueError(f"progress_deadline: must be at least 1 second, not {self.progress_deadline}")
        if self.propagation < 0:
            raise ValueError(f"propagation: must not be negative, and is {self.propagation}")
        if self.discovery_period <= 0:
            raise ValueError(f"discovery_period: must be above 0 seconds, and is {self.discovery_period}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the settings from variables such as ``INFERENCESERVICE_GATEWAY``; those not set keep their default.

        Raises:
            ValueError: a value cannot be used; the message names the variable or the setting.
        """
        return cls(**read_fields(cls, PREFIX, environment))
