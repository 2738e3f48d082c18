"""Names, bodies and reasons of native PodGroups: the pure part of gang scheduling."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.api import Condition
from pyreconcile.client import NotFoundError
from pyreconcile.webhook import AdmissionRequest, Denied
from pyreconcile_controllers.leaderworkerset import gang
from pyreconcile_controllers.leaderworkerset.gang_support import Support
from pyreconcile_controllers.leaderworkerset.gangs import NativeGangs
from pyreconcile_controllers.leaderworkerset.pod_webhook import mutate_pod

L = "leaderworkerset.sigs.k8s.io/"
NOTE = "leaderworkerset.pyreconcile.dev/pod-group"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def ago(seconds):
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(name="demo-0", *, worker="0", group="demo-0-x", age=60, node="", conditions=(), **fields):
    made = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "creationTimestamp": ago(age),
            "labels": {
                L + "name": "demo",
                L + "worker-index": worker,
                L + "group-index": "0",
                L + "template-revision-hash": "k",
            },
            "annotations": {L + "size": "4"},
        },
        "spec": {"containers": [{"name": "c", "image": "i"}], "subdomain": "demo", **fields},
        "status": {"conditions": list(conditions)},
    }
    if group:
        gang.join(made, group)
    if node:
        made["spec"]["nodeName"] = node
    return made


def group(count=4, **condition):
    raw = gang.pod_group(pod(), count).to_dict()
    if condition:
        raw["status"] = {"conditions": [{"type": "PodGroupInitiallyScheduled", **condition}]}
    return raw


@given(st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True), st.integers(0, 999_999), st.uuids())
def test_lws_9_names_of_pod_groups_are_valid_and_within_limits(set_name, index, uid):
    name = gang.group_name(f"{set_name}-{index}", str(uid))
    assert len(name) <= 82
    assert SUBDOMAIN.fullmatch(name)
    assert name == gang.group_name(f"{set_name}-{index}", str(uid))


@given(st.uuids(), st.uuids())
def test_lws_9_every_try_of_a_group_has_a_pod_group_of_its_own(one, other):
    assert (gang.group_name("demo-0", str(one)) == gang.group_name("demo-0", str(other))) == (one == other)


def test_lws_9_a_pod_group_is_a_gang_that_is_disrupted_as_one_and_goes_with_its_leader():
    made = gang.pod_group(pod(priorityClassName="high"), 4).to_dict()
    assert made["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "disruptionMode": {"all": {}},
        "priorityClassName": "high",
    }
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "demo-0", "uid": "uid-demo-0", "controller": True}
    assert made["metadata"] == {
        "name": "demo-0-x",
        "namespace": "ns",
        "labels": {L + "name": "demo", L + "group-index": "0", L + "template-revision-hash": "k"},
        # Blocking would be for ever: the PodGroup waits until its leader is gone.
        "ownerReferences": [owner | {"blockOwnerDeletion": False}],
    }
    assert "priorityClassName" not in gang.pod_group(pod(), 4).to_dict()["spec"]
    assert gang.count_of(made) == 4
    assert gang.count_of({"spec": {"schedulingPolicy": {"basic": {}}}}) == 0


def test_lws_9_a_group_of_the_template_is_left_alone():
    made = pod(group="", schedulingGroup={"podGroupName": "mine"})
    gang.join(made, "ours")
    assert made["spec"]["schedulingGroup"] == {"podGroupName": "mine"}
    assert gang.named_in(made) == ""


def test_lws_9_workers_join_the_group_of_their_leader():
    worker = pod("demo-0-1", worker="", group="")
    worker["metadata"]["annotations"][NOTE] = "demo-0-x"
    mutate_pod(worker)
    assert worker["spec"]["schedulingGroup"] == {"podGroupName": "demo-0-x"}
    alone = pod("demo-0-1", worker="", group="")
    mutate_pod(alone)
    assert "schedulingGroup" not in alone["spec"]


@pytest.mark.parametrize(
    ("bound", "exist", "wait", "count"),
    [
        (False, False, False, 4),
        (False, False, True, 1),
        (False, True, True, 4),  # made already, when the policy was another: they come together
        (True, False, True, 4),
        (True, True, False, 4),
    ],
)
def test_lws_9_the_leader_goes_alone_only_where_workers_wait_for_it(bound, exist, wait, count):
    assert gang.min_count(pods=4, bound=bound, workers_exist=exist, workers_wait_for_leader=wait) == count


def test_lws_9_what_the_scheduler_says_of_a_group_is_passed_on():
    said = group(status="False", reason="Unschedulable", message="minCount (4) cannot be satisfied")
    why = gang.why_waiting(pod(age=0), said, [], NOW)
    assert why == "kube-scheduler cannot place the group: minCount (4) cannot be satisfied"
    why = gang.why_waiting(pod(age=0), group(status="False", reason="SchedulerError"), [], NOW)
    assert why == "kube-scheduler cannot place the group: SchedulerError"
    # What is missing comes first: the scheduler does not try again before it is there.
    assert gang.why_waiting(pod(), said, [pod()], NOW) == "1 of its 4 pods exist"


def test_lws_9_what_the_scheduler_keeps_silent_about_is_said():
    leader, first = pod(), pod("demo-0-1", worker="1")
    assert gang.why_waiting(pod(age=1), group(), [leader], NOW) == ""
    assert gang.why_waiting(leader, group(), [leader, first], NOW) == "2 of its 4 pods exist"
    old = pod("demo-0-2", worker="2", group="demo-0-old")
    dying = pod("demo-0-3", worker="3")
    dying["metadata"]["deletionTimestamp"] = ago(0)
    assert gang.why_waiting(leader, group(), [leader, first, dying, old], NOW) == (
        "2 of its 4 pods exist; pods of an earlier try are still there: demo-0-2, demo-0-3"
    )
    everyone = [leader, *(pod(f"demo-0-{n}", worker=str(n)) for n in (1, 2, 3))]
    assert "has not looked at PodGroup demo-0-x" in gang.why_waiting(leader, group(), everyone, NOW)
    spoken = pod(conditions=[{"type": "PodScheduled", "status": "False"}])
    assert gang.why_waiting(spoken, group(), everyone, NOW) == ""
    assert (gang.is_silent(leader), gang.is_silent(spoken)) == (True, False)


def test_lws_9_workers_that_wait_for_others_behind_a_placed_leader_are_spoken_of():
    leader, first, second = pod(node="n"), pod("demo-0-1", worker="1"), pod("demo-0-2", worker="2", age=1)
    assert gang.why_workers_wait(leader, group(), [leader], NOW) == ""  # none waits: its StatefulSet tells why
    assert gang.why_workers_wait(leader, group(), [leader, second], NOW) is None
    assert gang.why_workers_wait(leader, group(), [leader, first, second], NOW) == "3 of its 4 pods exist"
    everyone = [leader, first, second, pod("demo-0-3", worker="3")]
    assert gang.why_workers_wait(leader, group(), everyone, NOW) == ""  # the scheduler speaks of these
    running = [leader, pod("demo-0-1", worker="1", node="n"), pod("demo-0-2", worker="2", node="n")]
    assert gang.why_workers_wait(leader, group(), running, NOW) == ""


def test_lws_9_a_worker_that_lost_its_group_is_told():
    """As when another API server than the one that admitted its leader has the gate off."""
    leader, dropped = pod(age=0), pod("demo-0-1", worker="1")
    del dropped["spec"]["schedulingGroup"]
    why = gang.why_waiting(leader, group(), [leader, dropped], NOW)
    assert why == f"the API server dropped spec.schedulingGroup of demo-0-1: {gang.HOW}"


def test_lws_9_a_scheduler_without_the_gate_is_found_out():
    def placed(seconds):
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(seconds)}
        return pod(node="n", conditions=[condition])

    assert gang.why_not_whole(placed(1), group(status="True", reason="Scheduled"), NOW) == ""
    assert gang.why_not_whole(placed(1), group(), NOW) is None
    assert gang.why_not_whole(pod(node="n"), group(), NOW) is None
    assert "is this scheduler without the gate?" in gang.why_not_whole(placed(11), group(), NOW)
    again = group()
    again["metadata"]["creationTimestamp"] = ago(1)  # in the place of one that was taken from under the group
    assert gang.why_not_whole(placed(11), again, NOW) == ""


def test_lws_9_a_dropped_group_is_seen():
    dropped = pod()
    assert not gang.was_dropped(dropped)
    del dropped["spec"]["schedulingGroup"]
    assert gang.was_dropped(dropped)
    assert not gang.was_dropped(pod(group=""))


def test_lws_9_the_condition_comes_with_the_first_problem_and_goes_with_the_provider():
    conditions = [Condition(type="Available", status="True", reason="R", message="m", last_transition_time=NOW)]
    assert not gang.mark(conditions, None, 1, NOW)
    assert not gang.mark(conditions, "", 1, NOW)
    assert len(conditions) == 1
    assert gang.mark(conditions, "no", 1, NOW)
    assert not gang.mark(conditions, "no", 1, NOW)
    assert (conditions[1].type, conditions[1].status, conditions[1].message) == ("GangScheduling", "False", "no")
    later = NOW + timedelta(seconds=9)
    assert gang.mark(conditions, "not at all", 2, later)
    assert conditions[1].last_transition_time == NOW
    assert not gang.mark(conditions, "", 2, later)
    assert (conditions[1].status, conditions[1].last_transition_time) == ("True", later)
    assert not gang.mark(conditions, None, 2, later)
    assert len(conditions) == 1


class Server:
    """A client whose list of PodGroups is what a test says."""

    def __init__(self, problem=None):
        self.problem = problem
        self.asked = 0

    def with_options(self, **_):
        return self

    async def list(self, _kind, **_options):
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        return
        yield


def missing():
    return NotFoundError("no such page")


async def test_lws_9_what_is_served_is_asked_again_when_it_may_have_changed():
    now = [0.0]
    server = Server(missing())
    support = Support(server, gang.POD_GROUP, advice=gang.HOW, clock=lambda: now[0])
    assert "does not serve podgroups.scheduling.k8s.io (v1beta1): native gang" in await support.problem()
    server.problem = None
    assert await support.problem()
    now[0] = 5.0
    assert await support.problem() == ""
    now[0] = 60.0
    server.problem = missing()
    assert await support.problem() == ""
    assert server.asked == 2
    support.doubt()
    assert await support.problem()
    server.problem = OSError("no network")
    now[0] = 70.0
    assert "does not serve" in await support.problem()


async def test_lws_9_an_outage_leaves_the_last_answer_standing():
    now = [0.0]
    server = Server()
    support = Support(server, gang.POD_GROUP, advice=gang.HOW, clock=lambda: now[0])
    assert await support.problem() == ""
    server.problem, now[0] = OSError("no network"), 61.0
    assert await support.problem() == ""
    fresh = Support(server, gang.POD_GROUP, advice=gang.HOW, clock=lambda: now[0])
    assert "could not be listed: no network" in await fresh.problem()


async def test_lws_9_leaders_are_refused_where_their_group_would_be_dropped():
    server = Server()
    support = Support(server, gang.POD_GROUP, advice=gang.HOW)
    gangs = NativeGangs(support, cache=None, client=server, events=None)
    request = AdmissionRequest({"uid": "1", "operation": "CREATE"})
    leader = pod(group="")
    await gangs.admit(leader, request)
    name = gang.group_name("demo-0", "1")
    assert leader["spec"]["schedulingGroup"] == {"podGroupName": name}
    assert leader["metadata"]["annotations"][NOTE] == name
    server.problem = missing()
    support.doubt()
    with pytest.raises(Denied, match="pod demo-0 must be placed with its whole group, but this API server"):
        await gangs.admit(pod(group=""), request)
    # Pods of groups that are none of ours are nobody's business.
    await gangs.admit(pod("demo-0-1", worker="1", group=""), request)
    await gangs.admit(pod(group="", schedulingGroup={"podGroupName": "mine"}), request)
