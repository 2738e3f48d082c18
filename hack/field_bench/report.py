"""How a program under test tells what its own functions were called with: a line of JSON on its standard output."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
import structlog

# The framework's log goes elsewhere, and without coloured tracebacks, which cost half a second to draw.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
        structlog.processors.LogfmtRenderer(),
    ],
    logger_factory=structlog.PrintLoggerFactory(sys.stderr),
)


def say(what: str, **fields: Any) -> None:
    """Tell something, with the time of ``time.monotonic``, which is the same in all processes."""
    sys.stdout.write(json.dumps({"what": what, "time": time.monotonic(), **fields}) + "\n")
    sys.stdout.flush()


async def asked() -> AsyncIterator[str]:
    """Yield the lines of the standard input."""
    while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        yield line.strip()
