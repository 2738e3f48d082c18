"""One sub-resource of one object, with a body of its own (rule CL-2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import orjson

from pyreconcile.api import KubeObject
from pyreconcile.client._apply import APPLY, configuration_of
from pyreconcile.client._core import FieldValidation, path_of
from pyreconcile.client._patch import Patch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyreconcile.client._writing import WriteVerbs

B = TypeVar("B", bound=KubeObject)


class Subresource(Generic[B]):
    """What `Client.subresource` gives: the verbs of a sub-resource, which take and return its body.

    All go to the server, and raise ApiError by kind when it refuses: NotFoundError when the object, or a sub-resource
    of this name, is not there. A sub-resource has only some of the verbs; the others are MethodNotAllowedError.

    Attributes:
        kind, key: the object.
        name: the sub-resource.
        body: what it takes and returns.
    """

    def __init__(self, client: WriteVerbs, kind: type[KubeObject], key: str, name: str, body: type[B]) -> None:
        self.kind = kind
        self.key = key
        self.name = name
        self.body = body
        self._client = client
        self._path = path_of(kind, key, name)
        self._about = (kind.resource, key)
        self._blind = name != "token"

    async def get(self) -> B:
        """Return the sub-resource."""
        return self.body.from_json(await self._client._read(self._path))

    async def create(self, body: B, *, dry_run: bool = False, field_validation: FieldValidation | None = None) -> B:
        """Post a body, such as an Eviction or a TokenRequest, and return the answer.

        An answer that is only a Status, as an eviction's, gives ``body`` back.

        Raises:
            TooManyRequestsError: an eviction is blocked by a disruption budget.
        """
        query = self._client._write_query(dry_run=dry_run, field_validation=field_validation)
        answer = await self._client._write(
            "POST", self._path, body.to_json(), query, about=self._about, blind=self._blind
        )
        if orjson.loads(answer).get("kind") == "Status":
            return body.deep_copy()
        return self._taken(answer, query)

    async def update(self, body: B, *, dry_run: bool = False, field_validation: FieldValidation | None = None) -> B:
        """Replace the sub-resource; a resource version in ``body`` must be the stored one.

        Raises:
            ConflictError: the object has changed since it was read.
        """
        query = self._client._write_query(dry_run=dry_run, field_validation=field_validation)
        answer = await self._client._write("PUT", self._path, body.to_json(), query, about=self._about)
        return self._taken(answer, query)

    async def patch(self, patch: Patch, *, dry_run: bool = False, field_validation: FieldValidation | None = None) -> B:
        """Patch the sub-resource."""
        query = self._client._write_query(dry_run=dry_run, field_validation=field_validation)
        answer = await self._client._write(
            "PATCH", self._path, patch.to_json(), query, content_type=patch.content_type, about=self._about
        )
        return self._taken(answer, query)

    async def apply(self, body: B, *, force: bool = True, field_manager: str | None = None, dry_run: bool = False) -> B:
        """Make the sub-resource contain ``body`` (server-side apply); always sent.

        Raises:
            ConflictError: another manager owns a field and ``force`` is off.
        """
        query = self._client._write_query(dry_run=dry_run)
        if field_manager:
            query["fieldManager"] = field_manager
        if force:
            query["force"] = "true"
        part = self.name if self.body is self.kind else ""
        content = orjson.dumps(configuration_of(body, subresource=part))
        answer = await self._client._write(
            "PATCH", self._path, content, query, content_type=APPLY, idempotent=True, about=self._about
        )
        return self._taken(answer, query)

    def _taken(self, answer: bytes, query: Mapping[str, str]) -> B:
        body = self._client._decoded(self.body, answer, self._about, query)
        observer = self._client._settings.write_observer
        version = body.metadata.resource_version
        if observer is not None and version and "dryRun" not in query:
            observer.written(self.kind.resource, self.key, version)
        return body
