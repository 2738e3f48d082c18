"""Handlers: mutators, defaulters and validators, and running several of them on one review."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import anyio
import structlog
from pydantic import ValidationError

from pyreconcile.api import KubeObject, RawObject, copy_json
from pyreconcile.client import ApiError
from pyreconcile.webhook._errors import Denied, FieldErrors
from pyreconcile.webhook._jsonpatch import rebase, same_json
from pyreconcile.webhook._request import AdmissionRequest, answer, parse_review

T = TypeVar("T", bound=KubeObject)
AnyObject = TypeVar("AnyObject", bound=KubeObject)

Mutator: TypeAlias = Callable[[RawObject, AdmissionRequest], "RawObject | Awaitable[RawObject | None] | None"]
"""Changes a parsed object in place, or returns another one in its place; sync or async."""

Defaulter: TypeAlias = Callable[[T, AdmissionRequest], "Awaitable[None] | None"]
"""Changes a typed object in place; sync or async."""

RawValidator: TypeAlias = Callable[[AdmissionRequest], "Awaitable[None] | None"]
"""Reads ``request.object`` and ``request.old_object`` and raises to refuse; sync or async."""

DEFAULT_TIMEOUT = 10.0  # seconds; timeoutSeconds of a webhook configuration when unset
MAX_TIMEOUT = 30.0  # seconds; the most that the API server allows

_log = structlog.get_logger()
_BOOKKEEPING = frozenset(
    {"finalizers", "managedFields", "resourceVersion", "generation", "deletionTimestamp", "deletionGracePeriodSeconds"}
)


class Handler(Protocol):
    """One step on the way of a request: it may replace ``request.object``, warn, or raise to refuse."""

    async def handle(self, request: AdmissionRequest) -> None:
        """Admit the request by returning.

        Raises:
            Denied, FieldErrors: the request is refused.
        """
        ...


class Validator(Generic[T]):
    """Base of typed validators: override what you check; the rest admits.

    Methods may be sync or async. To refuse, raise `FieldErrors` or `Denied`; to warn, call ``request.warn()``.
    """

    def validate_create(self, obj: T, request: AdmissionRequest) -> Awaitable[None] | None:
        """Check a new object."""

    def validate_update(self, old: T, new: T, request: AdmissionRequest) -> Awaitable[None] | None:
        """Check a change of an object."""

    def validate_delete(self, old: T, request: AdmissionRequest) -> Awaitable[None] | None:
        """Check that an object may be deleted (the webhook's rules must name DELETE)."""


@dataclass(frozen=True, slots=True)
class MutatorHandler:
    """Runs a mutator on a copy of the parsed object."""

    mutator: Mutator
    copy: Callable[[RawObject], RawObject] = copy_json

    def begin(self, request: AdmissionRequest) -> Awaitable[None] | None:
        """Let the mutator at the object; requests without one (DELETE) pass."""
        if request.object is None:
            return None
        working = self.copy(request.object)
        result = self.mutator(working, request)
        if result is not None and inspect.isawaitable(result):
            return self._finish(request, working, result)
        request.object = working if result is None else result
        return None

    async def _finish(
        self, request: AdmissionRequest, working: RawObject, pending: Awaitable[RawObject | None]
    ) -> None:
        result = await pending
        request.object = working if result is None else result

    async def handle(self, request: AdmissionRequest) -> None:
        """Do what `begin` does, to its end."""
        if (pending := self.begin(request)) is not None:
            await pending


@dataclass(frozen=True, slots=True)
class DefaulterHandler(Generic[T]):
    """Decodes the object, lets the defaulter at it, and carries only what that changed over to the raw object.

    Fields that the model does not know, nulls and empty values stay as they were sent (rules WH-6 and WH-6a).
    """

    kind: type[T]
    defaulter: Defaulter[T]

    async def handle(self, request: AdmissionRequest) -> None:
        """Apply the defaults; DELETE and the removal of a finalizer from a deleting object pass untouched."""
        if request.object is None or request.operation == "DELETE" or only_finalizers_removed(request):
            return
        obj = _decode(self.kind, request.object, "object")
        before = obj.to_dict()
        result = self.defaulter(obj, request)
        if inspect.isawaitable(result):
            await result
        request.object = rebase(request.object, before, obj.to_dict())


@dataclass(frozen=True, slots=True)
class ValidatorHandler(Generic[T]):
    """Decodes the objects and calls the method for the operation (rule WH-7)."""

    kind: type[T]
    validator: Validator[T]

    async def handle(self, request: AdmissionRequest) -> None:
        """Check the request; CONNECT passes, and so does the removal of a finalizer from a deleting object."""
        match request.operation:
            case "CREATE":
                result = self.validator.validate_create(_decode(self.kind, request.object, "object"), request)
            case "UPDATE":
                if only_finalizers_removed(request):
                    return
                old = _decode(self.kind, request.old_object, "oldObject")
                result = self.validator.validate_update(old, _decode(self.kind, request.object, "object"), request)
            case "DELETE":
                result = self.validator.validate_delete(_decode(self.kind, request.old_object, "oldObject"), request)
            case "CONNECT":
                return
            case other:
                raise Denied(f"unknown operation {other!r}", code=400, reason="BadRequest")
        if inspect.isawaitable(result):
            await result


@dataclass(frozen=True, slots=True)
class RawValidatorHandler:
    """Calls a validator that works on parsed JSON."""

    validator: RawValidator

    def begin(self, request: AdmissionRequest) -> Awaitable[None] | None:
        """Check the request; the removal of a finalizer from a deleting object passes."""
        if request.operation == "UPDATE" and only_finalizers_removed(request):
            return None
        result = self.validator(request)
        return result if result is not None and inspect.isawaitable(result) else None

    async def handle(self, request: AdmissionRequest) -> None:
        """Do what `begin` does, to its end."""
        if (pending := self.begin(request)) is not None:
            await pending


_PLAIN = (MutatorHandler, RawValidatorHandler)


def only_finalizers_removed(request: AdmissionRequest) -> bool:
    """Tell whether this update does nothing but remove finalizers from an object that is being deleted.

    Such an update is never refused or changed: an object whose deletion hangs on a check against the outside world
    would stay for ever. Any other change of a deleting object is checked as usual.
    """
    new, old = request.object, request.old_object
    if new is None or old is None or request.operation != "UPDATE" or request.sub_resource:
        return False
    new_meta, old_meta = new.get("metadata") or {}, old.get("metadata") or {}
    if "deletionTimestamp" not in old_meta:
        return False
    if not set(new_meta.get("finalizers") or ()) < set(old_meta.get("finalizers") or ()):
        return False
    return _same_but(new_meta, old_meta, _BOOKKEEPING) and _same_but(new, old, frozenset({"metadata"}))


async def run_handlers(
    handlers: Sequence[Handler], review: Any, *, timeout: float = DEFAULT_TIMEOUT, on_panic: Callable[[], None]
) -> RawObject:
    """Run the handlers in order on a parsed review and return the answering review; the first refusal ends it (WH-8).

    An exception that is no refusal is a defect of the handler: it is logged, reported through ``on_panic`` and
    answered with code 500 (rule WH-5). Cancellation of the caller cancels the handler.
    """
    request: AdmissionRequest | None = None
    try:
        request = parse_review(review)
        started = monotonic()
        for handler in handlers:
            pending = handler.begin(request) if isinstance(handler, _PLAIN) else handler.handle(request)
            if pending is None:
                continue  # what never waits needs no time limit, which costs as much as all else here
            with anyio.move_on_after(started + timeout - monotonic()) as limit:
                await pending
            if limit.cancelled_caught:
                raise Denied(f"the webhook's handler took longer than {timeout:g} s", code=504, reason="Timeout")
        return answer(review, request)
    except Exception as error:
        return _refusal(review, request, error, on_panic)


def _refusal(
    review: Any, request: AdmissionRequest | None, error: Exception, on_panic: Callable[[], None]
) -> RawObject:
    if isinstance(error, Denied) and error.code >= 400:  # a subclass may have put another code in
        return answer(review, request, code=error.code, message=error.message, reason=error.reason)
    if isinstance(error, FieldErrors):
        return answer(review, request, code=403, message=error.message, reason="Forbidden")
    if isinstance(error, ApiError) and error.code >= 400:
        # A look-up of the handler failed: the user sees why (rule WH-4).
        details = dict(error.details)
        return answer(review, request, code=error.code, message=str(error), reason=error.reason, details=details)
    on_panic()
    name = type(error).__name__
    if request is not None:
        _log.exception(
            "webhook handler failed", kind=str(request.kind), namespace=request.namespace, name=request.name, error=name
        )
    return answer(
        review, request, code=500, reason="InternalError", message=f"the webhook's handler failed: {name}: {error}"
    )


def _decode(kind: type[AnyObject], raw: RawObject | None, field: str) -> AnyObject:
    if raw is None:
        raise Denied(f"the request holds no {field}", code=400, reason="BadRequest")
    try:
        return kind.from_dict(raw)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False)
        )
        raise Denied(f"{field} is no valid {kind.resource.kind}: {problems}", code=400, reason="BadRequest") from error


def _same_but(a: RawObject, b: RawObject, ignored: frozenset[str]) -> bool:
    return all(key in a and key in b and same_json(a[key], b[key]) for key in (a.keys() | b.keys()) - ignored)
