"""Which kinds the server has and where it serves them (rule CL-12)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import anyio
import orjson

from pyreconcile.api import KubeObject, Resource, find_model, split_api_version, unstructured
from pyreconcile.client._errors import NotAcceptableError, NotFoundError
from pyreconcile.client._transport import JSON, Transport

_AGGREGATED = (
    f"{JSON};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    f"{JSON};g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,{JSON}"
)


class UnknownKindError(LookupError):
    """The server does not serve the kind; perhaps its CRD is not installed yet."""


class Discovery:
    """The kinds of one server: read at the first use with two requests, then one group version at a time on a miss."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._kinds: dict[tuple[str, str], Resource] = {}
        self._read_all = False
        self._lock = anyio.Lock()

    async def kind_for(self, api_version: str, kind: str) -> type[KubeObject]:
        """Return the model of a kind, or a class for unstructured objects of it.

        Raises:
            UnknownKindError: neither a model nor the server knows it.
            ApiError: the server could not be asked.
        """
        model = find_model(api_version, kind)
        if model is not None:
            return model
        resource = await self.resource_for(api_version, kind)
        return unstructured(api_version, kind, plural=resource.plural, namespaced=resource.namespaced)

    async def resource_for(self, api_version: str, kind: str) -> Resource:
        """Return where the server serves a kind; raises like `kind_for`."""
        resource = self._kinds.get((api_version, kind))
        if resource is None:
            async with self._lock:
                resource = self._kinds.get((api_version, kind)) or await self._look(api_version, kind)
        if resource is None:
            raise UnknownKindError(f"the server has no kind {kind} in {api_version}; is its CRD installed?")
        return resource

    async def _look(self, api_version: str, kind: str) -> Resource | None:
        if not self._read_all:
            # Both lists first, so that a failure of the second leaves nothing half read.
            legacy, groups = await self._groups("/api"), await self._groups("/apis")
            self._kinds.update(_aggregated(legacy))
            self._kinds.update(_aggregated(groups))
            self._read_all = True
            if (api_version, kind) in self._kinds:
                return self._kinds[api_version, kind]
        group, version = split_api_version(api_version)
        try:
            answer = await self._transport.request("GET", f"/apis/{group}/{version}" if group else f"/api/{version}")
        except NotFoundError:
            self._forget(api_version)
            return None
        self._forget(api_version)
        self._kinds.update(_plain(api_version, orjson.loads(answer)))
        return self._kinds.get((api_version, kind))

    async def _groups(self, path: str) -> Any:
        try:
            return orjson.loads(await self._transport.request("GET", path, accept=_AGGREGATED))
        except (NotFoundError, NotAcceptableError):
            return {}

    def _forget(self, api_version: str) -> None:
        for known in [name for name in self._kinds if name[0] == api_version]:
            del self._kinds[known]


def _aggregated(answer: Any) -> Iterable[tuple[tuple[str, str], Resource]]:
    # An old server answers with plain names of groups: then every kind is a miss, read one group version at a time.
    if answer.get("kind") != "APIGroupDiscoveryList":
        return
    for item in answer.get("items") or ():
        group = item.get("metadata", {}).get("name", "")
        for version in item.get("versions") or ():
            for entry in version.get("resources") or ():
                kind = (entry.get("responseKind") or {}).get("kind")
                if kind:
                    namespaced = entry.get("scope") == "Namespaced"
                    resource = Resource(group, version["version"], kind, entry["resource"], namespaced)
                    yield (resource.api_version, kind), resource


def _plain(api_version: str, answer: Any) -> Iterable[tuple[tuple[str, str], Resource]]:
    group, version = split_api_version(api_version)
    for entry in answer.get("resources") or ():
        if "/" not in entry["name"]:
            kind = entry["kind"]
            yield (api_version, kind), Resource(group, version, kind, entry["name"], bool(entry["namespaced"]))
