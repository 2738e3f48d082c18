"""The fake API server: requests in, answers out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from pyreconcile.api import KubeObject, RawObject
from pyreconcile.client import BadRequestError, JsonPatch, MergePatch, StrategicMergePatch
from pyreconcile.client._apply import APPLY
from pyreconcile.testing._fake._discovery import discover
from pyreconcile.testing._fake._errors import no_such_path, not_allowed, wrong_media_type
from pyreconcile.testing._fake._kinds import Kinds, Served, UntypedKind
from pyreconcile.testing._fake._objects import load
from pyreconcile.testing._fake._patches import json_patch, merge_patch, strategic_merge
from pyreconcile.testing._fake._reads import Indexes, IndexFunction, Reads
from pyreconcile.testing._fake._store import Store, key_of, table_of
from pyreconcile.testing._fake._subresources import SCALE, evict, replicas_config, scale_of, token, with_replicas
from pyreconcile.testing._fake._writes import Request, Writes


class Route(NamedTuple):
    """What a path names."""

    api_version: str
    namespace: str
    plural: str
    name: str
    subresource: str


class FakeServer:
    """An API server in memory; `fake_client` makes one, and ``client.server`` is it.

    It keeps the rules of names, versions, finalizers, status, patches, field ownership and watches. It has no
    controllers, admission, validation beyond a field's name, defaults or permissions: where those matter, test on a
    control plane.

    Args:
        objects: what is there from the start.
        kinds: kinds without a model to serve, beside those of ``objects``.
        indexes: kind and field path of each field that selectors may name, and what gives an object's values.
        now: the time of day.
        random: of UIDs and made-up names.

    Raises:
        ValueError: an object cannot be there: it has no name, its namespace is missing or out of place, it is there
            twice, or it is being deleted without a finalizer.
    """

    def __init__(
        self,
        *objects: KubeObject,
        kinds: Iterable[type[KubeObject] | UntypedKind] = (),
        indexes: Mapping[tuple[type[KubeObject], str], IndexFunction] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        random: Random | None = None,
    ) -> None:
        self._now = now
        self._random = random or Random()
        self._kinds = Kinds()
        self._store = Store()
        self._indexes: Indexes = {}
        self._writes = Writes(self._store, self._kinds, now, self._random)
        self._reads = Reads(self._store, self._indexes)
        for kind in kinds:
            self.serve(kind)
        for (kind, path), function in (indexes or {}).items():
            self.add_index(kind, path, function)
        self.add(*objects)

    def serve(self, kind: type[KubeObject] | UntypedKind) -> None:
        """Serve a kind without a model.

        Kinds with one are served by themselves, and those of a CRD once it is created.
        """
        self._kinds.add(kind)

    def add(self, *objects: KubeObject) -> None:
        """Put objects as they are, status and all, as if they had been there from the start.

        Raises as the constructor does.
        """
        for obj in objects:
            kind = type(obj)
            self._kinds.add(kind)
            served = self._kinds.find(kind.resource.api_version, kind.resource.plural)
            assert served is not None
            uid = str(UUID(int=self._random.getrandbits(128), version=4))
            load(self._store, served, obj.to_dict(), time=self._now().strftime("%Y-%m-%dT%H:%M:%SZ"), uid=uid)

    def add_index(self, kind: type[KubeObject], path: str, function: IndexFunction) -> None:
        """Let field selectors name a field of a kind (rule TE-10).

        Args:
            kind: the model class.
            path: as selectors write it, such as ``spec.nodeName``.
            function: gives the texts that an object, as parsed JSON, has there.
        """
        self._indexes[table_of(kind.resource), path] = function

    def compact(self) -> None:
        """Forget the history, as etcd does: older watches and continue tokens are expired from now on."""
        self._store.compact()

    # -- requests ------------------------------------------------------------------------------------------------------

    def request(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None, content_type: str, accept: str
    ) -> tuple[RawObject, list[str]]:
        """Return the answer to a request, and warnings; raises ApiError as the API server refuses."""
        request = Request.of(query)
        if method == "GET" and (found := discover(self._kinds, path)) is not None:
            return found, []
        route, served = self._route(path)
        content = orjson.loads(body) if body else {}
        answer = self._answer(method, route, served, query, content, content_type, request)
        return _in_form(answer, accept), request.warnings

    def watch(
        self, path: str, query: Mapping[str, str], accept: str, idle_timeout: float
    ) -> AsyncGenerator[bytes, None]:
        """Return the lines of a watch; raises ApiError as the API server refuses to start one."""
        route, served = self._route(path)
        if query.get("watch") not in ("true", "1"):
            raise BadRequestError(f"{path}: the fake streams watches only")
        if route.name:
            query = {**query, "fieldSelector": f"metadata.name={route.name}"}
        return _lines(served, self._reads.watch(served, route.namespace, query, idle_timeout), accept)

    def _route(self, path: str) -> tuple[Route, Served]:
        parts = path.strip("/").split("/")
        match parts:
            case ["api", version, *rest]:
                api_version = version
            case ["apis", group, version, *rest]:
                api_version = f"{group}/{version}"
            case _:
                raise no_such_path()
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and self._kinds.find(api_version, rest[2]) is not None:
            namespace, rest = rest[1], rest[2:]
        if not 1 <= len(rest) <= 3:
            raise no_such_path()
        plural, name, subresource = (*rest, "", "")[:3]
        served = self._kinds.find(api_version, plural)
        if served is None or (namespace and not served.resource.namespaced):
            raise no_such_path()
        return Route(api_version, namespace, plural, name, subresource), served

    def _answer(
        self,
        method: str,
        route: Route,
        served: Served,
        query: Mapping[str, str],
        body: Any,
        content_type: str,
        request: Request,
    ) -> RawObject:
        if not route.name:
            return self._collection(method, route, served, query, body, request)
        key = f"{route.namespace}/{route.name}" if route.namespace else route.name
        if served.resource.namespaced != bool(route.namespace):
            raise no_such_path()
        match route.subresource:
            case "":
                return self._object(method, served, key, body, content_type, request)
            case "status" if served.status:
                if method == "DELETE":
                    raise not_allowed("a status is not deleted")
                return self._object(method, served, key, body, content_type, request, "status")
            case "scale" if served.scale is not None:
                return self._scale(method, served, key, body, content_type, request)
            case "eviction" if served.resource.group_kind == "Pod" and method == "POST":
                return evict(self._store, self._writes, served, key, body, request)
            case "token" if served.resource.group_kind == "ServiceAccount" and method == "POST":
                return token(self._writes.stored(served, key), body, self._now)
        raise no_such_path()

    def _collection(
        self, method: str, route: Route, served: Served, query: Mapping[str, str], body: Any, request: Request
    ) -> RawObject:
        resource = served.resource
        if method == "GET":
            found, metadata = self._reads.page(served, route.namespace, query)
            return self._list(served, found, metadata)
        if resource.namespaced and not route.namespace:
            raise not_allowed(f"{method} of {resource.plural} needs a namespace")
        if method == "POST":
            return self._shown(served, self._writes.create(served, route.namespace, body, request))
        if method == "DELETE":
            selects = self._reads.selection(served, route.namespace, query)
            doomed = [obj for obj in self._store.objects(table_of(resource), route.namespace) if selects(obj)]
            for obj in doomed:
                self._writes.delete(served, key_of(obj), body, request)
            return self._list(served, doomed, {"resourceVersion": str(self._store.version)})
        raise not_allowed(f"{method} of a collection")

    def _object(
        self,
        method: str,
        served: Served,
        key: str,
        body: Any,
        content_type: str,
        request: Request,
        subresource: str = "",
    ) -> RawObject:
        match method:
            case "GET":
                obj = self._writes.stored(served, key)
            case "PUT":
                obj = self._writes.update(served, key, body, request, subresource)
            case "PATCH" if content_type == APPLY:
                obj = self._writes.apply(served, key, body, request, subresource)
            case "PATCH":
                change = _patch(served, body, content_type)
                obj = self._writes.patch(served, key, change, request, subresource)
            case "DELETE":
                obj = self._writes.delete(served, key, body, request)
                if obj.get("kind") == "Status":
                    return obj
            case _:
                raise not_allowed(f"{method} of an object")
        return self._shown(served, obj)

    def _scale(
        self, method: str, served: Served, key: str, body: Any, content_type: str, request: Request
    ) -> RawObject:
        old = self._writes.stored(served, key)
        match method:
            case "GET":
                return scale_of(served, old)
            case "PUT":
                obj = self._writes.patch(served, key, lambda obj: with_replicas(served, obj, body), request, "scale")
            case "PATCH" if content_type == APPLY:
                config = replicas_config(served, old, body)
                obj = self._writes.apply(served, key, config, request, "scale")
            case "PATCH":
                patch = _patch(served, body, content_type, schema=SCALE)

                def change(obj: RawObject) -> RawObject:
                    return with_replicas(served, obj, patch(scale_of(served, obj)))

                obj = self._writes.patch(served, key, change, request, "scale")
            case _:
                raise not_allowed(f"{method} of a scale")
        return scale_of(served, obj)

    def _shown(self, served: Served, obj: RawObject) -> RawObject:
        """Return an object in the version that was asked for: versions of a kind share what is stored."""
        resource = served.resource
        return {**obj, "apiVersion": resource.api_version, "kind": resource.kind}

    def _list(self, served: Served, objects: Iterable[RawObject], metadata: RawObject) -> RawObject:
        resource = served.resource
        # As on the server, only custom resources say in a list what they are (rule RF-10).
        items = [self._shown(served, obj) if served.custom else _unnamed(obj) for obj in objects]
        names = {"apiVersion": resource.api_version, "kind": f"{resource.kind}List"}
        return {**names, "metadata": metadata, "items": items}


def _patch(
    served: Served, body: Any, content_type: str, *, schema: RawObject | None = None
) -> Callable[[RawObject], RawObject]:
    strategic = StrategicMergePatch.content_type if schema is not None or not served.custom else ""
    if content_type == JsonPatch.content_type:
        return lambda obj: json_patch(obj, body)
    if content_type not in (MergePatch.content_type, strategic):
        taken = [JsonPatch.content_type, MergePatch.content_type, strategic, APPLY]
        raise wrong_media_type(content_type, tuple(filter(None, taken)))
    if not isinstance(body, dict):
        raise BadRequestError("a merge patch is a JSON object")
    if content_type == MergePatch.content_type:
        return lambda obj: merge_patch(obj, body)
    return lambda obj: strategic_merge(obj, body, schema or served.schema)


def _unnamed(obj: RawObject) -> RawObject:
    return {name: value for name, value in obj.items() if name not in ("apiVersion", "kind")}


def _in_form(answer: RawObject, accept: str) -> RawObject:
    """Return an answer as metadata only, if that was asked for."""
    if "as=PartialObjectMetadataList" in accept:
        items = [_metadata_of(item) for item in answer["items"]]
        return {**answer, "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "items": items}
    return _metadata_of(answer) if "as=PartialObjectMetadata" in accept else answer


def _metadata_of(obj: RawObject) -> RawObject:
    return {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": obj["metadata"]}


async def _lines(
    served: Served, events: AsyncGenerator[tuple[str, RawObject], None], accept: str
) -> AsyncGenerator[bytes, None]:
    names = {"apiVersion": served.resource.api_version, "kind": served.resource.kind}
    try:
        async for change, obj in events:
            yield orjson.dumps({"type": change, "object": _in_form({**obj, **names}, accept)})
    finally:
        await events.aclose()
