"""Who may read the metrics: the API server says (rule MG-10)."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
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

QUESTIONS: Final = 4
"""Questions that the API server is asked at a time."""

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

    def drop(self, key: Hashable) -> None:
        self._values.pop(key, None)

    def __contains__(self, key: Hashable) -> bool:
        """Whether there is a value, which may be too old by now."""
        return key in self._values


class _BusyError(Exception):
    """As many questions are being asked as may be."""


class _Answers(Generic[V]):
    """Asks a question once at a time, and remembers the answer.

    Bad answers, which anybody can cause any number of, have a memory of their own and only a few places, so that they
    cost others neither what is known of them nor the API server's attention: what was good before finds a place always.
    """

    def __init__(self, clock: Callable[[], float], slots: anyio.CapacityLimiter, *, good: float, bad: float) -> None:
        self.good = _Memory[V](clock)
        self.bad = _Memory[V](clock)
        self._slots = slots
        self._good_for, self._bad_for = good, bad
        self._asked: dict[Hashable, anyio.Event] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[V]]) -> V:
        """Return the answer that is remembered, or else ask; one that is false counts as bad.

        Raises:
            _BusyError: this question would be one too many.
        """
        while True:
            for memory in (self.good, self.bad):
                if (value := memory.get(key)) is not None:
                    return value
            if (asked := self._asked.get(key)) is None:
                break
            await asked.wait()
        known = key in self.good
        if not known and self._slots.available_tokens == 0:
            raise _BusyError
        self._asked[key] = asked = anyio.Event()
        try:
            if known:
                value = await ask()
            else:
                async with self._slots:
                    value = await ask()
        finally:
            del self._asked[key]
            asked.set()
        if value:
            self.good.put(key, value, self._good_for)
        else:
            self.good.drop(key)
            self.bad.put(key, value, self._bad_for)
        return value


class AccessReview:
    """Lets a request pass if its bearer token belongs to somebody who may use its verb on its path.

    A TokenReview tells whose token it is, and a SubjectAccessReview with the request's path and verb (``get``) whether
    that one may. The process's own account needs the ClusterRole ``system:auth-delegator``. Verdicts on tokens are
    remembered for 1 minute, permissions for 5 minutes, refusals for 30 seconds.

    A question about whom nothing good is known yet is refused while 4 others are being asked, so that a flood of
    tokens does not take the place of the process's own requests.

    Args:
        transport: asks the API server.
        clock: monotonic seconds.
    """

    def __init__(self, transport: Callable[[], Asks], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport = transport
        slots = anyio.CapacityLimiter(QUESTIONS)
        self._users = _Answers[RawObject](clock, slots, good=TOKEN_TTL, bad=TOKEN_TTL)
        self._verdicts = _Answers[bool](clock, slots, good=ALLOW_TTL, bad=DENY_TTL)

    async def refusal(self, request: web.BaseRequest) -> web.Response | None:
        """Return None for a request that may pass, else the answer.

        It is 401 for who is it, 403 for may not, 500 for cannot tell, and 503 while too many are asking.
        """
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
        except _BusyError:
            response = text(503, "too many unknown callers at a time; try again\n")
            response.headers["Retry-After"] = "1"
            return response
        except Exception as error:
            log.warning("access_not_reviewed", path=request.path, error=repr(error))
            return text(500, "the API server could not be asked whether this is allowed\n")
        return None

    async def _user(self, token: str) -> RawObject:
        """Return the token's user; empty when the token is not good."""

        async def ask() -> RawObject:
            status = await self._ask(_WHO, "authentication.k8s.io/v1", "TokenReview", {"token": token})
            return (status.get("user") or {}) if status.get("authenticated") else {}

        return await self._users.get(hashlib.sha256(token.encode()).digest(), ask)

    async def _may(self, user: RawObject, verb: str, path: str) -> bool:
        spec = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": path, "verb": verb},
        }

        async def ask() -> bool:
            status = await self._ask(_MAY, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
            return bool(status.get("allowed")) and not status.get("denied")

        return await self._verdicts.get(orjson.dumps(spec, option=orjson.OPT_SORT_KEYS), ask)

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
