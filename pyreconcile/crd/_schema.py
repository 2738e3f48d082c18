"""From a pydantic model to a structural schema (apiextensions.k8s.io/v1).

The rules, beside the obvious ones:

* ``X | None`` does not make a field nullable: the server drops a null, which is what clearing a field means. Use
  ``nullable()`` where null is a value of its own.
* A default becomes the schema's default; an empty list or map, and a default made by a factory that gives one, do not.
* A Kubernetes object inside an object keeps only name, namespace, labels, annotations and finalizers of its metadata.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from enum import Enum
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

import annotated_types as at
import orjson
from pydantic import BaseModel, StringConstraints, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pyreconcile.api import KubeObject, Model, ObjectMeta, RawObject
from pyreconcile.api._meta import Condition
from pyreconcile.api._types import Format
from pyreconcile.crd._extras import RULES

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/ as a regular expression.
QUANTITY_PATTERN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"

_ANY: TypeAdapter[Any] = TypeAdapter(Any)
_PRESERVED = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_INT_OR_STRING = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
_EMBEDDED_META: RawObject = {
    "type": "object",
    "properties": {
        "annotations": _STRINGS,
        "finalizers": {"type": "array", "items": {"type": "string"}},
        "labels": _STRINGS,
        "name": {"type": "string"},
        "namespace": {"type": "string"},
    },
}
_SCALARS: dict[Any, RawObject] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    UUID: {"type": "string", "format": "uuid"},
}
# Bounds of metav1.Condition (apimachinery: pkg/apis/meta/v1/types.go).
_CONDITION_BOUNDS: dict[str, RawObject] = {
    "type": {
        "maxLength": 316,
        "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
        r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
    },
    "reason": {"minLength": 1, "maxLength": 1024, "pattern": r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
    "message": {"maxLength": 32768},
    "observedGeneration": {"format": "int64", "minimum": 0},
}


class SchemaError(ValueError):
    """A model cannot become a CRD; the message names the class and field and says what to write instead."""


@cache
def _builtin_extras() -> dict[str, dict[str, RawObject]]:
    text = resources.files("pyreconcile.api.builtin").joinpath("schema.json").read_bytes()
    extras: dict[str, dict[str, RawObject]] = orjson.loads(text)
    return extras


def _extras_of(model: type[BaseModel]) -> Mapping[str, RawObject]:
    """Return what the API server's OpenAPI document says about a class beyond its Python types."""
    if model is Condition:
        return _CONDITION_BOUNDS
    package, _, rest = model.__module__.partition("pyreconcile.api.builtin.")
    if package or not rest:
        return {}
    return _builtin_extras().get(f"{rest.partition('.')[0]}.{model.__name__}", {})


def _merge(schema: RawObject, extra: Mapping[str, Any]) -> RawObject:
    """Return the schema with ``extra`` merged in: sub-schemas key by key, CEL rules added up, else the extra wins."""
    result = dict(schema)
    for key, value in extra.items():
        known = result.get(key)
        if key == RULES and known:
            result[key] = [*known, *value]
        elif isinstance(known, dict) and isinstance(value, Mapping):
            result[key] = _merge(known, value)
        else:
            result[key] = value
    return result


def _prose(text: str) -> str:
    """Return a docstring as CRDs show text: no indentation, and Markdown's backquotes for reStructuredText's."""
    return inspect.cleandoc(text).replace("``", "`")


