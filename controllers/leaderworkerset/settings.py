"""What an operator sets for all LeaderWorkerSets of a manager."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

from pyreconcile_controllers.environment import read_fields

PREFIX: Final = "LEADERWORKERSET_"

SchedulerProvider = Literal["volcano", "kubernetes"]
"""Who places a group whole or not at all: Volcano, or kube-scheduler itself (scheduling.k8s.io)."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Which scheduler places groups whole, and how patient the controllers are.

    Args:
        scheduler_provider: makes a PodGroup for every group and names it in the pods; None places pods one by one.
        waiting_event_after: seconds that a rollout may wait for one group before an event says so; 0 emits none.
        upstream_surge: makes and removes surge groups as the Go controller does: also for a new set with a partition,
            until the partition is back at 0, and whether or not the other groups are ready. Else there are surge groups
            only while groups move. Groups that are not ready count in an update as they do there, too.

    Raises:
        ValueError: a value cannot be used; the message names the field.
    """

    scheduler_provider: SchedulerProvider | None = None
    waiting_event_after: float = 60.0
    upstream_surge: bool = False

    def __post_init__(self) -> None:
        if self.scheduler_provider is not None and self.scheduler_provider not in get_args(SchedulerProvider):
            known = " or ".join(repr(name) for name in get_args(SchedulerProvider))
            raise ValueError(f"scheduler_provider: must be {known}, not {self.scheduler_provider!r}")
        if not 0 <= self.waiting_event_after < float("inf"):
            raise ValueError(f"waiting_event_after: must be 0 or more seconds, and is {self.waiting_event_after}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the settings from variables such as ``LEADERWORKERSET_SCHEDULER_PROVIDER``; others keep their default.

        An empty variable counts as not set.

        Raises:
            ValueError: a value cannot be used; the message names the variable or the field.
        """
        return cls(**read_fields(cls, PREFIX, {name: text for name, text in environment.items() if text}))
