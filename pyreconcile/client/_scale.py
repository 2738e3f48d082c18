"""The scale sub-resource."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pyreconcile.api import KubeObject, Model, Resource


class ScaleSpec(Model):
    """How many replicas are wanted."""

    replicas: int = 0


class ScaleStatus(Model):
    """How many replicas there are, and the label selector of their pods as text."""

    replicas: int = 0
    selector: str = ""


class Scale(KubeObject):
    """What ``/scale`` of any scalable kind reads and writes (autoscaling/v1)."""

    resource: ClassVar[Resource] = Resource("autoscaling", "v1", "Scale", "")

    spec: ScaleSpec = Field(default_factory=ScaleSpec)
    status: ScaleStatus = Field(default_factory=ScaleStatus)
