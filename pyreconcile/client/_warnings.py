"""Warnings that the API server sends with its answers (rule CL-9)."""

from __future__ import annotations

import re
from collections.abc import Iterable

import structlog

_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_LIMIT = 1000
"""Texts remembered at most; a server that sends more distinct ones is logged anew."""

log = structlog.get_logger()


class WarningLog:
    """Logs each warning text once."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def take(self, headers: Iterable[str]) -> None:
        """Log the texts of an answer's ``Warning`` headers that were not logged before."""
        for header in headers:
            for match in _WARNING.finditer(header):
                text = _ESCAPE.sub(r"\1", match[1])
                if text in self._seen:
                    continue
                if len(self._seen) >= _LIMIT:
                    self._seen.clear()
                self._seen.add(text)
                log.warning("api_server_warning", text=text)
