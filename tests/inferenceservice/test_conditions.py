"""Knative's condition engine (KServe §1.4), route readings (§3.5) and failures (§1.6), as functions."""

from datetime import UTC, datetime, timedelta

import pytest

from pyreconcile_controllers.inferenceservice import InferenceService, Settings
from pyreconcile_controllers.inferenceservice.conditions import TRUE, Fact, Observation, facts, settle
from pyreconcile_controllers.inferenceservice.observe import Failure, failure_of, seen_in
from pyreconcile_controllers.inferenceservice.routes import Route, http_route, read_route
from pyreconcile_controllers.inferenceservice.traffic import Plan, Rollout, Seen
from pyreconcile_controllers.inferenceservice.types import ServiceCondition

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
SERVICE = InferenceService.from_dict(
    {
        "metadata": {"name": "m", "namespace": "n", "uid": "u"},
        "spec": {"predictor": {"containers": [{"name": "c", "image": "i"}]}},
    }
)


def said(conditions):
    return {item.type: (item.status, item.reason) for item in conditions}


def test_kserve_1_4_ready_is_what_its_two_dependents_make_of_it():
    conditions = settle((), {"PredictorReady": TRUE, "IngressReady": TRUE, "RoutesReady": Fact("False", "x")}, NOW)
    assert [item.type for item in conditions] == ["IngressReady", "PredictorReady", "Ready", "RoutesReady"]
    assert said(conditions)["Ready"] == ("True", None)
    assert [item.severity for item in conditions] == [None, None, None, "Info"]


def test_kserve_1_4_a_missing_dependent_makes_ready_unknown():
    assert said(settle((), {"PredictorReady": TRUE}, NOW))["Ready"] == ("Unknown", None)


def test_kserve_1_4_the_newest_false_wins_then_unknown():
    first = settle((), {"PredictorReady": Fact("False", "Old"), "IngressReady": Fact("Unknown", "Wait")}, NOW)
    assert said(first)["Ready"] == ("False", "Old")
    second = settle(first, {"PredictorReady": Fact("False", "Old"), "IngressReady": Fact("False", "New")}, LATER)
    assert said(second)["Ready"] == ("False", "New")
    third = settle(second, {"PredictorReady": TRUE, "IngressReady": Fact("Unknown", "Wait")}, LATER)
    assert said(third)["Ready"] == ("Unknown", "Wait")


def test_kserve_1_4_what_says_the_same_keeps_its_time():
    first = settle((), {"PredictorReady": TRUE, "IngressReady": Fact("False", "A", "one")}, NOW)
    second = settle(first, {"PredictorReady": TRUE, "IngressReady": Fact("False", "A", "two")}, LATER)
    times = {item.type: item.last_transition_time for item in second}
    assert times == {"PredictorReady": NOW, "IngressReady": LATER, "Ready": LATER}


def test_conditions_of_others_stay():
    other = ServiceCondition(type="Zoned", status="True")
    assert "Zoned" in said(settle([other], {"PredictorReady": TRUE, "IngressReady": TRUE}, NOW))


def observation(**changes):
    values = {
        "rollout": Rollout("r2", "r1", "r1"),
        "plan": Plan("r1", ideal={"r1": 100}, weights={"r1": 100}, stable="r1"),
        "seen": {"r1": Seen(1, 1, settled=True), "r2": Seen(1)},
        "invalid": None,
        "failure": None,
        "migrated": True,
        "ingress": None,
        **changes,
    }
    return {kind: (fact.status, fact.reason) for kind, fact in facts(Observation(**values)).items()}


def test_kserve_1_9_11_ready_follows_what_serves():
    found = observation(failure=Failure("ModelLoadFailed", "exit code 1"))
    assert found["PredictorReady"] == ("True", "")
    assert found["PredictorConfigurationReady"] == ("False", "RevisionFailed")
    assert found["LatestDeploymentReady"] == ("False", "PredictorConfigurationReady not ready")


def test_kserve_1_9_11_or_the_candidate_if_so_set():
    failure = Failure("ModelLoadFailed", "exit code 1")
    assert observation(failure=failure, ready_follows_candidate=True)["PredictorReady"] == ("False", "RevisionFailed")
    assert observation(ready_follows_candidate=True)["PredictorReady"] == ("Unknown", "Deploying")


def test_a_service_whose_pods_are_gone_is_not_ready():
    found = observation(seen={"r1": Seen(1, 0, settled=True), "r2": Seen(1)})
    assert found["PredictorReady"] == ("False", "RevisionUnavailable")


def test_an_invalid_spec_leaves_what_serves_ready():
    found = observation(invalid=Failure("RuntimeDisabled", "…"))
    assert found["PredictorReady"] == ("True", "")
    assert found["PredictorConfigurationReady"] == ("False", "RuntimeDisabled")


def test_kserve_1_9_6_a_missing_revision_is_told():
    found = observation(plan=Plan("r1", weights={"r1": 100}, missing="r0"), migrated=False)
    assert found["PredictorRouteReady"] == ("False", "RevisionMissing")
    assert found["RoutesReady"] == ("False", "PredictorRouteReady not ready")


