"""When an event tells that a rolling update waits: once it has waited for some time, and then rarely. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pyreconcile_controllers.leaderworkerset.waiting import Waiting

REASON: Final = "RolloutWaiting"
"""Reason of the event."""

REPEAT: Final = timedelta(minutes=30)
"""Time between two events of one wait: the API server forgets events after an hour."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to emit an event now, and in how many seconds to look again."""

    tell: bool
    look_again: float


class WaitingEvents:
    """Decides when to tell what the rolling updates of sets wait for.

    After a restart of the process it tells once more what it told before.
    """

    def __init__(self, after: float, *, size: int = 10_000) -> None:
        """Tell of waits of ``after`` seconds and more; of ``size`` sets, the last ones, it knows what was told."""
        self._after = timedelta(seconds=after)
        self._size = size
        self._told: OrderedDict[str, tuple[tuple[str, int, str, str], datetime]] = OrderedDict()

    def look(self, uid: str, waiting: Waiting, now: datetime) -> Verdict:
        """Judge the wait of the set with this UID."""
        told = self._told.get(uid)
        due = waiting.since + self._after
        if told is not None and told[0] == waiting.cause:
            due = told[1] + REPEAT
        if now < due:
            return Verdict(tell=False, look_again=(due - now).total_seconds())
        self._told[uid] = waiting.cause, now
        self._told.move_to_end(uid)
        if len(self._told) > self._size:
            self._told.popitem(last=False)
        return Verdict(tell=True, look_again=REPEAT.total_seconds())

    def forget(self, uid: str) -> None:
        """Take note that a set does not wait."""
        self._told.pop(uid, None)
