"""Which pod events wake the pod controller, and what it remembers of pods that are gone (LWS §7.2, §15.30)."""

import pytest

from pyreconcile.api.core_v1 import Pod
from pyreconcile.controller import CreateEvent, DeleteEvent, Request, UpdateEvent
from pyreconcile_controllers.leaderworkerset import groups
from pyreconcile_controllers.leaderworkerset.lost_pods import LostPods, PodEvents

L = "leaderworkerset.sigs.k8s.io/"


def make(name="demo-0-1", index="1", uid="u1", *, terminating=False, restarts=0, phase="Running", of="demo"):
    labels = {L + "name": of, L + "worker-index": index, L + "group-index": "0"} if of else {}
    metadata = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": "1", "labels": labels}
    if terminating:
        metadata["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    return {"metadata": metadata, "status": {"phase": phase, "containerStatuses": [{"restartCount": restarts}]}}


class Added(list):
    """A queue that keeps what is added."""

    def add(self, key, *, priority=0):
        self.append(key)


@pytest.fixture
def lost():
    return LostPods()


@pytest.fixture
def woken(lost):
    """The requests that follow from an event."""
    events = PodEvents(lost)

    def handle(event):
        queue = Added()
        verb = {CreateEvent: events.create, UpdateEvent: events.update, DeleteEvent: events.delete}[type(event)]
        verb(event, queue)
        return [request.name for request in queue]

    return handle


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (make("demo-0", "0"), ["demo-0"]),
        (make(), []),
        (make(terminating=True), ["demo-0-1"]),
        (make(restarts=1), ["demo-0-1"]),
        (make(restarts=1, phase="Pending"), ["demo-0-1"]),
        (make(restarts=1, phase="Failed"), []),
        (make(of=""), []),
    ],
)
def test_lws_7_2_leaders_and_failed_pods_wake_the_controller(woken, pod, expected):
    assert woken(CreateEvent(pod, Pod)) == expected
    assert woken(UpdateEvent(pod, pod, Pod)) == expected


def test_o_13_a_worker_that_is_gone_is_remembered_until_dealt_with(woken, lost):
    assert woken(DeleteEvent(make(), Pod, state_unknown=True)) == ["demo-0-1"]
    (pod,) = lost.of("ns/demo-0-1")
    assert lost.of_group("ns/demo/0") == [pod]
    assert lost.of_group("ns/demo/1") == []
    lost.discard(pod)
    lost.discard(pod)
    assert lost.of("ns/demo-0-1") == lost.of_group("ns/demo/0") == []


def test_o_13_another_uid_under_the_name_means_that_the_old_pod_is_lost(woken, lost):
    assert woken(UpdateEvent(make(), make(uid="u2"), Pod)) == ["demo-0-1"]
    assert [groups.uid_of(pod) for pod in lost.of("ns/demo-0-1")] == ["u1"]
    woken(DeleteEvent(make(uid="u2"), Pod))
    assert [groups.uid_of(pod) for pod in lost.of("ns/demo-0-1")] == ["u1", "u2"]


def test_lws_7_2_leaders_and_foreign_pods_that_are_gone_are_not_remembered(woken, lost):
    assert woken(DeleteEvent(make("demo-0", "0"), Pod)) == []
    assert woken(DeleteEvent(make(of=""), Pod)) == []
    assert lost.of("ns/demo-0") == []


def test_lws_10_requests_name_the_pod():
    assert Request.for_object(make()) == Request("ns", "demo-0-1")
