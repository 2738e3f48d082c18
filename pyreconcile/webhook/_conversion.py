"""Conversion: objects of one version of a kind, turned into another version (rule WH-9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import anyio.lowlevel
import structlog
from pydantic import ValidationError

from pyreconcile.api import KubeObject, RawObject, copy_json, split_api_version

S = TypeVar("S", bound=KubeObject)
T = TypeVar("T", bound=KubeObject)

_Step: TypeAlias = Callable[[Any], Any]

REVIEW_VERSIONS: Final = ("apiextensions.k8s.io/v1", "apiextensions.k8s.io/v1beta1")

# Objects after which other tasks get their turn: a list is converted in one request.
_BATCH: Final = 50

log = structlog.get_logger()


class ConversionError(Exception):
    """An object cannot be converted; the user reads the message."""


class PartialConversionError(TypeError):
    """Two versions of a kind cannot be turned into one another; the message names both and what is missing."""


class Conversions:
    """How the versions of a kind become one another.

    One version is the hub, best the stored one. Each other version, a spoke, knows the way to it and back: by a method
    ``to_hub(self) -> Hub`` and a class method ``from_hub(cls, hub) -> Self``, or by functions given to `register`. A
    spoke becomes another spoke by way of the hub, unless a function does it directly.

    A conversion returns a new object; its metadata may be left out. Whatever it says there, only labels and
    annotations can change: the API server takes no other.

    Args:
        hub: the version that all others know.
        spokes: the other versions.

    Raises:
        ValueError: the classes are not different versions of one kind.
    """

    def __init__(self, hub: type[KubeObject], *spokes: type[KubeObject]) -> None:
        resource = hub.resource
        self.group, self.kind = resource.group, resource.kind
        self.hub = hub
        self.versions: dict[str, type[KubeObject]] = {}
        self._functions: dict[tuple[type[KubeObject], type[KubeObject]], _Step] = {}
        for model in (hub, *spokes):
            other = model.resource
            if (other.group, other.kind) != (self.group, self.kind):
                raise ValueError(
                    f"{model.__name__} is a {other.group_kind}, not a {resource.group_kind} as {hub.__name__}; "
                    "versions of one kind share group and kind"
                )
            if other.version in self.versions:
                raise ValueError(f"{model.__name__}: version {other.version} is there twice")
            self.versions[other.version] = model
        if not spokes:
            raise ValueError(f"{hub.__name__}: with one version there is nothing to convert; give the spokes too")

    def register(self, source: type[S], target: type[T]) -> Callable[[Callable[[S], T]], Callable[[S], T]]:
        """Return a decorator for a function that turns ``source`` objects into ``target`` objects.

        Raises:
            ValueError: a class is no version of this kind, both are the same, or there is a function already.
        """
        for model in (source, target):
            if model not in self.versions.values():
                raise ValueError(f"{model.__name__} is no version of {self.kind}.{self.group} that was given here")
        if source is target:
            raise ValueError(f"{source.__name__} needs no function to become itself")
        if (source, target) in self._functions:
            raise ValueError(f"{source.__name__} → {target.__name__}: there is a function already")

        def decorate(function: Callable[[S], T]) -> Callable[[S], T]:
            self._functions[source, target] = function
            return function

        return decorate

    def check(self) -> None:
        """Check that each version can become each other one.

        Raises:
            PartialConversionError: one cannot.
        """
        models = list(self.versions.values())
        problems: dict[str, None] = {}
        for source in models:
            for target in models:
                if source is not target and not self._path(source, target):
                    problems.update(dict.fromkeys(self._missing(source, target)))
        if problems:
            raise PartialConversionError(f"{self.kind}.{self.group}: {'; '.join(problems)}")

    def convert(self, raw: RawObject, api_version: str) -> RawObject:
        """Turn a parsed object into another version of its kind.

        Raises:
            ConversionError: it has that version already, the kind has no such version, or a function refuses.
            Exception: a function failed.
        """
        group, version = split_api_version(api_version)
        own_group, own_version = split_api_version(raw["apiVersion"])
        if group != own_group:
            raise ConversionError(f"{own_group} cannot be converted to another group, {group}")
        if version == own_version:
            raise ConversionError(f"the object has version {version} already")
        source, target = self._model(own_version), self._model(version)
        try:
            obj = source.from_dict(raw)
        except ValidationError as error:
            fields = "; ".join(
                f"{'.'.join(map(str, item['loc']))}: {item['msg']}"
                for item in error.errors(include_url=False, include_input=False)
            )
            raise ConversionError(f"the object is no valid {own_version} {self.kind}: {fields}") from error
        before = obj.to_dict().get("metadata") or {}
        for step, expected in self._path(source, target):
            converted = step(obj)
            if not isinstance(converted, expected):
                raise TypeError(f"a conversion to {expected.__name__} returned {type(converted).__name__}")
            if "metadata" not in converted.model_fields_set:
                converted.metadata = obj.metadata
            obj = converted
        return _with_metadata_of(raw, before, obj)

    def _model(self, version: str) -> type[KubeObject]:
        model = self.versions.get(version)
        if model is None:
            known = ", ".join(self.versions)
            raise ConversionError(f"{self.kind}.{self.group} has no version {version}; known are {known}")
        return model

    def _path(self, source: type[KubeObject], target: type[KubeObject]) -> list[tuple[_Step, type[KubeObject]]]:
        """Return the steps from one version to another, each with what it gives; none when there is no way."""
        if (direct := self._step(source, target)) is not None:
            return [(direct, target)]
        to_hub, from_hub = self._step(source, self.hub), self._step(self.hub, target)
        if source is self.hub or target is self.hub or to_hub is None or from_hub is None:
            return []
        return [(to_hub, self.hub), (from_hub, target)]

    def _step(self, source: type[KubeObject], target: type[KubeObject]) -> _Step | None:
        if (function := self._functions.get((source, target))) is not None:
            return function
        if target is self.hub:
            to_hub: _Step | None = getattr(source, "to_hub", None)
            return to_hub
        if source is self.hub:
            from_hub: _Step | None = getattr(target, "from_hub", None)
            return from_hub
        return None

    def _missing(self, source: type[KubeObject], target: type[KubeObject]) -> list[str]:
        """Say which steps between two versions are not there."""
        hops = [(source, self.hub), (self.hub, target)]
        return [
            f"{one.__name__} → {other.__name__}: give {spoke.__name__} a method {method}, or register a function"
            for one, other in hops
            for spoke, method in [(one, "to_hub") if other is self.hub else (other, "from_hub")]
            if one is not other and self._step(one, other) is None
        ]


def _with_metadata_of(raw: RawObject, before: RawObject, converted: KubeObject) -> RawObject:
    """Return the converted object with the metadata as it came, but for labels and annotations that were changed."""
    result = converted.to_dict()
    metadata: RawObject = copy_json(raw.get("metadata") or {})
    after = result.get("metadata") or {}
    for field in ("labels", "annotations"):
        wanted = after.get(field) or {}
        if wanted != (before.get(field) or {}):
            metadata.pop(field, None)
            if wanted:
                metadata[field] = wanted
    result["metadata"] = metadata
    return result


async def convert_review(
    kinds: Mapping[tuple[str, str], Conversions], review: Any, *, on_panic: Callable[[], None]
) -> RawObject:
    """Answer a ConversionReview. All objects are converted or none; why not is said in its result.

    Raises:
        ValueError: this is no ConversionReview with a request.
    """
    if not isinstance(review, dict) or review.get("kind") != "ConversionReview":
        raise ValueError("its kind must be ConversionReview")
    if review.get("apiVersion") not in REVIEW_VERSIONS:
        raise ValueError(f"its apiVersion must be {' or '.join(REVIEW_VERSIONS)}")
    request = review.get("request")
    if not isinstance(request, dict):
        raise ValueError("it holds no request")
    response: RawObject = {"uid": request.get("uid", "")}
    try:
        response["convertedObjects"] = await _convert_all(kinds, request)
        response["result"] = {"status": "Success"}
    except ConversionError as error:
        response = _failure(response, str(error))
    except Exception as error:
        on_panic()
        log.exception("conversion_failed", error=type(error).__name__, desired=request.get("desiredAPIVersion"))
        # What went wrong is not the user's business, and may tell of the object.
        response = _failure(response, "the conversion webhook failed")
    return {"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": response}


async def _convert_all(kinds: Mapping[tuple[str, str], Conversions], request: RawObject) -> list[RawObject]:
    desired = request.get("desiredAPIVersion")
    if not isinstance(desired, str) or not desired:
        raise ConversionError("the request names no desiredAPIVersion")
    converted: list[RawObject] = []
    for number, raw in enumerate(request.get("objects") or []):
        if number % _BATCH == _BATCH - 1:
            await anyio.lowlevel.checkpoint()
        api_version, kind = (raw.get("apiVersion"), raw.get("kind")) if isinstance(raw, dict) else (None, None)
        if not isinstance(api_version, str) or not isinstance(kind, str):
            raise ConversionError(f"objects[{number}] has no apiVersion and kind")
        conversions = kinds.get((split_api_version(api_version)[0], kind))
        if conversions is None:
            raise ConversionError(f"objects[{number}]: conversions of {api_version} {kind} are not known here")
        try:
            converted.append(conversions.convert(raw, desired))
        except ConversionError as error:
            name = (raw.get("metadata") or {}).get("name", "")
            raise ConversionError(f"{kind} {name!r}: {error}") from error
    return converted


def _failure(response: RawObject, message: str) -> RawObject:
    return {"uid": response["uid"], "result": {"status": "Failure", "message": message}}
