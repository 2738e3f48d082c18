"""The log as the zap flags want it: structlog events on stderr (LWS §11)."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from pyreconcile_controllers.lws_manager.flags import Flags

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "panic": logging.CRITICAL,
}


def _time(nanoseconds: int, form: str) -> str | float | int:
    moment = datetime.fromtimestamp(nanoseconds // 10**9, UTC)
    if form == "epoch":
        return nanoseconds / 1e9
    if form == "millis":
        return nanoseconds / 1e6
    if form == "nanos":
        return nanoseconds
    if form == "iso8601":
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds // 10**6 % 1000:03}Z"
    if form == "rfc3339nano":
        fraction = f".{nanoseconds % 10**9:09}".rstrip("0").rstrip(".")
        return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


def processors(flags: Flags, *, now: Callable[[], int] = time.time_ns) -> list[Processor]:
    """Return what an event passes through before it is written; ``now`` gives nanoseconds since 1970."""
    devel = flags.zap_devel is not False
    traced = _LEVELS[flags.zap_stacktrace_level or ("warn" if devel else "error")]
    form = flags.zap_time_encoding or "rfc3339"

    def stamp(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event["timestamp"] = _time(now(), form)
        return event

    def trace(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        level = logging.getLevelNamesMapping().get(str(event.get("level", "")).upper(), logging.CRITICAL)
        if level < traced:
            event.pop("exc_info", None)
        return event

    chain: list[Processor] = [structlog.contextvars.merge_contextvars, structlog.processors.add_log_level, stamp, trace]
    # Tracebacks without local variables: those may hold a Secret.
    if (flags.zap_encoder or ("console" if devel else "json")) == "json":
        return [*chain, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_dumps)]
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    return [*chain, lambda logger, name, event: renderer(logger, name, {**event, "timestamp": str(event["timestamp"])})]


def level_of(flags: Flags) -> int:
    """Return the level from which on events are written."""
    return _LEVELS[flags.zap_log_level or ("debug" if flags.zap_devel is not False else "info")]


def configure(flags: Flags, *, stream: TextIO | None = None) -> None:
    """Send structlog's events to ``stream`` (stderr), in the form of the flags."""
    level = level_of(flags)
    stream = stream or sys.stderr
    structlog.configure(
        processors=processors(flags),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(level, logging.WARNING), stream=stream)


def _dumps(value: Any, default: Any = None, **_: Any) -> str:
    return orjson.dumps(value, default=default or str).decode()
