"""Which events to write and when repeats become a series: pure (rule EV-2)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from pyreconcile.api import RawObject
from pyreconcile.events._write import Write

# client-go tools/events/event_broadcaster.go: refreshInterval, finishTime; and its cache bound (EV-1).
REFRESH: Final = 30 * 60.0
SILENCE: Final = 6 * 60.0
MAX_OPEN: Final = 4096


@dataclass(slots=True)
class _Open:
    event: RawObject
    seen_at: float
    count: int = 1
    last_time: str = ""
    written_count: int = 1
    written_at: float = 0.0


class SeriesTracker:
    """Folds alike events: the first is written, the second makes it a series, further ones are counted in memory.

    A series is written again every 30 minutes while it goes on, and a last time after 6 minutes of silence, which end
    it. ``now`` is monotonic seconds.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[Hashable, _Open] = OrderedDict()  # longest silent first

    def record(self, key: Hashable, event: RawObject, now: float) -> list[Write]:
        """Take in one event; ``event["eventTime"]`` is when it happened. Return what to write."""
        known = self._open.get(key)
        if known is not None and now - known.seen_at >= SILENCE:
            writes = self._close(key, known)
            known = None
        else:
            writes = []
        if known is None:
            if len(self._open) >= MAX_OPEN:
                writes += self._close(*next(iter(self._open.items())))
            self._open[key] = _Open(event, now, written_at=now)
            return [*writes, Write(event)]
        known.count += 1
        known.seen_at = now
        known.last_time = event["eventTime"]
        self._open.move_to_end(key)
        if known.written_count == 1 or now - known.written_at >= REFRESH:
            writes.append(self._write(known, now))
        return writes

    def due(self, now: float) -> list[Write]:
        """End the series that were silent for long enough; return what to write."""
        writes: list[Write] = []
        while self._open:
            key, known = next(iter(self._open.items()))
            if now - known.seen_at < SILENCE:
                break
            writes += self._close(key, known)
        return writes

    def next_due(self) -> float | None:
        """Return when `due` has something to do next; None while nothing is open."""
        for known in self._open.values():
            return known.seen_at + SILENCE
        return None

    def close_all(self) -> list[Write]:
        """End all series; return what to write."""
        return [write for key, known in list(self._open.items()) for write in self._close(key, known)]

    def _close(self, key: Hashable, known: _Open) -> list[Write]:
        del self._open[key]
        return [] if known.written_count == known.count else [self._write(known, known.seen_at)]

    def _write(self, known: _Open, now: float) -> Write:
        known.written_count = known.count
        known.written_at = now
        return Write(known.event, {"series": {"count": known.count, "lastObservedTime": known.last_time}})