class SchemaBuilder:
    """Walks one version's model; keeps the path for messages and the classes above for recursion.

    Args:
        checked: refuse what a CRD cannot say; a built-in kind's own schema may.
    """

    def __init__(self, *, checked: bool = True) -> None:
        self._checked = checked
        self._above: list[type[BaseModel]] = []

    def root(self, model: type[KubeObject]) -> RawObject:
        """Return the schema of a whole object: the server checks apiVersion, kind and metadata by itself."""
        schema = self._model(model, skip={"api_version", "kind", "metadata"})
        head = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
        schema["properties"] = {**head, **schema.get("properties", {})}
        return schema

    def _model(self, model: type[BaseModel], skip: Iterable[str] = ()) -> RawObject:
        if model is ObjectMeta:
            return dict(_EMBEDDED_META)
        if model in self._above:
            if model.__name__ == "JSONSchemaProps":
                return dict(_PRESERVED)
            raise SchemaError(
                f"{model.__name__} contains itself, which a CRD schema cannot say: give the inner field "
                f"json_schema_extra={{'type': 'object', **preserve_unknown_fields()}}"
            )
        if not model.__pydantic_fields_complete__:
            model.model_rebuild()
        schema: RawObject = {}
        doc = model.__dict__.get("__doc__")
        if doc:
            schema["description"] = _prose(doc)
        schema["type"] = "object"
        extras = _extras_of(model)
        properties: dict[str, RawObject] = {}
        required: list[str] = []
        self._above.append(model)
        for name, info in model.model_fields.items():
            if name in skip:
                continue
            wire = info.serialization_alias or info.alias or name
            where = f"{model.__name__}.{name}"
            properties[wire] = _merge(self._field(info, where), extras.get(wire, {}))
            if name in ("api_version", "kind") and issubclass(model, KubeObject):
                # Known from the class, and not part of an embedded object: a default would add them to what is stored.
                properties[wire].pop("default", None)
            if info.is_required():
                required.append(wire)
            if self._checked:
                _check_list(properties[wire], where)
        self._above.pop()
        if required:
            schema["required"] = required
        if properties:
            schema["properties"] = properties
        own = model.model_config.get("json_schema_extra")
        if callable(own):
            raise SchemaError(f"{model.__name__}: json_schema_extra in model_config must be a dict, not a function")
        return _merge(_merge(schema, extras.get("", {})), own or {})

    def _field(self, info: FieldInfo, where: str) -> RawObject:
        extra = info.json_schema_extra
        if callable(extra):
            raise SchemaError(f"{where}: json_schema_extra must be a dict, not a function")
        if extra and "type" in extra:
            schema: RawObject = {}
        else:
            schema = self._type(info.annotation, info.metadata, where)
        if info.description:
            schema = {**schema, "description": _prose(info.description)}
        default = self._default(info, where)
        if default is not PydanticUndefined:
            schema = {**schema, "default": default}
        schema = _order(_merge(schema, extra or {}))
        _check_default(schema, where)
        return schema

    def _default(self, info: FieldInfo, where: str) -> Any:
        if info.default_factory is not None and info.default_factory_takes_validated_data:
            return PydanticUndefined
        value = info.get_default(call_default_factory=True, validated_data={})
        if value is None or value is PydanticUndefined or (not value and isinstance(value, list | dict)):
            return PydanticUndefined
        if isinstance(value, ObjectMeta):
            return PydanticUndefined
        if isinstance(value, Model):
            return value.to_dict()
        try:
            return _ANY.dump_python(value, mode="json", by_alias=True, exclude_unset=True)
        except Exception as error:
            raise SchemaError(f"{where}: the default {value!r} has no JSON form: {error}") from error

    def _type(self, annotation: Any, metadata: Iterable[Any], where: str) -> RawObject:
        """Return the schema of an annotation and of what stands beside it in ``Annotated``."""
        if hasattr(annotation, "__value__"):  # type X = ...
            return self._type(annotation.__value__, metadata, where)
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self._type(args[0], [*args[1:], *metadata], where)
        notes = list(metadata)
        formats = {note.name for note in notes if isinstance(note, Format)}
        if formats & {"quantity", "int-or-string"}:
            notes = [note for note in notes if isinstance(note, FieldInfo)]
            schema = dict(_INT_OR_STRING) | ({"pattern": QUANTITY_PATTERN} if "quantity" in formats else {})
        else:
            schema = self._plain(annotation, origin, args, where)
        for note in notes:
            schema = self._note(schema, note, where)
        return schema

    def _plain(self, annotation: Any, origin: Any, args: tuple[Any, ...], where: str) -> RawObject:
        if annotation is Any or annotation is object:
            return {"x-kubernetes-preserve-unknown-fields": True}
        if origin in (Union, types.UnionType):
            arms = [arm for arm in args if arm is not type(None)]
            if len(arms) == 1:
                return self._type(arms[0], (), where)
            if set(arms) == {int, str}:
                return dict(_INT_OR_STRING)
            raise SchemaError(
                f"{where}: a CRD field has one type, not {annotation}; use IntOrString, Any, or give the schema with "
                f"json_schema_extra={{'type': ...}}"
            )
        if origin is Literal:
            return self._enum([value for value in args if value is not None], where)
        if annotation is list or origin is list:
            return {"type": "array", "items": self._type(args[0] if args else Any, (), f"{where}[]")}
        if annotation is dict or origin is dict:
            if args and args[0] is not str:
                raise SchemaError(f"{where}: keys of a map are strings, not {args[0]}")
            values = args[1] if args else Any
            if values is Any or values is object:
                return dict(_PRESERVED)
            return {"type": "object", "additionalProperties": self._type(values, (), f"{where}[*]")}
        if inspect.isclass(annotation):
            if issubclass(annotation, BaseModel):
                return self._model(annotation)
            if issubclass(annotation, Enum):
                return self._enum([member.value for member in annotation], where)
            for base, schema in _SCALARS.items():
                if annotation is base:
                    return dict(schema)
        raise SchemaError(
            f"{where}: {annotation} has no CRD schema; use str, int, float, bool, datetime, list, dict, Literal, Enum "
            f"or a Model, or give the schema with json_schema_extra={{'type': ...}}"
        )

    def _enum(self, values: list[Any], where: str) -> RawObject:
        kinds = {type(value) for value in values}
        if len(kinds) != 1 or not kinds <= {str, int}:
            raise SchemaError(f"{where}: the values of an enum are all strings or all integers, not {values}")
        return {**_SCALARS[kinds.pop()], "enum": values}

    def _note(self, schema: RawObject, note: Any, where: str) -> RawObject:
        """Add what one item of ``Annotated`` says."""
        if isinstance(note, FieldInfo):
            for inner in note.metadata:
                schema = self._note(schema, inner, where)
            if callable(note.json_schema_extra):
                raise SchemaError(f"{where}: json_schema_extra must be a dict, not a function")
            if note.description:
                schema = {**schema, "description": _prose(note.description)}
            return _merge(schema, note.json_schema_extra or {})
        if isinstance(note, Format):
            # The server knows no finer format for timestamps than RFC 3339's.
            return {**schema, "format": "date-time" if note.name == "micro-time" else note.name}
        if isinstance(note, at.GroupedMetadata) and not isinstance(note, StringConstraints):
            for inner in note:
                schema = self._note(schema, inner, where)
            return schema
        schema = dict(schema)
        suffix = {"string": "Length", "array": "Items", "object": "Properties"}.get(schema.get("type", ""), "Length")
        match note:
            case at.Ge(ge=bound):
                schema["minimum"] = bound
            case at.Gt(gt=bound):
                schema |= {"minimum": bound, "exclusiveMinimum": True}
            case at.Le(le=bound):
                schema["maximum"] = bound
            case at.Lt(lt=bound):
                schema |= {"maximum": bound, "exclusiveMaximum": True}
            case at.MultipleOf(multiple_of=step):
                schema["multipleOf"] = step
        low, high = getattr(note, "min_length", None), getattr(note, "max_length", None)
        if low:
            schema[f"min{suffix}"] = low
        if high is not None:
            schema[f"max{suffix}"] = high
        pattern = getattr(note, "pattern", None)
        if pattern is not None:
            schema["pattern"] = getattr(pattern, "pattern", pattern)
        return schema


