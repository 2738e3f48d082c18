"""The status of a service: computed as a whole from what a pass saw and did, and what is new in it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from pyreconcile_controllers.inferenceservice import names
from pyreconcile_controllers.inferenceservice.conditions import (
    CONFIGURATION_READY,
    READY,
    Observation,
    facts,
    settle,
)
from pyreconcile_controllers.inferenceservice.routes import host, predictor_host
from pyreconcile_controllers.inferenceservice.settings import Settings
from pyreconcile_controllers.inferenceservice.traffic import PREVIOUS_TAG, Rollout, Target
from pyreconcile_controllers.inferenceservice.types import (
    Address,
    ClusterServingRuntime,
    ComponentStatus,
    InferenceService,
    ServiceCondition,
    ServingRuntime,
    TrafficTarget,
)

MODE: Final = "Standard"
NO_GATEWAY_API: Final = "GatewayAPINotInstalled"
"""Reason of IngressReady while HTTPRoutes are not served."""


@dataclass(frozen=True, kw_only=True)
class Outcome(Observation):
    """What a pass saw and did.

    Attributes:
        targets: the shares that are in force.
        runtime: the kind of the runtime in use.
    """

    targets: tuple[Target, ...]
    runtime: type[ServingRuntime] | type[ClusterServingRuntime] | None


@dataclass(frozen=True, slots=True)
class News:
    """An event that a change of the status calls for."""

    type: Literal["Normal", "Warning"]
    reason: str
    note: str
    action: str


def rollout_of(service: InferenceService) -> Rollout:
    """Return the revisions that the status names."""
    component = _component(service)
    return Rollout(
        component.latest_created_revision or "",
        component.latest_ready_revision or "",
        component.latest_rolledout_revision or "",
        component.previous_rolledout_revision or "",
    )


def traffic_of(service: InferenceService) -> tuple[Target, ...]:
    """Return the shares that the status names."""
    return tuple(
        Target(target.revision_name or "", target.percent or 0, bool(target.latest_revision))
        for target in _component(service).traffic or ()
    )


def next_status(service: InferenceService, outcome: Outcome, settings: Settings, now: datetime) -> dict[str, Any]:
    """Return the fields of the status to write, by their Python names."""
    present = service.status.conditions if service.status is not None else ()
    model = service.spec.predictor.model
    runtime = model.runtime if model is not None else None
    missing = outcome.ingress is not None and outcome.ingress.reason == NO_GATEWAY_API
    routed = bool(outcome.plan.weights) and not missing
    front = f"http://{names.predictor_name(service.metadata.name)}.{service.metadata.namespace}.svc.cluster.local"
    component = _component(service).deep_copy()
    for field, value in (
        ("latest_created_revision", outcome.rollout.created),
        ("latest_ready_revision", outcome.rollout.ready),
        ("latest_rolledout_revision", outcome.rollout.rolledout),
        ("previous_rolledout_revision", outcome.rollout.previous),
    ):
        _set(component, field, value or None)
    _set(component, "traffic", [_entry(target) for target in outcome.targets] or None)
    _set(component, "url", f"{settings.url_scheme}://{predictor_host(service, settings)}" if routed else None)
    _set(component, "address", Address(url=front))
    others = dict(service.status.components or {}) if service.status is not None else {}
    return {
        "observed_generation": service.metadata.generation,
        "conditions": list(settle(present, facts(outcome), now)),
        "url": f"{settings.url_scheme}://{host(service, settings)}" if routed else None,
        "address": Address(url=front),
        "components": {**others, names.PREDICTOR: component},
        "deployment_mode": MODE,
        "serving_runtime_name": runtime if outcome.runtime is ServingRuntime else None,
        "cluster_serving_runtime_name": runtime if outcome.runtime is ClusterServingRuntime else None,
    }


def news(service: InferenceService, outcome: Outcome, conditions: Sequence[ServiceCondition]) -> Iterator[News]:
    """Yield an event for everything that the status says for the first time."""
    before, after = rollout_of(service), outcome.rollout
    if after.created != before.created and after.created:
        yield News("Normal", "RevisionCreated", f"Created revision {after.created}", "Create")
    if after.ready != before.ready:
        yield News("Normal", "RevisionReady", f"Revision {after.ready} is ready", "Observe")
    if after.rolledout != before.rolledout:
        if after.rolledout == before.previous:
            note = f"Rolled back from revision {before.rolledout} to {after.rolledout}"
            yield News("Normal", "RevisionRolledBack", note, "Route")
        else:
            yield News("Normal", "RevisionRolledOut", f"Revision {after.rolledout} has all of the traffic", "Route")
    if outcome.targets != traffic_of(service):
        split = ", ".join(f"{target.revision} {target.percent} %" for target in outcome.targets)
        yield News("Normal", "TrafficChanged", f"Traffic goes to {split}", "Route")
    present = service.status.conditions if service.status is not None else ()
    was, now = _by_type(present), _by_type(conditions)
    configuration = now[CONFIGURATION_READY]
    if configuration.status == "False" and configuration != was.get(CONFIGURATION_READY):
        yield News("Warning", configuration.reason or "RevisionFailed", configuration.message or "", "Observe")
    was_ready = READY in was and was[READY].status == "True"
    if now[READY].status == "True" and not was_ready:
        yield News("Normal", "InferenceServiceReady", "The service is ready", "Observe")
    elif now[READY].status == "False" and was_ready:
        failing = ", ".join(sorted(kind for kind, item in now.items() if item.status == "False" and kind != READY))
        yield News("Warning", "InferenceServiceNotReady", f"The service is not ready: {failing}", "Observe")


def _component(service: InferenceService) -> ComponentStatus:
    components = service.status.components if service.status is not None else None
    return (components or {}).get(names.PREDICTOR) or ComponentStatus()


def _set(component: ComponentStatus, field: str, value: Any) -> None:
    if value is not None or getattr(component, field) is not None:
        setattr(component, field, value)


def _entry(target: Target) -> TrafficTarget:
    entry = TrafficTarget(revision_name=target.revision, percent=target.percent, latest_revision=target.latest)
    if not target.latest:
        entry.tag = PREVIOUS_TAG
    return entry


def _by_type(conditions: Iterable[ServiceCondition]) -> dict[str, ServiceCondition]:
    return {condition.type: condition for condition in conditions}
