"""Reads the body of a list in slices, so that a list of any size leaves the event loop its turns (rule RF-17)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from pyreconcile.api import RawObject

SLICE = 1 << 18
"""Bytes that are parsed at once, about."""

WHOLE_SLICE = 500
"""Items handed out at once of a body that was parsed as a whole."""

MISSES = 64
"""Wrong guesses at the end of a slice before the rest of the body is parsed as a whole."""

_ITEMS = b'"items":['
# The second name tells a custom resource from an entry of its managedFields; both begin with apiVersion.
_START = re.compile(rb'\{"[^"\\]*":(?:\{|\[|"[^"\\]*"(?:,"[^"\\]*":)?)')


class ListBody:
    """The body of a list: what is said about it, and its items.

    Only the parser knows where an item ends. So a slice is cut where the text looks like the start of another item,
    and parsed: if it was cut within an item its brackets do not match, and the cut moves on. Hence what comes out is
    right whatever the items look like; a body that is not written like a Kubernetes list is parsed as a whole.

    Args:
        body: the text.
        size: bytes of a slice.

    Attributes:
        envelope: the list without its items.

    Raises:
        ValueError: the body is no JSON object.
    """

    def __init__(self, body: bytes, *, size: int = SLICE) -> None:
        self._body = body
        self._size = size
        self._whole: list[RawObject] = []
        start = body.find(_ITEMS) + len(_ITEMS)
        first = _START.match(body, start)
        end = self._end()
        if len(body) <= 2 * size or first is None or end < start or not self._read_envelope(start, end):
            envelope = orjson.loads(body)
            if not isinstance(envelope, dict):
                raise ValueError("the body of the list is no JSON object")
            self._whole = envelope.pop("items", None) or []
            self.envelope: dict[str, Any] = envelope
            self._start = self._stop = 0
            return
        self._start, self._stop = start, end
        self._mark = b"}," + first[0]

    def slices(self) -> Iterator[list[RawObject]]:
        """Yield the items, some hundred kilobytes of text at a time; nothing where a guess was wrong."""
        for at in range(0, len(self._whole), WHOLE_SLICE):
            yield self._whole[at : at + WHOLE_SLICE]
        at, given = self._start, 0
        while at < self._stop:
            cut = at + self._size
            items: list[RawObject] | None = None
            for _ in range(MISSES):
                cut = self._body.find(self._mark, cut, self._stop) + 1
                if cut <= 0:
                    break
                items = _items(self._body[at:cut])
                if items is not None:
                    break
                yield []
            if items is None:
                cut = self._stop
                items = _items(self._body[at:cut])
            if items is None:
                items = orjson.loads(self._body)["items"][given:]
            at = cut + 1
            given += len(items)
            yield items

    def _end(self) -> int:
        """Return where the items seem to end: at the end of the body, or before fields that follow them."""
        padding = len(self._body[-8:]) - len(self._body[-8:].rstrip())
        last = len(self._body) - padding - len(b"]}")
        if self._body[last : last + 2] == b"]}":
            return last
        return self._body.rfind(b'],"kind":"')

    def _read_envelope(self, start: int, end: int) -> bool:
        try:
            envelope = orjson.loads(self._body[:start] + self._body[end:])
        except orjson.JSONDecodeError:
            return False
        if not (isinstance(envelope, dict) and envelope.keys() >= {"items", "kind", "metadata"}):
            return False
        del envelope["items"]
        self.envelope = envelope
        return True


def _items(text: bytes) -> list[RawObject] | None:
    try:
        items: list[RawObject] = orjson.loads(b"[" + text + b"]")
    except orjson.JSONDecodeError:
        return None
    return items
