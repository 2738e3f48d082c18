"""Who may read the metrics: the API server says (rule MG-10)."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, Protocol, TypeVar

import anyio
import orjson
import structlog
from aiohttp import web

from pyreconcile.api import RawObject
from pyreconcile.manager._http import Handler, text

V = TypeVar("V")

# controller-runtime pkg/metrics/filters/filters.go.
TOKEN_TTL: Final = 60.0
ALLOW_TTL: Final = 300.0
DENY_TTL: Final = 30.0
LIMIT: Final = 10.0
"""Seconds that both questions together may take."""

_REMEMBERED: Final = 4096
_WHO: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_MAY: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

log = structlog.get_logger()


class Asks(Protocol):
    """What is needed of a client's transport."""

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, timeout: float | None = None
    ) -> bytes:
        """Send one request; return the body of the answer."""
        ...


class _Memory(Generic[V]):
    """Values that hold for a while; the oldest go when there are too many."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: OrderedDict[Hashable, tuple[V, float]] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        value, until = self._values.get(key, (None, 0.0))
        return value if self._clock() < until else None

    def put(self, key: Hashable, value: V, seconds: float) -> None:
        self._values[key] = (value, self._clock() + seconds)
        self._values.move_to_end(key)
        if len(self._values) > _REMEMBERED:
            self._values.popitem(last=False)


class AccessReview:
    """Lets a request pass if its bearer token belongs to somebody who may use its verb on its path.

    A TokenReview tells whose token it is, and a SubjectAccessReview with the request's path and verb (``get``) whether
    that one may. The process's own account needs the ClusterRole ``system:auth-delegator``. Verdicts on tokens are
    remembered for 1 minute, permissions for 5 minutes, refusals for 30 seconds.

    Args:
        transport: asks the API server.
        clock: monotonic seconds.
    """

    def __init__(self, transport: Callable[[], Asks], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport = transport
        self._users: _Memory[RawObject] = _Memory(clock)
        self._verdicts: _Memory[bool] = _Memory(clock)

    async def refusal(self, request: web.BaseRequest) -> web.Response | None:
        """Return None for a request that may pass, else the answer: 401 who is it, 403 may not, 500 cannot tell."""
        token = _bearer_token(request.headers.get("Authorization", ""))
        if not token:
            return _unauthorized()
        try:
            with anyio.fail_after(LIMIT):
                user = await self._user(token)
                if not user:
                    return _unauthorized()
                if not await self._may(user, request.method.lower(), request.path):
                    log.info("access_denied", user=user.get("username"), path=request.path)
                    return text(403, "this account may not read this path\n")
        except Exception as error:
            log.warning("access_not_reviewed", path=request.path, error=repr(error))
            return text(500, "the API server could not be asked whether this is allowed\n")
        return None

    async def _user(self, token: str) -> RawObject:
        """Return the token's user; empty when the token is not good."""
        key = hashlib.sha256(token.encode()).digest()
        user = self._users.get(key)
        if user is None:
            status = await self._ask(_WHO, "authentication.k8s.io/v1", "TokenReview", {"token": token})
            user = (status.get("user") or {}) if status.get("authenticated") else {}
            self._users.put(key, user, TOKEN_TTL)
        return user

    async def _may(self, user: RawObject, verb: str, path: str) -> bool:
        spec = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": path, "verb": verb},
        }
        key = orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)
        verdict = self._verdicts.get(key)
        if verdict is None:
            status = await self._ask(_MAY, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
            verdict = bool(status.get("allowed")) and not status.get("denied")
            self._verdicts.put(key, verdict, ALLOW_TTL if verdict else DENY_TTL)
        return verdict

    async def _ask(self, path: str, api_version: str, kind: str, spec: RawObject) -> RawObject:
        body = orjson.dumps({"apiVersion": api_version, "kind": kind, "spec": spec})
        answer: Any = orjson.loads(await self._transport().request("POST", path, body=body, timeout=LIMIT))
        status: RawObject = answer.get("status") or {}
        return status


def guarded(review: AccessReview, handler: Handler) -> Handler:
    """Return a handler that asks ``review`` first."""

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        return await review.refusal(request) or await handler(request)

    return serve


def _bearer_token(header: str) -> str:
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _unauthorized() -> web.Response:
    response = text(401, "send the bearer token of an account that may read this path\n")
    response.headers["WWW-Authenticate"] = "Bearer"
    return response
