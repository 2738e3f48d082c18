"""Settings of controllers from environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def read_fields(settings: type[Any], prefix: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a dataclass that variables give: those named ``prefix`` and the field in capitals.

    The default of a field says what its variable is read as: a truth value, a number, or text.

    Raises:
        ValueError: a variable cannot be read; the message names it.
    """
    given: dict[str, Any] = {}
    for field in fields(settings):
        variable = prefix + field.name.upper()
        text = environment.get(variable)
        if text is not None:
            given[field.name] = _read(variable, text, field.default)
    return given


def _read(variable: str, text: str, default: object) -> str | bool | int | float:
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{variable}: must be true or false, not {text!r}")
        return text.lower() == "true"
    try:
        return int(text) if isinstance(default, int) else float(text) if isinstance(default, float) else text
    except ValueError:
        raise ValueError(f"{variable}: must be a number, not {text!r}") from None
