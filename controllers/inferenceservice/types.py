"""The kinds InferenceService, ServingRuntime and ClusterServingRuntime (KServe §1.0).

Fields that nothing acts on are kept: users' manifests stay as they are. What would change how a service serves, and is
not supported, is refused by rules in the schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field

from pyreconcile.api import Column, CustomResource, Int32, Int64, Items, Model, Spec, Time
from pyreconcile.api.core_v1 import (
    Affinity,
    Container,
    LocalObjectReference,
    PodResourceClaim,
    PodSpec,
    Toleration,
    Volume,
)
from pyreconcile.crd import cel, combine, list_type, preserve_unknown_fields

FRAMEWORKS: Final = (
    "sklearn",
    "xgboost",
    "tensorflow",
    "pytorch",
    "triton",
    "onnx",
    "huggingface",
    "pmml",
    "lightgbm",
    "paddle",
)
"""Fields of a predictor that ``model`` has taken the place of."""

_KEPT = preserve_unknown_fields()
_NOT_SUPPORTED = "is not supported: see docs/inferenceservice.md"


class ModelFormat(Model):
    """What a model is stored as."""

    name: str
    version: str | None = None


class ModelSpec(Container):
    """A model, and the container that serves it: what is given here goes over the runtime's container."""

    model_config = ConfigDict(
        json_schema_extra=combine(
            _KEPT,
            cel("!has(self.name)", "name is not allowed: the container is called kserve-container"),
            cel("!has(self.storage)", f"storage {_NOT_SUPPORTED}; use storageUri"),
        )
    )

    # By a function of what was read, for the schema would repeat a plain default, and the server then write it.
    name: Annotated[str, Field(default_factory=lambda read: "")]
    model_format: ModelFormat | None = None
    runtime: Annotated[
        str | None, Field(description="Name of a ServingRuntime of the namespace, or of a ClusterServingRuntime.")
    ] = None
    storage_uri: Annotated[str | None, Field(description="Where the model is fetched from, to /mnt/models.")] = None
    storage: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None
    runtime_version: Annotated[str | None, Field(description="Tag of the runtime's image.")] = None


class PredictorSpec(PodSpec):
    """The pods that serve, and how many. Fields of a pod's spec can be given as well; they go over the runtime's."""

    model_config = ConfigDict(
        json_schema_extra=combine(
            _KEPT,
            cel("!has(self.workerSpec)", f"workerSpec {_NOT_SUPPORTED}"),
            cel("!has(self.storageUris)", f"storageUris {_NOT_SUPPORTED}; use model.storageUri"),
            *(
                cel(f"!has(self.{name})", f"{name} {_NOT_SUPPORTED}; use model with modelFormat and runtime")
                for name in FRAMEWORKS
            ),
            cel(
                "has(self.model) ? !(has(self.containers) && self.containers.exists(c, c.name == 'kserve-container')) "
                ": has(self.containers) && self.containers.size() > 0",
                "give model, or containers; with model none of them is called kserve-container",
            ),
        )
    )

    containers: Annotated[
        Items[Container],
        Field(default_factory=list, json_schema_extra=combine(list_type("map", keys=("name",)), {"maxItems": 32})),
    ]
    model: ModelSpec | None = None
    min_replicas: Annotated[
        Int32 | None,
        Field(json_schema_extra={"minimum": 0}, description="Pods for all of the traffic; 1 when not given, or 0."),
    ] = None
    canary_traffic_percent: Annotated[
        Int64 | None,
        Field(
            json_schema_extra={"minimum": 0, "maximum": 100},
            description="Share of the newest revision while the one before it keeps the rest.",
        ),
    ] = None
    timeout: Annotated[
        Int64 | None, Field(json_schema_extra={"minimum": 1}, description="Seconds that a request may take.")
    ] = None
    labels: Annotated[dict[str, str] | None, Field(description="Labels of the pods.")] = None
    annotations: Annotated[dict[str, str] | None, Field(description="Annotations of the pods.")] = None
    worker_spec: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None
    storage_uris: Annotated[list[dict[str, Any]] | None, Field(json_schema_extra={"maxItems": 64})] = None
    sklearn: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None
    xgboost: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None
    tensorflow: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None
    pytorch: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None
    triton: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None
    onnx: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None
    huggingface: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None
    pmml: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None
    lightgbm: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None
    paddle: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None


class InferenceServiceSpec(Spec):
    """What to serve, and how much of the traffic its newest revision gets."""

    model_config = ConfigDict(
        json_schema_extra=combine(
            _KEPT,
            cel("!has(self.transformer)", f"transformer {_NOT_SUPPORTED}"),
            cel("!has(self.explainer)", f"explainer {_NOT_SUPPORTED}"),
            cel("!has(self.canary)", f"canary {_NOT_SUPPORTED}; use predictor.canaryTrafficPercent"),
        )
    )

    predictor: PredictorSpec
    transformer: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None
    explainer: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None
    canary: Annotated[list[dict[str, Any]] | None, Field(json_schema_extra={"maxItems": 64})] = None


