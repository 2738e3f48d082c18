"""What labels and annotations hold (LWS §3)."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from pyreconcile_controllers.leaderworkerset.names import GROUP_INDEX_LABEL, group_index, number_in, parse_number


@example(text="-0", signed=True)
@example(text="+-1", signed=True)
@example(text="²", signed=False)
@example(text="٣", signed=False)
@given(text=st.text(st.sampled_from("+-019 _.²٣\n"), max_size=4), signed=st.booleans())
def test_lws_3_a_number_is_ascii_digits_and_at_most_one_sign_where_signs_may_be(text, signed):
    form = "[+-]?[0-9]+" if signed else "[0-9]+"
    expected = int(text) if re.fullmatch(form, text) else None
    assert parse_number(text, signed=signed) == expected


def test_lws_3_a_label_that_is_missing_or_no_number_gives_none():
    assert group_index({GROUP_INDEX_LABEL: "12"}) == 12
    assert number_in({"size": "0", "other": "1"}, "size") == 0
    for labels in ({}, {GROUP_INDEX_LABEL: ""}, {GROUP_INDEX_LABEL: "x"}, {"other": "1"}):
        assert group_index(labels) is None
