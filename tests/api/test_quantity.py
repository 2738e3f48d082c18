"""Quantities and int-or-percent values."""

from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyreconcile.api.quantity import QuantityError, canonical, compare, equal, parse, resolve, to_text

SUFFIXES = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-3", "e0"]
QUANTITIES = st.builds(
    lambda sign, whole, fraction, suffix: f"{sign}{whole}{fraction}{suffix}",
    st.sampled_from(["", "+", "-"]),
    st.integers(0, 10**20),
    st.sampled_from(["", ".", ".5", ".125", ".001"]),
    st.sampled_from(SUFFIXES),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.5", "500m"),
        ("1000m", "1"),
        ("1000000", "1M"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("0.1Mi", "104857600m"),
        ("12E6", "12e6"),
        ("1500e-3", "1500e-3"),
        ("1e-7", "100e-9"),
        ("1E", "1E"),
        ("1024", "1024"),
        ("1023Ki", "1023Ki"),
        ("0.5Ki", "512"),
        ("-1.5", "-1500m"),
        ("+3k", "3k"),
        (".5", "500m"),
        ("5.", "5"),
        ("-0", "0"),
        (3, "3"),
        (0.25, "250m"),
        (1e-7, "100n"),
    ],
)
def test_canonical_form(text: str, expected: str):
    assert canonical(text) == expected


@pytest.mark.parametrize(
    ("a", "b"), [("1", "1000m"), ("1Gi", "1073741824"), ("1e3", "1k"), ("0.1", "100m"), (2, "2"), ("1M", "1e6")]
)
def test_he_3_the_same_amount_in_another_writing_is_equal(a: str, b: str):
    assert equal(a, b)
    assert compare(a, b) == 0


def test_compare_orders_across_suffixes():
    amounts = ["-1", "0", "1n", "1u", "999m", "1", "1k", "1Ki", "1M", "1Mi", "1Ei", "9223372036854775807"]
    for low, high in pairwise(amounts):
        assert (compare(low, high), compare(high, low)) == (-1, 1)


def test_what_is_finer_than_a_billionth_goes_away_from_zero():
    assert parse("1e-100") == Decimal("1e-9")
    assert parse("-0.1n") == Decimal("-1e-9")
    assert canonical("0.1n") == "1n"


@pytest.mark.parametrize("text", ["1e100", "9223372036854775808", "8Ei", "1e999999999999", "10E"])
def test_amounts_are_capped_at_the_largest_int64(text: str):
    assert parse(text) == 2**63 - 1
    assert parse(f"-{text}") == -(2**63 - 1)


@pytest.mark.parametrize("text", ["", " ", "x", "1 Gi", "1gi", "1K", "--1", "1.2.3", "1e", "e3", ".", "1Gi2", "١"])
def test_a_text_that_is_no_quantity_is_refused(text: str):
    with pytest.raises(QuantityError, match="write a number with an optional suffix"):
        parse(text)


@given(QUANTITIES)
@example("3703.125Ki")
def test_the_canonical_text_is_the_same_amount_and_stays_as_it_is_unless_it_loses_its_binary_suffix(text: str):
    written = canonical(text)
    assert equal(written, text)
    assert "." not in written
    again = canonical(written)
    assert again == written or (text.strip().endswith("i") and written.lstrip("-").isdigit())
    assert canonical(again) == again


def test_a_binary_amount_of_no_whole_ki_is_written_without_suffix_and_read_again_as_decimal():
    # So does apimachinery's Quantity.
    assert canonical("3703.125Ki") == "3792000"
    assert canonical("3792000") == "3792k"


@given(QUANTITIES, QUANTITIES, QUANTITIES)
def test_comparing_is_a_total_order(a: str, b: str, c: str):
    assert compare(a, b) == -compare(b, a)
    assert (compare(a, b) == 0) == equal(a, b)
    if compare(a, b) <= 0 and compare(b, c) <= 0:
        assert compare(a, c) <= 0


@given(st.integers(-(10**15), 10**15), st.sampled_from(["decimal", "binary", "exponent"]))
def test_text_of_an_amount_parses_back(amount: int, form):
    assert parse(to_text(amount, form=form)) == amount


@pytest.mark.parametrize(
    ("value", "total", "up", "expected"),
    [
        (3, 10, False, 3),
        (-1, 10, False, -1),
        ("25%", 2, False, 0),
        ("25%", 2, True, 1),
        ("100%", 7, False, 7),
        ("150%", 10, True, 15),
        ("0%", 10, True, 0),
    ],
)
def test_resolve(value: int | str, total: int, up: bool, expected: int):
    assert resolve(value, total, round_up=up) == expected


@given(st.integers(0, 300), st.integers(0, 10**6))
def test_resolve_rounds_down_and_up_to_neighbours(percent: int, total: int):
    down, up = resolve(f"{percent}%", total), resolve(f"{percent}%", total, round_up=True)
    assert 0 <= up - down <= 1
    assert down * 100 <= percent * total <= up * 100


@pytest.mark.parametrize("value", ["", "25", "2.5%", "25 %", "%", "a%"])
def test_resolve_refuses_what_is_no_percentage(value: str):
    with pytest.raises(QuantityError, match="write a number, or a whole number of percent"):
        resolve(value, 10)