def route(weights, parents=(), *, generation=2):
    raw = http_route(SERVICE, weights, Settings()).to_dict()
    raw["metadata"] |= {"generation": generation, "ownerReferences": [{"controller": True, "uid": "u"}]}
    raw["status"] = {"parents": list(parents)}
    return raw


def parent(accepted="True", resolved="True", *, generation=2, name="kserve-ingress-gateway"):
    conditions = [
        {"type": kind, "status": status, "reason": f"{kind}{status}", "message": "m", "observedGeneration": generation}
        for kind, status in (("Accepted", accepted), ("ResolvedRefs", resolved))
    ]
    return {"parentRef": {"namespace": "kserve", "name": name}, "conditions": conditions}


@pytest.mark.parametrize(
    ("parents", "accepted", "trouble"),
    [
        ([parent()], True, None),
        ([parent(generation=1)], False, None),
        ([], False, "ParentStatusNotAvailable"),
        ([parent(name="other")], False, "ParentStatusNotAvailable"),
        ([parent(accepted="False")], False, "AcceptedFalse"),
        ([parent(resolved="False")], False, "ResolvedRefsFalse"),
        ([parent(resolved="Unknown")], False, None),
        ([parent(), parent(name="other", accepted="False")], True, None),
    ],
)
def test_kserve_1_9_5_only_an_accepted_generation_is_in_force(parents, accepted, trouble):
    found = read_route(route({"r1": 90, "r2": 10}, parents), SERVICE, Settings())
    assert found.weights == {"r1": 90, "r2": 10}
    assert found.accepted is accepted
    assert (found.trouble[0] if found.trouble else None) == trouble


def test_a_route_of_somebody_else_is_none_of_ours():
    raw = route({"r1": 100})
    raw["metadata"]["ownerReferences"][0]["uid"] = "another"
    assert read_route(raw, SERVICE, Settings()) is None
    assert read_route(None, SERVICE, Settings()) is None
    assert Route().weights == {}


def test_kserve_1_9_12_a_route_never_has_only_zeros():
    with pytest.raises(ValueError, match="no revision has a weight"):
        http_route(SERVICE, {"r1": 0}, Settings())
    (rule,) = http_route(SERVICE, {"r1": 0, "r2": 100}, Settings())["spec"]["rules"]
    assert [(item["name"], item["weight"]) for item in rule["backendRefs"]] == [("r2", 100)]


def deployment(*, generation=1, observed=1, replicas=2, updated=2, available=2, conditions=()):
    status = {
        "observedGeneration": observed,
        "updatedReplicas": updated,
        "availableReplicas": available,
        "conditions": list(conditions),
    }
    return {"metadata": {"generation": generation}, "spec": {"replicas": replicas}, "status": status}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Seen(2, 2, settled=True)),
        ({"generation": 2}, Seen(2, 2, settled=False)),
        ({"updated": 1}, Seen(2, 2, settled=False)),
        ({"available": 0}, Seen(2, 0, settled=True)),
        ({"conditions": [{"type": "ReplicaFailure", "status": "True"}]}, Seen(2, 2, settled=False)),
    ],
)
def test_kserve_1_9_4_readiness_means_the_new_template(changes, expected):
    assert seen_in(deployment(**changes)) == expected
    assert seen_in(None) == Seen()


def pod(name, status, created="2026-01-01T00:00:00Z"):
    return {"metadata": {"name": name, "creationTimestamp": created}, "status": status}


def waiting(name="kserve-container", reason="CrashLoopBackOff"):
    return {
        "name": name,
        "state": {"waiting": {"reason": reason}},
        "lastState": {"terminated": {"exitCode": 7, "message": "no such file"}},
    }


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"containerStatuses": [waiting()]}, "container kserve-container failed with exit code 7: no such file"),
        (
            {"initContainerStatuses": [waiting("storage-initializer")]},
            "container storage-initializer failed with exit code 7: no such file",
        ),
        (
            {"containerStatuses": [{"name": "kserve-container", "state": {"terminated": {"reason": "Error"}}}]},
            "container kserve-container failed",
        ),
        ({"containerStatuses": [waiting("side")]}, None),
        ({"containerStatuses": [waiting(reason="ContainerCreating")]}, None),
        ({}, None),
    ],
)
def test_kserve_1_6_a_failed_container_fails_its_revision(status, message):
    found = failure_of(deployment(available=0), [pod("a", status)])
    assert (found.message if found else None) == message


def test_kserve_1_6_the_newest_pod_tells():
    old = pod("a", {"containerStatuses": [waiting()]})
    assert failure_of(deployment(), [old, pod("b", {}, "2026-01-02T00:00:00Z")]) is None


def test_kserve_1_9_4_a_missed_deadline_fails_a_revision():
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
    assert failure_of(deployment(conditions=[late]), []) == Failure("ProgressDeadlineExceeded", "timed out")
    assert failure_of(None, []) is None
