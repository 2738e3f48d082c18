"""What a reconciler is given, what it returns, and how it says that a retry is of no use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import aiohttp

from pyreconcile.api import RawObject, object_key, split_key
from pyreconcile.api.owners import OwnerError
from pyreconcile.client import ApiError, NotCachedError, UnknownKindError
from pyreconcile.election import NotLeaderError


class Request(NamedTuple):
    """Names the object to reconcile; ``namespace`` is empty for a cluster-scoped one."""

    namespace: str
    name: str

    @property
    def key(self) -> str:
        """``namespace/name``, or ``name`` when cluster-scoped: what the client's verbs take."""
        return object_key(self.namespace, self.name)

    @classmethod
    def from_key(cls, key: str) -> Self:
        """Return the request for a key.

        Raises:
            ValueError: it is no key.
        """
        return cls(*split_key(key))

    @classmethod
    def for_object(cls, raw: RawObject) -> Self:
        """Return the request for an object as parsed JSON."""
        metadata = raw["metadata"]
        return cls(metadata.get("namespace") or "", metadata["name"])

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True, slots=True)
class Result:
    """What is to happen after a reconcile that raised nothing; returning None is the same as ``Result()``.

    Attributes:
        requeue_after: seconds until the object is reconciled again; 0 or less is never (RC-2). Resets the backoff.
        requeue: reconcile again after the backoff, which goes on growing. Raise an error instead where there is one.
        priority: queue priority of the requeue; None keeps the present one (RC-3).
    """

    requeue_after: float = 0.0
    requeue: bool = False
    priority: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.requeue_after, int | float):
            raise TypeError(f"requeue_after={self.requeue_after!r}: give seconds, as in 30 or delta.total_seconds()")


class ReconcileError(Exception):
    """The base of errors that a reconciler means to raise: the reconcile failed, and is tried again after a delay.

    Derive your own from it, so that they do not count as panics (RC-5).
    """


class TerminalError(ReconcileError):
    """A retry is of no use until the object changes: the reconcile counts as failed and is not queued again.

    Raise it ``from`` the error that it comes of, or raise another error ``from`` it: anywhere in the chain counts.
    """


class ReconcileTimeoutError(ReconcileError, TimeoutError):
    """A reconcile ran into the controller's ``reconciliation_timeout``."""


EXPECTED_ERRORS: tuple[type[Exception], ...] = (
    ReconcileError,
    ApiError,  # the server's refusals, and lost connections
    OSError,  # networks, files and time limits
    aiohttp.ClientError,
    NotCachedError,
    UnknownKindError,
    OwnerError,
    NotLeaderError,
)
"""What happens to code without a fault. All other exceptions count as panics, as one does in Go (RC-5)."""


def is_terminal(error: BaseException) -> bool:
    """Tell whether a TerminalError is in the error's chain of causes; of a group, every member must have one."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, TerminalError):
            return True
        if isinstance(current, BaseExceptionGroup):
            return all(is_terminal(member) for member in current.exceptions)
        seen.add(id(current))
        current = current.__cause__
    return False


def is_panic(error: BaseException, expected: tuple[type[Exception], ...] = EXPECTED_ERRORS) -> bool:
    """Tell whether an error is none of ``expected``, or a group that holds such a one; a terminal error is no panic."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_panic(member, expected) for member in error.exceptions)
    return not (isinstance(error, expected) or is_terminal(error))