_KEY_ORDER = ("description", "type", "format", "default", "enum")


def _order(schema: RawObject) -> RawObject:
    head = {key: schema[key] for key in _KEY_ORDER if key in schema}
    return head | {key: value for key, value in schema.items() if key not in head}


def _check_default(schema: RawObject, where: str) -> None:
    """Refuse a default that the schema itself refuses; the server would name a path in the CRD instead of the field."""
    value = schema.get("default")
    fits = True
    if "enum" in schema and value is not None:
        fits = value in schema["enum"]
    elif isinstance(value, str):
        fits = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        above = low is None or value > low or (value == low and not schema.get("exclusiveMinimum"))
        below = high is None or value < high or (value == high and not schema.get("exclusiveMaximum"))
        fits = above and below
    if not fits:
        raise SchemaError(f"{where}: the default {value!r} breaks the field's own bounds")


def _check_list(schema: RawObject, where: str) -> None:
    """Refuse list types that the server would refuse, where it would name a path in the CRD instead of the field."""
    keys = schema.get("x-kubernetes-list-map-keys")
    kind = schema.get("x-kubernetes-list-type")
    if kind and schema.get("type") != "array":
        raise SchemaError(f"{where}: list_type is for lists, and this is {schema.get('type', 'of no type')}")
    if not keys:
        return
    items = schema.get("items", {})
    for key in keys:
        field = items.get("properties", {}).get(key)
        if field is None:
            raise SchemaError(f"{where}: list_type key {key!r} is no field of its items; write the wire name")
        if key not in items.get("required", ()) and "default" not in field:
            raise SchemaError(f"{where}: list_type key {key!r} must be required or have a default")
