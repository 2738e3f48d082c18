"""Writing verbs: create, update, patch, apply, delete, and sub-resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

import orjson

from pyreconcile.api import CustomResource, KubeObject, Model, RawObject
from pyreconcile.client._apply import apply
from pyreconcile.client._core import (
    Core,
    FieldValidation,
    Propagation,
    T,
    check_whole,
    checked_kind,
    collection_path,
    path_of,
    path_of_object,
)
from pyreconcile.client._equality import semantic_equal
from pyreconcile.client._errors import NotFoundError
from pyreconcile.client._patch import MergePatch, Patch
from pyreconcile.client._scale import Scale
from pyreconcile.client._selectors import FieldSelector, LabelSelector, selection
from pyreconcile.client._status import status_of, status_update, with_status
from pyreconcile.client._subresource import Subresource

B = TypeVar("B", bound=KubeObject)

_MANAGED = {"metadata": {"managed_fields"}}
"""What an update leaves out: a kilobyte an object, which the server would take for its own words."""

_REVIEWS = ("authentication.k8s.io", "authorization.k8s.io")
"""Groups whose objects are questions: they are answered and not stored, and need no name."""


class WriteVerbs(Core):
    """The verbs that change objects.

    They return the object as the server has it now and leave the passed one as it was. Each raises ApiError by kind
    when the server refuses, and whatever the write guard raises before anything is sent. When a write is cancelled,
    the server may or may not have done it.
    """

    async def create(self, obj: T, *, dry_run: bool = False, field_validation: FieldValidation | None = None) -> T:
        """Create an object; with ``metadata.generate_name`` and no name the server makes the name up.

        Args:
            obj: the object, without a resource version.
            dry_run: have it checked and defaulted, but not stored.
            field_validation: what the server does with unknown fields (its default warns).

        Raises:
            AlreadyExistsError: there is an object of that name.
            InvalidError: it breaks a rule of its schema.
            TypeError: only its metadata is known (`pyreconcile.api.metadata_only`).
        """
        kind, metadata = type(obj), obj.metadata
        check_whole(kind, "create")
        if not (metadata.name or metadata.generate_name or kind.resource.group in _REVIEWS):
            raise ValueError(f"metadata.name: the {kind.resource.kind} has neither name nor generate_name")
        path = collection_path(kind, metadata.namespace)
        query = self._write_query(dry_run=dry_run, field_validation=field_validation)
        # A review has no name and is not stored.
        about = (kind.resource, obj.key) if metadata.name or metadata.generate_name else None
        answer = await self._write("POST", path, obj.to_json(), query, about=about)
        created = self._decoded(kind, answer, about, query)
        if created.metadata.resource_version:
            self._note(created, query)
        return created

    async def update(
        self,
        obj: T,
        *,
        subresource: str = "",
        dry_run: bool = False,
        field_validation: FieldValidation | None = None,
    ) -> T:
        """Replace an object by this one; its resource version, if set, must be the stored one.

        Managed fields are not sent: the server keeps its own. To clear them, patch.

        Raises:
            ConflictError: the object has changed since it was read; see `retry_on_conflict`.
            NotFoundError: there is no such object.
            TypeError: only its metadata is known (`pyreconcile.api.metadata_only`).
        """
        check_whole(type(obj), "update")
        query = self._write_query(dry_run=dry_run, field_validation=field_validation)
        return await self._put(obj, obj.to_json(exclude=_MANAGED), path_of_object(obj, subresource), query)

    async def _put(self, obj: T, body: bytes, path: str, query: Mapping[str, str]) -> T:
        about = type(obj).resource, obj.key
        updated = self._decoded(type(obj), await self._write("PUT", path, body, query, about=about), about, query)
        self._note(updated, query)
        return updated

    async def set_finalizers(self, obj: T, finalizers: Sequence[str]) -> T:
        """Replace an object's finalizers by one update with its resource version; give the object as it was read.

        Prefer `pyreconcile.controller.ensure_finalizer` and ``release_finalizer``.

        Raises:
            ConflictError: the object has changed since it was read.
            NotFoundError: there is no such object.
            TypeError: only its metadata is known (`pyreconcile.api.metadata_only`).
            ValueError: it has no resource version.
        """
        kind, version = type(obj), obj.metadata.resource_version
        check_whole(kind, "set_finalizers")
        if not version:
            raise ValueError(f"{kind.resource.kind} {obj.key!r} has no resource version: read it from the server first")
        query = self._write_query(dry_run=False)
        held = self._peek(kind, obj.key)
        if held is None or held["metadata"].get("resourceVersion") != version:
            metadata = obj.metadata.model_copy(update={"finalizers": list(finalizers)})
            body = obj.model_copy(update={"metadata": metadata}).to_json(exclude=_MANAGED)
        else:
            # The cache has the very text, nearly: that spares writing it anew.
            fields = {**held["metadata"], "finalizers": list(finalizers)}
            fields.pop("managedFields", None)
            body = orjson.dumps({**held, "metadata": fields})
        return await self._put(obj, body, path_of_object(obj), query)

    async def update_status(self, obj: T, **changes: Any) -> T:
        """Replace an object's status with its own, after setting the fields given, on a copy.

        Nothing is sent when that changes nothing: compared with the cached object when it has the version of
        ``obj``, and without a cache with ``obj`` itself (then a status edited in place is sent only by a call
        without ``changes``); the returned object then shares what was not changed with ``obj``.

        Args:
            obj: the object as it was read.
            changes: fields of the status by their Python names; the status is made when there is none.

        Raises:
            TypeError: the status has no such field.
            ConflictError: the object has changed since it was read.
            NotFoundError: there is no such object, or the kind has no status sub-resource.
        """
        changed = with_status(obj, changes)
        wanted = status_of(changed)
        if not await self._status_differs(obj, wanted, edited=not changes):
            return changed
        if not (isinstance(obj, CustomResource) and type(obj).options.status_subresource):
            return await self.update(changed, subresource="status")
        # The server takes nothing but the status of a custom resource here, so the rest need not travel
        # (apiextensions-apiserver, customresource's statusStrategy).
        body = orjson.dumps(status_update(obj, wanted))
        return await self._put(obj, body, path_of_object(obj, "status"), self._write_query(dry_run=False))

    async def _status_differs(self, obj: KubeObject, wanted: Any, *, edited: bool) -> bool:
        if self._settings.reader is None:
            return edited or not semantic_equal(status_of(obj), wanted)
        held = self._peek(type(obj), obj.key)
        stale = held is not None and held["metadata"].get("resourceVersion") != obj.metadata.resource_version
        if stale and not semantic_equal(status_of(obj), wanted):
            return True  # such as after a write that the cache does not show yet: no need to wait for that
        live = await self._current_raw(type(obj), obj.key)
        if live is None or live["metadata"].get("resourceVersion") != obj.metadata.resource_version:
            return True
        return not semantic_equal(live.get("status"), wanted)

    @overload
    async def patch(
        self,
        target: T,
        patch: Patch,
        /,
        *,
        subresource: str = "",
        dry_run: bool = False,
        field_validation: FieldValidation | None = None,
    ) -> T: ...

    @overload
    async def patch(
        self,
        target: type[T],
        key: str,
        patch: Patch,
        /,
        *,
        subresource: str = "",
        dry_run: bool = False,
        field_validation: FieldValidation | None = None,
    ) -> T: ...

    async def patch(
        self,
        target: Any,
        *rest: Any,
        subresource: str = "",
        dry_run: bool = False,
        field_validation: FieldValidation | None = None,
    ) -> Any:
        """Patch an object: ``patch(obj, patch)`` or ``patch(kind, key, patch)``.

        Raises:
            NotFoundError: there is no such object.
            ConflictError: the patch carries a resource version that is not the stored one.
            UnsupportedMediaTypeError: a strategic merge patch was sent for a custom resource.
        """
        kind, key, patch = patch_target(target, rest)
        query = self._write_query(dry_run=dry_run, field_validation=field_validation)
        path, about = path_of(kind, key, subresource), (kind.resource, key)
        answer = await self._write(
            "PATCH",
            path,
            patch.to_json(),
            query,
            content_type=patch.content_type,
            accept=kind.media_type,
            about=about,
        )
        patched = self._decoded(kind, answer, about, query)
        self._note(patched, query)
        return patched

    async def apply(
        self,
        obj: T,
        *,
        owner: KubeObject | None = None,
        force: bool = True,
        subresource: str = "",
        field_manager: str | None = None,
        dry_run: bool = False,
        field_validation: FieldValidation | None = None,
    ) -> T:
        """Make the server's object contain this one (server-side apply), creating it when there is none.

        ``obj`` lists every field that this field manager wants to own: a field that it owned and that is left out is
        removed. Build it anew; do not apply an object that was read. Nothing is sent when the live object, as the
        client reads it, already has every field and the field manager owns no other; the live object is returned.

        Args:
            obj: the fields wanted; status, resource version and what else the server sets are not sent.
            owner: becomes the object's controller reference.
            force: take fields over from other managers.
            subresource: apply to this sub-resource, such as ``status`` (then only the status is sent).
            field_manager: in place of the client's own.
            dry_run: have the result computed, but not stored.
            field_validation: what the server does with unknown fields.

        Raises:
            ConflictError: another manager owns a field and ``force`` is off; ``causes`` names fields and managers.
            AlreadyOwnedError: ``obj`` names another controller already.
            ValueError: the object has no name.
        """
        return await apply(
            self,
            obj,
            owner=owner,
            force=force,
            subresource=subresource,
            field_manager=field_manager or self.field_manager,
            dry_run=dry_run,
            field_validation=field_validation,
        )

    async def delete(
        self,
        target: KubeObject | type[KubeObject],
        key: str | None = None,
        *,
        grace_period_seconds: int | None = None,
        propagation: Propagation | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        missing_ok: bool = False,
        dry_run: bool = False,
    ) -> None:
        """Delete an object: ``delete(obj)`` or ``delete(kind, key)``. One with finalizers is only marked.

        Args:
            target: the object, or the kind whose object ``key`` names.
            key: see ``target``.
            grace_period_seconds: time for the object to end by itself; 0 for at once.
            propagation: what happens to its dependents; the kind decides by default.
            uid, resource_version: delete only the object that has them.
            missing_ok: return when there is no such object.
            dry_run: check, but delete nothing.

        Raises:
            NotFoundError: there is no such object and ``missing_ok`` is off.
            ConflictError: the object's UID or resource version is another.
        """
        if isinstance(target, KubeObject):
            kind: type[KubeObject] = type(target)
            path, key = path_of_object(target), target.key
        else:
            kind = checked_kind(target, "delete", "client.delete(Pod, 'namespace/name') or client.delete(pod)")
            if key is None:
                raise TypeError(f"delete: write client.delete({kind.__name__}, 'namespace/name')")
            path = path_of(kind, key)
        query = self._delete_query(dry_run)
        body = _delete_options(grace_period_seconds, propagation, uid, resource_version)
        try:
            answer = await self._write("DELETE", path, body, query, about=(kind.resource, key))
        except NotFoundError:
            if missing_ok:
                return
            raise
        if self._settings.write_observer is not None and "dryRun" not in query:
            try:
                gone, version = _deleted(orjson.loads(answer))
            except Exception:
                self._lost((kind.resource, key), query)
                raise
            self._settings.write_observer.deleted(kind.resource, key, gone, version)

    async def delete_all_of(
        self,
        kind: type[KubeObject],
        *,
        namespace: str = "",
        labels: LabelSelector | None = None,
        fields: FieldSelector | None = None,
        grace_period_seconds: int | None = None,
        propagation: Propagation | None = None,
        dry_run: bool = False,
    ) -> None:
        """Delete all objects that match, in one request.

        Raises:
            ValueError: the kind is namespaced and no namespace is given: the server deletes in one at a time.
        """
        checked_kind(kind, "delete_all_of", "client.delete_all_of(Pod, namespace=…)")
        query = {**selection(labels, fields), **self._delete_query(dry_run)}
        body = _delete_options(grace_period_seconds, propagation, None, None)
        await self._write("DELETE", collection_path(kind, namespace), body, query)

    @overload
    def subresource(self, kind: type[T], key: str, name: str) -> Subresource[T]: ...

    @overload
    def subresource(self, kind: type[KubeObject], key: str, name: str, body: type[B]) -> Subresource[B]: ...

    def subresource(self, kind: type[Any], key: str, name: str, body: type[Any] | None = None) -> Subresource[Any]:
        """Return the verbs of a sub-resource of one object; nothing is sent yet.

        ::

            token = await client.subresource(ServiceAccount, key, "token", TokenRequest).create(request)

        Args:
            kind: the model class of the object.
            key: the object's key.
            name: such as ``scale``, ``eviction``, ``token`` or ``resize``.
            body: what the sub-resource takes and returns, by default the object itself.

        Raises:
            ValueError: the key does not fit the kind's scope.
        """
        checked_kind(kind, "subresource", "client.subresource(Deployment, 'namespace/name', 'scale', Scale)")
        return Subresource(self, kind, key, name, body or kind)

    async def get_scale(self, kind: type[KubeObject], key: str) -> Scale:
        """Return the scale of an object, from the server.

        Raises:
            NotFoundError: there is no such object, or the kind cannot be scaled.
        """
        return Scale.from_json(await self._read(path_of(kind, key, "scale")))

    async def set_scale(self, kind: type[KubeObject], key: str, replicas: int) -> Scale:
        """Set how many replicas are wanted, through the scale sub-resource; returns the new scale."""
        patch = MergePatch({"spec": {"replicas": replicas}})
        query = self._write_query(dry_run=False)
        path, about = path_of(kind, key, "scale"), (kind.resource, key)
        answer = await self._write("PATCH", path, patch.to_json(), query, content_type=patch.content_type, about=about)
        scale = self._decoded(Scale, answer, about, query)
        if self._settings.write_observer is not None and "dryRun" not in query:
            self._settings.write_observer.written(kind.resource, key, scale.metadata.resource_version)
        return scale

    async def create_subresource(
        self,
        kind: type[KubeObject],
        key: str,
        subresource: str,
        body: Model | Mapping[str, Any],
        *,
        dry_run: bool = False,
    ) -> RawObject:
        """Post a body to a sub-resource (``eviction``, ``token``, ``binding``) and return the answer as parsed JSON.

        Raises:
            TooManyRequestsError: an eviction is blocked by a disruption budget; ``retry_after`` may say for how long.
        """
        content = body.to_json() if isinstance(body, Model) else orjson.dumps(body, default=dict)
        query = self._write_query(dry_run=dry_run)
        path, about = path_of(kind, key, subresource), (kind.resource, key)
        # An eviction or a binding changes the object, and the answer is silent on that; a token changes nothing.
        blind = subresource != "token"
        answer: Any = orjson.loads(await self._write("POST", path, content, query, about=about, blind=blind))
        return dict(answer)

    def _delete_query(self, dry_run: bool) -> dict[str, str]:
        return {"dryRun": "All"} if dry_run or self._settings.dry_run else {}


def patch_target(target: Any, rest: tuple[Any, ...]) -> tuple[type[KubeObject], str, Patch]:
    """Return kind, key and patch of the two forms of a patch call.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(target, KubeObject) and len(rest) == 1:
        return type(target), target.key, rest[0]
    if isinstance(target, type) and len(rest) == 2:
        kind = checked_kind(target, "patch", "client.patch(Pod, 'namespace/name', MergePatch({…}))")
        return kind, rest[0], rest[1]
    raise TypeError("patch: write client.patch(obj, patch) or client.patch(kind, 'namespace/name', patch)")


def _delete_options(
    grace_period_seconds: int | None, propagation: str | None, uid: str | None, resource_version: str | None
) -> bytes | None:
    options: RawObject = {}
    if grace_period_seconds is not None:
        options["gracePeriodSeconds"] = grace_period_seconds
    if propagation is not None:
        options["propagationPolicy"] = propagation
    preconditions = {"uid": uid, "resourceVersion": resource_version}
    if any(preconditions.values()):
        options["preconditions"] = {name: value for name, value in preconditions.items() if value}
    return orjson.dumps({"kind": "DeleteOptions", "apiVersion": "v1", **options}) if options else None


def _deleted(answer: RawObject) -> tuple[str, str | None]:
    """Return the UID of what was deleted and, when it is still there, its resource version."""
    if answer.get("kind") == "Status":
        return str((answer.get("details") or {}).get("uid", "")), None
    metadata = answer.get("metadata") or {}
    return str(metadata.get("uid", "")), metadata.get("resourceVersion")
