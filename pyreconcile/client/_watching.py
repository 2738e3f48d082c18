"""Watch events, typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal

import orjson

from pyreconcile.client._core import T
from pyreconcile.client._errors import ApiError, error_from_status


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One change. Of a bookmark's object only the resource version counts."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: T


def parse_event(kind: type[T], line: bytes) -> WatchEvent[T]:
    """Return the event that a line of a watch holds.

    Raises:
        ApiError: the line is an ERROR event, or no event at all.
    """
    try:
        event = orjson.loads(line)
        what, raw = event["type"], event["object"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ApiError(f"the watch sent a line that is no event: {line[:100]!r}") from error
    if what == "ERROR":
        raise error_from_status(raw)
    return WatchEvent(what, kind.model_validate(raw))
