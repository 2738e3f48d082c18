"""Event handlers: from an event to the requests it puts on the queue. They run in the event loop and never wait."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeAlias

import structlog

from pyreconcile.api import KubeObject, RawObject, Resource
from pyreconcile.controller._events import CreateEvent, DeleteEvent, GenericEvent, UpdateEvent
from pyreconcile.controller._types import Request

log = structlog.get_logger()

MapFunction: TypeAlias = Callable[[Any], Iterable[Request] | Awaitable[Iterable[Request]]]
"""Says which objects an object concerns: ``def to_owners(pod: Pod) -> list[Request]``, or the same as ``async def``."""


class RequestQueue(Protocol):
    """What a handler may do with a controller's queue; both queues of `pyreconcile.workqueue` can."""

    def add(self, key: Request, *, priority: int = 0) -> None:
        """Reconcile as soon as a worker is free."""

    def add_after(self, key: Request, delay: float, *, priority: int = 0) -> None:
        """Reconcile in ``delay`` seconds, or earlier if it is queued for earlier."""

    def add_rate_limited(self, key: Request, *, priority: int = 0) -> None:
        """Reconcile after the backoff of this request."""


class Handler:
    """Turns events into requests. Every method of this base does nothing.

    Pass ``event.priority`` on to the queue, so that the initial list and resyncs yield to news (PQ-13).
    """

    def create(self, event: CreateEvent[Any], queue: RequestQueue) -> None:
        """Handle a new object."""

    def update(self, event: UpdateEvent[Any], queue: RequestQueue) -> None:
        """Handle a changed object."""

    def delete(self, event: DeleteEvent[Any], queue: RequestQueue) -> None:
        """Handle an object that is gone."""

    def generic(self, event: GenericEvent[Any], queue: RequestQueue) -> None:
        """Handle an event from outside of the cluster."""


class EnqueueObject(Handler):
    """Enqueues the object of the event itself; an event without one is dropped, with a line in the log (SR-5)."""

    def create(self, event: CreateEvent[Any], queue: RequestQueue) -> None:
        """Enqueue the new object."""
        if has_metadata(event.raw, "create"):
            queue.add(Request.for_object(event.raw), priority=event.priority)

    def update(self, event: UpdateEvent[Any], queue: RequestQueue) -> None:
        """Enqueue the changed object; the one before the change if that is all there is."""
        if event.new_raw:
            queue.add(Request.for_object(event.new_raw), priority=event.priority)
        elif has_metadata(event.old_raw, "update"):
            queue.add(Request.for_object(event.old_raw))

    def delete(self, event: DeleteEvent[Any], queue: RequestQueue) -> None:
        """Enqueue the object that is gone."""
        if has_metadata(event.raw, "delete"):
            queue.add(Request.for_object(event.raw))

    def generic(self, event: GenericEvent[Any], queue: RequestQueue) -> None:
        """Enqueue the object of the event."""
        if has_metadata(event.raw, "generic"):
            queue.add(Request.for_object(event.raw))


class _EnqueueRequests(Handler, ABC):
    """Enqueues what `_requests` finds for an object; an update asks for the old and the new one, each request once."""

    @abstractmethod
    def _requests(self, raw: RawObject, event: Any, *, old: bool = False) -> Iterable[Request]: ...

    def create(self, event: CreateEvent[Any], queue: RequestQueue) -> None:
        """Enqueue for the new object."""
        for request in dict.fromkeys(self._requests(event.raw, event)):
            queue.add(request, priority=event.priority)

    def update(self, event: UpdateEvent[Any], queue: RequestQueue) -> None:
        """Enqueue for the object before and after the change."""
        requests = dict.fromkeys(self._requests(event.old_raw, event, old=True))
        if event.old_raw is not event.new_raw:
            requests.update(dict.fromkeys(self._requests(event.new_raw, event)))
        for request in requests:
            queue.add(request, priority=event.priority)

    def delete(self, event: DeleteEvent[Any], queue: RequestQueue) -> None:
        """Enqueue for the object that is gone."""
        for request in dict.fromkeys(self._requests(event.raw, event)):
            queue.add(request)

    def generic(self, event: GenericEvent[Any], queue: RequestQueue) -> None:
        """Enqueue for the object of the event."""
        for request in dict.fromkeys(self._requests(event.raw, event)):
            queue.add(request)


