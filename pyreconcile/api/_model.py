"""The base of every API type: camelCase on the wire, unknown fields kept, unset and null told apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self, TypeAlias

import orjson
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

RawObject: TypeAlias = dict[str, Any]
"""An API object as parsed JSON."""


def copy_json(value: Any) -> Any:
    """Return a deep copy of a JSON value (a round trip through orjson, the cheapest way measured)."""
    return orjson.loads(orjson.dumps(value))


def to_wire_name(name: str) -> str:
    """Return the wire name of a Python field: camelCase, without the underscore that avoids a clash (``from_``)."""
    return to_camel(name.rstrip("_"))


class Model(BaseModel):
    """A part of an API object.

    Attributes are snake_case, the wire names camelCase. A field that was never set is left out when the object is
    written; one set to None is written as null, which tells the server to clear it. Fields that the model does not
    know are kept and written back.
    """

    model_config = ConfigDict(
        extra="allow",
        alias_generator=to_wire_name,
        populate_by_name=True,
        defer_build=True,
        protected_namespaces=(),
    )

    # Fields whose default is a container: changed in place, they must count as set. Filled on first use per class.
    _container_fields: ClassVar[dict[type, tuple[str, ...]]] = {}

    @classmethod
    def from_dict(cls, raw: RawObject) -> Self:
        """Build the model from parsed JSON; the result shares nothing with ``raw``.

        Raises:
            pydantic.ValidationError: a field has the wrong type; the error names it.
        """
        return cls.model_validate_json(orjson.dumps(raw))

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Build the model from JSON text."""
        return cls.model_validate_json(text)

    def to_dict(self) -> RawObject:
        """Return the wire form as parsed JSON: only fields that were set, under their wire names."""
        _mark_set(self)
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def to_json(self) -> bytes:
        """Return the wire form as JSON text."""
        _mark_set(self)
        return self.__pydantic_serializer__.to_json(self, by_alias=True, exclude_unset=True)

    def deep_copy(self) -> Self:
        """Return an independent copy; what was unset stays unset."""
        return type(self).from_dict(self.to_dict())


def _container_fields(cls: type[Model]) -> tuple[str, ...]:
    known = Model._container_fields.get(cls)
    if known is None:
        known = tuple(
            name
            for name, field in cls.model_fields.items()
            if field.default_factory is not None or isinstance(field.default, list | dict | BaseModel)
        )
        Model._container_fields[cls] = known
    return known


def _models_in(value: Any) -> Iterator[Model]:
    if isinstance(value, Model):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _models_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _models_in(item)


def _mark_set(model: Model) -> bool:
    """Count defaulted containers that were filled in place as set; tell whether the model has any set field."""
    fields_set = model.__pydantic_fields_set__
    values = model.__dict__
    for name in _container_fields(type(model)):
        if name not in fields_set:
            value = values[name]
            if _mark_set(value) if isinstance(value, Model) else value:
                fields_set.add(name)
    for value in values.values():
        if isinstance(value, Model | list | dict):
            for inner in _models_in(value):
                _mark_set(inner)
    return bool(fields_set)
