"""A recorder of events that keeps them for the test to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyreconcile.api import KubeObject


@dataclass(frozen=True)
class RecordedEvent:
    """One event as it was recorded.

    Attributes:
        regarding: the object, as it was passed.
        type: Normal or Warning.
        reason, note, action: as they were passed.
        related: the second object, if there was one.
    """

    regarding: KubeObject
    type: Literal["Normal", "Warning"]
    reason: str
    note: str
    action: str
    related: KubeObject | None = None

    def __str__(self) -> str:
        return f"{self.type} {self.reason} {self.note}"


class FakeRecorder:
    """Records events in ``events``; give it to a reconciler's ``bind``."""

    def __init__(self) -> None:
        self.events: list[RecordedEvent] = []

    def event(
        self,
        obj: KubeObject,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's own word
        reason: str,
        note: str,
        *,
        action: str,
        related: KubeObject | None = None,
    ) -> None:
        """Keep an event."""
        self.events.append(RecordedEvent(obj, type, reason, note, action, related))
