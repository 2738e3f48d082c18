"""The base of every API type: camelCase on the wire, unknown fields kept, unset and null told apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import orjson
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from pyreconcile.api import _fields

RawObject: TypeAlias = dict[str, Any]
"""An API object as parsed JSON."""


def copy_json(value: Any) -> Any:
    """Return a deep copy of a JSON value (a round trip through orjson, the cheapest way measured)."""
    return orjson.loads(orjson.dumps(value))


def to_wire_name(name: str) -> str:
    """Return the wire name of a Python field: camelCase, without the underscore that avoids a clash (``from_``)."""
    return to_camel(name.rstrip("_"))


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as _ModelType
else:

    class _ModelType(type(BaseModel)):
        """Refuses unknown names in a constructor call, which would otherwise travel to the server as they are."""

        def __call__(cls, /, **values: Any) -> Any:
            if not cls.accepts_unknown_names:
                known = _fields.constructor_names(cls)
                for name in values:
                    if name not in known:
                        raise TypeError(_fields.unknown_name(cls, name))
            return super().__call__(**values)


class Model(BaseModel, metaclass=_ModelType):
    """A part of an API object.

    Attributes are snake_case, the wire names camelCase. A field that was never set is left out when the object is
    written; one set to None is written as null, which tells the server to clear it. Fields that came from the server
    and that the model does not know are kept and written back; they are in ``model_extra`` under their wire names.

    Raises:
        TypeError: the constructor got a name that is no field.
        AttributeError: a name that is no field is assigned.
    """

    model_config = ConfigDict(
        extra="allow",
        alias_generator=to_wire_name,
        populate_by_name=True,
        defer_build=True,
        protected_namespaces=(),
    )

    accepts_unknown_names: ClassVar[bool] = False
    """Whether the constructor takes names that are no fields, as wire names."""

    @classmethod
    def from_dict(cls, raw: RawObject) -> Self:
        """Build the model from parsed JSON; the result shares nothing with ``raw``.

        Raises:
            pydantic.ValidationError: a field has the wrong type; the error names it.
        """
        return cls.model_validate_json(orjson.dumps(raw), by_name=False, by_alias=True)

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Build the model from JSON text.

        Raises:
            pydantic.ValidationError: the text is no JSON, or a field has the wrong type.
        """
        return cls.model_validate_json(text, by_name=False, by_alias=True)

    def to_dict(self) -> RawObject:
        """Return the wire form as parsed JSON: only fields that were set, under their wire names."""
        raw: RawObject = orjson.loads(self.to_json())
        return raw

    def to_json(self, *, exclude: Mapping[str, Any] | None = None) -> bytes:
        """Return the wire form as JSON text; ``exclude`` names fields to leave out, as in pydantic."""
        _fields.mark_filled(self)
        return self.__pydantic_serializer__.to_json(self, by_alias=True, exclude_unset=True, exclude=exclude)

    def deep_copy(self) -> Self:
        """Return an independent copy; what was unset stays unset."""
        return type(self).from_json(self.to_json())

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show the fields that were set, for a Pod has hundreds that were not."""
        fields = type(self).model_fields
        for name, value in self.__dict__.items():
            if name in self.__pydantic_fields_set__ and fields[name].repr:
                yield name, value
        yield from (self.__pydantic_extra__ or {}).items()

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            cls = type(self)
            known = name in cls.__pydantic_fields__ or name in (self.__pydantic_extra__ or ()) or name.startswith("_")
            if not known and not hasattr(cls, name):
                raise AttributeError(_fields.unknown_name(cls, name))
            super().__setattr__(name, value)
