"""Which kinds the server has and where it serves them (rule CL-12)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import orjson

from pyreconcile.api import KubeObject, Resource, find_model, split_api_version, unstructured
from pyreconcile.client._errors import ApiError, NotAcceptableError, NotFoundError
from pyreconcile.client._transport import JSON, Transport

_AGGREGATED = (
    f"{JSON};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    f"{JSON};g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,{JSON}"
)


class UnknownKindError(LookupError):
    """The server does not serve the kind; perhaps its CRD is not installed yet."""


@dataclass(frozen=True)
class ServedKinds:
    """What a server serves, as far as it could be told.

    Attributes:
        resources: every kind in every version, with where it is served.
        failures: group versions that could not be read, as when an aggregated API server is down, and why.
    """

    resources: tuple[Resource, ...]
    failures: Mapping[str, ApiError]


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

    async def served(self) -> ServedKinds:
        """Return all kinds; group versions that fail are named and do not hide the others.

        Raises:
            ApiError: the list of groups itself could not be read.
        """
        legacy, groups = await self._groups("/api"), await self._groups("/apis")
        kinds = {**dict(_aggregated(legacy)), **dict(_aggregated(groups))}
        failures: dict[str, ApiError] = {}
        for api_version in (*_unread(legacy), *_unread(groups)):
            try:
                kinds.update(await self._group_version(api_version))
            except ApiError as error:
                failures[api_version] = error
        return ServedKinds(tuple(kinds.values()), failures)

    async def _group_version(self, api_version: str) -> dict[tuple[str, str], Resource]:
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        return dict(_plain(api_version, orjson.loads(await self._transport.request("GET", path))))

    async def _look(self, api_version: str, kind: str) -> Resource | None:
        if not self._read_all:
            # Both lists first, so that a failure of the second leaves nothing half read.
            legacy, groups = await self._groups("/api"), await self._groups("/apis")
            self._kinds.update(_aggregated(legacy))
            self._kinds.update(_aggregated(groups))
            self._read_all = True
            if (api_version, kind) in self._kinds:
                return self._kinds[api_version, kind]
        try:
            found = await self._group_version(api_version)
        except NotFoundError:
            # A version that vanished was replaced by others, so all that is known of its group may be wrong.
            self._forget(lambda known: split_api_version(known)[0] == split_api_version(api_version)[0])
            return None
        self._forget(lambda known: known == api_version)
        self._kinds.update(found)
        return found.get((api_version, kind))

    async def _groups(self, path: str) -> Any:
        try:
            return orjson.loads(await self._transport.request("GET", path, accept=_AGGREGATED))
        except (NotFoundError, NotAcceptableError):
            return {}

    def _forget(self, stale: Callable[[str], bool]) -> None:
        for known in [name for name in self._kinds if stale(name[0])]:
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


def _unread(answer: Any) -> Iterable[str]:
    """Return the group versions whose kinds an answer leaves out, or knows from before only."""
    if answer.get("kind") != "APIGroupDiscoveryList":
        yield from answer.get("versions") or ()
        for group in answer.get("groups") or ():
            for version in group.get("versions") or ():
                yield version["groupVersion"]
        return
    for item in answer.get("items") or ():
        group_name = item.get("metadata", {}).get("name", "")
        for version in item.get("versions") or ():
            if version.get("freshness") == "Stale":
                yield f"{group_name}/{version['version']}" if group_name else version["version"]


def _plain(api_version: str, answer: Any) -> Iterable[tuple[tuple[str, str], Resource]]:
    group, version = split_api_version(api_version)
    for entry in answer.get("resources") or ():
        if "/" not in entry["name"]:
            kind = entry["kind"]
            yield (api_version, kind), Resource(group, version, kind, entry["name"], bool(entry["namespaced"]))
