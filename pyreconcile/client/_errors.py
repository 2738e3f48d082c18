"""Errors of API requests, one class per reason, and how an answer becomes one (rules ER-1 to ER-3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

import orjson

from pyreconcile.api import Resource, split_key

_TEXT_LIMIT = 300
"""Characters of a body that is no Status which an error message repeats."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of ``details.causes``: what is wrong, and with which field."""

    reason: str
    message: str
    field: str


class ApiError(Exception):
    """A request failed: the API server said no, or gave no answer.

    Attributes:
        message: the server's own words.
        reason: ``Status.reason``; empty when the answer had none.
        code: the HTTP code; 0 when there was no answer.
        details: ``Status.details`` as parsed JSON.
        retry_after: seconds that the server asks to wait before another try; None when it named none.
        unsent: nothing of the request was sent, so the server has not done it.
    """

    unsent: bool = False
    default_reason: ClassVar[str] = ""
    default_code: ClassVar[int] = 0

    def __init__(
        self,
        message: str = "",
        *,
        reason: str | None = None,
        code: int | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = self.default_reason if reason is None else reason
        self.code = self.default_code if code is None else code
        self.details: Mapping[str, Any] = details or {}
        seconds = self.details.get("retryAfterSeconds")
        self.retry_after = float(seconds) if retry_after is None and seconds else retry_after

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes that the server listed, such as each invalid field or each conflicting manager."""
        return tuple(
            Cause(cause.get("reason", ""), cause.get("message", ""), cause.get("field", ""))
            for cause in self.details.get("causes") or ()
        )

    def __str__(self) -> str:
        return self.message or f"the server answered {self.code} {self.reason}".rstrip()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r}, reason={self.reason!r}, code={self.code})"


class BadRequestError(ApiError):
    """400: the request is malformed."""

    default_reason, default_code = "BadRequest", 400


class UnauthorizedError(ApiError):
    """401: the credentials are missing, wrong or expired."""

    default_reason, default_code = "Unauthorized", 401


class ForbiddenError(ApiError):
    """403: the user may not do this, or admission refused it."""

    default_reason, default_code = "Forbidden", 403


class NotFoundError(ApiError):
    """404: there is no such object, or no such kind."""

    default_reason, default_code = "NotFound", 404


class MethodNotAllowedError(ApiError):
    """405: the resource does not support the verb."""

    default_reason, default_code = "MethodNotAllowed", 405


class NotAcceptableError(ApiError):
    """406: the server cannot give the form asked for."""

    default_reason, default_code = "NotAcceptable", 406


class AlreadyExistsError(ApiError):
    """409 on create: an object of that name exists."""

    default_reason, default_code = "AlreadyExists", 409


class ConflictError(ApiError):
    """409: the object changed since it was read, or another field manager owns a field."""

    default_reason, default_code = "Conflict", 409


class GoneError(ApiError):
    """410: what was asked for is no longer available."""

    default_reason, default_code = "Gone", 410


class ExpiredError(ApiError):
    """410: the resource version or the continue token is too old; list again."""

    default_reason, default_code = "Expired", 410


class RequestEntityTooLargeError(ApiError):
    """413: the object is larger than the server takes."""

    default_reason, default_code = "RequestEntityTooLarge", 413


class UnsupportedMediaTypeError(ApiError):
    """415: the server does not take this form, such as a strategic merge patch of a custom resource."""

    default_reason, default_code = "UnsupportedMediaType", 415


class InvalidError(ApiError):
    """422: the object breaks a rule of its schema or of validation; ``causes`` names the fields."""

    default_reason, default_code = "Invalid", 422


class TooManyRequestsError(ApiError):
    """429: the server sheds load, or an eviction is blocked by a disruption budget."""

    default_reason, default_code = "TooManyRequests", 429


class InternalServerError(ApiError):
    """500: the server, or a webhook that it called, failed."""

    default_reason, default_code = "InternalError", 500


class ServerTimeoutError(ApiError):
    """500 or 504 with reason ServerTimeout: the server could not finish in time; try again."""

    default_reason, default_code = "ServerTimeout", 500


class ServiceUnavailableError(ApiError):
    """503: the server, or the aggregated server behind it, is not up."""

    default_reason, default_code = "ServiceUnavailable", 503


class RequestTimeoutError(ApiError):
    """504 with reason Timeout, or no full answer within the request's own limit (then the code is 0)."""

    default_reason, default_code = "Timeout", 504


class ConnectionLostError(ApiError):
    """There was no answer, or it broke off: no connection, TLS failure, or the connection was cut.

    Attributes:
        refused: nothing listens at the server's address; nothing was sent.
    """

    def __init__(self, message: str = "", *, refused: bool = False, unsent: bool = False) -> None:
        super().__init__(message, reason="", code=0)
        self.refused = refused
        self.unsent = refused or unsent


_BY_REASON: Mapping[str, type[ApiError]] = {
    kind.default_reason: kind
    for kind in (
        BadRequestError,
        UnauthorizedError,
        ForbiddenError,
        NotFoundError,
        MethodNotAllowedError,
        NotAcceptableError,
        AlreadyExistsError,
        ConflictError,
        GoneError,
        ExpiredError,
        RequestEntityTooLargeError,
        UnsupportedMediaTypeError,
        InvalidError,
        TooManyRequestsError,
        InternalServerError,
        ServerTimeoutError,
        ServiceUnavailableError,
        RequestTimeoutError,
    )
}

# AlreadyExists, Expired and ServerTimeout are told by their reason only: their codes mean something else (ER-2).
_BY_CODE: Mapping[int, type[ApiError]] = {
    kind.default_code: kind
    for kind in _BY_REASON.values()
    if kind not in (AlreadyExistsError, ExpiredError, ServerTimeoutError)
}


def error_from_status(status: Mapping[str, Any], *, code: int = 0, retry_after: float | None = None) -> ApiError:
    """Return the error that a ``Status`` object stands for.

    Classified by ``reason``; by the HTTP code only when the reason is none of Kubernetes' own (rule ER-1).

    Args:
        status: a Status as parsed JSON, such as the object of an ERROR watch event.
        code: the HTTP code, where the Status has none.
        retry_after: seconds from the ``Retry-After`` header, where the details have none.
    """
    reason = str(status.get("reason") or "")
    number = int(status.get("code") or code or 0)
    kind = _BY_REASON.get(reason) or _BY_CODE.get(number, ApiError)
    details = status.get("details")
    if not isinstance(details, Mapping):
        details = {}
    seconds = details.get("retryAfterSeconds") or retry_after
    return kind(
        str(status.get("message") or ""),
        reason=reason or kind.default_reason,
        code=number,
        details=details,
        retry_after=float(seconds) if seconds else None,
    )


def error_from_answer(code: int, body: bytes, *, retry_after: float | None = None) -> ApiError:
    """Return the error for an HTTP answer outside 2xx, whatever its body is.

    A body that is no Status (an error page of a proxy, plain text) is quoted in the message (rule ER-3).
    """
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status":
        return error_from_status(status, code=code, retry_after=retry_after)
    text = " ".join(body.decode(errors="replace").split())
    if len(text) > _TEXT_LIMIT:
        text = text[:_TEXT_LIMIT] + "…"
    try:
        phrase = f"{code} {HTTPStatus(code).phrase}"
    except ValueError:
        phrase = str(code)
    message = f"the server answered {phrase}" + (f": {text}" if text else "")
    return error_from_status({"message": message}, code=code, retry_after=retry_after)


def may_be_done(error: BaseException) -> bool:
    """Tell whether the server may have done what was asked although the request ended with this error.

    So it is when no answer came to what was sent, when the request was cancelled, and when the server, or a proxy
    before it, failed beyond admission.
    """
    if not isinstance(error, ApiError):
        return not isinstance(error, Exception)
    if error.unsent:
        return False
    return error.code == 0 or (error.code >= 500 and "failed calling webhook" not in error.message)


def not_found(resource: Resource, key: str) -> NotFoundError:
    """Return the NotFound error for an object, in the words and with the details that the server uses."""
    name = split_key(key)[1]
    plural = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return NotFoundError(f'{plural} "{name}" not found', details=details)
