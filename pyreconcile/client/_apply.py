"""Server-side apply, and leaving it out when it would change nothing."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import orjson

from pyreconcile.api import CustomResource, GroupVersionKind, KubeObject, RawObject, Unstructured
from pyreconcile.api.owners import set_controller_reference
from pyreconcile.client._core import FieldValidation, T, path_of_object
from pyreconcile.client._managed import applying_changes_nothing

if TYPE_CHECKING:
    from pyreconcile.client._writing import WriteVerbs

_SECRET = GroupVersionKind("", "v1", "Secret")
APPLY = "application/apply-patch+yaml"
"""Content type of a server-side apply; the server takes JSON under it."""
_SERVER_FIELDS = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
)


async def apply(
    client: WriteVerbs,
    obj: T,
    *,
    owner: KubeObject | None,
    force: bool,
    subresource: str,
    field_manager: str,
    dry_run: bool,
    field_validation: FieldValidation | None = None,
) -> T:
    """Apply ``obj`` unless nothing would change; see `WriteVerbs.apply`."""
    path = path_of_object(obj, subresource)
    configuration = configuration_of(obj, owner, subresource)
    query = client._write_query(dry_run=dry_run, field_validation=field_validation)
    query["fieldManager"] = field_manager
    if "dryRun" not in query:
        live = await client._current_raw(type(obj), obj.key)
        if live is not None and applying_changes_nothing(
            configuration, live, manager=field_manager, subresource=subresource
        ):
            return type(obj).from_dict(live)
    if force:
        query["force"] = "true"
    body, about = orjson.dumps(configuration), (type(obj).resource, obj.key)
    answer = await client._write(
        "PATCH",
        path,
        body,
        query,
        content_type=APPLY,
        accept=type(obj).media_type,
        idempotent=True,
        about=about,
    )
    applied = client._decoded(type(obj), answer, about, query)
    client._note(applied, query)
    return applied


def configuration_of(obj: KubeObject, owner: KubeObject | None = None, subresource: str = "") -> RawObject:
    """Return what is sent for ``obj``: its type, its name, and the fields that a manager can own.

    The status goes to its sub-resource only; the server would ignore it elsewhere. A Secret's ``stringData`` goes
    into its ``data``.
    """
    if owner is not None:
        obj = obj.model_copy(update={"metadata": obj.metadata.deep_copy()})
        set_controller_reference(obj, owner)
    raw = obj.to_dict()
    resource = type(obj).resource
    metadata = {name: value for name, value in raw.get("metadata", {}).items() if name not in _SERVER_FIELDS}
    if not metadata.get("namespace"):
        metadata.pop("namespace", None)
    if resource.gvk == _SECRET and raw.get("stringData"):
        _encode_texts(raw)
    raw.update(apiVersion=resource.api_version, kind=resource.kind, metadata=metadata)
    if subresource:
        identity = {name: metadata[name] for name in ("name", "namespace") if name in metadata}
        part = {subresource: raw[subresource]} if subresource in raw else _without(raw, "status")
        return {**part, "apiVersion": raw["apiVersion"], "kind": raw["kind"], "metadata": identity}
    return _without(raw, "status") if _status_is_apart(obj) else raw


def _encode_texts(secret: RawObject) -> None:
    # The server keeps stringData nowhere, so a key left out later would stay, and every apply would seem to change it.
    texts: dict[str, str] = secret.pop("stringData")
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    secret["data"] = {**(secret.get("data") or {}), **encoded}


def _without(raw: RawObject, name: str) -> RawObject:
    return {field: value for field, value in raw.items() if field != name}


def _status_is_apart(obj: KubeObject) -> bool:
    if isinstance(obj, CustomResource):
        return type(obj).options.status_subresource
    return not isinstance(obj, Unstructured)
