"""The judge of a soak: what may never happen to groups, told from the changes of the objects alone. No I/O.

It shares no code with the controller. Where the controller may not know yet what the watch shows here, the benefit of
the doubt is ``lag`` seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from hack.soak.audit import KUBELET
from hack.soak.facts import Change, LeadersFact, PodFact, SetFact, WorkersFact
from hack.soak.state import SetState, doomed

TOO_MANY: Final = "never more than replicas + maxSurge groups"
TOO_FEW: Final = "never more than maxUnavailable groups below ready by an update"
MIXED: Final = "no pods of two revisions in one group"
ORDER: Final = "groups are updated from the highest ordinal down"
UNEXPLAINED: Final = "no pod is taken down without cause"
KEPT: Final = "a group that lost a pod is recreated whole"
RULES: Final = (TOO_MANY, TOO_FEW, MIXED, ORDER, UNEXPLAINED, KEPT)

_ACT: Final = 10.0
"""Seconds that Kubernetes may take to do what a StatefulSet says."""
_AFTERMATH: Final = 60.0
"""Seconds after a node's return in which its pods may still go."""
_RECREATING: Final = ("RecreateGroupOnPodRestart", "RecreateGroupAfterStart")


@dataclass
class Strikes:
    """What the soak itself does to pods, nodes and the manager, noted before it is done; times as those of changes.

    ``deleted_by`` has, by UID, the program that was the first to ask for a pod's deletion.
    """

    pods: set[str] = field(default_factory=set)
    deleted_by: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    outages: list[tuple[float, float]] = field(default_factory=list)

    def node_lost(self, name: str, time: float) -> None:
        """Note that a node is lost from now on."""
        self.nodes.setdefault(name, []).append((time, float("inf")))

    def node_back(self, name: str, time: float) -> None:
        """Note that a lost node is back."""
        start, _ = self.nodes[name].pop()
        self.nodes[name].append((start, time))

    def hit(self, pod: PodFact, time: float) -> bool:
        """Tell whether a pod was struck itself, or by its node.

        A kubelet ends pods that somebody else has deleted. The simulated one does so by their names: on a busy machine
        it asks a second time, and late, and meets the next pod of the name.
        """
        if pod.uid in self.pods or pod.restarted or self.deleted_by.get(pod.uid) == KUBELET:
            return True
        return any(start <= time <= end + _AFTERMATH for start, end in self.nodes.get(pod.node, ()))

    def manager_away(self, start: float, end: float) -> bool:
        """Tell whether no manager ran at some moment of a time."""
        return any(since <= end and until >= start for since, until in self.outages)


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken."""

    rule: str
    time: float
    set_name: str
    text: str

    def __str__(self) -> str:
        return f"{self.set_name}: {self.rule}: {self.text}"


class Checker:
    """Follows the changes of all sets.

    Attributes:
        violations: what was wrong, in order.
        looked: how often each rule was put to the test.
    """

    def __init__(self, strikes: Strikes, *, lag: float = 1.0) -> None:
        """Judge with the knowledge of ``strikes``; ``lag`` is how late a controller may be, in seconds."""
        self._strikes = strikes
        self._lag = lag
        self._sets: dict[str, SetState] = {}
        self.violations: list[Violation] = []
        self.looked: Counter[str] = Counter()

    def feed(self, changes: Iterable[Change]) -> None:
        """Take changes of any watches, complete up to the last one."""
        for change in sorted(changes, key=lambda item: item.order):
            match change.about:
                case SetFact() as fact:
                    self._set(fact, change)
                case LeadersFact() as fact:
                    self._leaders(self._state(fact.set_name), fact, change)
                case WorkersFact() as fact:
                    self._workers(self._state(fact.set_name), fact, change)
                case PodFact() as fact:
                    self._pod(self._state(fact.set_name), fact, change)

    def settle(self, time: float) -> None:
        """Look at what has to be over by now; call it in a calm."""
        for name, state in self._sets.items():
            wish = state.wishes.last
            if wish is None or wish.policy != "RecreateGroupOnPodRestart":
                state.lost.clear()
                continue
            for uid, lost_at in state.lost.items():
                self.looked[KEPT] += 1
                leader = state.pods.get(uid)
                alive = leader is not None and not leader.terminating
                # A worker that is lost and replaced while no manager runs looks like any other.
                if leader is not None and alive and not self._strikes.manager_away(lost_at - 1, lost_at + 5):
                    self._broken(KEPT, time, name, f"{leader.name} stayed though its group lost a worker")
            state.lost.clear()
            for pod in state.pods.values():
                if pod.restarted and not pod.terminating:
                    self._broken(KEPT, time, name, f"{pod.name} restarted and its group stayed")

    def _state(self, name: str) -> SetState:
        return self._sets.setdefault(name, SetState())

    def _broken(self, rule: str, time: float, set_name: str, text: str) -> None:
        self.violations.append(Violation(rule, time, set_name, text))

    def _set(self, fact: SetFact, change: Change) -> None:
        state = self._state(fact.name)
        last = state.wishes.last
        if change.gone or fact.terminating:
            state.gone = True
        elif last is None or last.uid != fact.uid:
            state.gone = False
        if fact != last:
            state.wishes.add(change.time, fact)

    def _leaders(self, state: SetState, fact: LeadersFact, change: Change) -> None:
        before = state.leaders.last
        if change.gone or fact == before:
            return
        if before is not None and before.uid != fact.uid:
            before = None
        time = change.time
        state.leaders.add(time, fact)
        wishes = state.wishes.within(time, self._lag)
        most = max((wish.replicas + wish.surge for wish in wishes), default=0)
        self.looked[TOO_MANY] += 1
        if fact.replicas > most:
            self._broken(TOO_MANY, time, fact.set_name, f"the StatefulSet asks for {fact.replicas} groups of {most}")
        if before is not None:
            self._check_exposed(state, before, fact, time)

    def _check_exposed(self, state: SetState, before: LeadersFact, after: LeadersFact, time: float) -> None:
        """Look at the ready groups that a write of the leader StatefulSet gives free to be taken down."""
        live = state.live_leaders()
        settled = {group for group in live if state.ready_for(group, time, self._lag)}
        exposed = {group for group in settled if doomed(live[group], after)}
        if not any(not doomed(live[group], before) for group in exposed):
            return
        self.looked[TOO_FEW] += 1
        ours = {group for group in state.ours if not self._group_hit(state, group, time)}
        verdicts = []
        for wish in state.wishes.within(time, self._lag):
            down = [group for group in sorted(exposed | ours) if group < min(wish.replicas, after.replicas)]
            stand_ins = [
                group
                for group in range(wish.replicas, after.replicas)
                if group in live and not doomed(live[group], after) and state.ready_lately(group, time, self._lag)
            ]
            if len(down) - len(stand_ins) <= wish.unavailable:
                return
            verdicts.append(f"groups {down} with stand-ins {stand_ins}, allowed {wish.unavailable}")
        written = f"{before.replicas}/{before.partition} to {after.replicas}/{after.partition}"
        self._broken(TOO_FEW, time, after.set_name, f"{'; '.join(verdicts)} (replicas/partition {written})")

    def _group_hit(self, state: SetState, group: int, time: float) -> bool:
        pods = [pod for pod in state.pods.values() if pod.group == group]
        return any(self._strikes.hit(pod, time) or state.leader_uid(pod) in state.struck for pod in pods)

    def _workers(self, state: SetState, fact: WorkersFact, change: Change) -> None:
        if change.gone:
            state.workers.pop(fact.uid, None)
            return
        known = fact.uid in state.workers
        state.workers[fact.uid] = fact
        state.owners[fact.uid] = fact.leader
        leader = state.pods.get(fact.leader)
        if not known and leader is not None:
            self.looked[MIXED] += 1
            if leader.revision != fact.revision:
                text = f"workers of {fact.revision} under {leader.name} of {leader.revision}"
                self._broken(MIXED, change.time, fact.set_name, text)

    def _pod(self, state: SetState, fact: PodFact, change: Change) -> None:
        old, time = state.pods.get(fact.uid), change.time
        if not change.gone:
            state.pods[fact.uid] = fact
            if old is None:
                self._check_new_pod(state, fact, time)
        if (fact.terminating or change.gone) and not (old is not None and old.terminating):
            self._check_taken(state, fact, time)
        if fact.restarted or self._strikes.hit(fact, time):
            state.struck.add(state.leader_uid(fact))
        if change.gone:
            state.pods.pop(fact.uid, None)
        state.note_readiness(fact.group, time)

    def _check_new_pod(self, state: SetState, pod: PodFact, time: float) -> None:
        if pod.worker == 0:
            self.looked[TOO_MANY] += 1
            most = max((wish.replicas + wish.surge for wish in state.wishes.within(time, _ACT)), default=0)
            count = len(state.live_leaders())
            if count > most:
                self._broken(TOO_MANY, time, pod.set_name, f"{pod.name} is one of {count} leaders, allowed {most}")
            return
        leader = state.pods.get(state.leader_uid(pod))
        if leader is None:
            return
        self.looked[MIXED] += 1
        mine, its = (pod.revision, pod.version, pod.size), (leader.revision, leader.version, leader.size)
        if mine != its:
            self._broken(MIXED, time, pod.set_name, f"{pod.name} is of {mine}, its leader of {its}")

    def _check_taken(self, state: SetState, pod: PodFact, time: float) -> None:
        """Look why a pod goes."""
        self.looked[UNEXPLAINED] += 1
        hit = self._strikes.hit(pod, time)
        if pod.worker == 0:
            self._leader_taken(state, pod, time, hit=hit)
            return
        leader = state.pods.get(state.leader_uid(pod))
        leader_stays = leader is not None and not leader.terminating
        if hit and leader is not None:
            state.lost.setdefault(leader.uid, time)
        if leader_stays and pod.owner in state.workers and not (hit or state.gone):
            self._broken(UNEXPLAINED, time, pod.set_name, f"worker {pod.name} goes{self._by(pod)}")

    def _by(self, pod: PodFact) -> str:
        program = self._strikes.deleted_by.get(pod.uid)
        return f", deleted by {program}" if program else ""

    def _leader_taken(self, state: SetState, pod: PodFact, time: float, *, hit: bool) -> None:
        recreating = any(wish.policy in _RECREATING for wish in state.wishes.within(time, _ACT))
        if state.gone or hit or (recreating and pod.uid in state.struck):
            return
        causes = [leaders for leaders in state.leaders.within(time, _ACT) if doomed(pod, leaders)]
        if not causes:
            self._broken(UNEXPLAINED, time, pod.set_name, f"leader {pod.name} goes{self._by(pod)}")
        now = state.leaders.last
        if now is None or pod.group >= now.replicas:
            return
        state.ours.add(pod.group)
        self.looked[ORDER] += 1
        # Kubernetes may still be at what the StatefulSet said before its last write.
        skipped = [state.older_above(pod, leaders) for leaders in causes or [now]]
        if all(skipped):
            self._broken(ORDER, time, pod.set_name, f"{pod.name} goes before {', '.join(skipped[-1])}")
