"""Durations as Go writes them: ``15s``, ``1m30s``, ``1.5h``. No I/O."""

from __future__ import annotations

import re
from typing import Final

# Go's time.ParseDuration: the units, in seconds.
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def parse_duration(text: str) -> float:
    """Return the seconds of a duration.

    Raises:
        ValueError: the text is none.
    """
    rest = text[1:] if text[:1] in ("+", "-") else text
    seconds = 0.0
    at = 0
    while match := _PART.match(rest, at):
        seconds += float(match[1]) * _UNITS[match[2]]
        at = match.end()
    if rest == "0":
        return 0.0
    if not rest or at != len(rest):
        raise ValueError(f"{text!r} is no duration: write a number with a unit, as in '15s' or '1m30s'")
    return -seconds if text[0] == "-" else seconds
