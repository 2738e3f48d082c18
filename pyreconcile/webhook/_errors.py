"""Refusals: a denial with a status, and field errors with the texts that Kubernetes itself uses."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import orjson

from pyreconcile.api import Model


class Denied(Exception):
    """The request is refused; ``message`` is what the user reads after "denied the request:".

    Args:
        message: what is wrong and what to do instead.
        code: HTTP status code inside the review, 400 to 599 (default 403, rule WH-4).
        reason: machine-readable reason, one of the API's StatusReason words.

    Raises:
        ValueError: ``code`` is no code of an error.
    """

    def __init__(self, message: str, *, code: int = 403, reason: str = "Forbidden") -> None:
        if not 400 <= code <= 599:
            raise ValueError(f"code of a denial: {code} does not refuse the request; use one from 400 to 599")
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong with one field. ``str()`` gives Kubernetes' text (``field.Error`` in apimachinery).

    Build it with one of the class methods; ``path`` is written like ``spec.template.containers[0].image``.
    """

    path: str
    problem: str
    detail: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {self.problem}"
        return f"{text}: {self.detail}" if self.detail else text

    @classmethod
    def invalid(cls, path: str, value: Any, detail: str) -> Self:
        """The value has the wrong form or is out of range."""
        return cls(path, f"Invalid value: {_render(value)}", detail)

    @classmethod
    def required(cls, path: str, detail: str = "") -> Self:
        """The field must be given."""
        return cls(path, "Required value", detail)

    @classmethod
    def forbidden(cls, path: str, detail: str) -> Self:
        """The value is well formed but not permitted now."""
        return cls(path, "Forbidden", detail)

    @classmethod
    def unsupported(cls, path: str, value: Any, supported: Iterable[str] = ()) -> Self:
        """The value is none of the ``supported`` ones."""
        known = ", ".join(_quote(item) for item in supported)
        return cls(path, f"Unsupported value: {_render(value)}", f"supported values: {known}" if known else "")

    @classmethod
    def duplicate(cls, path: str, value: Any) -> Self:
        """Another item has the same value."""
        return cls(path, f"Duplicate value: {_render(value)}")

    @classmethod
    def not_found(cls, path: str, value: Any) -> Self:
        """What the value names does not exist."""
        return cls(path, f"Not found: {_render(value)}")

    @classmethod
    def too_long(cls, path: str, limit: int) -> Self:
        """The text has more than ``limit`` bytes."""
        return cls(path, "Too long", f"may not be more than {limit} {'byte' if limit == 1 else 'bytes'}")

    @classmethod
    def too_many(cls, path: str, count: int, limit: int) -> Self:
        """The list has ``count`` items but may have only ``limit``."""
        return cls(path, f"Too many: {count}", f"must have at most {limit} {'item' if limit == 1 else 'items'}")


class FieldErrors(Exception):
    """The object is refused because of its fields: one error reads as it is, several as ``[a, b]``.

    Equal texts are said once. Raised by a validator, it denies the request with code 403, as a Go webhook does that
    returns an aggregate of field errors.

    Raises:
        ValueError: ``errors`` is empty.
    """

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = tuple(errors)
        if not self.errors:
            raise ValueError("FieldErrors needs at least one FieldError: raise it only when the list is not empty")
        texts = list(dict.fromkeys(str(error) for error in self.errors))
        self.message = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        super().__init__(self.message)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _render(value: Any) -> str:
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, Model):
        return value.to_json().decode()
    return orjson.dumps(value, default=str).decode()
