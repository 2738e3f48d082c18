"""Leader election with a Lease: of several replicas, one acts.

An `Elector` competes on a thread of its own and tells through `Elector.still_leader` whether this process may act now.
A manager runs one when its options have ``leader_election``; use it directly for programs without a manager.
"""

from pyreconcile.election._campaign import LeaseLock
from pyreconcile.election._elector import Elector, LeadershipLostError, LockFactory, NotLeaderError
from pyreconcile.election._options import ElectionOptions, own_namespace

__all__ = [
    "ElectionOptions",
    "Elector",
    "LeadershipLostError",
    "LeaseLock",
    "LockFactory",
    "NotLeaderError",
    "own_namespace",
]
