"""The faults that a proxy is to make, and the answers it gives of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from ._proxy_requests import Matcher, ProxiedRequest, matches

__all__ = ["Fault", "FaultKind", "Faults", "reason_of", "status_body"]

FaultKind: TypeAlias = Literal["refuse", "answer", "drop_response", "delay_response", "delay_stream", "drop_bookmarks"]

_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
"""The reasons that the API server gives with its status codes."""


@dataclass(eq=False, kw_only=True)
class Fault:
    """A fault in force, as ``with`` gives it.

    Attributes:
        kind: its name.
        match: which requests it meets.
        times: how many requests it still meets; None for all.
        hits: how many requests have met it.
        seconds: how long it delays.
        code: the status that it answers with.
        retry_after: seconds named in the answer's ``Retry-After``.
    """

    kind: FaultKind
    match: Matcher | None = None
    times: int | None = None
    hits: int = 0
    seconds: float = 0.0
    code: int = 0
    retry_after: int | None = None
    _met: set[ProxiedRequest] = field(default_factory=set, repr=False)

    def meets(self, request: ProxiedRequest) -> bool:
        """Tell whether the fault is for this request; it is not used up."""
        return request in self._met or (self.times != 0 and matches(self.match, request))

    def use(self, request: ProxiedRequest) -> None:
        """Count a request that meets the fault, once."""
        if request not in self._met:
            self._met.add(request)
            self.hits += 1
            if self.times is not None:
                self.times -= 1


class Faults:
    """All faults in force; the one that was made last goes first."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Put a fault in force."""
        self._faults.insert(0, fault)

    def remove(self, fault: Fault) -> None:
        """End a fault."""
        self._faults.remove(fault)

    def __contains__(self, fault: Fault) -> bool:
        return fault in self._faults

    def take(self, kind: FaultKind, request: ProxiedRequest) -> Fault | None:
        """Return the fault of this kind that the request meets, and count it; None when there is none."""
        for fault in self._faults:
            if fault.kind == kind and fault.meets(request):
                fault.use(request)
                if kind not in ("delay_stream", "drop_bookmarks"):
                    request.fault = kind
                return fault
        return None


def reason_of(code: int) -> str:
    """Return the reason that the API server gives with a status code."""
    return _REASONS.get(code, "")


def status_body(code: int, message: str, *, retry_after: int | None = None) -> bytes:
    """Return the body of a refusal as the API server writes it."""
    status: dict[str, object] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason_of(code),
        "code": code,
    }
    if retry_after is not None:
        status["details"] = {"retryAfterSeconds": retry_after}
    return json.dumps(status).encode()
