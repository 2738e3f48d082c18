"""What the broadcaster is to send."""

from __future__ import annotations

from dataclasses import dataclass

from pyreconcile.api import RawObject


@dataclass(slots=True)
class Write:
    """One write: the whole event, and what to patch of it if it is there already."""

    event: RawObject
    patch: RawObject | None = None
