"""Which event loop a program runs on."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeAlias, TypeVar, TypeVarTuple, get_args

import anyio

from pyreconcile.manager._logging import withhold_locals

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LoopName: TypeAlias = Literal["auto", "asyncio", "uvloop"]
"""An event loop: asyncio's own, uvloop's, or the latter when it is installed."""


GC_THRESHOLDS: Final = (10_000, 5, 20)
"""Thresholds of the garbage collector for a manager.

The default of 700 new containers between two collections is for small programs: a manager makes that many in a few
reconciles, and hardly any are cyclic. With these a collection of the middle generation, which the cache asks for while
it fills, sees 50,000 of them and takes some milliseconds.
"""


def run(main: Callable[[*Ts], Awaitable[T]], *args: *Ts, loop: LoopName = "auto", tune_gc: bool = True) -> T:
    """Run ``main(*args)`` on an event loop made for it, and return what it returns; where a program begins.

    ::

        if __name__ == "__main__":
            pyreconcile.run(main)

    If structlog is not configured, its tracebacks are shown without local variables, which may hold a Secret.

    Args:
        main: a coroutine function.
        args: its arguments.
        loop: ``auto`` takes uvloop if it is installed (``pip install 'pyreconcile[uvloop]'``), else asyncio's loop.
        tune_gc: set the garbage collector's thresholds to `GC_THRESHOLDS`, for the whole process.

    Raises:
        ValueError: there is no such loop, or uvloop is asked for and not installed.
        RuntimeError: an event loop runs in this thread already.
    """
    withhold_locals()
    if tune_gc:
        gc.set_threshold(*GC_THRESHOLDS)
    return anyio.run(main, *args, backend_options={"use_uvloop": _is_uvloop(loop)})


def _is_uvloop(loop: LoopName) -> bool:
    if loop not in get_args(LoopName):
        raise ValueError(f"loop: {loop!r} must be one of {', '.join(get_args(LoopName))}")
    installed = importlib.util.find_spec("uvloop") is not None
    if loop == "uvloop" and not installed:
        raise ValueError("loop: uvloop is not installed; 'pip install pyreconcile[uvloop]' does it")
    return installed and loop != "asyncio"
