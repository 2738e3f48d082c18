"""Schemas from models: types, bounds, defaults, what is refused and how."""

from datetime import datetime
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import ConfigDict, Field, StringConstraints
from pydantic.config import JsonDict

from pyreconcile.api import (
    Base64,
    CustomResource,
    Entries,
    Int32,
    Int64,
    IntOrString,
    Items,
    MicroTime,
    Model,
    ObjectMeta,
    Quantity,
    RawObject,
    Spec,
    Status,
    Time,
)
from pyreconcile.api.apiextensions_v1 import JSONSchemaProps
from pyreconcile.api.core_v1 import PersistentVolumeClaim, PodTemplateSpec
from pyreconcile.api.meta_v1 import LabelSelector
from pyreconcile.crd import (
    SchemaError,
    cel,
    combine,
    crd_for,
    list_type,
    map_type,
    nullable,
    preserve_unknown_fields,
)


def schema_of(annotation: Any, default: Any = ...) -> RawObject:
    """The schema of a field ``value`` of the given type."""
    namespace = {"__annotations__": {"value": annotation}, "__module__": __name__}
    if default is not ...:
        namespace["value"] = default
    spec = type(Model)("DemoSpec", (Spec,), namespace)
    return spec_schema(spec)["properties"]["value"]


def spec_schema(spec: type[Spec]) -> RawObject:
    class Demo(CustomResource[spec, Status], group="tests.example.dev", version="v1"):  # type: ignore[valid-type]
        """A demo."""

    version = crd_for(Demo)["spec"]["versions"][0]
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(Enum):
    LOW = 1
    HIGH = 2


class Inner(Model):
    """Something inside."""

    name: str
    count: int = 3


