"""What the fault proxy writes down of a request, and how requests are picked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote

__all__ = ["Match", "Matcher", "ProxiedRequest", "matches"]

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_NAMESPACE_PARTS = ("status", "finalize")  # the sub-resources of a Namespace


@dataclass(eq=False, kw_only=True)
class ProxiedRequest:
    """One request that came to the proxy; what is known of its answer is filled in as it goes on.

    Attributes:
        time: when it came, in the seconds of ``time.monotonic``.
        method: the HTTP method.
        path: the path, percent-decoded.
        query: the query parameters.
        verb: as in RBAC: get, list, watch, create, update, patch, delete or deletecollection. A streaming list is a
            watch. Outside the API groups, the method in small letters.
        group, resource, subresource, namespace, name: what it is about; empty where it is about none.
        user_agent: the client's ``User-Agent``.
        connection: the client's port, which tells its connections apart.
        status: status of the answer; None while there is none, and when the client got none.
        fault: the fault that it met, such as ``refuse``; ``upstream`` when the API server could not be reached.
        received: bytes of the answer's body that were passed on.
        bookmarks: the resource versions of the bookmarks that were passed on.
        ended: when the answer was complete or the connection was lost; None before.
    """

    time: float
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    verb: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    user_agent: str = ""
    connection: int = 0
    status: int | None = None
    fault: str = ""
    received: int = 0
    bookmarks: list[str] = field(default_factory=list)
    ended: float | None = None

    @property
    def watch(self) -> bool:
        """Whether it is a watch, streaming lists included."""
        return self.verb == "watch"

    @property
    def streaming_list(self) -> bool:
        """Whether it is a watch that asks for all objects first."""
        return self.watch and self.query.get("sendInitialEvents") == "true"

    @property
    def streams(self) -> bool:
        """Whether the answer comes in pieces over time: a watch, or a log that is followed."""
        return self.watch or self.query.get("follow") == "true"

    @classmethod
    def read(
        cls, method: str, target: str, *, time: float, user_agent: str = "", connection: int = 0
    ) -> ProxiedRequest:
        """Read a request's target, the path with its query."""
        raw_path, _, raw_query = target.partition("?")
        query = dict(parse_qsl(raw_query, keep_blank_values=True))
        path = unquote(raw_path)
        request = cls(time=time, method=method, path=path, query=query, user_agent=user_agent, connection=connection)
        request._find_resource([unquote(part) for part in raw_path.strip("/").split("/")])
        return request

    def _find_resource(self, parts: list[str]) -> None:
        self.verb = self.method.lower()
        if parts[0] == "api" and len(parts) > 2:
            parts = parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            self.group, parts = parts[1], parts[3:]
        else:
            return
        if parts[0] == "namespaces" and len(parts) > 1:
            self.namespace = parts[1]
            if len(parts) > 2 and parts[2] not in _NAMESPACE_PARTS:
                parts = parts[2:]
        self.resource, self.name, self.subresource = (*parts, "", "")[:3]
        if self.method == "GET":
            watching = self.query.get("watch") in ("true", "1")
            self.verb = "watch" if watching else "get" if self.name else "list"
        elif self.method == "DELETE":
            self.verb = "delete" if self.name else "deletecollection"
        else:
            self.verb = _VERBS.get(self.method, self.verb)


@dataclass(frozen=True, kw_only=True)
class Match:
    """Picks requests; what is left out picks any.

    Args:
        verb: as in RBAC, see `ProxiedRequest`.
        resource: the plural, such as ``configmaps``.
        group: the API group; empty text for the core group.
        namespace: the namespace.
        name: the object's name.
        subresource: such as ``status``; empty text for the object itself.
        prefix: how the path begins.
        where: anything else.
    """

    verb: str | None = None
    resource: str | None = None
    group: str | None = None
    namespace: str | None = None
    name: str | None = None
    subresource: str | None = None
    prefix: str = ""
    where: Callable[[ProxiedRequest], bool] | None = None

    def __call__(self, request: ProxiedRequest) -> bool:
        """Tell whether the request is picked."""
        for name in ("verb", "resource", "group", "namespace", "name", "subresource"):
            wanted = getattr(self, name)
            if wanted is not None and wanted != getattr(request, name):
                return False
        return request.path.startswith(self.prefix) and (self.where is None or self.where(request))


Matcher: TypeAlias = Match | str | Callable[[ProxiedRequest], bool]
"""Picks requests: a `Match`, the beginning of a path, or a function of the request."""


def matches(match: Matcher | None, request: ProxiedRequest) -> bool:
    """Tell whether a request is picked; None picks all."""
    if match is None:
        return True
    if isinstance(match, str):
        return request.path.startswith(match)
    return match(request)
