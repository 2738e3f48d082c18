"""When alike events become a series (rule EV-2)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreconcile.events._series import MAX_OPEN, REFRESH, SILENCE, SeriesTracker
from pyreconcile.events._write import Write


def event(time: float, note: str = "n") -> dict[str, Any]:
    return {"eventTime": f"t{time:g}", "note": note}


def series_of(write: Write) -> Any:
    return (write.patch or {})["series"]


@pytest.mark.rules("U-70")
def test_ev_2_the_first_event_is_written_as_it_is():
    [write] = SeriesTracker().record("k", event(0), 0)
    assert write.event == event(0)
    assert write.patch is None


@pytest.mark.rules("U-70")
def test_ev_2_the_second_makes_a_series_of_two_and_further_ones_stay_in_memory():
    tracker = SeriesTracker()
    tracker.record("k", event(0), 0)
    [second] = tracker.record("k", event(1, "other"), 1)
    assert second.event == event(0)
    assert series_of(second) == {"count": 2, "lastObservedTime": "t1"}
    for time in range(2, 50):
        assert tracker.record("k", event(time), time) == []


def test_ev_2_a_series_that_goes_on_is_refreshed_every_30_minutes():
    tracker = SeriesTracker()
    written = [
        (time, series_of(write)["count"])
        for time in range(0, int(REFRESH * 2) + 120, 60)
        for write in tracker.record("k", event(time), time)
        if write.patch
    ]
    assert written == [(60, 2), (60 + REFRESH, 32), (60 + 2 * REFRESH, 62)]


def test_ev_2_six_minutes_of_silence_end_a_series_with_its_last_count():
    tracker = SeriesTracker()
    for time in range(5):
        tracker.record("k", event(time), time)
    assert tracker.next_due() == 4 + SILENCE
    assert tracker.due(4 + SILENCE - 0.1) == []
    [last] = tracker.due(4 + SILENCE)
    assert series_of(last) == {"count": 5, "lastObservedTime": "t4"}
    assert tracker.next_due() is None
    [fresh] = tracker.record("k", event(1000), 1000)
    assert fresh.patch is None


def test_ev_2_a_single_event_ends_without_another_write():
    tracker = SeriesTracker()
    tracker.record("k", event(0), 0)
    assert tracker.due(SILENCE) == []
    assert tracker.next_due() is None


def test_ev_2_an_event_after_the_silence_begins_anew_even_if_nobody_looked():
    tracker = SeriesTracker()
    for time in range(3):
        tracker.record("k", event(time), time)
    old, new = tracker.record("k", event(1000), 1000)
    assert series_of(old) == {"count": 3, "lastObservedTime": "t2"}
    assert new.event == event(1000)
    assert new.patch is None


def test_the_number_of_open_series_is_bounded():
    tracker = SeriesTracker()
    for key in range(MAX_OPEN + 10):
        tracker.record(key, event(0), 0)
    assert len(tracker._open) == MAX_OPEN


@settings(deadline=None)  # a busy machine
@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1000)), max_size=80))
def test_ev_2_no_event_is_lost(steps: list[tuple[str, float]]):
    """When all is closed, the counts that were written add up to the events that were recorded."""
    tracker = SeriesTracker()
    counts: dict[int, int] = {}

    def take(writes: list[Any]) -> None:
        for write in writes:
            before = counts.get(id(write.event), 0)
            counts[id(write.event)] = series_of(write)["count"] if write.patch else 1
            assert counts[id(write.event)] > before

    events = []
    now = 0.0
    for key, pause in steps:
        now += pause
        take(tracker.due(now))
        events.append(event(now))
        take(tracker.record(key, events[-1], now))
    take(tracker.close_all())
    assert sum(counts.values()) == len(steps)
    assert tracker.next_due() is None
