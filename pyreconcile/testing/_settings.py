"""Settings that come as text: variables of the environment, durations, feature gates."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

__all__ = ["duration_from", "is_on", "parse_duration", "parse_feature_gates"]

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def is_on(variable: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a variable of the environment turns something on (TE-1)."""
    return environ.get(variable, "").lower() in ("1", "t", "true")


def duration_from(variable: str, default: float, environ: Mapping[str, str] = os.environ) -> float:
    """Seconds that a variable of the environment names (TE-1). Raises ValueError that names the variable."""
    text = environ.get(variable)
    if not text:
        return default
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError(f"{variable}={text!r} is not a duration; write it like 90s or 1m30s") from None


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as "90s" or "1m30s", or of a plain number. Raises ValueError."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{text!r} is no length of time")
    return seconds


def parse_feature_gates(text: str) -> dict[str, bool]:
    """Gates written as on Kubernetes' command lines: "A=true,B=false". Raises ValueError that names the wrong part."""
    gates = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if not name or value.lower() not in ("true", "false"):
            raise ValueError(f"feature gate {part!r}: write it as NAME=true or NAME=false")
        gates[name] = value.lower() == "true"
    return gates
