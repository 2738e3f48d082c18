"""Waiting for a cluster to get where it should (rule TE-7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar, overload

import anyio

from pyreconcile.client import ConflictError, NotFoundError

T = TypeVar("T")

_NOT_YET = (NotFoundError, ConflictError)


@overload
async def eventually(
    check: Callable[[], Awaitable[T]],
    *,
    timeout: float = 30.0,
    interval: float = 0.02,
    what: str = "",
    not_yet: tuple[type[Exception], ...] = _NOT_YET,
) -> T: ...


@overload
async def eventually(
    check: Callable[[], T],
    *,
    timeout: float = 30.0,
    interval: float = 0.02,
    what: str = "",
    not_yet: tuple[type[Exception], ...] = _NOT_YET,
) -> T: ...


async def eventually(
    check: Callable[[], Awaitable[T] | T],
    *,
    timeout: float = 30.0,
    interval: float = 0.02,
    what: str = "",
    not_yet: tuple[type[Exception], ...] = _NOT_YET,
) -> T:
    """Call ``check`` again and again until what it gives is true, and return that.

    Args:
        check: a function, or a coroutine function such as one that reads an object and returns it once it is ready.
        timeout: seconds that it may take, a running check included.
        interval: seconds between two checks.
        what: names what is waited for in the error.
        not_yet: exceptions that count as "not yet"; others pass through at once.

    Raises:
        AssertionError: it did not become true in time; the message has the last value or exception.
    """
    last = "nothing yet"
    with anyio.move_on_after(timeout):
        while True:
            try:
                outcome = check()
                value: T = await outcome if isawaitable(outcome) else outcome
            except not_yet as error:
                last = repr(error)
            else:
                if value:
                    return value
                last = repr(value)
            await anyio.sleep(interval)
    raise AssertionError(f"not within {timeout:g} s: {what or getattr(check, '__name__', check)}; last: {last}")
