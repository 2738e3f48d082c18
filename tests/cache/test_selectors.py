from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.api.selectors import LabelSelector, SelectorError, field_terms, label_selector, parse_fields

KEYS = st.sampled_from(["app", "example.dev/tier", "a.b-c_d", "x"])
VALUES = st.sampled_from(["", "1", "2", "10", "web", "a.b"])
LABELS = st.dictionaries(KEYS, VALUES, max_size=4)
TERMS = st.one_of(
    st.tuples(KEYS, st.sampled_from(["=", "==", "!="]), VALUES).map("".join),
    KEYS,
    KEYS.map("!{}".format),
    st.tuples(KEYS, st.sampled_from(["in", "notin"]), st.lists(VALUES, min_size=1, max_size=3)).map(
        lambda parts: f"{parts[0]} {parts[1]} ({','.join(parts[2])})"
    ),
    st.tuples(KEYS, st.sampled_from("<>"), st.integers(-5, 20)).map(lambda parts: "".join(map(str, parts))),
)


def by_hand(term: str, labels: dict[str, str]) -> bool:
    """The meaning of one term, read off its text in another way than the parser does."""
    if " in (" in term or " notin (" in term:
        key, operator, values = term.split(" ", 2)
        member = labels.get(key) in values[1:-1].split(",")
        return member if operator == "in" else not member
    if term.startswith("!"):
        return term[1:] not in labels
    for operator in ("!=", "==", "="):
        key, found, value = term.partition(operator)
        if found:
            return (labels.get(key) == value) is (operator != "!=")
    for operator in "<>":
        key, found, value = term.partition(operator)
        if found:
            number = labels.get(key, "")
            if not number.isdigit():
                return False
            return int(number) < int(value) if operator == "<" else int(number) > int(value)
    return term in labels


@given(st.lists(TERMS, max_size=4), LABELS)
def test_ca_7_label_selector_means_all_its_terms(terms: list[str], labels: dict[str, str]):
    assert LabelSelector.parse(",".join(terms)).matches(labels) is all(by_hand(term, labels) for term in terms)


@given(st.lists(TERMS, max_size=4))
def test_ca_7_text_of_a_selector_reads_back_as_the_same(terms: list[str]):
    selector = LabelSelector.parse(",".join(terms))
    assert LabelSelector.parse(str(selector)) == selector


@given(LABELS, LABELS)
def test_ca_7_mapping_selects_objects_with_all_its_labels(wanted: dict[str, str], labels: dict[str, str]):
    assert label_selector(wanted).matches(labels) is (wanted.items() <= labels.items())


@given(st.text(alphabet="ab=!(),<> in", max_size=12))
def test_ca_7_any_text_is_read_or_refused(text: str):
    with suppress(SelectorError):
        selector = LabelSelector.parse(text)
        assert LabelSelector.parse(str(selector)) == selector


@pytest.mark.parametrize(
    "text",
    ["a b", "a,,b", ",a", "a,", "a in", "a in b", "a in (b", "a in (b c)", "a in (b,!)", "=b", "a=b=c", "!", "a>x"],
)
def test_ca_7_faulty_selectors_are_refused(text: str):
    with pytest.raises(SelectorError):
        LabelSelector.parse(text)


@pytest.mark.parametrize("text", ["-a=b", "a=b-", "A/b=c", "a/b/c", f"{'k' * 64}=v", f"k={'v' * 64}", f"{'p' * 254}/k"])
def test_ca_7_keys_and_values_must_be_valid_labels(text: str):
    with pytest.raises(SelectorError, match="selector"):
        LabelSelector.parse(text)


@pytest.mark.parametrize(
    ("text", "same"), [(" a = b , c ", "a=b,c"), ("a in (y,x,x)", "a in (x,y)"), ("in in (in)", "in=in")]
)
def test_ca_7_white_space_order_and_repeats_do_not_matter(text: str, same: str):
    assert str(LabelSelector.parse(text)) == same


def test_ca_7_several_values_in_a_mapping_mean_any_of_them():
    selector = label_selector({"a": ["x", "y"]})
    assert [selector.matches({"a": value}) for value in "xyz"] == [True, True, False]


def test_ca_7_api_selector_is_read():
    selector = LabelSelector.from_dict(
        {
            "matchLabels": {"a": "1"},
            "matchExpressions": [
                {"key": "b", "operator": "NotIn", "values": ["x", "y"]},
                {"key": "c", "operator": "Exists"},
                {"key": "d", "operator": "DoesNotExist"},
            ],
        }
    )
    assert selector is not None
    assert str(selector) == "a=1,b notin (x,y),c,!d"
    assert LabelSelector.from_dict(None) is None


@pytest.mark.parametrize(
    "expression",
    [
        {"key": "a", "operator": "Is"},
        {"key": "a", "operator": "In"},
        {"key": "a", "operator": "Exists", "values": ["x"]},
    ],
)
def test_ca_7_api_selector_with_an_unsuitable_operator_is_refused(expression: dict[str, object]):
    with pytest.raises(SelectorError, match="matchExpressions"):
        LabelSelector.from_dict({"matchExpressions": [expression]})


@given(st.dictionaries(st.sampled_from(["a", "spec.nodeName"]), st.text(alphabet=r"a,=\!", max_size=5), max_size=2))
def test_ca_7_field_selector_survives_its_text_form(fields: dict[str, str]):
    terms = field_terms(fields)
    assert parse_fields(",".join(map(str, terms))) == terms


def test_ca_7_field_selector_knows_both_operators():
    assert [(term.path, term.value, term.equal) for term in parse_fields("a=1,b==2,c!=3")] == [
        ("a", "1", True),
        ("b", "2", True),
        ("c", "3", False),
    ]
    with pytest.raises(SelectorError, match="needs"):
        parse_fields("a")
    with pytest.raises(SelectorError, match="backslash"):
        parse_fields(r"a=\x")
