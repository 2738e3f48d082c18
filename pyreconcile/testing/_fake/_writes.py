"""Creating, changing and deleting objects by the API server's rules (rules TE-8, TE-9, TE-10)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any
from uuid import UUID

from pyreconcile.api import RawObject, Resource
from pyreconcile.client import BadRequestError, InvalidError, not_found
from pyreconcile.testing._fake._errors import conflict, exists, invalid, qualified
from pyreconcile.testing._fake._kinds import Kinds, Served, defines_kinds
from pyreconcile.testing._fake._objects import established, only, part_of, same, wanted
from pyreconcile.testing._fake._ownership import Entry, after_apply, after_update, write_entries
from pyreconcile.testing._fake._schema import pruned
from pyreconcile.testing._fake._store import Store, table_of

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""Of what the server makes names up (apimachinery ``pkg/util/rand``); no vowels, so no words."""
_SUFFIX_LENGTH = 5
_PREFIX_LIMIT = 58
_SERVER_METADATA = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")


@dataclass
class Request:
    """What a write says beside its body.

    Attributes:
        manager: the field manager.
        dry_run: store nothing.
        validation: Ignore, Warn or Strict.
        force: an apply takes fields over.
        warnings: gets what the server would warn about.
    """

    manager: str = ""
    dry_run: bool = False
    validation: str = "Warn"
    force: bool = False
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Request:
        """Read the query of a request."""
        return cls(
            manager=query.get("fieldManager", ""),
            dry_run=query.get("dryRun") == "All",
            validation=query.get("fieldValidation") or "Warn",
            force=query.get("force") == "true",
        )


