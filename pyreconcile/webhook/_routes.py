"""What is served at a path: bodies in, answers out (rules WH-3, WH-4, WH-9)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol

import orjson
from aiohttp import web

from pyreconcile.api import RawObject
from pyreconcile.metrics import WebhookMetrics
from pyreconcile.webhook._conversion import Conversions, convert_review
from pyreconcile.webhook._handlers import DEFAULT_TIMEOUT, MAX_TIMEOUT, Handler, run_handlers
from pyreconcile.webhook._request import answer

MAX_BODY: Final = 7 * 1024 * 1024
"""Bytes; the body of an admission review must be smaller (rule WH-3)."""

MAX_CONVERSION_BODY: Final = 256 * 1024 * 1024
"""Bytes; a conversion review may hold all objects of a list."""


class Route(Protocol):
    """What is served at one path."""

    @property
    def metrics(self) -> WebhookMetrics:
        """Counts its requests."""
        ...

    async def serve(self, http: web.BaseRequest) -> web.Response:
        """Answer a request."""
        ...

    async def call(self, review: RawObject) -> RawObject:
        """Answer a review without HTTP."""
        ...


class AdmissionRoute:
    """Runs handlers on an AdmissionReview. The HTTP status is 200 whatever the verdict (rule WH-4)."""

    def __init__(self, handlers: tuple[Handler, ...], metrics: WebhookMetrics) -> None:
        self._handlers = handlers
        self.metrics = metrics

    async def serve(self, http: web.BaseRequest) -> web.Response:
        """Read the review, and answer it or say inside of one what is wrong with the body."""
        return _json(await self._answer(http))

    async def call(self, review: RawObject) -> RawObject:
        """Run the handlers."""
        return await run_handlers(self._handlers, review, on_panic=self.metrics.panic)

    async def _answer(self, http: web.BaseRequest) -> RawObject:
        body = await _read_body(http, MAX_BODY)
        if body is None:
            return _error(413, "RequestEntityTooLarge", f"the body must be smaller than {MAX_BODY} bytes")
        if not body:
            return _error(400, "BadRequest", "the body is empty")
        content_type = http.headers.get("Content-Type", "")
        if content_type != "application/json":
            return _error(400, "BadRequest", f"the Content-Type must be application/json, not {content_type!r}")
        try:
            review = orjson.loads(body)
        except ValueError as error:
            return _error(400, "BadRequest", f"the body is no JSON: {error}")
        return await run_handlers(self._handlers, review, timeout=_timeout(http), on_panic=self.metrics.panic)


class ConversionRoute:
    """Converts the objects of a ConversionReview, of all kinds that were added."""

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

    async def serve(self, http: web.BaseRequest) -> web.Response:
        """Read the review and answer it; a body that is none gets status 400."""
        body = await _read_body(http, MAX_CONVERSION_BODY)
        if body is None:
            return web.Response(status=413, text=f"the body must be smaller than {MAX_CONVERSION_BODY} bytes")
        try:
            review = orjson.loads(body)
            answered = await self.call(review)
        except ValueError as error:
            return web.Response(status=400, text=f"the body is no ConversionReview: {error}")
        return _json(answered)

    async def call(self, review: RawObject) -> RawObject:
        """Convert.

        Raises:
            ValueError: this is no ConversionReview with a request.
        """
        return await convert_review(self.kinds, review, on_panic=self._on_panic)


def _json(value: RawObject) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")


async def _read_body(http: web.BaseRequest, limit: int) -> bytes | None:
    if (http.content_length or 0) >= limit:
        return None
    body = bytearray()
    async for chunk in http.content.iter_any():
        body += chunk
        if len(body) >= limit:
            return None
    return bytes(body)


def _timeout(http: web.BaseRequest) -> float:
    """Seconds that the API server waits: it says so in the query, as in ``?timeout=10s``."""
    match = re.fullmatch(r"(\d+)s", http.query.get("timeout", ""))
    return min(float(match[1]), MAX_TIMEOUT) if match and int(match[1]) else DEFAULT_TIMEOUT


def _error(code: int, reason: str, message: str) -> RawObject:
    return answer(None, None, code=code, reason=reason, message=message)