class ServiceCondition(Model):
    """One observed aspect of a service, in Knative's form: with a severity, and without a reason when all is well."""

    type: str
    status: str
    severity: Annotated[str | None, Field(description="Empty for what decides about Ready, else Info.")] = None
    reason: str | None = None
    message: str | None = None
    last_transition_time: Time | None = None


class Address(Model):
    """Where something is reachable from inside of the cluster."""

    url: str | None = None


class TrafficTarget(Model):
    """A revision and its share of the traffic."""

    revision_name: str | None = None
    latest_revision: bool | None = None
    percent: Int64 | None = None
    tag: str | None = None


class ComponentStatus(Model):
    """The revisions of a component, and the traffic that they get."""

    latest_created_revision: str | None = None
    latest_ready_revision: str | None = None
    latest_rolledout_revision: str | None = None
    previous_rolledout_revision: str | None = None
    traffic: list[TrafficTarget] | None = None
    url: str | None = None
    address: Address | None = None


class InferenceServiceStatus(Model):
    """What the controller last saw."""

    model_config = ConfigDict(json_schema_extra=_KEPT)

    observed_generation: Int64 | None = None
    conditions: Annotated[
        Items[ServiceCondition],
        Field(default_factory=list, json_schema_extra=list_type("map", keys=("type",))),
    ]
    url: str | None = None
    address: Address | None = None
    components: dict[str, ComponentStatus] | None = None
    deployment_mode: str | None = None
    serving_runtime_name: str | None = None
    cluster_serving_runtime_name: str | None = None


class InferenceService(
    CustomResource[InferenceServiceSpec, InferenceServiceStatus],
    group="serving.kserve.io",
    version="v1beta1",
    short_names=["isvc"],
    columns=[
        Column("URL", ".status.url"),
        Column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
        Column("Prev", ".status.components.predictor.traffic[?(@.tag=='prev')].percent", "integer"),
        Column("Latest", ".status.components.predictor.traffic[?(@.latestRevision==true)].percent", "integer"),
        Column(
            "PrevRolledoutRevision",
            ".status.components.predictor.traffic[?(@.tag=='prev')].revisionName",
        ),
        Column(
            "LatestReadyRevision",
            ".status.components.predictor.traffic[?(@.latestRevision==true)].revisionName",
        ),
        Column("Age", ".metadata.creationTimestamp", "date"),
    ],
):
    """A model that is served, with revisions and canaries."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && self.metadata.name.size() <= 63",
            "name must be at most 63 lower-case letters, digits and '-', and begin with a letter",
        )
    )


class SupportedModelFormat(Model):
    """A format that a runtime serves."""

    model_config = ConfigDict(json_schema_extra=_KEPT)

    name: str
    version: str | None = None


class ServingRuntimeSpec(Spec):
    """How models of some formats are served; a service's predictor goes over it."""

    model_config = ConfigDict(
        json_schema_extra=combine(_KEPT, cel("!has(self.workerSpec)", f"workerSpec {_NOT_SUPPORTED}"))
    )

    containers: Annotated[
        list[Container], Field(description="One of them is called kserve-container.", min_length=1, max_length=32)
    ]
    supported_model_formats: list[SupportedModelFormat] | None = None
    disabled: Annotated[bool | None, Field(description="Whether services may not use it.")] = None
    multi_model: Annotated[bool | None, Field(description="For ModelMesh; such a runtime is refused.")] = None
    volumes: list[Volume] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    image_pull_secrets: list[LocalObjectReference] | None = None
    host_ipc: Annotated[bool | None, Field(alias="hostIPC")] = None
    scheduler_name: str | None = None
    resource_claims: list[PodResourceClaim] | None = None
    labels: Annotated[dict[str, str] | None, Field(description="Labels of the pods.")] = None
    annotations: Annotated[dict[str, str] | None, Field(description="Annotations of the pods.")] = None
    worker_spec: Annotated[dict[str, Any] | None, Field(json_schema_extra=_KEPT)] = None


class ServingRuntime(
    CustomResource[ServingRuntimeSpec, Model],
    group="serving.kserve.io",
    version="v1alpha1",
    columns=[
        Column("Disabled", ".spec.disabled", "boolean"),
        Column("ModelType", ".spec.supportedModelFormats[*].name"),
        Column("Containers", ".spec.containers[*].name"),
        Column("Age", ".metadata.creationTimestamp", "date"),
    ],
):
    """How models are served, for the services of one namespace."""


class ClusterServingRuntime(
    CustomResource[ServingRuntimeSpec, Model],
    group="serving.kserve.io",
    version="v1alpha1",
    scope="Cluster",
    columns=[
        Column("Disabled", ".spec.disabled", "boolean"),
        Column("ModelType", ".spec.supportedModelFormats[*].name"),
        Column("Containers", ".spec.containers[*].name"),
        Column("Age", ".metadata.creationTimestamp", "date"),
    ],
):
    """How models are served, for the services of all namespaces."""
