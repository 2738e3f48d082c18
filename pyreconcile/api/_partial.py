"""Objects of which only the metadata is read: much less to send, parse and keep where the rest is of no use."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from pydantic import ConfigDict, field_validator

from pyreconcile.api._object import KubeObject
from pyreconcile.api._resource import Resource

_FORM = "application/json;as={};g=meta.k8s.io;v=v1"


class PartialObjectMetadata(KubeObject):
    """The metadata of an object of some kind; get a class for a kind with `metadata_only`."""

    model_config = ConfigDict(extra="ignore")

    media_type: ClassVar[str] = _FORM.format("PartialObjectMetadata")
    list_media_type: ClassVar[str] = _FORM.format("PartialObjectMetadataList")

    @field_validator("api_version", mode="before")
    @classmethod
    def _own_api_version(cls, _: Any) -> str:
        return cls.resource.api_version

    @field_validator("kind", mode="before")
    @classmethod
    def _own_kind(cls, _: Any) -> str:
        return cls.resource.kind


@cache
def metadata_only(kind: type[KubeObject]) -> type[PartialObjectMetadata]:
    """Return a class for the metadata of a kind's objects; the same kind gives the same class.

    The server then sends nothing but metadata (rules CA-10, CL-4). Objects of the class can be read, watched,
    patched and deleted; they keep the kind's own apiVersion and kind.

    Args:
        kind: a model class, or one made by `unstructured`.
    """
    if issubclass(kind, PartialObjectMetadata):
        return kind
    return type(
        f"{kind.__name__}Metadata",
        (PartialObjectMetadata,),
        {
            "__module__": __name__,
            "__doc__": f"The metadata of a {kind.__name__}.",
            "resource": kind.resource,
            "__annotations__": {"resource": ClassVar[Resource]},
        },
    )
