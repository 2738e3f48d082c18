"""The LeaderWorkerSet kind (LWS §1)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pyreconcile.api import Column, CustomResource, Int32, IntOrString, Model, ScaleSubresource, Spec, Status
from pyreconcile.api.core_v1 import PersistentVolumeClaim, PodTemplateSpec

RestartPolicy = Literal["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]
SubdomainPolicy = Literal["Shared", "UniquePerReplica"]
StartupPolicy = Literal["LeaderCreated", "LeaderReady"]


class SubGroupPolicy(Model):
    """How a group is cut into subgroups, each placed and numbered on its own."""

    sub_group_policy_type: Literal["LeaderWorker", "LeaderExcluded"] = "LeaderWorker"
    sub_group_size: Int32 | None = None


class ClaimRetentionPolicy(Model):
    """What becomes of the claims made from the claim templates, as a StatefulSet takes it: Retain or Delete."""

    when_deleted: str | None = None
    when_scaled: str | None = None


class LeaderWorkerTemplate(Model):
    """The pods of one group: a leader and ``size`` - 1 workers."""

    leader_template: Annotated[
        PodTemplateSpec | None, Field(description="Template of the leader pod; without one the workers' is used.")
    ] = None
    worker_template: Annotated[PodTemplateSpec, Field(description="Template of the worker pods.")]
    size: Annotated[Int32, Field(description="Pods in a group, the leader included.")] = 1
    restart_policy: Annotated[
        RestartPolicy, Field(description="What the restart or loss of one pod means for its group.")
    ] = "RecreateGroupOnPodRestart"
    sub_group_policy: SubGroupPolicy | None = None
    volume_claim_templates: Annotated[
        list[PersistentVolumeClaim] | None, Field(description="Claims that every pod of a group gets one of each of.")
    ] = None
    persistent_volume_claim_retention_policy: ClaimRetentionPolicy | None = None


class RollingUpdateConfiguration(Model):
    """Limits of a rolling update; percentages are of ``spec.replicas``."""

    partition: Annotated[Int32, Field(description="Groups with a lower ordinal are not updated.")] = 0
    max_unavailable: Annotated[
        IntOrString, Field(description="Groups that may be unavailable during an update; a percentage rounds down.")
    ] = 1
    max_surge: Annotated[
        IntOrString, Field(description="Groups that may exist above the replicas; a percentage rounds up.")
    ] = 0


class RolloutStrategy(Model):
    """How a new revision reaches the groups."""

    type: Literal["RollingUpdate"] = "RollingUpdate"
    rolling_update_configuration: RollingUpdateConfiguration | None = None


class NetworkConfig(Model):
    """How the pods find each other by name."""

    subdomain_policy: Annotated[
        SubdomainPolicy | None, Field(description="One headless service for the set, or one for every group.")
    ]


class LeaderWorkerSetSpec(Spec):
    """What the groups are and how they change."""

    replicas: Annotated[
        Int32,
        Field(ge=0, le=1_000_000, description="Number of groups; /scale reads and writes it."),
    ] = 1
    leader_worker_template: LeaderWorkerTemplate
    rollout_strategy: RolloutStrategy | None = None
    startup_policy: Annotated[
        StartupPolicy, Field(description="When a group's workers are created: with its leader, or once that is ready.")
    ] = "LeaderCreated"
    network_config: NetworkConfig | None = None


class LeaderWorkerSetStatus(Status):
    """What the controller last saw; all counts include surge groups."""

    replicas: Annotated[Int32 | None, Field(description="Groups that exist.")] = None
    ready_replicas: Annotated[Int32 | None, Field(description="Groups whose pods are all ready.")] = None
    updated_replicas: Annotated[Int32 | None, Field(description="Groups of the current revision.")] = None
    hpa_pod_selector: Annotated[str | None, Field(description="Selector of the leader pods, for autoscalers.")] = None


class LeaderWorkerSet(
    CustomResource[LeaderWorkerSetSpec, LeaderWorkerSetStatus],
    group="leaderworkerset.x-k8s.io",
    version="v1",
    short_names=["lws"],
    columns=[
        Column("Ready", ".status.readyReplicas", "integer", "Groups that are ready"),
        Column("Desired", ".spec.replicas", "integer", "Groups that are wanted"),
        Column("Up-to-date", ".status.updatedReplicas", "integer", "Groups of the current revision"),
        Column("Age", ".metadata.creationTimestamp", "date"),
    ],
    scale=ScaleSubresource(label_selector_path=".status.hpaPodSelector"),
):
    """Groups of pods, each a leader with its workers, that start, fail and are updated as one."""
