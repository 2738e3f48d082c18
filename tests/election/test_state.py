"""What a candidate may write, given what it saw (rules LE-1, LE-4, LE-5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreconcile.election._state import LeaseState, micro_time

WALL = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
LATER = WALL + timedelta(seconds=3)


def state(identity: str = "a", **options: Any) -> LeaseState:
    return LeaseState(name="lock", namespace="ns", identity=identity, duration=15, **options)


def lease(
    holder: str | None = "b", duration: int | None = 15, transitions: int | None = 3, **spec: Any
) -> dict[str, Any]:
    fields = {"holderIdentity": holder, "leaseDurationSeconds": duration, "leaseTransitions": transitions, **spec}
    return {
        "metadata": {"name": "lock", "namespace": "ns", "resourceVersion": "7"},
        "spec": {"acquireTime": "t0", "renewTime": "t1", **fields},
    }


def test_le_1_the_record_created_has_all_five_fields():
    created = state().creation(WALL)
    assert created["metadata"] == {"name": "lock", "namespace": "ns"}
    assert created["spec"] == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-03-04T05:06:07.000089Z",
        "renewTime": "2026-03-04T05:06:07.000089Z",
        "leaseTransitions": 0,
    }


def test_le_1_times_are_utc_with_six_digits():
    assert micro_time(datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == "2026-01-01T00:00:00.000000Z"


@pytest.mark.rules("U-59")
def test_le_4_a_lease_that_another_holds_is_left_alone_until_its_time_is_over():
    candidate = state()
    candidate.observe(lease(), now=100)
    assert candidate.claim(114.9, WALL) is None
    claimed = candidate.claim(115, WALL)
    assert claimed is not None
    assert claimed["spec"]["holderIdentity"] == "a"
    assert claimed["spec"]["leaseTransitions"] == 4
    assert claimed["spec"]["acquireTime"] == claimed["spec"]["renewTime"] == micro_time(WALL)
    assert claimed["metadata"]["resourceVersion"] == "7"


def test_le_4_the_holders_own_duration_counts():
    candidate = state()
    candidate.observe(lease(duration=40), now=0)
    assert candidate.claim(39, WALL) is None
    assert candidate.claim(40, WALL) is not None


@pytest.mark.parametrize("duration", [None, 0, -1, "15"])
def test_le_4_without_a_usable_duration_our_own_counts(duration: Any):
    candidate = state()
    candidate.observe(lease(duration=duration), now=0)
    assert candidate.claim(14, WALL) is None
    assert candidate.claim(15, WALL) is not None


def test_le_4_a_renewal_that_we_see_starts_the_time_anew():
    candidate = state()
    candidate.observe(lease(), now=0)
    candidate.observe(lease(renewTime="t2"), now=10)
    assert candidate.claim(24, WALL) is None
    assert candidate.claim(25, WALL) is not None


def test_le_4_the_same_record_read_again_does_not():
    candidate = state()
    candidate.observe(lease(), now=0)
    again = lease()
    again["metadata"]["annotations"] = {"seen": "by somebody"}
    candidate.observe(again, now=10)
    claimed = candidate.claim(15, WALL)
    assert claimed is not None
    assert claimed["metadata"]["annotations"] == {"seen": "by somebody"}


@pytest.mark.parametrize("holder", ["", None])
def test_le_6_a_released_lease_can_be_taken_at_once(holder: str | None):
    candidate = state()
    candidate.observe(lease(holder=holder, duration=1), now=0)
    claimed = candidate.claim(0, WALL)
    assert claimed is not None
    assert claimed["spec"]["leaseTransitions"] == 4


def test_le_4_a_renewal_keeps_acquire_time_and_transitions():
    candidate = state()
    candidate.written(lease(holder="a"), sent_at=0)
    renewal = candidate.renewal(14, LATER)
    assert renewal is not None
    assert renewal["spec"]["acquireTime"] == "t0"
    assert renewal["spec"]["leaseTransitions"] == 3
    assert renewal["spec"]["renewTime"] == micro_time(LATER)


@pytest.mark.rules("U-59")
def test_le_4_without_reading_first_only_while_our_own_time_runs():
    candidate = state()
    assert candidate.renewal(0, WALL) is None
    candidate.written(lease(holder="a"), sent_at=0)
    assert candidate.renewal(15, WALL) is None
    assert candidate.claim(15, WALL) is not None
    candidate.observe(lease(holder="b"), now=1)
    assert candidate.renewal(2, WALL) is None


def test_le_10_labels_are_set_beside_those_of_others():
    candidate = state(labels={"app": "x"})
    assert candidate.creation(WALL)["metadata"]["labels"] == {"app": "x"}
    seen = lease(holder="")
    seen["metadata"]["labels"] = {"app": "old", "team": "y"}
    candidate.observe(seen, now=0)
    claimed = candidate.claim(0, WALL)
    assert claimed is not None
    assert claimed["metadata"]["labels"] == {"app": "x", "team": "y"}


def test_le_6_release_empties_the_record_and_keeps_the_count():
    released = state().release(lease(holder="a"), LATER)
    assert released is not None
    assert released["spec"] == {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": micro_time(LATER),
        "renewTime": micro_time(LATER),
        "leaseTransitions": 3,
    }
    assert released["metadata"]["resourceVersion"] == "7"


def test_o_09_a_foreign_holder_is_not_released():
    assert state().release(lease(holder="b"), WALL) is None
    assert state().release(lease(holder=""), WALL) is None


def test_le_12_a_body_that_is_no_lease_is_an_error():
    with pytest.raises(TypeError):
        state().observe({"spec": []}, now=0)
    with pytest.raises(TypeError):
        state().observe([], now=0)  # type: ignore[arg-type]


def test_unknown_fields_of_the_spec_are_written_back():
    candidate = state()
    candidate.observe(lease(holder="", strategy="OldestEmulationVersion"), now=0)
    claimed = candidate.claim(0, WALL)
    assert claimed is not None
    assert claimed["spec"]["strategy"] == "OldestEmulationVersion"


steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.floats(0, 20), st.integers(-500, 500), st.booleans()), min_size=1, max_size=60
)


@settings(deadline=None)  # a busy machine
@given(steps)
def test_le_5_never_two_leaders_however_wrong_the_clocks(steps: list[tuple[str, float, int, bool]]):
    """Candidates with any offset between their clocks, reading and renewing at any time, never lead together."""
    offsets = {"a": 0.0, "b": 1e9, "c": -12345.6}
    candidates = {name: state(name) for name in "abc"}
    stored: dict[str, Any] | None = None
    version = 0
    until = dict.fromkeys("abc", float("-inf"))  # by the true time: a renew deadline of 10 s
    true_time = 0.0
    for step, (name, pause, skew, renew_first) in enumerate(steps):
        true_time += pause
        now = true_time + offsets[name]
        wall = WALL + timedelta(hours=skew, microseconds=step)  # any time, but never twice the same
        candidate = candidates[name]
        body = candidate.renewal(now, wall) if renew_first else None
        if body is not None and stored is not None and body["metadata"]["resourceVersion"] != str(version):
            body = None  # conflict: read first
        if body is None:
            if stored is None:
                body = candidate.creation(wall)
            else:
                candidate.observe(stored, now)
                body = candidate.claim(now, wall)
        if body is None:
            continue
        version += 1
        body["metadata"]["resourceVersion"] = str(version)
        stored = body
        candidate.written(body, now)
        others = [other for other in "abc" if other != name and until[other] > true_time]
        assert not others
        until[name] = true_time + 10
