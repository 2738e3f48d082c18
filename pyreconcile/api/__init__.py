"""The object model: metadata, conditions, custom resources, built-in kinds, and names of resources.

Models are pydantic classes. On the wire names are camelCase, in Python snake_case; a field that was never set is not
written, one set to None is written as null, and fields that a model does not know are kept.
"""

from pyreconcile.api._meta import Condition, ObjectMeta, OwnerReference, Spec, Status
from pyreconcile.api._model import Model, RawObject, copy_json
from pyreconcile.api._object import (
    Column,
    CustomResource,
    CustomResourceOptions,
    KubeObject,
    ScaleSubresource,
    Unstructured,
    unstructured,
)
from pyreconcile.api._partial import PartialObjectMetadata, metadata_only
from pyreconcile.api._registry import find_model, kinds_of, register, register_lazy
from pyreconcile.api._resource import GroupVersionKind, Resource, object_key, split_api_version, split_key
from pyreconcile.api._types import Base64, Entries, Int32, Int64, IntOrString, Items, MicroTime, Quantity, Time

__all__ = [
    "Base64",
    "Column",
    "Condition",
    "CustomResource",
    "CustomResourceOptions",
    "Entries",
    "GroupVersionKind",
    "Int32",
    "Int64",
    "IntOrString",
    "Items",
    "KubeObject",
    "MicroTime",
    "Model",
    "ObjectMeta",
    "OwnerReference",
    "PartialObjectMetadata",
    "Quantity",
    "RawObject",
    "Resource",
    "ScaleSubresource",
    "Spec",
    "Status",
    "Time",
    "Unstructured",
    "copy_json",
    "find_model",
    "kinds_of",
    "metadata_only",
    "object_key",
    "register",
    "register_lazy",
    "split_api_version",
    "split_key",
    "unstructured",
]
