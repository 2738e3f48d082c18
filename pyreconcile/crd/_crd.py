"""CustomResourceDefinition objects from custom resource classes."""

from __future__ import annotations

from typing import Any

import yaml

from pyreconcile.api import Column, CustomResource, RawObject
from pyreconcile.crd._schema import SchemaBuilder, SchemaError

AnyCustomResource = CustomResource[Any, Any]


def crd_for(
    model: type[AnyCustomResource], *other_versions: type[AnyCustomResource], conversion: RawObject | None = None
) -> RawObject:
    """Return the CustomResourceDefinition (apiextensions.k8s.io/v1) of a kind.

    Args:
        model: the class of the kind; names, scope and annotations come from it.
        other_versions: classes of the same kind in other versions of its group. One of them all has ``storage=True``.
        conversion: ``spec.conversion``; without it the server only changes apiVersion between versions.

    Raises:
        SchemaError: a field has no place in a CRD schema, or the versions do not fit together.
    """
    models = (model, *other_versions)
    for each in models:
        if "resource" not in vars(each) or "options" not in vars(each):
            raise SchemaError(f"{each.__name__}: give group and version, as in class {each.__name__}(…, group=…)")
    resource, options = model.resource, model.options
    versions: set[str] = set()
    for each in models:
        other = each.resource
        for name in ("group", "kind", "plural", "namespaced"):
            if getattr(other, name) != getattr(resource, name):
                raise SchemaError(
                    f"{each.__name__}: {name} is {getattr(other, name)!r}, but {model.__name__} has "
                    f"{getattr(resource, name)!r}; versions of one kind share it"
                )
        if other.version in versions:
            raise SchemaError(f"{each.__name__}: version {other.version} is there twice")
        versions.add(other.version)
    stored = [each.resource.version for each in models if each.options.storage]
    if len(stored) != 1:
        raise SchemaError(
            f"{resource.kind}: exactly one version is stored, not {', '.join(stored) or 'none'}; "
            f"give the others storage=False"
        )
    names: RawObject = {
        "kind": resource.kind,
        "listKind": options.list_kind,
        "plural": resource.plural,
        "singular": options.singular,
    }
    if options.short_names:
        names["shortNames"] = list(options.short_names)
    if options.categories:
        names["categories"] = list(options.categories)
    metadata: RawObject = {"name": f"{resource.plural}.{resource.group}"}
    if options.annotations:
        metadata["annotations"] = dict(options.annotations)
    spec: RawObject = {
        "group": resource.group,
        "names": names,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "versions": [_version(each) for each in models],
    }
    if conversion is not None:
        spec["conversion"] = conversion
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    }


def _version(model: type[AnyCustomResource]) -> RawObject:
    options = model.options
    version: RawObject = {"name": model.resource.version, "served": options.served, "storage": options.storage}
    if options.columns:
        version["additionalPrinterColumns"] = [_column(column) for column in options.columns]
    subresources: RawObject = {}
    if options.status_subresource:
        subresources["status"] = {}
    if options.scale is not None:
        scale = {
            "specReplicasPath": options.scale.spec_replicas_path,
            "statusReplicasPath": options.scale.status_replicas_path,
        }
        if options.scale.label_selector_path:
            scale["labelSelectorPath"] = options.scale.label_selector_path
        subresources["scale"] = scale
    if subresources:
        version["subresources"] = subresources
    schema = SchemaBuilder().root(model)
    for path in [column.json_path for column in options.columns] + list(subresources.get("scale", {}).values()):
        _check_path(schema, path, f"{model.__name__}: {path!r}")
    version["schema"] = {"openAPIV3Schema": schema}
    return version


def _check_path(schema: RawObject, path: str, where: str) -> None:
    """Refuse the path of a column or of the scale sub-resource that leads nowhere; what is not plain is let through."""
    if not path.startswith("."):
        raise SchemaError(f"{where}: a path begins with a dot, as in '.status.phase'")
    names = path[1:].split(".")
    if names[0] == "metadata":
        return
    for name in names:
        if not name.replace("-", "").isalnum() or "properties" not in schema:
            return
        if name not in schema["properties"]:
            if schema.get("x-kubernetes-preserve-unknown-fields"):
                return
            raise SchemaError(f"{where}: there is no field {name!r}; fields are {', '.join(schema['properties'])}")
        schema = schema["properties"][name]


def _column(column: Column) -> RawObject:
    found: RawObject = {"name": column.name, "type": column.type, "jsonPath": column.json_path}
    for key in ("description", "format", "priority"):
        if value := getattr(column, key):
            found[key] = value
    return found


class _Dumper(yaml.SafeDumper):
    """Writes every part in full: parts that occur twice would become anchors, which many tools do not read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


def crd_yaml(*crds: RawObject | type[AnyCustomResource]) -> str:
    """Return CRDs (objects, or classes of one version) as YAML documents, the same text for the same models.

    Raises:
        SchemaError: as `crd_for` does.
    """
    objects = [crd if isinstance(crd, dict) else crd_for(crd) for crd in crds]
    return "---\n".join(
        yaml.dump(crd, Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True) for crd in objects
    )
