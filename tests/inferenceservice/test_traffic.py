"""The arithmetic of traffic: tables, and a simulated cluster in which anything may happen."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreconcile_controllers.inferenceservice.traffic import (
    Plan,
    Rollout,
    Seen,
    Target,
    Wish,
    capacity,
    kept,
    plan,
    propagate,
    replicas,
    shares,
)

UP = Seen(1, 1, settled=True)
DOWN = Seen(1, 0, settled=True)


@pytest.mark.parametrize(
    ("percent", "rolledout", "expected"),
    [
        (None, "", (100, None)),
        (None, "r1", (100, None)),
        (20, "", (100, None)),
        (0, "r1", (0, 100)),
        (10, "r1", (10, 90)),
        (99, "r1", (99, 1)),
        (100, "r1", (100, None)),
    ],
)
def test_kserve_1_2_shares(percent, rolledout, expected):
    assert shares(percent, rolledout) == expected


@pytest.mark.parametrize(
    ("total", "share", "pods"),
    [(1, 100, 1), (1, 1, 1), (4, 0, 1), (4, 10, 1), (4, 26, 2), (4, 50, 2), (4, 90, 4), (0, 100, 1), (10, 33, 4)],
)
def test_kserve_1_9_4_a_share_needs_its_part_of_the_pods_and_one_at_least(total, share, pods):
    assert capacity(total, share) == pods


def latest(revision, percent):
    return Target(revision, percent, latest=True)


def before(revision, percent):
    return Target(revision, percent, latest=False)


@pytest.mark.parametrize(
    ("rollout", "traffic", "expected"),
    [
        (Rollout("r1", "r1"), [latest("r1", 100)], Rollout("r1", "r1", "r1")),
        (Rollout("r2", "r2", "r1"), [latest("r2", 10), before("r1", 90)], Rollout("r2", "r2", "r1")),
        (Rollout("r2", "r2", "r1"), [latest("r2", 100)], Rollout("r2", "r2", "r2", "r1")),
        # A7: everything is on the newest, and its own share is less: back to the one before.
        (Rollout("r2", "r2", "r2", "r1"), [latest("r2", 0), before("r2", 100)], Rollout("r2", "r2", "r1", "r1")),
        # A8: the newest is not the ready one, so nothing is rolled back.
        (Rollout("r2", "r1", "r1", "r0"), [latest("r1", 10), before("r1", 90)], Rollout("r2", "r1", "r1", "r0")),
        # A1: there is nothing to go back to.
        (Rollout("r1", "r1", "r1"), [latest("r1", 20), before("r1", 80)], Rollout("r1", "r1", "r1")),
        (Rollout("r2", "r2", "r2", "gone"), [latest("r2", 0), before("r2", 100)], Rollout("r2", "r2", "r2", "gone")),
        (Rollout("r2", "r2", "r1"), [], Rollout("r2", "r2", "r1")),
    ],
)
def test_kserve_1_3_rolled_out_revisions(rollout, traffic, expected):
    assert propagate(rollout, traffic, keeps={"r0", "r1", "r2"}) == expected


@pytest.mark.parametrize(
    ("what", "wish", "rollout", "seen", "present", "weights", "ready"),
    [
        ("nothing serves yet", Wish(20), Rollout("r1"), {"r1": DOWN}, {}, {}, ""),
        ("the first is ready", Wish(20), Rollout("r1"), {"r1": UP}, {}, {"r1": 100}, "r1"),
        (
            "a starting canary",
            Wish(10),
            Rollout("r2", "r1", "r1"),
            {"r1": UP, "r2": DOWN},
            {"r1": 100},
            {"r1": 100},
            "r1",
        ),
        (
            "a ready canary",
            Wish(10),
            Rollout("r2", "r1", "r1"),
            {"r1": UP, "r2": UP},
            {"r1": 100},
            {"r1": 90, "r2": 10},
            "r2",
        ),
        (
            "O-16: the next canary after a rejected one",
            Wish(20),
            Rollout("r3", "r2", "r1"),
            {"r1": UP, "r2": UP, "r3": DOWN},
            {"r1": 100},
            {"r1": 100},
            "r2",
        ),
        (
            "a step waits for pods",
            Wish(50, 4),
            Rollout("r2", "r2", "r1"),
            {"r1": Seen(4, 4, settled=True), "r2": Seen(2, 1, settled=True)},
            {"r1": 90, "r2": 10},
            {"r1": 90, "r2": 10},
            "r2",
        ),
        (
            "pods of an older template are no readiness",
            Wish(None, 1),
            Rollout("r2", "r1", "r1"),
            {"r1": UP, "r2": Seen(1, 1, settled=False)},
            {"r1": 100},
            {"r1": 100},
            "r1",
        ),
        (
            "a canary that died loses its share at once, however few pods the other has",
            Wish(50, 4),
            Rollout("r2", "r2", "r1"),
            {"r1": Seen(2, 2, settled=True), "r2": Seen(2, 0, settled=True)},
            {"r1": 50, "r2": 50},
            {"r1": 100},
            "r2",
        ),
        (
            "a canary takes over from a dead one",
            Wish(10, 1),
            Rollout("r2", "r2", "r1"),
            {"r1": DOWN, "r2": UP},
            {"r1": 90, "r2": 10},
            {"r2": 100},
            "r2",
        ),
        ("all dead", Wish(), Rollout("r1", "r1", "r1"), {"r1": DOWN}, {"r1": 100}, {"r1": 100}, "r1"),
        (
            "one pod of four is no reason to move",
            Wish(10, 4),
            Rollout("r2", "r2", "r1"),
            {"r1": Seen(4, 1, settled=False), "r2": UP},
            {"r1": 90, "r2": 10},
            {"r1": 90, "r2": 10},
            "r2",
        ),
        (
            "somebody else scales: what the autoscaler wants counts",
            Wish(50, 4, autoscaled=True),
            Rollout("r2", "r2", "r1"),
            {"r1": Seen(4, 4, settled=True), "r2": UP},
            {"r1": 90, "r2": 10},
            {"r1": 50, "r2": 50},
            "r2",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_kserve_1_9_6_weights(what, wish, rollout, seen, present, weights, ready):
    planned = plan(wish, rollout, seen, present)
    assert planned.weights == weights, what
    assert planned.ready == ready


def test_kserve_1_9_6_a_revision_that_is_gone_keeps_the_weights():
    present = {"r2": 10, "r1": 90}
    planned = plan(Wish(20), Rollout("r2", "r2", "r1"), {"r2": UP}, present)
    assert (planned.missing, planned.weights) == ("r1", present)


def test_without_a_gateway_nothing_is_split():
    seen = {"r1": UP, "r2": UP}
    planned = plan(Wish(10), Rollout("r2", "r2", "r1"), seen, {"r1": 100}, can_split=False)
    assert (planned.weights, planned.stable) == ({"r1": 100}, "r1")
    planned = plan(Wish(None), Rollout("r2", "r2", "r1"), seen, {"r1": 100}, can_split=False)
    assert planned.weights == {"r2": 100}


def test_kserve_1_9_7_pods_stay_until_the_traffic_has_gone():
    rollout, present = Rollout("r2", "r2", "r2", "r1"), {"r2": 100}
    seen = {"r1": Seen(4, 4, settled=True), "r2": Seen(4, 4, settled=True)}
    planned = plan(Wish(None, 4), rollout, seen, present)
    assert replicas(Wish(None, 4), rollout, planned, seen, present, drained=False) == {"r1": 4, "r2": 4}
    assert replicas(Wish(None, 4), rollout, planned, seen, present, drained=True) == {"r1": 0, "r2": 4}


def test_o_17_replicas_of_an_autoscaler_are_left_alone_and_taken_over():
    wish, rollout, present = Wish(None, 4, autoscaled=True), Rollout("r2", "r1", "r1"), {"r1": 100}
    seen = {"r1": Seen(7, 7, settled=True), "r2": Seen()}
    planned = plan(wish, rollout, seen, present)
    assert replicas(wish, rollout, planned, seen, present, drained=True) == {"r1": 7, "r2": 7}


def test_kserve_1_9_8_what_is_named_or_serves_is_kept():
    rollout = Rollout("r5", "r4", "r3", "r2")
    assert kept(rollout, Plan("r4", weights={"r3": 100}), {"r1": 100}) == {"r1", "r2", "r3", "r4", "r5"}
    assert kept(Rollout("r1"), Plan(""), {}) == {"r1"}


class Cluster:
    """A cluster of numbers: what the controller does with it in a pass, and what the world does between."""

    def __init__(self, total):
        self.total = total
        self.percent = None
        self.rollout = Rollout()
        self.count = 0
        self.present, self.seen, self.broken = {}, {}, set()
        self.accepted = True
        self.new_revision(broken=False)

    def new_revision(self, *, broken):
        self.count += 1
        name = f"r{self.count}"
        self.rollout = Rollout(name, self.rollout.ready, self.rollout.rolledout, self.rollout.previous)
        self.seen[name] = Seen()
        if broken:
            self.broken.add(name)

    def step_pods(self):
        for name, seen in self.seen.items():
            available = 0 if name in self.broken else min(seen.replicas, seen.available + 1)
            self.seen[name] = Seen(seen.replicas, available, settled=True)

    def kill(self, name):
        self.seen[name] = Seen(self.seen[name].replicas, 0, settled=True)

    def reconcile(self):
        wish = Wish(self.percent, self.total)
        rollout, present, seen = self.rollout, dict(self.present), dict(self.seen)
        planned = plan(wish, rollout, seen, present)
        rollout = Rollout(rollout.created, planned.ready, rollout.rolledout, rollout.previous)
        steady = bool(present) and planned.weights == present and self.accepted
        counts = replicas(wish, rollout, planned, seen, present, drained=steady or not present)
        self.check(wish, planned, counts, present, seen)
        if planned.weights != present:
            self.present, self.accepted = dict(planned.weights), False
        if steady and planned.weights == planned.ideal:
            before = rollout
            rollout = propagate(rollout, planned.targets, keeps=seen)
            if rollout.rolledout != before.rolledout:
                assert rollout.rolledout in (before.previous, before.ready)
        self.rollout = rollout
        needed = kept(rollout, planned, present)
        for name in list(self.seen):
            if name not in needed and (steady or not present):
                del self.seen[name]
            else:
                available = min(seen[name].available, counts[name])
                self.seen[name] = Seen(counts[name], available, settled=available == counts[name])

    def check(self, wish, planned, counts, present, seen):
        for weights in (planned.weights, planned.ideal):
            assert not weights or sum(weights.values()) == 100
            assert all(share > 0 for share in weights.values())
        assert not self.broken & planned.weights.keys(), "a broken revision has traffic"
        for name, share in planned.weights.items():
            grown = share > present.get(name, 0)
            if grown and all(seen[other].up for other in present if other in seen) and present.keys() <= seen.keys():
                needed = math.ceil(self.total * share / 100) if present else 1
                assert seen[name].available >= needed, "traffic before capacity"
        for name, share in {**present, **planned.weights}.items():
            if name in counts:
                assert counts[name] >= math.ceil(self.total * share / 100) or counts[name] >= seen[name].replicas


actions = st.lists(
    st.one_of(
        st.tuples(st.just("percent"), st.one_of(st.none(), st.integers(0, 100))),
        st.tuples(st.just("revision"), st.booleans()),
        st.tuples(st.just("kill"), st.integers(0, 3)),
        st.tuples(st.just("pods"), st.none()),
        st.tuples(st.just("accept"), st.none()),
        st.tuples(st.just("pass"), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(actions, st.integers(1, 6))
def test_whatever_happens_weights_add_up_and_pods_come_before_traffic(steps, total):
    cluster = Cluster(total)
    for action, value in steps:
        match action:
            case "percent":
                cluster.percent = value
            case "revision":
                cluster.new_revision(broken=value)
            case "kill":
                cluster.kill(sorted(cluster.seen)[value % len(cluster.seen)])
            case "pods":
                cluster.step_pods()
            case "accept":
                cluster.accepted = True
        cluster.reconcile()
    # Left alone, it settles: the spec's shares are in force, or all is on what was rolled out before.
    for _ in range(12 + total * 2):
        cluster.accepted = True
        cluster.step_pods()
        cluster.reconcile()
    created = cluster.rollout.created
    if created in cluster.broken:
        assert created not in cluster.present
    elif cluster.rollout.rolledout == created:
        assert cluster.present == {created: 100}
    elif cluster.present:
        newest, rest = shares(cluster.percent, cluster.rollout.rolledout)
        assert rest is not None
        wanted = {created: newest, cluster.rollout.rolledout: rest}
        assert cluster.present == {name: share for name, share in wanted.items() if share}
