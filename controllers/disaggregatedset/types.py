"""The DisaggregatedSet kind (DS §2.1)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from pyreconcile.api import Column, CustomResource, Int32, Items, Model, ObjectMeta, Spec, Status
from pyreconcile.crd import cel, list_type
from pyreconcile_controllers.leaderworkerset import LeaderWorkerSetSpec

ROLE_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

_IS_EXTERNAL = "has(r.scaling) && r.scaling.mode == 'External'"
_ALL_OR_NONE = (
    f"self.roles.all(r, ({_IS_EXTERNAL}) || !has(r.spec.replicas) || r.spec.replicas == 0) || "
    f"self.roles.all(r, ({_IS_EXTERNAL}) || (has(r.spec.replicas) && r.spec.replicas > 0))"
)


class RoleScaling(Model):
    """Who says how many replicas a role has."""

    mode: Annotated[
        Literal["Static", "External"],
        Field(description="Static: spec.replicas. External, an autoscaler, is not supported yet and refused."),
    ] = "Static"


class Role(Model):
    """One part of the serving process, such as prefill or decode: a LeaderWorkerSet for each revision."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=ROLE_NAME_PATTERN)]
    scaling: RoleScaling | None = None
    metadata: Annotated[
        ObjectMeta | None, Field(description="Labels and annotations for the role's LeaderWorkerSets.")
    ] = None
    spec: Annotated[
        LeaderWorkerSetSpec,
        Field(description="The role's LeaderWorkerSet. A changed leaderWorkerTemplate makes a new revision."),
    ]


class PlacementPolicy(Model):
    """Where the pods of a slice may run."""

    type: Annotated[
        Literal["None", "ExclusiveSlice", "ExclusiveTopology"],
        Field(description="Anything but None is not supported yet and refused."),
    ] = "None"
    topology: Annotated[str | None, Field(description="Node label that names the topology domain.")] = None


class DisaggregatedSetSpec(Spec):
    """The roles, and how often there are all of them."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            _ALL_OR_NONE,
            "replicas must be zero for all non-External roles or non-zero for all non-External roles",
        )
    )

    roles: Annotated[
        list[Role],
        Field(min_length=2, max_length=10, json_schema_extra=list_type("map", keys=("name",))),
    ]
    slices: Annotated[
        Int32, Field(ge=1, le=100, description="Copies of all roles. More than 1 is not supported yet and refused.")
    ] = 1
    placement_policy: PlacementPolicy | None = None


class RoleStatus(Model):
    """What there is of one role; the counts are of replicas (groups of pods) of all revisions."""

    name: str
    replicas: Annotated[Int32, Field(description="Replicas that exist.")] = 0
    ready_replicas: Annotated[Int32, Field(description="Replicas that are ready.")] = 0
    updated_replicas: Annotated[Int32, Field(description="Replicas of the current revision.")] = 0


class DisaggregatedSetStatus(Status):
    """What the controller last saw."""

    role_statuses: Annotated[
        Items[RoleStatus], Field(default_factory=list, json_schema_extra=list_type("map", keys=("name",)))
    ]


class DisaggregatedSet(
    CustomResource[DisaggregatedSetSpec, DisaggregatedSetStatus],
    group="disaggregatedset.x-k8s.io",
    version="v1",
    columns=[
        Column("Available", '.status.conditions[?(@.type=="Available")].status', "string", "All roles are ready"),
        Column("Progressing", '.status.conditions[?(@.type=="Progressing")].status', "string", "A change is under way"),
        Column("Age", ".metadata.creationTimestamp", "date"),
    ],
):
    """Roles of one serving process that are rolled out together, such as prefill and decode.

    Each role is a LeaderWorkerSet. A changed template makes new ones beside the old, and replicas move over in steps
    that keep the ratio of the roles. Slices above 1, External scaling and placement policies are not supported yet.
    """
