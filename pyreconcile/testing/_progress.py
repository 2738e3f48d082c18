"""Telling a person that something slow is going on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

__all__ = ["PlainProgress", "Progress", "RichProgress", "progress"]

PLAIN_PERIOD_SECONDS = 15.0


class Progress(Protocol):
    """Where slow work says what it does."""

    def update(self, message: str) -> None:
        """Say what is going on; may be called often. The display decides what is shown."""


class PlainProgress:
    """A line when the work starts, then one every 15 seconds: for logs and CI."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next = clock()

    def update(self, message: str) -> None:
        """Print the message if the last one is old enough."""
        now = self._clock()
        if now >= self._next:
            self._next = now + PLAIN_PERIOD_SECONDS
            print(message, file=self._stream, flush=True)


class RichProgress:
    """One line with a spinner, rewritten in place."""

    def __init__(self, update: Callable[[str], None]) -> None:
        self._update = update

    def update(self, message: str) -> None:
        """Rewrite the line."""
        self._update(message)


@contextmanager
def progress(stream: TextIO | None = None) -> Iterator[Progress]:
    """A display that fits the stream: rich on a terminal if it is installed, else plain lines.

    Args:
        stream: Where to write; standard error by default, so that standard output stays clean for scripts.
    """
    stream = stream or sys.stderr
    if stream.isatty():
        try:
            from rich.console import Console
        except ImportError:
            pass
        else:
            with Console(file=stream).status("") as status:
                yield RichProgress(status.update)
            return
    yield PlainProgress(stream)
