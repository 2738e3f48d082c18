"""What an election is configured with, checked when it is built (rule LE-2)."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where a pod finds its own namespace."""

JITTER: Final = 1.2
"""How far a wait between tries is stretched at random, as a fraction of the retry period (rule LE-3)."""


def default_identity() -> str:
    """Return an identity no other process has: ``hostname_uuid``."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


@dataclass(frozen=True, kw_only=True)
class ElectionOptions:
    """How to take part in an election; times are in seconds.

    Args:
        name: the Lease's name, the same in all replicas.
        namespace: the Lease's namespace; by default the pod's own.
        identity: this process's name in the Lease; by default ``hostname_uuid``.
        lease_duration: how long the others wait after the last renewal they saw; whole seconds (default 15).
        renew_deadline: how long after its last renewal the leader goes on acting (default 10).
        retry_period: the wait between two tries (default 2).
        release_on_cancel: whether a leader that stops empties the Lease, so that another one leads at once instead of
            after a lease duration (default yes; rule LE-6).
        labels: labels to set on the Lease (rule LE-10).
        health_tolerance: how long after the lease ran out the health check still holds (default 20; rule LE-9).

    Raises:
        ValueError: a value is missing or the times do not fit together; the message names the field.
    """

    name: str
    namespace: str = ""
    identity: str = field(default_factory=default_identity)
    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    release_on_cancel: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    health_tolerance: float = 20.0

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name: an election needs the name of its Lease, the same in all replicas")
        if not self.namespace:
            object.__setattr__(self, "namespace", own_namespace())
        if not self.namespace:
            raise ValueError("namespace: this process runs outside a cluster; say which namespace holds the Lease")
        if not self.identity:
            raise ValueError("identity: must not be empty; leave it out to use hostname_uuid")
        if self.lease_duration < 1 or self.lease_duration != int(self.lease_duration):
            raise ValueError(f"lease_duration: the Lease holds whole seconds, at least 1, not {self.lease_duration:g}")
        if self.retry_period <= 0:
            raise ValueError(f"retry_period: must be above 0 seconds, not {self.retry_period:g}")
        if self.renew_deadline <= self.retry_period * JITTER:
            raise ValueError(
                f"renew_deadline: must be above {JITTER:g} times the retry_period of {self.retry_period:g} s, "
                f"not {self.renew_deadline:g} s; else the first lost request ends leadership"
            )
        if self.lease_duration <= self.renew_deadline:
            raise ValueError(
                f"lease_duration: must be above the renew_deadline of {self.renew_deadline:g} s, "
                f"not {self.lease_duration:g} s; else another may lead before this one stopped"
            )
        if self.health_tolerance < 0:
            raise ValueError(f"health_tolerance: must not be negative, not {self.health_tolerance:g}")

    @property
    def request_timeout(self) -> float:
        """Seconds one request for the Lease may take: half the renew deadline, at least 1 (rule LE-2)."""
        return max(1.0, self.renew_deadline / 2)

    @property
    def release_timeout(self) -> float:
        """Seconds that emptying the Lease may take at the end: the renew deadline, at most 3.

        The last events have 2 s after that, so a server that cannot be reached delays an exit by 5 s in all.
        """
        return min(3.0, self.renew_deadline)


def own_namespace() -> str:
    """Return the namespace of the pod that this process runs in; empty outside a cluster."""
    try:
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