INT_OR_STRING = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Int32, {"type": "integer", "format": "int32"}),
        (Int64 | None, {"type": "integer", "format": "int64"}),
        (Base64, {"type": "string", "format": "byte"}),
        (Time, {"type": "string", "format": "date-time"}),
        (MicroTime, {"type": "string", "format": "date-time"}),
        (datetime, {"type": "string", "format": "date-time"}),
        (IntOrString, INT_OR_STRING),
        (int | str, INT_OR_STRING),
        (str | None, {"type": "string"}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", "b"] | None, {"type": "string", "enum": ["a", "b"]}),
        (Literal[1, 2], {"type": "integer", "enum": [1, 2]}),
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (Level, {"type": "integer", "enum": [1, 2]}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (Items[Int32], {"type": "array", "items": {"type": "integer", "format": "int32"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Entries[str], {"type": "object", "additionalProperties": {"type": "string"}}),
        (
            dict[str, list[str]],
            {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
        ),
        (dict[str, Any], {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        (Any, {"x-kubernetes-preserve-unknown-fields": True}),
        (list[Any], {"type": "array", "items": {"x-kubernetes-preserve-unknown-fields": True}}),
        (JSONSchemaProps, {"type": "object"}),
    ],
)
def test_types(annotation: Any, expected: RawObject):
    schema = schema_of(annotation)
    assert {key: schema[key] for key in expected} == expected
    if annotation is not JSONSchemaProps:
        assert schema == expected


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Annotated[int, Field(ge=0, le=8)], {"type": "integer", "minimum": 0, "maximum": 8}),
        (
            Annotated[int, Field(gt=0, lt=8)],
            {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 8, "exclusiveMaximum": True},
        ),
        (Annotated[int, Field(multiple_of=2)], {"type": "integer", "multipleOf": 2}),
        (Annotated[Int32, Field(ge=1)], {"type": "integer", "format": "int32", "minimum": 1}),
        (
            Annotated[str, Field(min_length=1, max_length=3, pattern="^a")],
            {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "^a"},
        ),
        (
            Annotated[str, StringConstraints(min_length=1, pattern="^b")],
            {"type": "string", "minLength": 1, "pattern": "^b"},
        ),
        (
            Annotated[list[str], Field(min_length=1, max_length=2)],
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        ),
        (
            Annotated[dict[str, str], Field(max_length=2)],
            {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 2},
        ),
        (
            list[Annotated[str, Field(max_length=2)]],
            {"type": "array", "items": {"type": "string", "maxLength": 2}},
        ),
        (Annotated[int, Field(ge=0)] | None, {"type": "integer", "minimum": 0}),
        (
            list[Annotated[int, Field(ge=0, description="One.", json_schema_extra=cel("self != 3"))]],
            {
                "type": "array",
                "items": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "One.",
                    "x-kubernetes-validations": [{"rule": "self != 3"}],
                },
            },
        ),
    ],
)
def test_bounds(annotation: Any, expected: RawObject):
    assert schema_of(annotation) == expected


def test_quantities_are_numbers_or_strings_with_a_pattern():
    schema = schema_of(Quantity)
    assert schema["x-kubernetes-int-or-string"] is True
    assert "type" not in schema
    assert schema["pattern"].startswith("^[+-]?")


@pytest.mark.parametrize(
    ("annotation", "default", "expected"),
    [
        (int, 1, 1),
        (bool, False, False),
        (str, "", ""),
        (Color, Color.BLUE, "blue"),
        (list[str], ["a"], ["a"]),
        (IntOrString, "25%", "25%"),
        (Inner, Inner(name="x"), {"name": "x"}),
        (Inner, Field(default_factory=lambda: Inner(name="x", count=4)), {"name": "x", "count": 4}),
        (list[Inner], [Inner(name="x")], [{"name": "x"}]),
    ],
)
def test_defaults(annotation: Any, default: Any, expected: Any):
    assert schema_of(annotation, default)["default"] == expected


@pytest.mark.parametrize(
    ("annotation", "default"),
    [(str | None, None), (list[str], Field(default_factory=list)), (dict[str, str], Field(default_factory=dict))],
)
def test_none_and_empty_containers_are_no_defaults(annotation: Any, default: Any):
    schema = schema_of(annotation, default)
    assert "default" not in schema
    assert "nullable" not in schema


def test_required_fields_and_names():
    class NamesSpec(Spec):
        needed: str
        optional: str | None = None
        null_or_text: str | None
        defaulted: int = 1
        mount_path: str
        other: str = Field(alias="hostIP")

    schema = spec_schema(NamesSpec)
    assert schema["required"] == ["needed", "nullOrText", "mountPath", "hostIP"]
    assert list(schema["properties"]) == ["needed", "optional", "nullOrText", "defaulted", "mountPath", "hostIP"]


def test_extras():
    class ExtrasSpec(Spec):
        model_config = ConfigDict(
            json_schema_extra=combine(cel("self.low <= self.high", "low is above high"), map_type("atomic"))
        )

        low: int = Field(json_schema_extra=nullable())
        high: int
        parts: list[Inner] = Field(json_schema_extra=list_type("map", keys=["name"]))
        tags: list[str] = Field(
            json_schema_extra=combine(list_type("set"), cel("true"), cel("self.size() < 9", "many"))
        )
        free: Inner = Field(json_schema_extra=preserve_unknown_fields())
        given: Any = Field(json_schema_extra={"type": "string", "format": "ipv4"})

    schema = spec_schema(ExtrasSpec)
    assert schema["x-kubernetes-validations"] == [{"rule": "self.low <= self.high", "message": "low is above high"}]
    assert schema["x-kubernetes-map-type"] == "atomic"
    properties = schema["properties"]
    assert properties["low"] == {"type": "integer", "nullable": True}
    assert properties["parts"]["x-kubernetes-list-map-keys"] == ["name"]
    assert properties["tags"]["x-kubernetes-validations"] == [
        {"rule": "true"},
        {"rule": "self.size() < 9", "message": "many"},
    ]
    assert properties["free"]["x-kubernetes-preserve-unknown-fields"] is True
    assert properties["free"]["properties"]["name"] == {"type": "string"}
    assert properties["given"] == {"type": "string", "format": "ipv4"}


def test_cel_takes_all_that_a_rule_has():
    assert cel(
        "self >= oldSelf",
        "only grows",
        message_expression="'at least ' + string(oldSelf)",
        reason="FieldValueForbidden",
        field_path=".replicas",
        optional_old_self=True,
    ) == {
        "x-kubernetes-validations": [
            {
                "rule": "self >= oldSelf",
                "message": "only grows",
                "messageExpression": "'at least ' + string(oldSelf)",
                "reason": "FieldValueForbidden",
                "fieldPath": ".replicas",
                "optionalOldSelf": True,
            }
        ]
    }


def test_descriptions_come_from_docstrings_and_fields():
    class TextSpec(Spec):
        """What to do.

        With ``code`` in it.
        """

        first: Inner
        second: Inner = Field(description="The second.")

    schema = spec_schema(TextSpec)
    assert schema["description"] == "What to do.\n\nWith `code` in it."
    assert schema["properties"]["first"]["description"] == "Something inside."
    assert schema["properties"]["second"]["description"] == "The second."


def test_lws_1_embedded_metadata_keeps_five_fields():
    class PodsSpec(Spec):
        template: PodTemplateSpec
        claims: list[PersistentVolumeClaim]
        meta: ObjectMeta

    properties = spec_schema(PodsSpec)["properties"]
    for schema in (
        properties["template"]["properties"]["metadata"],
        properties["claims"]["items"]["properties"]["metadata"],
        properties["meta"],
    ):
        assert set(schema["properties"]) == {"annotations", "finalizers", "labels", "name", "namespace"}
        assert "default" not in schema
    claim = properties["claims"]["items"]["properties"]
    assert (claim["apiVersion"], claim["kind"]) == ({"type": "string"}, {"type": "string"})


def test_built_in_parts_carry_what_openapi_says():
    class PodsSpec(Spec):
        template: PodTemplateSpec
        selector: LabelSelector

    properties = spec_schema(PodsSpec)["properties"]
    assert properties["selector"]["x-kubernetes-map-type"] == "atomic"
    pod = properties["template"]["properties"]["spec"]
    assert pod["properties"]["containers"]["x-kubernetes-list-map-keys"] == ["name"]
    port = pod["properties"]["containers"]["items"]["properties"]["ports"]
    assert port["x-kubernetes-list-map-keys"] == ["containerPort", "protocol"]
    assert port["items"]["properties"]["protocol"] == {"type": "string", "default": "TCP"}
    assert port["items"]["properties"]["containerPort"] == {"type": "integer", "format": "int32"}


def test_conditions_are_a_map_by_type_with_metav1s_bounds():
    class Demo(CustomResource[Spec, Status], group="tests.example.dev", version="v1"):
        """A demo."""

    root = crd_for(Demo)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    conditions = root["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert conditions["items"]["properties"]["reason"]["maxLength"] == 1024
    assert root["properties"]["metadata"] == {"type": "object"}


class Node(Model):
    children: list["Node"] | None = None


class CutNode(Model):
    children: list["CutNode"] | None = Field(
        default=None,
        json_schema_extra=combine({"type": "array", "items": {"type": "object", **preserve_unknown_fields()}}),
    )


def test_recursion_is_refused_unless_it_is_cut():
    with pytest.raises(SchemaError, match="Node contains itself"):
        schema_of(Node)
    items = schema_of(CutNode)["properties"]["children"]["items"]
    assert items == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@pytest.mark.parametrize(
    ("annotation", "default", "message"),
    [
        (tuple[int, int], ..., r"DemoSpec\.value: .*tuple.* has no CRD schema; use str"),
        (set[str], ..., r"DemoSpec\.value: .*set"),
        (bytes, ..., r"DemoSpec\.value: .*bytes"),
        (int | bool, ..., r"DemoSpec\.value: a CRD field has one type"),
        (dict[int, str], ..., r"DemoSpec\.value: keys of a map are strings"),
        (list[dict[str, bytes]], ..., r"DemoSpec\.value\[\]\[\*\]: .*bytes"),
        (Literal["a", 1], ..., r"DemoSpec\.value: the values of an enum are all strings or all integers"),
        (Annotated[int, Field(ge=2)], 1, r"DemoSpec\.value: the default 1 breaks"),
        (Annotated[int, Field(gt=0)], 0, r"DemoSpec\.value: the default 0 breaks"),
        (Annotated[float, Field(lt=1)], 1.0, r"DemoSpec\.value: the default 1.0 breaks"),
        (Annotated[str, Field(min_length=1)], "", r"DemoSpec\.value: the default '' breaks"),
        (Literal["a"], "b", r"DemoSpec\.value: the default 'b' breaks"),
        (str, Field(json_schema_extra=list_type("set")), r"DemoSpec\.value: list_type is for lists"),
        (
            list[Inner],
            Field(json_schema_extra=list_type("map", keys=("nme",))),
            r"DemoSpec\.value: list_type key 'nme' is no field of its items",
        ),
        (
            list[ObjectMeta],
            Field(json_schema_extra=list_type("map", keys=("name",))),
            r"DemoSpec\.value: list_type key 'name' must be required or have a default",
        ),
        (int, Field(json_schema_extra=lambda schema: None), r"DemoSpec\.value: json_schema_extra must be a dict"),
    ],
)
def test_what_cannot_be_is_refused_with_class_and_field(annotation: Any, default: Any, message: str):
    with pytest.raises(SchemaError, match=message):
        schema_of(annotation, default)


def test_wrong_extras_are_refused_at_once():
    with pytest.raises(ValueError, match="the rule is empty"):
        cel("  ")
    with pytest.raises(ValueError, match="must be one line"):
        cel("true", "a\nb")
    with pytest.raises(ValueError, match="'map' needs keys"):
        list_type("map")
    with pytest.raises(ValueError, match="'map' needs keys"):
        list_type("set", keys=("a",))


def test_combine_lets_the_last_win_but_adds_rules():
    first: JsonDict = {"a": 1, **cel("x")}
    assert combine(first, {"a": 2}, cel("y"))["a"] == 2
    assert len(combine(first, cel("y"))["x-kubernetes-validations"]) == 2  # type: ignore[arg-type]
    assert first == {"a": 1, **cel("x")}
