import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.cache import Backoff, parse_version


def test_rf_1_waits_double_up_to_the_cap():
    backoff = Backoff(clock=lambda: 0.0, random=lambda: 0.0)
    waits = [backoff.next() for _ in range(8)]
    assert waits == pytest.approx([0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0])


def test_rf_1_jitter_stretches_a_wait_to_at_most_twice_its_length():
    backoff = Backoff(clock=lambda: 0.0, random=lambda: 0.5)
    assert [backoff.next() for _ in range(7)][-1] == pytest.approx(45.0)


def test_rf_1_two_minutes_of_calm_bring_the_first_wait_back():
    now = 0.0
    backoff = Backoff(clock=lambda: now, random=lambda: 0.0)
    backoff.next()
    now = 120.0
    assert backoff.next() == pytest.approx(1.6)
    now = 240.5
    assert backoff.next() == pytest.approx(0.8)


@given(st.integers(1, 10**30), st.integers(1, 10**30))
def test_ry_3_longer_is_newer_then_text_order(a: int, b: int):
    text_a, text_b = str(a), str(b)
    by_text = (len(text_a), text_a) < (len(text_b), text_b)
    assert (parse_version(text_a) < parse_version(text_b)) is by_text


@pytest.mark.parametrize("text", ["", "0", "007", "-1", "1a", " 1", "٣", "1.0"])
def test_ry_3_anything_but_a_decimal_number_has_no_order(text: str):
    with pytest.raises(ValueError, match="resource version"):
        parse_version(text)
