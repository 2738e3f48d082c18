"""The Kubernetes client: typed verbs on one fast request path.

`connect` gives a `Client`. kubernetes_asyncio runs exec plugins and auth providers where a kubeconfig has them; the
requests are bytes on HTTP connections of our own.
"""

from pyreconcile.client._client import Client, connect
from pyreconcile.client._config import ConfigError, ConnectOptions, RequestMetrics
from pyreconcile.client._core import FieldValidation, NotCachedError, Propagation, RawReader, Reader, WriteObserver
from pyreconcile.client._discovery import ServedKinds, UnknownKindError
from pyreconcile.client._equality import semantic_equal
from pyreconcile.client._errors import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    Cause,
    ConflictError,
    ConnectionLostError,
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
from pyreconcile.client._impersonation import Impersonation
from pyreconcile.client._listing import Listing
from pyreconcile.client._patch import JsonPatch, MergePatch, Patch, StrategicMergePatch
from pyreconcile.client._retry import retry_on_conflict
from pyreconcile.client._scale import Scale
from pyreconcile.client._selectors import FieldSelector, LabelSelector, field_selector, label_selector
from pyreconcile.client._subresource import Subresource
from pyreconcile.client._transport import Transport
from pyreconcile.client._watching import WatchEvent

__all__ = [
    "AlreadyExistsError",
    "ApiError",
    "BadRequestError",
    "Cause",
    "Client",
    "ConfigError",
    "ConflictError",
    "ConnectOptions",
    "ConnectionLostError",
    "ExpiredError",
    "FieldSelector",
    "FieldValidation",
    "ForbiddenError",
    "GoneError",
    "Impersonation",
    "InternalServerError",
    "InvalidError",
    "JsonPatch",
    "LabelSelector",
    "Listing",
    "MergePatch",
    "MethodNotAllowedError",
    "NotAcceptableError",
    "NotCachedError",
    "NotFoundError",
    "Patch",
    "Propagation",
    "RawReader",
    "Reader",
    "RequestEntityTooLargeError",
    "RequestMetrics",
    "RequestTimeoutError",
    "Scale",
    "ServedKinds",
    "ServerTimeoutError",
    "ServiceUnavailableError",
    "StrategicMergePatch",
    "Subresource",
    "TooManyRequestsError",
    "Transport",
    "UnauthorizedError",
    "UnknownKindError",
    "UnsupportedMediaTypeError",
    "WatchEvent",
    "WriteObserver",
    "connect",
    "error_from_status",
    "field_selector",
    "label_selector",
    "not_found",
    "retry_on_conflict",
    "semantic_equal",
]