class Writes:
    """The writing half of the fake.

    Args:
        store: what is written to.
        kinds: follows the CRDs that are written.
        now: the time of day.
        random: of UIDs and names.
    """

    def __init__(self, store: Store, kinds: Kinds, now: Callable[[], datetime], random: Random) -> None:
        self._store = store
        self._kinds = kinds
        self._now = now
        self._random = random

    # -- what requests ask for -----------------------------------------------------------------------------------------

    def stored(self, served: Served, key: str) -> RawObject:
        """Return an object as it is stored.

        Raises:
            NotFoundError: there is none.
        """
        obj = self._store.get(table_of(served.resource), key)
        if obj is None:
            raise not_found(served.resource, key)
        return obj

    def create(self, served: Served, namespace: str, body: RawObject, request: Request) -> RawObject:
        """Create an object."""
        resource = served.resource
        metadata = self._checked_body(resource, body, namespace)
        if metadata.get("resourceVersion"):
            raise BadRequestError("resourceVersion should not be set on objects to be created")
        name = metadata.get("name") or ""
        if not name:
            name = self._made_up(metadata.get("generateName") or "", resource, namespace)
        elif self._store.get(table_of(resource), f"{namespace}/{name}" if namespace else name) is not None:
            raise exists(resource, name)
        obj = self._cleaned(served, {**body, "metadata": {**metadata, "name": name, "namespace": namespace}}, request)
        if served.status:
            obj.pop("status", None)
        obj = self._born(served, obj)
        by = self._by(request, "Update", served, "")
        return self._commit(served, None, self._owned(served, None, obj, by), request)

    def update(self, served: Served, key: str, body: RawObject, request: Request, subresource: str = "") -> RawObject:
        """Replace an object or its status."""
        resource, old = served.resource, self.stored(served, key)
        metadata = self._checked_body(resource, body, old["metadata"].get("namespace") or "", key)
        name, version = old["metadata"]["name"], metadata.get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            raise conflict(resource, name)
        if not version and served.conditional:
            why = "Invalid value: 0: must be specified for an update"
            raise invalid(resource, name, "metadata.resourceVersion", why)
        uid = metadata.get("uid")
        if uid and uid != old["metadata"]["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old['metadata']['uid']}"
            raise conflict(resource, name, why)
        return self._replace(served, old, body, request, subresource)

    def patch(
        self,
        served: Served,
        key: str,
        change: Callable[[RawObject], RawObject],
        request: Request,
        subresource: str = "",
    ) -> RawObject:
        """Change an object or its status by a patch."""
        resource, old = served.resource, self.stored(served, key)
        shown = {**old, "apiVersion": resource.api_version, "kind": resource.kind}
        body = change(shown)
        metadata = self._checked_body(resource, body, old["metadata"].get("namespace") or "", key)
        name = old["metadata"]["name"]
        if metadata.get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
            raise conflict(resource, name)
        if metadata.get("uid") not in (None, old["metadata"]["uid"]):
            raise self._immutable(served, name, "metadata.uid", metadata["uid"])
        return self._replace(served, old, body, request, subresource)

    def apply(self, served: Served, key: str, config: RawObject, request: Request, subresource: str = "") -> RawObject:
        """Apply a configuration to an object or its status, creating the object if there is none."""
        resource = served.resource
        if not config.get("apiVersion") or not config.get("kind"):
            raise BadRequestError(f"invalid object type: {config.get('apiVersion', '')}, Kind={config.get('kind', '')}")
        if not request.manager:
            raise InvalidError("fieldManager: Required value: is required for apply patch")
        namespace = key.rpartition("/")[0]
        metadata = self._checked_body(resource, config, namespace, key)
        if metadata.get("managedFields"):
            raise BadRequestError("metadata.managedFields must be nil")
        old = self._store.get(table_of(resource), key)
        name = key.rpartition("/")[2]
        if old is None and subresource:
            raise not_found(resource, key)
        if old is not None and metadata.get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
            raise conflict(resource, name)
        if metadata.get("uid") and (old is None or metadata["uid"] != old["metadata"]["uid"]):
            raise self._immutable(served, name, "metadata.uid", metadata["uid"])
        config = self._cleaned(served, {**config, "metadata": {**metadata, "name": name}}, request)
        wanted = part_of(served, config, subresource)
        by = self._by(request, "Apply", served, subresource)
        try:
            merged, entries = after_apply(old, wanted, served.schema, by, force=request.force)
        except ValueError as error:
            raise BadRequestError(f"failed to create typed patch object: {error}") from error
        if old is None:
            obj = self._born(served, {**merged, "metadata": {**merged["metadata"], "namespace": namespace}})
        else:
            obj = self._kept(served, old, merged)
        return self._commit(served, old, write_entries(obj, entries), request)

    def delete(self, served: Served, key: str, options: RawObject, request: Request) -> RawObject:
        """Delete an object, or mark it while it has finalizers; returns what the server answers."""
        resource, old = served.resource, self.stored(served, key)
        metadata = old["metadata"]
        name = metadata["name"]
        wanted = options.get("preconditions") or {}
        for field_name, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if wanted.get(field_name) not in (None, metadata[field_name]):
                why = (
                    f"the {label} in the precondition ({wanted[field_name]}) does not match the {label} in record "
                    f"({metadata[field_name]}). The object might have been deleted and then recreated"
                )
                raise conflict(resource, name, why)
        if metadata.get("finalizers"):
            if metadata.get("deletionTimestamp"):
                return old
            marked = {**metadata, "deletionTimestamp": self._time(), "deletionGracePeriodSeconds": 0}
            if "generation" in marked:
                marked["generation"] += 1
            obj = {**old, "metadata": marked}
            return obj if request.dry_run else self._store.write(table_of(resource), obj)
        if not request.dry_run:
            self._remove(served, old)
        details = {"name": name, "group": resource.group, "kind": resource.plural, "uid": metadata["uid"]}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    # -- steps of them -------------------------------------------------------------------------------------------------

    def _checked_body(self, resource: Resource, body: RawObject, namespace: str, key: str = "") -> RawObject:
        """Return a body's metadata, once its names are those of the URL."""
        metadata: RawObject = body.get("metadata") or {}
        if body.get("kind") not in (None, "", resource.kind):
            raise BadRequestError(f"{body['kind']} cannot be handled as a {resource.kind}")
        if body.get("apiVersion") not in (None, "", resource.api_version):
            given = body["apiVersion"]
            raise BadRequestError(f"the API version in the data ({given}) does not match the expected API version")
        if metadata.get("namespace") not in (None, "", namespace):
            raise BadRequestError(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        name = key.rpartition("/")[2]
        if name and metadata.get("name") not in (None, "", name):
            given = metadata["name"]
            raise BadRequestError(f"the name of the object ({given}) does not match the name on the URL ({name})")
        return metadata

    def _made_up(self, prefix: str, resource: Resource, namespace: str) -> str:
        if not prefix:
            raise invalid(
                resource, "", "metadata.name", "Required value: name or generateName is required", "FieldValueRequired"
            )
        while True:
            suffix = "".join(self._random.choice(_SUFFIX) for _ in range(_SUFFIX_LENGTH))
            name = prefix[:_PREFIX_LIMIT] + suffix
            if self._store.get(table_of(resource), f"{namespace}/{name}" if namespace else name) is None:
                return name

    def _cleaned(self, served: Served, body: RawObject, request: Request) -> RawObject:
        """Return what the server keeps of a body, complaining of unknown fields as asked."""
        unknown: list[str] = []
        obj: RawObject = pruned(body, served.schema, unknown)
        texts = [f'unknown field "{path}"' for path in unknown]
        if texts and request.validation == "Strict":
            raise BadRequestError(f"strict decoding error: {', '.join(texts)}")
        if request.validation == "Warn":
            request.warnings += texts
        resource = served.resource
        metadata = {
            name: value
            for name, value in obj["metadata"].items()
            if name not in ("managedFields", "selfLink") and value not in ("", [], {})
        }
        obj = {**obj, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
        if qualified(resource) == "secrets" and obj.get("stringData"):
            texts_of_it: dict[str, str] = obj.pop("stringData")
            encoded = {name: base64.b64encode(text.encode()).decode() for name, text in texts_of_it.items()}
            obj["data"] = {**(obj.get("data") or {}), **encoded}
        return obj

    def _born(self, served: Served, obj: RawObject) -> RawObject:
        """Return a new object with the metadata that the server gives it."""
        metadata = {name: value for name, value in obj["metadata"].items() if name not in _SERVER_METADATA}
        metadata.pop("resourceVersion", None)
        if not metadata.get("namespace"):
            metadata.pop("namespace", None)
        metadata |= {
            "uid": str(UUID(int=self._random.getrandbits(128), version=4)),
            "creationTimestamp": self._time(),
        }
        if served.counts_generations:
            metadata["generation"] = 1
        return {**obj, "metadata": metadata}

    def _replace(
        self, served: Served, old: RawObject, body: RawObject, request: Request, subresource: str
    ) -> RawObject:
        metadata = old["metadata"]
        body = {**body, "metadata": {**(body.get("metadata") or {}), "name": metadata["name"]}}
        obj = self._cleaned(served, body, request)
        if subresource == "status":
            obj = {**{name: value for name, value in old.items() if name != "status"}, **only(obj, "status")}
        elif served.status:
            obj = {**{name: value for name, value in obj.items() if name != "status"}, **only(old, "status")}
        obj = self._kept(served, old, obj)
        by = self._by(request, "Update", served, subresource)
        return self._commit(served, old, self._owned(served, old, obj, by), request)

    def _kept(self, served: Served, old: RawObject, obj: RawObject) -> RawObject:
        """Return the object with what the server lets no writer change."""
        before, metadata = old["metadata"], obj["metadata"]
        name = before["name"]
        if metadata.get("deletionTimestamp") and not before.get("deletionTimestamp"):
            raise self._immutable(served, name, "metadata.deletionTimestamp", metadata["deletionTimestamp"])
        added = [item for item in metadata.get("finalizers") or () if item not in (before.get("finalizers") or ())]
        if before.get("deletionTimestamp") and added:
            why = f"Forbidden: no new finalizers can be added if the object is being deleted, found {added}"
            raise invalid(served.resource, name, "metadata.finalizers", why, "FieldValueForbidden")
        metadata = {key: value for key, value in metadata.items() if key not in _SERVER_METADATA}
        metadata |= {key: before[key] for key in _SERVER_METADATA if key in before}
        metadata |= {key: before[key] for key in ("name", "namespace", "resourceVersion") if key in before}
        if served.counts_generations and wanted(served, old) != wanted(served, obj):
            metadata["generation"] = metadata.get("generation", 0) + 1
        return {**obj, "metadata": metadata}

    def _owned(self, served: Served, old: RawObject | None, obj: RawObject, by: Entry) -> RawObject:
        """Return the object with its owners after a write that is no apply."""
        try:
            return write_entries(obj, after_update(old, obj, served.schema, by))
        except ValueError as error:
            raise InvalidError(f'{served.resource.kind} "{obj["metadata"]["name"]}" is invalid: {error}') from error

    def _commit(self, served: Served, old: RawObject | None, obj: RawObject, request: Request) -> RawObject:
        if request.dry_run or (old is not None and same(served, old, obj)):
            return obj
        table = table_of(served.resource)
        metadata = obj["metadata"]
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            self._remove(served, obj)
            return obj
        if defines_kinds(served.resource):
            obj = established(obj, self._time())
            self._kinds.install(obj)
        return self._store.write(table, obj)

    def _remove(self, served: Served, obj: RawObject) -> None:
        if defines_kinds(served.resource):
            self._kinds.uninstall(obj)
        self._store.remove(table_of(served.resource), obj)

    def _by(self, request: Request, operation: str, served: Served, subresource: str) -> Entry:
        manager = request.manager or "unknown"
        return Entry(manager, operation, served.resource.api_version, subresource, self._time(), frozenset())

    def _time(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _immutable(self, served: Served, name: str, path: str, value: Any) -> InvalidError:
        return invalid(served.resource, name, path, f'Invalid value: "{value}": field is immutable')
