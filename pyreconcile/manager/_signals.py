"""SIGTERM and SIGINT: once ends in good order, twice at once (rule MG-7)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import structlog

log = structlog.get_logger()

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals(stop: Callable[[], None], *, exit_process: Callable[[int], object]) -> Iterator[None]:
    """Call ``stop`` on the running loop at the first signal, ``exit_process(1)`` at the second.

    The handlers are Python's own, not the loop's, so that a second signal ends even a process whose loop is blocked.
    The former handlers are put back at the end.

    Raises:
        RuntimeError: this is not the main thread, where signals arrive.
    """
    loop = asyncio.get_running_loop()
    seen = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            exit_process(1)
            return
        seen = True
        loop.call_soon_threadsafe(_first, stop, signal.Signals(number).name)

    try:
        former = {number: signal.signal(number, handle) for number in _SIGNALS}
    except ValueError as error:
        raise RuntimeError("handle_signals: signals arrive on the main thread only; set it to False here") from error
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _first(stop: Callable[[], None], name: str) -> None:
    log.info("stopping_on_signal", signal=name)
    stop()
