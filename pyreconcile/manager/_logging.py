"""Logs of programs that do not set structlog up."""

from __future__ import annotations

import sys

import structlog


def withhold_locals() -> None:
    """Have structlog show tracebacks without local variables, unless the program has configured it.

    Its default shows them when rich or better-exceptions is installed, and a reconciler's variables may hold a Secret.
    All else of its default stays, and whoever configures structlog later has the last word.
    """
    if structlog.is_configured():
        return
    colors = sys.platform != "win32" and sys.stdout is not None and sys.stdout.isatty()
    structlog.configure(
        processors=[
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
            if isinstance(processor, structlog.dev.ConsoleRenderer)
            else processor
            for processor in structlog.get_config()["processors"]
        ]
    )
