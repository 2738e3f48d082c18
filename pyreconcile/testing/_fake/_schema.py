"""OpenAPI schemas as the fake walks them: which fields there are, and how lists and maps merge."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from pyreconcile.api import KubeObject, PartialObjectMetadata, RawObject, Unstructured
from pyreconcile.crd._schema import SchemaBuilder, SchemaError

ANYTHING: RawObject = {"x-kubernetes-preserve-unknown-fields": True}
"""The schema of what has none: maps merge by key, lists are one value."""

_TEXTS: RawObject = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA: RawObject = {
    "type": "object",
    "properties": {
        **{
            name: {"type": "string"}
            for name in (
                "name",
                "generateName",
                "namespace",
                "uid",
                "resourceVersion",
                "creationTimestamp",
                "deletionTimestamp",
                "selfLink",
            )
        },
        "generation": {"type": "integer"},
        "deletionGracePeriodSeconds": {"type": "integer"},
        "labels": _TEXTS,
        "annotations": _TEXTS,
        "finalizers": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "ownerReferences": {
            "type": "array",
            "items": {"type": "object", "x-kubernetes-map-type": "atomic", **ANYTHING},
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["uid"],
        },
        "managedFields": {"type": "array", "items": ANYTHING},
    },
}


class ListKind(NamedTuple):
    """How a list merges: by ``keys`` of its items, as a ``set`` of values, or as ``one`` value."""

    keys: tuple[str, ...] = ()
    is_set: bool = False

    @property
    def merges(self) -> bool:
        """Whether its items have owners of their own."""
        return bool(self.keys) or self.is_set


@cache
def schema_of(kind: type[KubeObject]) -> RawObject:
    """Return the schema of a kind's objects, that of `ANYTHING` where the class does not tell."""
    if issubclass(kind, Unstructured | PartialObjectMetadata):
        return with_metadata(ANYTHING)
    try:
        return with_metadata(SchemaBuilder(checked=False).root(kind))
    except SchemaError:
        return with_metadata(ANYTHING)


def with_metadata(schema: RawObject) -> RawObject:
    """Return the schema of whole objects for a schema that leaves their metadata open, as those in CRDs do."""
    head = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": _METADATA}
    return {**schema, "properties": {**schema.get("properties", {}), **head}}


def field(schema: RawObject, name: str) -> tuple[RawObject | None, bool]:
    """Return the schema of a field, None for an unknown one, and whether it is declared by its name."""
    properties = schema.get("properties")
    if properties and name in properties:
        return properties[name], True
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        return values, False
    if schema.get("x-kubernetes-preserve-unknown-fields") or not properties:
        return ANYTHING, False
    return None, False


def items_of(schema: RawObject) -> RawObject:
    """Return the schema of a list's items."""
    items: RawObject = schema.get("items") or ANYTHING
    return items


def list_kind(schema: RawObject) -> ListKind:
    """Return how a list merges; as one value if its schema does not say."""
    match schema.get("x-kubernetes-list-type"):
        case "map":
            return ListKind(tuple(schema.get("x-kubernetes-list-map-keys") or ()))
        case "set":
            return ListKind(is_set=True)
    return ListKind()


def is_atomic_map(schema: RawObject) -> bool:
    """Tell whether a map has one owner."""
    return schema.get("x-kubernetes-map-type") == "atomic"


def key_of_item(item: Any, kind: ListKind, schema: RawObject) -> RawObject:
    """Return the keys of an item of a list that merges by them, with the defaults of those it leaves out.

    Raises:
        ValueError: a key without a default is missing.
    """
    properties = items_of(schema).get("properties", {})
    found: RawObject = {}
    for name in sorted(kind.keys):
        value = item.get(name) if isinstance(item, dict) else None
        if value is None:
            value = properties.get(name, {}).get("default")
        if value is None:
            raise ValueError(f"an item lacks {name!r}, by which its list is merged")
        found[name] = value
    return found


def pruned(value: Any, schema: RawObject, unknown: list[str], path: str = "") -> Any:
    """Return what the server keeps of a value: no nulls, and no fields that the schema does not know.

    Args:
        value: what was sent.
        schema: its schema.
        unknown: gets the paths of the fields left out.
        path: where the value stands.
    """
    if isinstance(value, dict):
        kept = {}
        for name, inner in value.items():
            where = f"{path}.{name}" if path else name
            child, _ = field(schema, name)
            if child is None:
                unknown.append(where)
            elif inner is not None or child.get("nullable"):
                kept[name] = pruned(inner, child, unknown, where)
        return kept
    if isinstance(value, list):
        child = items_of(schema)
        return [pruned(item, child, unknown, f"{path}[{index}]") for index, item in enumerate(value)]
    return value
