"""A service's conditions: Knative's engine, and what each condition says (KServe §1.4, §1.9 item 11). No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pyreconcile_controllers.inferenceservice.observe import Failure
from pyreconcile_controllers.inferenceservice.traffic import Plan, Rollout, Seen
from pyreconcile_controllers.inferenceservice.types import ServiceCondition

READY: Final = "Ready"
PREDICTOR_READY: Final = "PredictorReady"
CONFIGURATION_READY: Final = "PredictorConfigurationReady"
ROUTE_READY: Final = "PredictorRouteReady"
ROUTES_READY: Final = "RoutesReady"
LATEST_READY: Final = "LatestDeploymentReady"
INGRESS_READY: Final = "IngressReady"

DEPENDENTS: Final = (PREDICTOR_READY, INGRESS_READY)
"""Ready is what these make of it; no other condition has a say."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What a condition is to say."""

    status: str
    reason: str = ""
    message: str = ""


TRUE: Final = Fact("True")
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the conditions are made of.

    Attributes:
        rollout: the revisions, after this pass.
        plan: the traffic that this pass planned.
        seen: pods by revision.
        invalid: why no pod template could be made of the spec.
        failure: why the newest revision does not come up.
        migrated: whether the gateway has taken over the targets.
        ingress: what is wrong with the route; None when all is well.
        ready_follows_candidate: see `Settings`.
    """

    rollout: Rollout
    plan: Plan
    seen: Mapping[str, Seen]
    invalid: Failure | None
    failure: Failure | None
    migrated: bool
    ingress: Fact | None
    ready_follows_candidate: bool = False


def facts(observed: Observation) -> dict[str, Fact]:
    """Return what every condition but Ready is to say."""
    configuration, route = _configuration(observed), _route(observed)
    predictor = _predictor(observed, configuration)
    if observed.ready_follows_candidate and predictor == TRUE:
        # As a Knative Service is ready when both its parts are.
        predictor = next((fact for fact in _worst_first([configuration, route]) if fact.status != "True"), TRUE)
    ingress = observed.ingress or TRUE
    if ingress.status == "Unknown" and predictor.status == "False":
        ingress = Fact("False", ingress.reason, ingress.message)
    return {
        PREDICTOR_READY: predictor,
        CONFIGURATION_READY: configuration,
        ROUTE_READY: route,
        ROUTES_READY: _all_of(ROUTE_READY, route),
        LATEST_READY: _all_of(CONFIGURATION_READY, configuration),
        INGRESS_READY: ingress,
    }


def settle(
    previous: Iterable[ServiceCondition], wanted: Mapping[str, Fact], now: datetime
) -> tuple[ServiceCondition, ...]:
    """Return the conditions, Ready among them, sorted by type.

    One that says what it said keeps its time; any change of it is a transition. Conditions of other types stay.
    """
    known = {condition.type: condition for condition in previous}
    for kind, fact in wanted.items():
        known[kind] = _renewed(known.get(kind), kind, fact, now)
    known[READY] = _renewed(known.get(READY), READY, _ready(known), now)
    return tuple(known[kind] for kind in sorted(known))


def _ready(known: Mapping[str, ServiceCondition]) -> Fact:
    dependents = [known[kind] for kind in DEPENDENTS if kind in known]
    for status in ("False", "Unknown"):
        found = [condition for condition in dependents if condition.status == status]
        if found:
            newest = max(found, key=lambda condition: condition.last_transition_time or _LONG_AGO)
            return Fact(status, newest.reason or "", newest.message or "")
    return TRUE if len(dependents) == len(DEPENDENTS) else Fact("Unknown")


def _renewed(present: ServiceCondition | None, kind: str, fact: Fact, now: datetime) -> ServiceCondition:
    condition = ServiceCondition(type=kind, status=fact.status)
    if kind != READY and kind not in DEPENDENTS:
        condition.severity = "Info"
    if fact.reason:
        condition.reason = fact.reason
    if fact.message:
        condition.message = fact.message
    if present is not None and _says(present) == _says(condition):
        return present
    condition.last_transition_time = now
    return condition


def _says(condition: ServiceCondition) -> tuple[str, str, str, str]:
    return condition.status, condition.severity or "", condition.reason or "", condition.message or ""


def _predictor(observed: Observation, configuration: Fact) -> Fact:
    """Say whether what has traffic serves; before anything has, whether the first revision comes up."""
    weights = observed.plan.weights
    if not weights:
        return configuration if configuration.status != "True" else Fact("Unknown", "Deploying")
    down = [name for name in sorted(weights) if not observed.seen.get(name, Seen()).up]
    if not down:
        return TRUE
    if down == [observed.rollout.created] and observed.failure is not None:
        return Fact("False", observed.failure.reason, observed.failure.message)
    return Fact("False", "RevisionUnavailable", f"no pod of {', '.join(down)} is available")


def _configuration(observed: Observation) -> Fact:
    """Say whether the revision of the present spec is up."""
    if observed.invalid is not None:
        return Fact("False", observed.invalid.reason, observed.invalid.message)
    rollout = observed.rollout
    seen = observed.seen.get(rollout.created, Seen())
    if rollout.ready == rollout.created and seen.up:
        return TRUE
    if observed.failure is not None:
        message = f"revision {rollout.created}: {observed.failure.reason}"
        return Fact(
            "False",
            "RevisionFailed",
            f"{message}: {observed.failure.message}" if observed.failure.message else message,
        )
    return Fact(
        "Unknown", "Deploying", f"revision {rollout.created} has {seen.available} of {seen.replicas} pods available"
    )


def _route(observed: Observation) -> Fact:
    """Say whether the traffic goes where the spec says."""
    plan = observed.plan
    if plan.missing:
        return Fact("False", "RevisionMissing", f"revision {plan.missing} has a share of the traffic, and is gone")
    if observed.migrated:
        return TRUE
    if not plan.weights:
        return Fact("Unknown", "TrafficNotMigrated", "no revision is ready yet")
    if plan.weights != plan.ideal:
        waits = ", ".join(f"{name} {share} %" for name, share in sorted(plan.ideal.items()))
        return Fact("Unknown", "TrafficNotMigrated", f"waiting for the pods that these shares need: {waits}")
    return Fact("Unknown", "TrafficNotMigrated", "waiting for the gateway to accept the route")


def _all_of(kind: str, fact: Fact) -> Fact:
    """Say what all components say of a kind; there is one component."""
    return TRUE if fact.status == "True" else Fact(fact.status, f"{kind} not ready", fact.message)


def _worst_first(found: Iterable[Fact]) -> list[Fact]:
    return sorted(found, key=lambda fact: ("False", "Unknown", "True").index(fact.status))
