"""Whole API objects: the base of all kinds, custom resources, and kinds without a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field

from pyreconcile.api import _registry
from pyreconcile.api._meta import ObjectMeta
from pyreconcile.api._model import Model
from pyreconcile.api._resource import Resource, object_key, plural_of, split_api_version

SpecT = TypeVar("SpecT", bound=Model)
StatusT = TypeVar("StatusT", bound=Model)


class KubeObject(Model):
    """An object that the API server stores. Every kind has ``resource`` on its class, and ``metadata``."""

    resource: ClassVar[Resource]
    media_type: ClassVar[str] = "application/json"
    """The form in which the server is asked for one object of the class."""
    list_media_type: ClassVar[str] = "application/json"
    """The form in which the server is asked for a list of them."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        resource = cls.__dict__.get("resource")
        if resource is not None:
            cls._name_kind(resource)

    @classmethod
    def _name_kind(cls, resource: Resource) -> None:
        # Items of a list arrive without apiVersion and kind (rule RF-10), and a new object need not repeat them.
        # By default the schema is built on first use, after this.
        cls.model_fields["api_version"].default = resource.api_version
        cls.model_fields["kind"].default = resource.kind
        if cls.__pydantic_complete__:
            cls.model_rebuild(force=True)

    def to_json(self, *, exclude: Mapping[str, Any] | None = None) -> bytes:
        """Return the wire form as JSON text: apiVersion, kind, and the fields that were set."""
        self.__pydantic_fields_set__.update(("api_version", "kind"))
        return super().to_json(exclude=exclude)

    @property
    def key(self) -> str:
        """``namespace/name``, or ``name`` when cluster-scoped."""
        return object_key(self.metadata.namespace, self.metadata.name)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``kubectl get``: its header, the JSON path of its value, its type and, above 0, its priority.

    ``type`` is one of OpenAPI's ``string``, ``integer``, ``number``, ``boolean`` or ``date``.
    """

    name: str
    json_path: str
    type: Literal["string", "integer", "number", "boolean", "date"] = "string"
    description: str = ""
    format: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ScaleSubresource:
    """Where ``/scale`` finds its values in a custom resource (JSON paths)."""

    spec_replicas_path: str = ".spec.replicas"
    status_replicas_path: str = ".status.replicas"
    label_selector_path: str | None = None


@dataclass(frozen=True, slots=True)
class CustomResourceOptions:
    """What a custom resource class declares about its CRD beside the schema."""

    singular: str
    list_kind: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    status_subresource: bool = True
    scale: ScaleSubresource | None = None
    storage: bool = True
    served: bool = True
    annotations: Mapping[str, str] | None = None


class CustomResource(KubeObject, Generic[SpecT, StatusT]):
    """Base for the kinds you define.

    Declare the kind on the class::

        class ModelCache(CustomResource[ModelCacheSpec, ModelCacheStatus], group="labs.example.dev", version="v1"):
            '''A model kept warm on the nodes.'''

    Class arguments:
        group, version: the API group and this version of it; required.
        kind: by default the class's name.
        plural: by default the kind's English plural in lower case (``caches``, ``policies``).
        scope: ``Namespaced`` (default) or ``Cluster``.
        short_names, categories: names for ``kubectl get``.
        columns: printer columns.
        status_subresource: whether ``/status`` is served apart (default yes).
        scale: paths of the scale sub-resource, if it has one.
        served, storage: flags of this version in the CRD.
        annotations: annotations of the CRD itself.

    Raises:
        TypeError: group or version is missing, or a value is not of the form Kubernetes takes.
    """

    options: ClassVar[CustomResourceOptions]

    spec: SpecT
    status: StatusT | None = None

    def __init_subclass__(cls, **_: Any) -> None:
        # Class arguments belong to __pydantic_init_subclass__, which runs once the fields are known.
        super().__init_subclass__()

    @classmethod
    def __pydantic_init_subclass__(
        cls,
        *,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        scope: Literal["Namespaced", "Cluster"] = "Namespaced",
        short_names: Sequence[str] = (),
        categories: Sequence[str] = (),
        columns: Sequence[Column] = (),
        status_subresource: bool = True,
        scale: ScaleSubresource | None = None,
        served: bool = True,
        storage: bool = True,
        annotations: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        given = (group, version, kind, plural, singular, short_names, categories, columns, scale, annotations)
        if not any(given):
            # CustomResource[Spec, Status] itself, or a plain subclass that adds no kind of its own.
            return
        kind = kind or cls.__name__
        _check_class_arguments(cls, kind, group, version, kwargs)
        assert group is not None
        assert version is not None
        lower = kind.lower()
        plural, singular = plural or plural_of(kind), singular or lower
        for what, names in (
            ("plural", [plural]),
            ("singular", [singular]),
            ("short_names", short_names),
            ("categories", categories),
        ):
            _check_names(kind, what, names)
        if scope not in ("Namespaced", "Cluster"):
            raise TypeError(f"{kind}: scope is 'Namespaced' or 'Cluster', not {scope!r}")
        cls.resource = Resource(group, version, kind, plural, scope == "Namespaced")
        cls._name_kind(cls.resource)
        cls.options = CustomResourceOptions(
            singular=singular,
            list_kind=f"{kind}List",
            short_names=tuple(short_names),
            categories=tuple(categories),
            columns=tuple(columns),
            status_subresource=status_subresource,
            scale=scale,
            served=served,
            storage=storage,
            annotations=annotations,
        )
        _registry.register(cls)


_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_GROUP = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")


def _check_class_arguments(
    cls: type[KubeObject], kind: str, group: str | None, version: str | None, unknown: Mapping[str, Any]
) -> None:
    if left := sorted(set(unknown) - set(ConfigDict.__annotations__)):
        raise TypeError(f"{kind}: CustomResource has no class argument {left[0]!r}; its documentation lists them")
    if not group or not version:
        raise TypeError(
            f"{kind}: give group and version, as in "
            f"class {kind}(CustomResource[...], group='labs.example.dev', version='v1')"
        )
    if not _GROUP.fullmatch(group):
        raise TypeError(f"{kind}: group {group!r} is no lower-case domain with a dot, as in 'labs.example.dev'")
    if not _LABEL.fullmatch(version):
        raise TypeError(f"{kind}: version {version!r} is no lower-case name, as in 'v1' or 'v1alpha1'")
    if not _KIND.fullmatch(kind):
        raise TypeError(f"{kind}: a kind is a CamelCase name, as in 'ModelCache'")
    if isinstance(cls.model_fields["spec"].annotation, TypeVar):
        raise TypeError(f"{kind}: give the models of spec and status, as in CustomResource[{kind}Spec, {kind}Status]")


def _check_names(kind: str, what: str, names: Sequence[str]) -> None:
    if isinstance(names, str):
        raise TypeError(f"{kind}: {what} is a list of names, as in {what}=[{names!r}]")
    for name in names:
        if not _LABEL.fullmatch(name):
            raise TypeError(f"{kind}: {what}: {name!r} is not made of lower-case letters, digits and '-'")


class Unstructured(KubeObject):
    """An object of a kind that has no model: metadata is typed, everything else is plain JSON.

    Get a class for a kind with `unstructured`; read and write other fields by their wire names, as in
    ``widget["spec"]["replicas"]``. The constructor takes them by keyword: ``Widget(metadata=…, spec={"replicas": 1})``.
    """

    accepts_unknown_names: ClassVar[bool] = True

    def __getitem__(self, field: str) -> Any:
        return self._extra[field]

    def __setitem__(self, field: str, value: Any) -> None:
        self._extra[field] = value

    def __delitem__(self, field: str) -> None:
        del self._extra[field]

    def __contains__(self, field: str) -> bool:
        return field in self._extra

    def get(self, field: str, default: Any = None) -> Any:
        """Return a top-level field by its wire name, or ``default``."""
        return self._extra.get(field, default)

    @property
    def _extra(self) -> dict[str, Any]:
        if self.__pydantic_extra__ is None:
            self.__pydantic_extra__ = {}
        return self.__pydantic_extra__


def unstructured(
    api_version: str, kind: str, *, plural: str | None = None, namespaced: bool = True
) -> type[Unstructured]:
    """Return a class for a kind without a model; the same arguments give the same class.

    ``plural`` is the path segment and defaults to the kind's English plural in lower case.
    """
    group, version = split_api_version(api_version)
    resource = Resource(group, version, kind, plural or plural_of(kind), namespaced)
    known = _UNSTRUCTURED.get(resource)
    if known is None:
        known = type(
            kind,
            (Unstructured,),
            {"__module__": __name__, "resource": resource, "__annotations__": {"resource": ClassVar[Resource]}},
        )
        _UNSTRUCTURED[resource] = known
    return known


_UNSTRUCTURED: dict[Resource, type[Unstructured]] = {}
