"""The ModelCache kind."""

from typing import Annotated

from pydantic import Field

from pyreconcile.api import Column, CustomResource, Spec, Status
from pyreconcile.crd import cel


class ModelCacheSpec(Spec):
    """What to keep warm."""

    model: Annotated[str, Field(json_schema_extra=cel("self.size() > 0", "model must not be empty"))]
    replicas: Annotated[int, Field(ge=0, le=8)] = 1


class ModelCacheStatus(Status):
    """What the controller last saw."""

    phase: str | None = None


class ModelCache(
    CustomResource[ModelCacheSpec, ModelCacheStatus],
    group="labs.example.dev",
    version="v1",
    short_names=["mc"],
    columns=[Column("Phase", ".status.phase")],
):
    """A model kept warm on the nodes."""
