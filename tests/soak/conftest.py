"""Traces of a set to feed the checker with: what the API server would have said, one change after the other."""

from dataclasses import replace

import pytest

from hack.soak.checker import Checker, Strikes
from hack.soak.facts import Change, LeadersFact, PodFact, SetFact, WorkersFact


class Trace:
    """A set ``s`` of one leader and one worker a group; each change is a second after the last, unless told else."""

    def __init__(self):
        self.strikes = Strikes()
        self.checker = Checker(self.strikes)
        self.now = 0.0
        self.order = 0
        self.pods = {}
        self.uids = 0
        self.wish = SetFact("s", "set", 0, 1, 0, 0, "RecreateGroupOnPodRestart")
        self.leaders = LeadersFact("s", "leaders", 0, 0, "r1")

    def say(self, about, *, gone=False, after=1.0):
        self.now += after
        self.order += 1
        self.checker.feed([Change(self.order, self.now, gone, about)])

    def ask(self, *, after=1.0, **changes):
        """The user changes the spec."""
        self.wish = replace(self.wish, **changes)
        self.say(self.wish, after=after)

    def write(self, *, after=1.0, **changes):
        """The controller writes the leader StatefulSet."""
        self.leaders = replace(self.leaders, **changes)
        self.say(self.leaders, after=after)

    def pod(self, name, **changes):
        """A pod changes."""
        after = changes.pop("after", 1.0)
        self.pods[name] = replace(self.pods[name], **changes)
        self.say(self.pods[name], after=after)

    def go(self, name, *, after=1.0):
        """A pod is no more."""
        self.say(self.pods.pop(name), gone=True, after=after)

    def uid(self, kind):
        self.uids += 1
        return f"{kind}-{self.uids}"

    def start_leader(self, group, *, revision="r1", ready=True):
        name = f"s-{group}"
        self.pods[name] = PodFact("s", name, self.uid(name), group, 0, "leaders", revision, revision, 2, ready=ready)
        self.say(self.pods[name])

    def start_workers(self, group, *, revision="r1", version="", ready=True):
        leader = self.pods[f"s-{group}"]
        own, name = self.uid("workers"), f"s-{group}-1"
        self.say(WorkersFact("s", own, leader.uid, revision))
        self.pods[name] = PodFact(
            "s", name, self.uid(name), group, 1, own, revision, version or revision, 2, "node-1", ready=ready
        )
        self.say(self.pods[name])

    def start(self, group, *, revision="r1", ready=True):
        self.start_leader(group, revision=revision, ready=ready)
        self.start_workers(group, revision=revision, ready=ready)

    def stop(self, group):
        """The StatefulSet controller takes a group down, as the leader StatefulSet asks."""
        self.pod(f"s-{group}", terminating=True)
        self.go(f"s-{group}")
        self.pod(f"s-{group}-1", terminating=True)
        self.go(f"s-{group}-1")

    def broken(self):
        return [violation.rule for violation in self.checker.violations]


@pytest.fixture
def trace():
    return Trace()


@pytest.fixture
def running(trace):
    """Three groups of revision r1 that run."""
    trace.ask(replicas=3)
    trace.write(replicas=3)
    for group in range(3):
        trace.start(group)
    assert not trace.broken()
    return trace
