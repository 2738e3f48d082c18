"""Log set-up of the command line: structlog events to stderr, for people on a terminal, as JSON lines elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import orjson
import structlog

Format = Literal["auto", "console", "json"]


def configure(*, level: str, log_format: Format) -> None:
    """Send structlog events of ``level`` and above to stderr; ``auto`` means console on a terminal, else JSON lines."""
    number = logging.getLevelNamesMapping()[level.upper()]
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    factory: Any
    if log_format == "console" or (log_format == "auto" and sys.stderr.isatty()):
        # Tracebacks without local variables: those may hold a Secret.
        processors.append(
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        )
        factory = structlog.PrintLoggerFactory(file=sys.stderr)
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_dumps)]
        factory = structlog.BytesLoggerFactory(file=sys.stderr.buffer)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=factory,
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(number, logging.WARNING), stream=sys.stderr)


def _dumps(value: Any, default: Any = None, **_: Any) -> bytes:
    return orjson.dumps(value, default=default or str)
