"""A revision's record, Deployment and Service, and the Service in front of all (KServe §1.9 items 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from pyreconcile.api import ObjectMeta, RawObject, copy_json
from pyreconcile.api.apps_v1 import ControllerRevision, Deployment
from pyreconcile.api.core_v1 import Service
from pyreconcile_controllers.inferenceservice import names
from pyreconcile_controllers.inferenceservice.template import DEFAULT_PORT, Template, serving_container
from pyreconcile_controllers.inferenceservice.types import InferenceService

PORT: Final = 80
"""Where a revision's Service listens (KServe §3.3)."""
GRACE_SECONDS: Final = 30
"""A pod's grace period when its template gives none (Kubernetes's default)."""

BY_SERVICE: Final = "inferenceservice"
"""Index of Deployments, Services and ControllerRevisions: key of the service that controls them."""
BY_REVISION: Final = "inferenceservice-revision"
"""Index of pods: ``namespace/revision``."""
BY_RUNTIME: Final = "inferenceservice-runtime"
"""Index of services: the name of the runtime that they use."""


@dataclass(frozen=True, slots=True)
class Record:
    """A revision as its ControllerRevision keeps it; it never changes.

    Attributes:
        deployment: name of its Deployment; another than its own for one that was there before the first record.
        raw: the ControllerRevision.
    """

    name: str
    number: int
    hash: str
    template: RawObject
    deployment: str
    raw: RawObject = field(default_factory=dict, compare=False)

    @classmethod
    def read(cls, raw: RawObject) -> Record:
        """Read a ControllerRevision."""
        metadata, data = raw["metadata"], raw["data"]
        name = metadata["name"]
        digest = (metadata.get("labels") or {}).get(names.HASH_LABEL, "")
        return cls(name, raw.get("revision", 0), digest, data["template"], data.get("deployment") or name, raw)

    @property
    def adopted(self) -> bool:
        """Whether its Deployment was made by another controller, and is to stay as it is."""
        return self.deployment != self.name

    @property
    def grace_seconds(self) -> int:
        """Seconds that its pods may take to end."""
        seconds: int = self.template["spec"].get("terminationGracePeriodSeconds", GRACE_SECONDS)
        return seconds


def revision_record(service: InferenceService, number: int, template: Template, deployment: str) -> ControllerRevision:
    """Return the record of a new revision; ``deployment`` is empty unless there is one already."""
    name = names.revision_name(service.metadata.name, number)
    return ControllerRevision(
        metadata=_metadata(service, name, {names.HASH_LABEL: template.hash}),
        revision=number,
        data={"template": template.raw, **({"deployment": deployment} if deployment else {})},
    )


def revision_deployment(service: InferenceService, record: Record, *, progress_deadline: int) -> Deployment:
    """Return a revision's Deployment, without replicas: those are set apart, as an autoscaler may own them."""
    template = copy_json(record.template)
    metadata = template.setdefault("metadata", {})
    labels = names.pod_labels(service.metadata.name, record.name)
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    return Deployment.from_dict(
        {
            "metadata": _metadata(service, record.deployment, {names.REVISION_LABEL: record.name}).to_dict(),
            "spec": {
                "selector": {"matchLabels": {names.REVISION_LABEL: record.name}},
                "template": template,
                "progressDeadlineSeconds": progress_deadline,
            },
        }
    )


def revision_service(service: InferenceService, record: Record, selector: dict[str, str]) -> Service:
    """Return a revision's Service, the one that routes send its share to."""
    return _service(service, record.name, record, selector, {names.REVISION_LABEL: record.name})


def front_service(service: InferenceService, record: Record, selector: dict[str, str]) -> Service:
    """Return the Service that clients in the cluster call: all of it goes to one revision (§1.9 item 9)."""
    return _service(service, names.predictor_name(service.metadata.name), record, selector, {})


def selector_of(record: Record, deployment: RawObject | None) -> dict[str, str]:
    """Return what selects a revision's pods: the label of the revision, or what an adopted Deployment selects by."""
    if record.adopted and deployment is not None:
        labels: dict[str, str] = deployment["spec"]["selector"].get("matchLabels") or {}
        return labels
    return {names.REVISION_LABEL: record.name}


def index_owned(raw: RawObject) -> Iterable[str]:
    """Give the key of the service that controls an object."""
    resource = InferenceService.resource
    for owner in raw["metadata"].get("ownerReferences") or ():
        group = owner["apiVersion"].partition("/")[0]
        if owner.get("controller") and (group, owner["kind"]) == (resource.group, resource.kind):
            yield f"{raw['metadata']['namespace']}/{owner['name']}"


def index_pod(raw: RawObject) -> Iterable[str]:
    """Give the revision that a pod belongs to."""
    revision = (raw["metadata"].get("labels") or {}).get(names.REVISION_LABEL)
    return (f"{raw['metadata']['namespace']}/{revision}",) if revision else ()


def index_runtime(raw: RawObject) -> Iterable[str]:
    """Give the name of the runtime that a service uses."""
    runtime = ((raw["spec"].get("predictor") or {}).get("model") or {}).get("runtime")
    return (runtime,) if runtime else ()


def is_controlled_by(raw: RawObject, service: InferenceService) -> bool:
    """Tell whether this very service, and not one of the same name before it, controls an object."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner["uid"] == service.metadata.uid for owner in owners)


def _metadata(service: InferenceService, name: str, labels: dict[str, str]) -> ObjectMeta:
    own = names.labels(service.metadata.name)
    return ObjectMeta(name=name, namespace=service.metadata.namespace, labels={**own, **labels})


def _service(
    service: InferenceService, name: str, record: Record, selector: dict[str, str], labels: dict[str, str]
) -> Service:
    return Service.from_dict(
        {
            "metadata": _metadata(service, name, labels).to_dict(),
            "spec": {"selector": selector, "ports": _ports(serving_container(record.template))},
        }
    )


def _ports(container: RawObject) -> list[RawObject]:
    """Return a Service's ports: 80 leads to the container's first one, the others keep their numbers."""
    given = container.get("ports") or [{"containerPort": DEFAULT_PORT}]
    ports: list[RawObject] = []
    for index, port in enumerate(given):
        number = port["containerPort"]
        entry: dict[str, Any] = {
            "port": PORT if index == 0 else number,
            "targetPort": number,
            "protocol": port.get("protocol", "TCP"),
        }
        if port.get("name") or len(given) > 1:
            entry["name"] = port.get("name") or f"port-{number}"
        if any(word in port.get("name", "") for word in ("grpc", "h2c")):
            entry["appProtocol"] = "kubernetes.io/h2c"
        if index == 0 or number != PORT:
            ports.append(entry)
    return ports
