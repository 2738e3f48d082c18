from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.workqueue import (
    BucketRateLimiter,
    FastSlowRateLimiter,
    ItemExponentialRateLimiter,
    MaxOfRateLimiter,
    WindowedExponentialRateLimiter,
    WithMaxWaitRateLimiter,
    default_rate_limiter,
)


@pytest.mark.rules("U-9")
def test_wq_13_exponential_sequence_reaches_the_cap_after_18_steps():
    limiter = ItemExponentialRateLimiter()
    delays = [limiter.when("a") for _ in range(20)]
    assert delays[:4] == [0.005, 0.01, 0.02, 0.04]
    assert delays[17] == pytest.approx(655.36)
    assert delays[18:] == [1000.0, 1000.0]


@pytest.mark.rules("U-9")
def test_wq_12_overflow_gives_the_cap():
    limiter = ItemExponentialRateLimiter(base=1.0, cap=5000.0)
    delays = [limiter.when("a") for _ in range(3000)]
    assert set(delays[13:]) == {5000.0}


@pytest.mark.rules("U-9")
def test_wq_12_forget_starts_again_and_keys_are_apart():
    limiter = ItemExponentialRateLimiter()
    limiter.when("a")
    limiter.when("a")
    assert limiter.when("b") == 0.005
    assert (limiter.num_requeues("a"), limiter.num_requeues("b"), limiter.num_requeues("c")) == (2, 1, 0)
    limiter.forget("a")
    assert limiter.num_requeues("a") == 0
    assert limiter.when("a") == 0.005
    limiter.forget("never seen")


@pytest.mark.parametrize(("base", "cap"), [(0.0, 1.0), (2.0, 1.0)])
def test_wq_12_senseless_bounds_are_refused(base, cap):
    with pytest.raises(ValueError, match="0 < base <= cap"):
        ItemExponentialRateLimiter(base, cap)


def test_wq_14_bucket_lets_the_burst_through_then_paces(clock):
    limiter = BucketRateLimiter(10, 3, time=clock.time)
    assert [limiter.when(k) for k in "abc"] == [0, 0, 0]
    assert [limiter.when(k) for k in "abc"] == pytest.approx([0.1, 0.2, 0.3])
    clock.advance(0.25)
    assert limiter.when("d") == pytest.approx(0.15)
    limiter.forget("d")
    assert limiter.num_requeues("d") == 0
    clock.advance(3600)
    assert [limiter.when(k) for k in "abc"] == [0, 0, 0]
    assert limiter.when("e") == pytest.approx(0.1)


def test_wq_14_the_defaults_are_10_a_second_and_100_at_once(clock):
    limiter = BucketRateLimiter(time=clock.time)
    assert {limiter.when(f"k{n}") for n in range(100)} == {0.0}
    assert [limiter.when("a"), limiter.when("b")] == pytest.approx([0.1, 0.2])


def test_wq_15_max_of_asks_every_limiter_and_takes_the_longest():
    slow, fast = ItemExponentialRateLimiter(1, 100), FastSlowRateLimiter(3, 50, 2)
    limiter = MaxOfRateLimiter(slow, fast)
    assert [limiter.when("a") for _ in range(4)] == [3, 3, 50, 50]
    assert slow.num_requeues("a") == fast.num_requeues("a") == limiter.num_requeues("a") == 4
    fast.forget("a")
    assert limiter.num_requeues("a") == 4
    limiter.forget("a")
    assert limiter.num_requeues("a") == 0


def test_wq_15_fast_slow_and_max_wait():
    limiter = FastSlowRateLimiter(0.1, 10, 3)
    assert [limiter.when("a") for _ in range(5)] == [0.1, 0.1, 0.1, 10, 10]
    limiter.forget("a")
    assert limiter.when("a") == 0.1
    capped = WithMaxWaitRateLimiter(ItemExponentialRateLimiter(1, 100), 3)
    assert [capped.when("a") for _ in range(4)] == [1, 2, 3, 3]
    assert capped.num_requeues("a") == 4
    capped.forget("a")
    assert capped.when("a") == 1


def test_wq_16_default_is_item_and_bucket(clock):
    limiter = default_rate_limiter(time=clock.time)
    assert [limiter.when(f"k{n}") for n in range(100)] == [0.005] * 100
    assert limiter.when("late") == pytest.approx(0.1)
    one = default_rate_limiter(time=iter(1e7 * n for n in range(100)).__next__)  # windows and bucket are long over
    delays = [one.when("a") for _ in range(20)]
    assert delays[:3] == [0.005, 0.01, 0.02]
    assert delays[17:] == pytest.approx([655.36, 1000, 1000])


def test_wq_18_failures_inside_the_window_do_not_count(clock):
    limiter = WindowedExponentialRateLimiter(1, 100, time=clock.time)
    assert limiter.when("a") == 1
    for _ in range(50):
        clock.advance(0.01)
        limiter.when("a")
    assert limiter.num_requeues("a") == 1
    assert limiter.when("a") == pytest.approx(0.5)
    clock.advance(0.5)
    assert limiter.when("a") == 2
    limiter.forget("a")
    assert limiter.when("a") == 1


@given(st.lists(st.floats(0.001, 3.0), max_size=60))
def test_wq_18_failures_never_outrun_elapsed_windows(manual_clock_type, gaps):
    clock = manual_clock_type()
    limiter = WindowedExponentialRateLimiter(1, 64, time=clock.time)
    elapsed, windows = 0.0, 0.0
    for gap in gaps:
        before = limiter.num_requeues("a")
        delay = limiter.when("a")
        if limiter.num_requeues("a") > before:
            assert elapsed >= windows - 1e-5
            windows = elapsed + delay
        else:
            assert elapsed + delay == pytest.approx(windows)
        clock.advance(gap)
        elapsed += gap
