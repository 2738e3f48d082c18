"""What a revision's Deployment and pods show (KServe §1.6 and §1.9 item 4). Objects are parsed JSON, read only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyreconcile.api import RawObject
from pyreconcile_controllers.inferenceservice.names import CONTAINER, STORAGE_INITIALIZER
from pyreconcile_controllers.inferenceservice.traffic import Seen

_LOADING = frozenset({CONTAINER, STORAGE_INITIALIZER})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a revision does not serve, and is not about to."""

    reason: str
    message: str


def seen_in(deployment: RawObject | None) -> Seen:
    """Return how many pods of a Deployment there are to be and serve."""
    if deployment is None:
        return Seen()
    status, replicas = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    settled = (
        status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
        and status.get("updatedReplicas", 0) == replicas
        and _condition(deployment, "ReplicaFailure", "True") is None
    )
    return Seen(replicas, status.get("availableReplicas", 0), settled)


def failure_of(deployment: RawObject | None, pods: Iterable[RawObject], container: str = CONTAINER) -> Failure | None:
    """Return why a revision that does not serve has failed; None when it may still come up.

    Args:
        deployment: the revision's.
        pods: the revision's.
        container: name of the container that serves.
    """
    if deployment is None:
        return None
    for condition in (_condition(deployment, "Progressing", "False"), _condition(deployment, "ReplicaFailure", "True")):
        if condition is not None:
            return Failure(condition.get("reason") or "RevisionFailed", condition.get("message") or "")
    newest = sorted(pods, key=lambda pod: pod["metadata"]["name"])
    newest.sort(key=lambda pod: pod["metadata"].get("creationTimestamp", ""), reverse=True)
    for pod in newest[:1]:
        status = pod.get("status") or {}
        for one in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
            if one["name"] in _LOADING | {container} and (failure := _failure_in(one)) is not None:
                return failure
    return None


def _failure_in(container: RawObject) -> Failure | None:
    state, last = container.get("state") or {}, container.get("lastState") or {}
    waiting = state.get("waiting") or {}
    if waiting.get("reason") == "CrashLoopBackOff":
        ended = last.get("terminated") or {}
    elif (state.get("terminated") or {}).get("reason") == "Error":
        ended = state["terminated"]
    else:
        return None
    text = f"container {container['name']} failed"
    if "exitCode" in ended:
        text += f" with exit code {ended['exitCode']}"
    detail = ended.get("message") or waiting.get("message")
    return Failure("ModelLoadFailed", f"{text}: {detail}" if detail else text)


def _condition(deployment: RawObject, kind: str, status: str) -> RawObject | None:
    conditions: list[RawObject] = (deployment.get("status") or {}).get("conditions") or []
    return next((item for item in conditions if item["type"] == kind and item["status"] == status), None)