class EnqueueOwner(_EnqueueRequests):
    """Enqueues the owners of an object that are of one kind (SR-6).

    Group and kind are compared, not the version; the owner's UID is compared when ``owner_uid`` is given.

    Args:
        owner: the owner's kind.
        every_owner: all owners of the kind; by default only the controller.
        owner_uid: returns the UID that the owner with this key has now, or None when that is not known. References to
            an owner that was replaced by one of the same name are then left out.

    Raises:
        TypeError: the owner is no kind.
    """

    def __init__(
        self,
        owner: type[KubeObject],
        *,
        every_owner: bool = False,
        owner_uid: Callable[[str], str | None] | None = None,
    ) -> None:
        resource = getattr(owner, "resource", None)
        if not isinstance(resource, Resource):
            raise TypeError(f"EnqueueOwner({owner!r}): give the owner's kind, such as Deployment")
        self._group = resource.group
        self._kind = resource.kind
        self._namespaced = resource.namespaced
        self._every_owner = every_owner
        self._owner_uid = owner_uid

    def _requests(self, raw: RawObject, event: Any, *, old: bool = False) -> Iterable[Request]:
        metadata = raw["metadata"]
        references = metadata.get("ownerReferences")
        if not references:
            return ()
        found: list[Request] = []
        for reference in references:
            if reference["kind"] != self._kind or not (self._every_owner or reference.get("controller")):
                continue
            api_version = reference["apiVersion"]
            group, _, version = api_version.rpartition("/")
            if "/" in group or not version:
                log.error("owner_reference_unreadable", api_version=api_version, object=str(Request.for_object(raw)))
                return ()
            if group != self._group:
                continue
            request = Request((metadata.get("namespace") or "") if self._namespaced else "", reference["name"])
            if self._owner_uid is not None:
                uid = self._owner_uid(request.key)
                if uid is not None and uid != reference["uid"]:
                    continue
            found.append(request)
        return found


class EnqueueMapped(_EnqueueRequests):
    """Enqueues what a plain function says for an object (SR-7).

    Args:
        function: takes the object as its model (a copy of its own) and returns requests.
        raw: give the function the object as parsed JSON instead, which is shared and must not be changed. That saves
            decoding it, some 30 µs an event.
    """

    def __init__(self, function: Callable[[Any], Iterable[Request]], *, raw: bool = False) -> None:
        self._function = function
        self._raw = raw

    def _requests(self, raw: RawObject, event: Any, *, old: bool = False) -> Iterable[Request]:
        if self._raw:
            return checked_requests(self._function(raw), self._function)
        return checked_requests(self._function(object_of(event, old=old)), self._function)


class HandlerFuncs(Handler):
    """A handler made of functions, each of them optional (SR-8). They take the event and the queue.

    What they add without naming a priority gets the event's own (PQ-14).
    """

    def __init__(
        self,
        *,
        create: Callable[[CreateEvent[Any], RequestQueue], None] | None = None,
        update: Callable[[UpdateEvent[Any], RequestQueue], None] | None = None,
        delete: Callable[[DeleteEvent[Any], RequestQueue], None] | None = None,
        generic: Callable[[GenericEvent[Any], RequestQueue], None] | None = None,
    ) -> None:
        self._create = create
        self._update = update
        self._delete = delete
        self._generic = generic

    def create(self, event: CreateEvent[Any], queue: RequestQueue) -> None:
        """Call the function for new objects."""
        if self._create is not None:
            self._create(event, _WithPriority(queue, event.priority))

    def update(self, event: UpdateEvent[Any], queue: RequestQueue) -> None:
        """Call the function for changed objects."""
        if self._update is not None:
            self._update(event, _WithPriority(queue, event.priority))

    def delete(self, event: DeleteEvent[Any], queue: RequestQueue) -> None:
        """Call the function for objects that are gone."""
        if self._delete is not None:
            self._delete(event, queue)

    def generic(self, event: GenericEvent[Any], queue: RequestQueue) -> None:
        """Call the function for events from outside."""
        if self._generic is not None:
            self._generic(event, queue)


class _WithPriority:
    """A queue whose adds have another default priority."""

    def __init__(self, queue: RequestQueue, priority: int) -> None:
        self._queue = queue
        self._priority = priority

    def add(self, key: Request, *, priority: int | None = None) -> None:
        self._queue.add(key, priority=self._priority if priority is None else priority)

    def add_after(self, key: Request, delay: float, *, priority: int | None = None) -> None:
        self._queue.add_after(key, delay, priority=self._priority if priority is None else priority)

    def add_rate_limited(self, key: Request, *, priority: int | None = None) -> None:
        self._queue.add_rate_limited(key, priority=self._priority if priority is None else priority)


def checked_handler(where: str, handler: Handler) -> Handler:
    """Return a handler.

    Raises:
        TypeError: it is none; the message says what to give.
    """
    if not isinstance(handler, Handler):
        raise TypeError(f"{where}: handler is {handler!r}; give an instance of a Handler, such as EnqueueObject()")
    return handler


def has_metadata(raw: RawObject | None, event: str) -> bool:
    """Tell whether an object has metadata; one without is of no use, and logged (SR-4, SR-5)."""
    if raw and raw.get("metadata"):
        return True
    log.error("event_without_metadata", event_type=event)
    return False


def object_of(event: Any, *, old: bool = False) -> Any:
    """Return the typed object of an event; of an update the old or the new one."""
    if isinstance(event, UpdateEvent):
        return event.old if old else event.new
    return event.object


def checked_requests(requests: Iterable[Request], function: object) -> Iterable[Request]:
    """Return the requests of a map function.

    Raises:
        TypeError: it returned something else; the message says what to return.
    """
    found = list(requests or ())
    for request in found:
        if not isinstance(request, Request):
            name = getattr(function, "__qualname__", repr(function))
            raise TypeError(
                f"map function {name} returned {request!r}; return Request(namespace, name), "
                "or Request.from_key('namespace/name')"
            )
    return found
