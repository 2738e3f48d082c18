"""One set as the changes so far leave it: its wishes, its StatefulSets and its groups of pods. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from hack.soak.facts import LeadersFact, PodFact, SetFact, WorkersFact

T = TypeVar("T")

_KEPT: Final = 120.0
"""Seconds that a value is remembered after another took its place."""


class History(Generic[T]):
    """A value over time."""

    def __init__(self) -> None:
        self._values: list[tuple[float, T]] = []

    def add(self, time: float, value: T) -> None:
        """Note the value from now on; forget what was replaced long ago."""
        self._values.append((time, value))
        while len(self._values) > 1 and self._values[1][0] < time - _KEPT:
            del self._values[0]

    @property
    def last(self) -> T | None:
        """The value now; None before the first."""
        return self._values[-1][1] if self._values else None

    def within(self, time: float, seconds: float) -> list[T]:
        """Return every value that held at some moment of the last ``seconds``."""
        ends = [*(start for start, _ in self._values[1:]), float("inf")]
        return [value for (_, value), end in zip(self._values, ends, strict=True) if end >= time - seconds]


@dataclass
class SetState:
    """What is known of one set.

    Attributes:
        wishes: the set's spec over time.
        leaders: its leader StatefulSet over time.
        gone: whether set or leader StatefulSet is going or gone.
        pods: by UID, until they are gone.
        owners: for each worker StatefulSet that ever was, the UID of its leader.
        workers: the worker StatefulSets that are there, by UID.
        ready_since: for each group that is ready, since when.
        ready_until: for each group that was ready before, when it ceased to be.
        ours: the groups that an update took down and that were not ready since.
        struck: UIDs of the leaders of groups that something outside hit.
        lost: UIDs of leaders whose group lost a worker to something outside, and when.
    """

    wishes: History[SetFact] = field(default_factory=History)
    leaders: History[LeadersFact] = field(default_factory=History)
    gone: bool = False
    pods: dict[str, PodFact] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    workers: dict[str, WorkersFact] = field(default_factory=dict)
    ready_since: dict[int, float] = field(default_factory=dict)
    ready_until: dict[int, float] = field(default_factory=dict)
    ours: set[int] = field(default_factory=set)
    struck: set[str] = field(default_factory=set)
    lost: dict[str, float] = field(default_factory=dict)

    def older_above(self, leader: PodFact, leaders: LeadersFact) -> list[str]:
        """Return the names of the leaders above one that are not of the revision which the StatefulSet asks for."""
        return sorted(
            other.name
            for other in self.live_leaders().values()
            if leader.group < other.group < leaders.replicas and other.revision != leaders.revision
        )

    def live_leaders(self) -> dict[int, PodFact]:
        """Return the leaders that are not terminating, by group."""
        return {pod.group: pod for pod in self.pods.values() if pod.worker == 0 and not pod.terminating}

    def leader_uid(self, pod: PodFact) -> str:
        """Return the UID of the leader of the pod's group, its own for a leader; empty when it is not known."""
        return pod.uid if pod.worker == 0 else self.owners.get(pod.owner, "")

    def members(self, leader: PodFact) -> Iterator[PodFact]:
        """Give the pods of a group that are not terminating, leader included."""
        for pod in self.pods.values():
            if not pod.terminating and self.leader_uid(pod) == leader.uid:
                yield pod

    def note_readiness(self, group: int, time: float) -> None:
        """Look whether a group is ready now."""
        ready = self._is_ready(group)
        if ready and group not in self.ready_since:
            self.ready_since[group] = time
            self.ours.discard(group)
        elif not ready and group in self.ready_since:
            del self.ready_since[group]
            self.ready_until[group] = time

    def ready_for(self, group: int, time: float, seconds: float) -> bool:
        """Tell whether a group has been ready for some time without a break."""
        since = self.ready_since.get(group)
        return since is not None and since <= time - seconds

    def ready_lately(self, group: int, time: float, seconds: float) -> bool:
        """Tell whether a group was ready at some moment of the last ``seconds``."""
        return group in self.ready_since or self.ready_until.get(group, float("-inf")) >= time - seconds

    def _is_ready(self, group: int) -> bool:
        leader = self.live_leaders().get(group)
        if leader is None or not leader.ready:
            return False
        return sum(pod.ready for pod in self.members(leader)) >= leader.size


def doomed(leader: PodFact, leaders: LeadersFact) -> bool:
    """Tell whether the leader StatefulSet is to take a leader down: it is surplus, or old and not held back."""
    if leader.group >= leaders.replicas:
        return True
    return leader.group >= leaders.partition and leader.revision != leaders.revision
