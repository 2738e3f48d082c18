"""Bookkeeping of a model's fields: names for error messages, and containers that were filled in place."""

from __future__ import annotations

import types
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


@cache
def constructor_names(cls: type[BaseModel]) -> frozenset[str]:
    """Return what a constructor call may name: fields by their Python and their wire names."""
    return frozenset(cls.model_fields) | {info.alias for info in cls.model_fields.values() if info.alias}


def unknown_name(cls: type[BaseModel], name: str) -> str:
    """Return the message for a name that is no field: the nearest field, and where unknown fields go."""
    by_wire = {info.alias: field for field, info in cls.model_fields.items() if info.alias}
    if name in by_wire:
        hint = f"write {by_wire[name]!r}"
    elif close := get_close_matches(name, cls.model_fields, n=1):
        hint = f"did you mean {close[0]!r}?"
    else:
        hint = f"its fields are {', '.join(sorted(cls.model_fields))}"
    return f"{cls.__name__} has no field {name!r}: {hint} (a field that the model lacks goes into model_extra)"


class _Plan(NamedTuple):
    """Which fields of a class `mark_filled` has to look at."""

    # Fields whose default is a container or a model: filled in place, they must count as set.
    containers: tuple[str, ...]
    # Fields that hold models with such fields, at any depth.
    inner: tuple[str, ...]


def _is_container(info: FieldInfo) -> bool:
    return info.default_factory is not None or isinstance(info.default, list | dict | BaseModel)


def _models_of(annotation: Any) -> list[type[BaseModel]]:
    """Return the model classes that a value of the annotation may hold."""
    if isinstance(annotation, TypeVar):
        return [BaseModel]
    if hasattr(annotation, "__value__"):
        return _models_of(annotation.__value__)
    origin = get_origin(annotation)
    if origin is Annotated:
        return _models_of(get_args(annotation)[0])
    if origin in (Union, types.UnionType, list, dict):
        return [model for arm in get_args(annotation) for model in _models_of(arm)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


@cache
def _has_containers(cls: type[BaseModel]) -> bool:
    """Tell whether the class, or one it holds, has a field that may be filled in place."""
    seen: set[type[BaseModel]] = set()
    todo = [cls]
    while todo:
        model = todo.pop()
        if model in seen:
            continue
        if model is BaseModel:  # a type parameter: it may be anything
            return True
        seen.add(model)
        for info in model.model_fields.values():
            if _is_container(info):
                return True
            todo += _models_of(info.annotation)
    return False


@cache
def _plan(cls: type[BaseModel]) -> _Plan:
    fields = cls.model_fields
    containers = tuple(name for name, info in fields.items() if _is_container(info))
    inner = tuple(
        name for name, info in fields.items() if any(_has_containers(model) for model in _models_of(info.annotation))
    )
    return _Plan(containers, inner)


def mark_filled(model: BaseModel) -> bool:
    """Count defaulted containers that were filled in place as set; tell whether the model has any set field."""
    plan = _plan(type(model))
    fields_set = model.__pydantic_fields_set__
    values = model.__dict__
    for name in plan.containers:
        if name not in fields_set:
            value = values[name]
            if mark_filled(value) if isinstance(value, BaseModel) else value:
                fields_set.add(name)
    for name in plan.inner:
        if name in fields_set:
            _mark_inside(values[name])
    for value in (model.__pydantic_extra__ or {}).values():
        _mark_inside(value)
    return bool(fields_set or model.__pydantic_extra__)


def _mark_inside(value: Any) -> None:
    if isinstance(value, BaseModel):
        mark_filled(value)
    elif isinstance(value, list):
        for item in value:
            _mark_inside(item)
    elif isinstance(value, dict):
        for item in value.values():
            _mark_inside(item)
