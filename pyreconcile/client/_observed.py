"""A transport that tells times and sizes of its requests; used only when the metrics ask for them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from time import perf_counter
from typing import Any, Protocol

from pyreconcile.client._errors import ApiError
from pyreconcile.client._http import Answer
from pyreconcile.client._transport import Transport


class RequestObserver(Protocol):
    """Where an `ObservedTransport` tells what it sees; `pyreconcile.metrics.RequestDetails` is one."""

    def waited(self, verb: str, host: str, seconds: float) -> None:
        """A request waited for its turn."""

    def resolved(self, host: str, seconds: float) -> None:
        """A host name was looked up."""

    def exchanged(self, verb: str, host: str, *, seconds: float, sent: int, received: int | None) -> None:
        """A request was sent; ``received`` is None when no whole answer came."""

    def retried(self, code: str, verb: str, host: str) -> None:
        """A request is sent again."""


# When the request of this task got its turn: the time before that is not the server's.
_began: ContextVar[float] = ContextVar("began")


class ObservedTransport(Transport):
    """As `Transport`, with an observer. Streams are not observed: they last as long as their reader wants."""

    def __init__(self, *args: Any, observer: RequestObserver, **options: Any) -> None:
        super().__init__(*args, **options)
        self._observer = observer

    async def _take_slot(self, method: str, target: str, limit: float) -> None:
        began = perf_counter()
        await super()._take_slot(method, target, limit)
        now = perf_counter()
        self._observer.waited(method, self.host, now - began)
        _began.set(now)

    async def _exchange(
        self,
        method: str,
        target: str,
        head: bytes,
        body: bytes | None,
        limit: float,
        *,
        idempotent: bool,
        guard: Callable[[], None] | None,
    ) -> Answer:
        _began.set(perf_counter())
        received: int | None = None
        try:
            answer = await super()._exchange(method, target, head, body, limit, idempotent=idempotent, guard=guard)
            received = len(answer.body)
            return answer
        finally:
            seconds = perf_counter() - _began.get()
            self._observer.exchanged(method, self.host, seconds=seconds, sent=len(body or b""), received=received)

    def _resolved(self, host: str, seconds: float) -> None:
        self._observer.resolved(host, seconds)

    def _retrying(self, method: str, failure: ApiError) -> None:
        self._observer.retried(str(failure.code) if failure.code else "<error>", method, self.host)
