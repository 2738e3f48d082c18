"""DisaggregatedSet: the roles of one serving process, such as prefill and decode, rolled out in step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyreconcile.api.core_v1 import Service
from pyreconcile.controller import Builder
from pyreconcile_controllers.disaggregatedset.children import BY_OWNER, owner_index
from pyreconcile_controllers.disaggregatedset.controller import DisaggregatedSetReconciler
from pyreconcile_controllers.disaggregatedset.planner import Limits, Rollout, State, next_state, states
from pyreconcile_controllers.disaggregatedset.types import (
    DisaggregatedSet,
    DisaggregatedSetSpec,
    DisaggregatedSetStatus,
)
from pyreconcile_controllers.disaggregatedset.webhook import register, webhook_configurations
from pyreconcile_controllers.leaderworkerset import LeaderWorkerSet

if TYPE_CHECKING:
    from pyreconcile.manager import Manager

__all__ = [
    "MODELS",
    "DisaggregatedSet",
    "DisaggregatedSetSpec",
    "DisaggregatedSetStatus",
    "Limits",
    "Rollout",
    "State",
    "next_state",
    "setup",
    "states",
    "webhook_configurations",
]

MODELS = (DisaggregatedSet,)


def setup(manager: Manager) -> None:
    """Register the controller ``disaggregatedset``, and its webhook if the manager serves any.

    The LeaderWorkerSets that it makes need their own controller, in this manager or elsewhere.
    """
    for kind in (LeaderWorkerSet, Service):
        manager.cache.add_index(kind, BY_OWNER, owner_index)
    (Builder(manager).for_(DisaggregatedSet).owns(LeaderWorkerSet).owns(Service).complete(DisaggregatedSetReconciler()))
    if manager.webhooks is not None:
        register(manager.webhooks)
