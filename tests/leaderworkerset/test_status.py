"""Counters and conditions (LWS §6.6)."""

from datetime import UTC, datetime, timedelta

import pytest

from pyreconcile_controllers.leaderworkerset import groups
from pyreconcile_controllers.leaderworkerset.rollout import GroupState, Strategy
from pyreconcile_controllers.leaderworkerset.status import Group, next_status
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

L = "leaderworkerset.sigs.k8s.io/"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def make_set(status=None, generation=1):
    raw = {
        "metadata": {"name": "demo", "namespace": "ns", "generation": generation},
        "spec": {"leaderWorkerTemplate": {"workerTemplate": {}}},
    }
    if status is not None:
        raw["status"] = status.to_dict()
    return LeaderWorkerSet.from_dict(raw)


def step(status=None, *, wanted=2, floor=0, groups=(), generation=1, now=NOW):
    lws = make_set(status, generation)
    return next_status(lws, Strategy(wanted, 1, 0, floor), list(groups), len(groups), now)


def conditions(outcome):
    return {item.type: (item.status, item.message) for item in outcome.status.conditions}


def fine(*indexes):
    return [Group(i, ready=True, updated=True) for i in indexes]


def test_lws_6_6_a_new_set_progresses():
    outcome = step()
    assert conditions(outcome) == {"Progressing": ("True", "Replicas are progressing")}
    assert outcome.news == (
        "GroupsProgressing",
        "Replicas are progressing, with 0 groups ready of total 2 groups",
    )
    assert outcome.status.hpa_pod_selector == f"{L}name=demo,{L}worker-index=0"
    assert outcome.status.observed_generation == 1
    assert not outcome.complete


def test_lws_6_6_ready_groups_make_it_available():
    first = step()
    outcome = step(first.status, groups=fine(0, 1), now=NOW + timedelta(seconds=9))
    assert conditions(outcome) == {
        "Progressing": ("False", "Replicas are progressing"),
        "Available": ("True", "All replicas are ready"),
    }
    assert outcome.news == ("AllGroupsReady", "All replicas are ready, with 2 groups ready of total 2 groups")
    assert all(item.last_transition_time == NOW + timedelta(seconds=9) for item in outcome.status.conditions)
    assert outcome.complete


def test_lws_6_6_nothing_new_is_no_news():
    first = step(groups=fine(0, 1))
    again = step(first.status, groups=fine(0, 1), now=NOW + timedelta(seconds=9))
    assert again.news is None
    assert again.status.to_dict() == first.status.to_dict()


def test_lws_6_6_an_update_shows_in_two_passes():
    available = step(groups=fine(0, 1)).status
    half = [Group(0, ready=True, updated=False), *fine(1)]
    first = step(available, groups=half)
    assert conditions(first) == {
        "Available": ("False", "All replicas are ready"),
        "UpdateInProgress": ("True", "Rolling Upgrade is in progress"),
    }
    assert first.news == ("GroupsUpdating", "Rolling Upgrade is in progress, with 2 groups ready of total 2 groups")
    second = step(first.status, groups=half)
    assert conditions(second)["Progressing"] == ("True", "Replicas are progressing")
    done = step(second.status, groups=fine(0, 1))
    assert {name: state for name, (state, _) in conditions(done).items()} == {
        "Available": "True",
        "UpdateInProgress": "False",
        "Progressing": "False",
    }


def test_lws_6_6_a_new_generation_renews_the_conditions():
    first = step(groups=fine(0, 1))
    outcome = step(first.status, groups=fine(0, 1), generation=2, now=NOW + timedelta(seconds=9))
    (condition,) = outcome.status.conditions
    assert condition.observed_generation == 2
    assert condition.last_transition_time == NOW + timedelta(seconds=9)
    assert outcome.news is not None


def test_lws_6_6_surge_groups_count_but_do_not_decide():
    outcome = step(groups=[*fine(0, 2), Group(1, ready=False, updated=True)])
    assert (outcome.status.ready_replicas, outcome.status.updated_replicas) == (2, 3)
    assert conditions(outcome)["Progressing"][0] == "True"
    assert not outcome.complete


def test_lws_6_6_groups_below_the_partition_may_be_old():
    outcome = step(groups=[Group(0, ready=True, updated=False), *fine(1)], floor=1)
    assert conditions(outcome)["Available"][0] == "True"
    assert not outcome.complete


def test_lws_15_15_no_replicas_is_available_at_once():
    outcome = step(wanted=0)
    assert conditions(outcome)["Available"][0] == "True"
    assert outcome.complete


def pod(index, *, key="k1", phase="Running", ready=True, name=None):
    labels = {L + "group-index": str(index), L + "template-revision-hash": key}
    return {
        "metadata": {"name": name or f"demo-{index}", "namespace": "ns", "labels": labels},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def workers(index, *, key="k1", available=1, replicas=1, update="r1"):
    return {
        "metadata": {"name": f"demo-{index}", "labels": {L + "template-revision-hash": key}},
        "spec": {"replicas": replicas, "selector": {}, "template": {}},
        "status": {"availableReplicas": available, "currentRevision": "r1", "updateRevision": update},
    }


@pytest.mark.parametrize(
    ("leader", "own", "state"),
    [
        (pod(0), workers(0), GroupState(ready=True, updated=True)),
        (pod(0), None, GroupState()),
        (pod(0, key="k0"), workers(0), GroupState(ready=True, old=True)),
        (pod(0), workers(0, key="k0"), GroupState(ready=True)),
        (pod(0, ready=False), workers(0), GroupState(updated=True)),
        (pod(0, phase="Pending"), workers(0), GroupState(updated=True)),
        (pod(0), workers(0, available=0), GroupState(updated=True)),
        (pod(0), workers(0, update="r2"), GroupState(updated=True)),
        (pod(0, name="other-0"), workers(0), GroupState()),
        (pod(7), workers(7), GroupState()),
        (pod("x", name="demo-0"), workers(0), GroupState()),
    ],
)
def test_lws_6_3_state_of_a_group(leader, own, state):
    assert groups.group_states("demo", 1, 2, "k1", [leader], [own] if own else []) == [state]


def test_lws_6_3_size_one_needs_no_workers():
    assert groups.group_states("demo", 2, 1, "k1", [pod(1)], []) == [GroupState(), GroupState(ready=True, updated=True)]


def test_lws_6_3_a_leader_that_is_being_deleted_is_not_ready_whatever_its_pod_says():
    leaving = pod(0, key="k0")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert groups.group_states("demo", 1, 1, "k1", [leaving], []) == [GroupState(old=True)]


def test_lws_6_6_a_group_without_workers_counts_nowhere():
    assert groups.counted_groups(2, "k1", [pod(0), pod(1)], [workers(1)]) == fine(1)
    assert groups.counted_groups(1, "k1", [pod(0)], []) == fine(0)


def test_lws_6_6_a_leader_without_index_is_an_error():
    with pytest.raises(ValueError, match="group-index"):
        groups.counted_groups(1, "k1", [pod("", name="demo-0")], [])


def test_lws_15_2_a_count_of_0_that_the_go_controller_left_out_is_no_change():
    written_by_go = step().status
    written_by_go.replicas = written_by_go.ready_replicas = written_by_go.updated_replicas = None
    outcome = step(written_by_go)
    assert outcome.status.to_dict() == written_by_go.to_dict()
    assert step(written_by_go, groups=fine(0)).status.ready_replicas == 1


def test_lws_6_6_counters_go_back_to_0():
    status = step(step(groups=fine(0, 1)).status).status
    assert (status.replicas, status.ready_replicas, status.updated_replicas) == (0, 0, 0)
