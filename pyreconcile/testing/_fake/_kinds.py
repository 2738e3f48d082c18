"""Which kinds the fake serves, and the rules of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyreconcile.api import (
    CustomResource,
    KubeObject,
    RawObject,
    Resource,
    ScaleSubresource,
    Unstructured,
    find_model,
    kinds_of,
    unstructured,
)
from pyreconcile.api._resource import plural_of
from pyreconcile.testing._fake._schema import schema_of, with_metadata

_CRD = ("apiextensions.k8s.io", "CustomResourceDefinition")
# Facts of Kubernetes 1.37, as its API server answers: built-in kinds whose update must name a version …
_CONDITIONAL = {
    "Lease.coordination.k8s.io",
    "PodDisruptionBudget.policy",
    "RuntimeClass.node.k8s.io",
    "CSIDriver.storage.k8s.io",
    "CSINode.storage.k8s.io",
    "CSIStorageCapacity.storage.k8s.io",
    "VolumeAttachment.storage.k8s.io",
    "MutatingWebhookConfiguration.admissionregistration.k8s.io",
    "ValidatingWebhookConfiguration.admissionregistration.k8s.io",
    "ValidatingAdmissionPolicy.admissionregistration.k8s.io",
    "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io",
    "MutatingAdmissionPolicy.admissionregistration.k8s.io",
    "MutatingAdmissionPolicyBinding.admissionregistration.k8s.io",
    "CustomResourceDefinition.apiextensions.k8s.io",
}
# … and those that count generations.
_GENERATIONS = _CONDITIONAL - {
    "Lease.coordination.k8s.io",
    "RuntimeClass.node.k8s.io",
    "CSIDriver.storage.k8s.io",
    "CSINode.storage.k8s.io",
    "CSIStorageCapacity.storage.k8s.io",
    "VolumeAttachment.storage.k8s.io",
} | {
    "Pod",
    "PodTemplate",
    "ReplicationController",
    "DaemonSet.apps",
    "Deployment.apps",
    "ReplicaSet.apps",
    "StatefulSet.apps",
    "Job.batch",
    "CronJob.batch",
    "HorizontalPodAutoscaler.autoscaling",
    "NetworkPolicy.networking.k8s.io",
    "Ingress.networking.k8s.io",
    "IngressClass.networking.k8s.io",
    "PriorityClass.scheduling.k8s.io",
    "EndpointSlice.discovery.k8s.io",
}
_SCALABLE = {"ReplicationController", "Deployment.apps", "ReplicaSet.apps", "StatefulSet.apps"}
_BUILTIN_SCALE = ScaleSubresource(label_selector_path=".spec.selector")
# Kinds that are answers to questions, which an API server does not store.
_QUESTIONS = ("authentication.k8s.io", "authorization.k8s.io")


@dataclass(frozen=True)
class Served:
    """One kind in one version, and what the fake does with it.

    Attributes:
        resource: its names.
        schema: its fields.
        status: whether it has a status sub-resource.
        scale: where ``/scale`` finds its values, if it is served.
        custom: whether it is a custom resource.
        conditional: whether an update must name a version.
        counts_generations: whether it counts changes of what is wanted.
    """

    resource: Resource
    schema: RawObject
    status: bool
    scale: ScaleSubresource | None
    custom: bool
    conditional: bool
    counts_generations: bool


@dataclass(frozen=True)
class UntypedKind:
    """A kind without a model, as the fake is to serve it.

    Attributes:
        kind: the class, made by `pyreconcile.api.unstructured`.
        status_subresource: whether the status is written apart.
        scale: where ``/scale`` finds its values, if it is served.
    """

    kind: type[Unstructured]
    status_subresource: bool = False
    scale: ScaleSubresource | None = None


@dataclass
class Kinds:
    """All kinds that are served: built-in ones and models by themselves, others once they are added."""

    _added: dict[tuple[str, str], Served] = field(default_factory=dict)
    _known: dict[tuple[str, str], Served] = field(default_factory=dict)

    def add(self, kind: type[KubeObject] | UntypedKind) -> None:
        """Serve a kind, if it is not served yet or is described by an `UntypedKind`."""
        if isinstance(kind, UntypedKind):
            served = _custom(kind.kind, schema_of(kind.kind), status=kind.status_subresource, scale=kind.scale)
            self._added[served.resource.api_version, served.resource.plural] = served
        elif self.find(kind.resource.api_version, kind.resource.plural) is None:
            resource = kind.resource
            self._added[resource.api_version, resource.plural] = _served(kind)

    def find(self, api_version: str, plural: str) -> Served | None:
        """Return what is served at a path, or None."""
        names = (api_version, plural)
        served = self._added.get(names) or self._known.get(names)
        if served is None:
            # Most plurals are regular, so the first guess saves importing the models of a whole group.
            for name in sorted(kinds_of(api_version), key=lambda name: plural_of(name) != plural):
                kind = find_model(api_version, name)
                if kind is not None and kind.resource.plural == plural and kind.resource.group not in _QUESTIONS:
                    return self._known.setdefault(names, _served(kind))
        return served

    def all_of(self, api_version: str) -> list[Served]:
        """Return what is served in one version of a group."""
        plurals = {plural: None for known, plural in self._added if known == api_version}
        models = [find_model(api_version, name) for name in kinds_of(api_version)]
        plurals |= {kind.resource.plural: None for kind in models if kind is not None}
        return [served for plural in plurals if plural and (served := self.find(api_version, plural)) is not None]

    @property
    def added(self) -> Iterable[Served]:
        """What was added, beside built-in kinds and models."""
        return self._added.values()

    def install(self, crd: RawObject) -> None:
        """Serve what a CRD defines."""
        spec = crd["spec"]
        for version in spec["versions"]:
            names = (f"{spec['group']}/{version['name']}", spec["names"]["plural"])
            self._added.pop(names, None)
            if version.get("served"):
                self._added[names] = _from_crd(spec, version)

    def uninstall(self, crd: RawObject) -> None:
        """Serve no more what a CRD defines."""
        spec = crd["spec"]
        for version in spec["versions"]:
            self._added.pop((f"{spec['group']}/{version['name']}", spec["names"]["plural"]), None)


def defines_kinds(resource: Resource) -> bool:
    """Tell whether objects of a kind are CRDs."""
    return (resource.group, resource.kind) == _CRD


def _served(kind: type[KubeObject]) -> Served:
    if issubclass(kind, Unstructured):
        return _custom(kind, schema_of(kind), status=False, scale=None)
    resource, names = kind.resource, kind.resource.group_kind
    if issubclass(kind, CustomResource):
        options = kind.options
        return _custom(kind, schema_of(kind), status=options.status_subresource, scale=options.scale)
    return Served(
        resource,
        schema_of(kind),
        status="status" in kind.model_fields,
        scale=_BUILTIN_SCALE if names in _SCALABLE else None,
        custom=False,
        conditional=names in _CONDITIONAL,
        counts_generations=names in _GENERATIONS,
    )


def _custom(kind: type[KubeObject], schema: RawObject, *, status: bool, scale: ScaleSubresource | None) -> Served:
    return Served(kind.resource, schema, status, scale, custom=True, conditional=True, counts_generations=True)


def _from_crd(spec: RawObject, version: Mapping[str, Any]) -> Served:
    kind = unstructured(
        f"{spec['group']}/{version['name']}",
        spec["names"]["kind"],
        plural=spec["names"]["plural"],
        namespaced=spec.get("scope") != "Cluster",
    )
    parts = version.get("subresources") or {}
    paths = parts.get("scale")
    scale = None
    if paths:
        scale = ScaleSubresource(paths["specReplicasPath"], paths["statusReplicasPath"], paths.get("labelSelectorPath"))
    schema = with_metadata((version.get("schema") or {}).get("openAPIV3Schema") or {})
    return _custom(kind, schema, status="status" in parts, scale=scale)
