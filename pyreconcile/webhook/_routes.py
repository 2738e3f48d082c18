"""What is served at a path: bodies in, answers out (rules WH-3, WH-4, WH-9)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

import orjson

from pyreconcile.api import RawObject
from pyreconcile.metrics import WebhookMetrics
from pyreconcile.webhook._conversion import Conversions, convert_review
from pyreconcile.webhook._handlers import DEFAULT_TIMEOUT, MAX_TIMEOUT, Handler, run_handlers
from pyreconcile.webhook._http import Request, Response, text
from pyreconcile.webhook._request import answer

MAX_BODY: Final = 7 * 1024 * 1024
"""Bytes; the body of an admission review must be smaller (rule WH-3)."""

MAX_CONVERSION_BODY: Final = 256 * 1024 * 1024
"""Bytes; a conversion review may hold all objects of a list."""

_TIMEOUT = re.compile(r"(?:^|&)timeout=(\d+)s(?:&|$)", re.ASCII)

_REVIEW = re.compile(
    rb'\{"kind":"AdmissionReview","apiVersion":"(admission\.k8s\.io/v1(?:beta1)?)","request":\{"uid":"([0-9A-Za-z-]+)"[,}]'
)
_ADMITTED = b'{"apiVersion":"%b","kind":"AdmissionReview","response":{"uid":"%b","allowed":true,"status":{"code":200}}}'


class Route(Protocol):
    """What is served at one path."""

    @property
    def max_body(self) -> int:
        """Bytes below which a body must be."""
        ...

    @property
    def metrics(self) -> WebhookMetrics:
        """Counts its requests."""
        ...

    async def serve(self, request: Request) -> Response:
        """Answer a request."""
        ...

    async def call(self, review: RawObject) -> RawObject:
        """Answer a review without HTTP."""
        ...


class AdmissionRoute:
    """Runs handlers on an AdmissionReview. The HTTP status is 200 whatever the verdict (rule WH-4)."""

    max_body = MAX_BODY

    def __init__(self, handlers: tuple[Handler, ...], metrics: WebhookMetrics) -> None:
        self._handlers = handlers
        self.metrics = metrics

    async def serve(self, request: Request) -> Response:
        """Read the review, and answer it or say inside of one what is wrong with the body."""
        return _json(await self._answer(request))

    async def call(self, review: RawObject) -> RawObject:
        """Run the handlers."""
        return await run_handlers(self._handlers, review, on_panic=self.metrics.panic)

    async def _answer(self, request: Request) -> RawObject:
        if request.body is None:
            return _error(413, "RequestEntityTooLarge", f"the body must be smaller than {MAX_BODY} bytes")
        if not request.body:
            return _error(400, "BadRequest", "the body is empty")
        content_type = request.headers.get(b"content-type", b"")
        if content_type != b"application/json":
            given = content_type.decode("latin-1")
            return _error(400, "BadRequest", f"the Content-Type must be application/json, not {given!r}")
        try:
            review = orjson.loads(request.body)
        except ValueError as error:
            return _error(400, "BadRequest", f"the body is no JSON: {error}")
        return await run_handlers(self._handlers, review, timeout=_timeout(request.query), on_panic=self.metrics.panic)


class AdmitAllRoute:
    """Admits what the API server asks without reading it: only the UID is needed, and where it stands is known.

    Args:
        route: answers what does not begin as the API server writes it.
    """

    max_body = MAX_BODY

    def __init__(self, route: Route) -> None:
        self._route = route
        self.metrics = route.metrics

    async def serve(self, request: Request) -> Response:
        """Admit, or say what is wrong with the body."""
        if request.body is not None and request.headers.get(b"content-type") == b"application/json":
            match = _REVIEW.match(request.body)
            if match is not None:
                return Response(200, _ADMITTED % match.groups())
        return await self._route.serve(request)

    async def call(self, review: RawObject) -> RawObject:
        """Admit."""
        return await self._route.call(review)


class ConversionRoute:
    """Converts the objects of a ConversionReview, of all kinds that were added."""

    max_body = MAX_CONVERSION_BODY

    def __init__(self, metrics: WebhookMetrics, on_panic: Callable[[], None]) -> None:
        self.metrics = metrics
        self._on_panic = on_panic
        self.kinds: dict[tuple[str, str], Conversions] = {}
        """What is served, by group and kind."""

    def add(self, conversions: Conversions) -> None:
        """Serve a kind.

        Raises:
            ValueError: it is served already.
            PartialConversionError: two of its versions cannot be turned into one another.
        """
        key = (conversions.group, conversions.kind)
        if key in self.kinds:
            raise ValueError(f"conversions of {conversions.kind}.{conversions.group} are registered already")
        conversions.check()
        self.kinds[key] = conversions

    async def serve(self, request: Request) -> Response:
        """Read the review and answer it; a body that is none gets status 400."""
        if request.body is None:
            return text(413, f"the body must be smaller than {MAX_CONVERSION_BODY} bytes")
        try:
            review = orjson.loads(request.body)
            answered = await self.call(review)
        except ValueError as error:
            return text(400, f"the body is no ConversionReview: {error}")
        return _json(answered)

    async def call(self, review: RawObject) -> RawObject:
        """Convert.

        Raises:
            ValueError: this is no ConversionReview with a request.
        """
        return await convert_review(self.kinds, review, on_panic=self._on_panic)


def _json(value: RawObject) -> Response:
    return Response(200, orjson.dumps(value))


@lru_cache(maxsize=64)
def _timeout(query: str) -> float:
    """Seconds that the API server waits: it says so in the query, as in ``timeout=10s``."""
    match = _TIMEOUT.search(query)
    return min(float(match[1]), MAX_TIMEOUT) if match and int(match[1]) else DEFAULT_TIMEOUT


def _error(code: int, reason: str, message: str) -> RawObject:
    return answer(None, None, code=code, reason=reason, message=message)
