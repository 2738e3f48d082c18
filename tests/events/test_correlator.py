"""What becomes of events of core: counts, combined events, spam (rule EV-1)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreconcile.events._correlator import BURST, REFILL_SECONDS, REMEMBERED, EventCorrelator
from pyreconcile.events._write import Write

numbers = itertools.count()


def event(message: str = "m", *, at: float = 0, about: str = "web", **changes: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{about}.{next(numbers)}", "namespace": "ns"},
        "source": {"component": "c", "host": "h"},
        "involvedObject": {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "ns", "name": about, "uid": about},
        "type": "Normal",
        "reason": "Made",
        "message": message,
        "count": 1,
        "firstTimestamp": f"t{at:g}",
        "lastTimestamp": f"t{at:g}",
        **changes,
    }


@pytest.mark.rules("EV-1", "U-70")
def test_ev_1_exact_repeats_become_a_patch_of_count_and_time():
    correlator = EventCorrelator()
    [first] = correlator.record(event(at=0), 0)
    assert first.patch is None
    name = first.event["metadata"]["name"]
    for number in (2, 3):
        [again] = correlator.record(event(at=number), number)
        assert again.patch == {"count": number, "lastTimestamp": f"t{number}", "message": "m"}
        assert again.event["metadata"]["name"] == name
        assert again.event["firstTimestamp"] == "t0"


@pytest.mark.rules("EV-1")
@pytest.mark.parametrize(
    "changes",
    [
        {"message": "other"},
        {"type": "Warning"},
        {"reason": "Other"},
        {"source": {"component": "d", "host": "h"}},
        {"source": {"component": "c", "host": "i"}},
        {"about": "other"},
    ],
)
def test_ev_1_what_differs_is_no_repeat(changes: dict[str, Any]):
    correlator = EventCorrelator()
    correlator.record(event(), 0)
    [other] = correlator.record(event(**changes), 0)
    assert other.patch is None


@pytest.mark.rules("EV-1", "U-70")
def test_ev_1_more_than_ten_alike_within_ten_minutes_become_one_combined_event():
    correlator = EventCorrelator()
    writes: list[Write] = []
    for number in range(13):
        writes += correlator.record(event(f"message {number}", at=number), number)
    # client-go lets nine messages through; the tenth is the first that is combined.
    assert [write.event["message"] for write in writes[:9]] == [f"message {number}" for number in range(9)]
    assert all(write.patch is None for write in writes[:10])
    assert writes[9].event["message"] == "(combined from similar events): message 9"
    assert [write.patch for write in writes[10:]] == [
        {
            "count": number - 8,
            "lastTimestamp": f"t{number}",
            "message": f"(combined from similar events): message {number}",
        }
        for number in (10, 11, 12)
    ]
    assert len({write.event["metadata"]["name"] for write in writes[9:]}) == 1
    # Another reason is not alike.
    [other] = correlator.record(event("message 20", reason="Other"), 13)
    assert other.event["message"] == "message 20"


@pytest.mark.rules("EV-1")
def test_ev_1_ten_minutes_of_silence_end_what_is_alike():
    correlator = EventCorrelator()
    for number in range(9):
        correlator.record(event(f"message {number}"), number)
    [late] = correlator.record(event("message 9"), 8 + 600.1)
    assert late.event["message"] == "message 9"
    # But as long as there is no such silence, time alone does not.
    correlator = EventCorrelator()
    messages = [
        write.event["message"] for number in range(12) for write in correlator.record(event(f"n{number}"), number * 599)
    ]
    assert messages[9:] == [f"(combined from similar events): n{number}" for number in (9, 10, 11)]


@pytest.mark.rules("EV-1", "U-70")
def test_ev_1_spam_about_one_object_is_dropped_after_25_and_one_more_passes_each_five_minutes():
    correlator = EventCorrelator()
    passed = [bool(correlator.record(event("m"), 0)) for _ in range(40)]
    assert passed == [True] * BURST + [False] * 15
    assert correlator.record(event("m", about="other"), 0)  # each object by itself
    assert correlator.record(event("m", source={"component": "d", "host": "h"}), 0)  # and each source
    assert not correlator.record(event("m"), REFILL_SECONDS - 1)
    [next_one] = correlator.record(event("m"), REFILL_SECONDS)
    assert next_one.patch is not None
    assert next_one.patch["count"] == 42  # what was dropped was counted
    assert not correlator.record(event("m"), REFILL_SECONDS + 1)


@pytest.mark.rules("EV-1")
def test_ev_1_the_memory_is_bounded_and_forgets_what_is_unused_longest():
    correlator = EventCorrelator()
    correlator.record(event(about="first"), 0)
    for number in range(REMEMBERED - 1):
        correlator.record(event(about=str(number)), 0)
    correlator.record(event(about="first"), 0)  # used again
    correlator.record(event(about="one more"), 0)
    assert len(correlator._written) == len(correlator._alike) == len(correlator._buckets) == REMEMBERED
    assert correlator.record(event(about="first"), 0)[0].patch is not None
    assert correlator.record(event(about="0"), 0)[0].patch is None  # forgotten


@settings(deadline=None)  # a busy machine
@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 15), st.floats(0, 700)), max_size=120))
def test_ev_1_never_more_than_the_bucket_holds_and_counts_only_grow(steps: list[tuple[str, int, float]]):
    correlator = EventCorrelator()
    written: dict[str, list[float]] = {"a": [], "b": []}
    counts: dict[str, int] = {}
    now = 0.0
    for about, message, pause in steps:
        now += pause
        for write in correlator.record(event(f"m{message}", about=about), now):
            written[about].append(now)
            name = write.event["metadata"]["name"]
            count = write.patch["count"] if write.patch else 1
            assert count > counts.get(name, 0)
            counts[name] = count
    for times in written.values():
        for first in range(len(times)):
            for last in range(first, len(times)):
                assert last - first + 1 <= BURST + (times[last] - times[first]) / REFILL_SECONDS + 1e-6
