"""Answers become typed errors."""

import pytest

from pyreconcile.api import Resource
from pyreconcile.client import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    GoneError,
    InternalServerError,
    InvalidError,
    MethodNotAllowedError,
    NotAcceptableError,
    NotFoundError,
    RequestEntityTooLargeError,
    RequestTimeoutError,
    ServerTimeoutError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
    UnsupportedMediaTypeError,
    error_from_status,
    not_found,
)
from pyreconcile.client._errors import error_from_answer

BY_REASON = {
    "NotFound": NotFoundError,
    "AlreadyExists": AlreadyExistsError,
    "Conflict": ConflictError,
    "Gone": GoneError,
    "Expired": ExpiredError,
    "Invalid": InvalidError,
    "BadRequest": BadRequestError,
    "Unauthorized": UnauthorizedError,
    "Forbidden": ForbiddenError,
    "MethodNotAllowed": MethodNotAllowedError,
    "NotAcceptable": NotAcceptableError,
    "RequestEntityTooLarge": RequestEntityTooLargeError,
    "UnsupportedMediaType": UnsupportedMediaTypeError,
    "TooManyRequests": TooManyRequestsError,
    "InternalError": InternalServerError,
    "ServiceUnavailable": ServiceUnavailableError,
    "ServerTimeout": ServerTimeoutError,
    "Timeout": RequestTimeoutError,
}
BY_CODE = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    405: MethodNotAllowedError,
    406: NotAcceptableError,
    409: ConflictError,
    410: GoneError,
    413: RequestEntityTooLargeError,
    415: UnsupportedMediaTypeError,
    422: InvalidError,
    429: TooManyRequestsError,
    500: InternalServerError,
    503: ServiceUnavailableError,
    504: RequestTimeoutError,
    418: ApiError,
    302: ApiError,
}


@pytest.mark.parametrize(("reason", "kind"), BY_REASON.items())
def test_er_1_reason_decides_whatever_the_code_says(reason, kind):
    error = error_from_status({"kind": "Status", "reason": reason, "code": 418, "message": "m"})
    assert type(error) is kind
    assert (error.reason, error.code, str(error)) == (reason, 418, "m")


@pytest.mark.rules("ER-2")
@pytest.mark.parametrize(("code", "kind"), BY_CODE.items())
@pytest.mark.parametrize("reason", ["", "Unknown", "SomethingNew"])
def test_er_1_er_2_code_decides_only_when_the_reason_is_unknown(code, kind, reason):
    error = error_from_status({"kind": "Status", "reason": reason, "code": code})
    assert type(error) is kind
    assert error.code == code


def test_er_3_details_are_kept():
    error = error_from_status(
        {
            "reason": "Invalid",
            "code": 422,
            "message": 'Deployment.apps "x" is invalid',
            "details": {
                "kind": "Deployment",
                "name": "x",
                "retryAfterSeconds": 7,
                "causes": [{"reason": "FieldValueInvalid", "message": "Invalid value: -1", "field": "spec.replicas"}],
            },
        }
    )
    assert error.retry_after == 7
    assert error.details["name"] == "x"
    (cause,) = error.causes
    assert (cause.reason, cause.message, cause.field) == ("FieldValueInvalid", "Invalid value: -1", "spec.replicas")


def test_er_3_header_gives_the_delay_when_details_do_not():
    assert error_from_answer(429, b"{}", retry_after=3).retry_after == 3
    assert error_from_answer(429, b"{}").retry_after is None


@pytest.mark.parametrize(
    "body", [b"<html>\n<h1>Bad  gateway</h1></html>", b"", b"[1]", b'{"kind": "Pod"}', b"\xff\xfe"]
)
def test_er_3_a_body_that_is_no_status_still_gives_a_typed_error(body):
    error = error_from_answer(503, body)
    assert type(error) is ServiceUnavailableError
    assert error.code == 503
    assert str(error).startswith("the server answered 503 Service Unavailable")


def test_er_3_a_long_error_page_is_cut():
    error = error_from_answer(599, b"x" * 10_000)
    assert len(str(error)) < 400
    assert str(error).startswith("the server answered 599: xxx")


def test_er_3_an_error_without_words_names_code_and_reason():
    assert str(NotFoundError()) == "the server answered 404 NotFound"
    assert repr(NotFoundError("gone")) == "NotFoundError('gone', reason='NotFound', code=404)"


def test_not_found_reads_like_the_servers():
    error = not_found(Resource("apps", "v1", "Deployment", "deployments"), "ns/x")
    assert str(error) == 'deployments.apps "x" not found'
    assert error.details == {"name": "x", "group": "apps", "kind": "deployments"}
