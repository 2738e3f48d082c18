"""The base of all models: names, unset and null, unknown fields, containers, copies."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from pyreconcile.api import (
    Condition,
    Entries,
    Items,
    MicroTime,
    Model,
    ObjectMeta,
    Quantity,
    Spec,
    Status,
    Time,
    copy_json,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


class Part(Model):
    name: str
    mount_path: str | None = None
    from_: str | None = None


class Whole(Model):
    replicas: int | None = None
    parts: list[Part] | None = None
    labels: Entries[str] = Field(default_factory=dict)
    inner: "Inner" = Field(default_factory=lambda: Inner())


class Inner(Model):
    meta: ObjectMeta | None = None
    notes: Items[str] = Field(default_factory=list)


class Times(Model):
    at: Time | None = None
    exact: MicroTime | None = None


def test_names_are_camel_case_on_the_wire_and_snake_case_in_python():
    part = Part.from_dict({"name": "a", "mountPath": "/x", "from": "b"})
    assert (part.mount_path, part.from_) == ("/x", "b")
    assert part.to_dict() == {"name": "a", "mountPath": "/x", "from": "b"}
    assert Part(name="a", mount_path="/x", from_="b") == part


def test_unset_is_left_out_and_none_is_null():
    assert Whole().to_dict() == {}
    assert Whole(replicas=None).to_dict() == {"replicas": None}
    whole = Whole(replicas=3)
    whole.replicas = None
    assert whole.to_dict() == {"replicas": None}
    assert Whole.from_dict({"replicas": None}).to_dict() == {"replicas": None}


def test_the_default_of_an_unset_field_is_not_written():
    assert Condition(type="Ready", status="True", reason="Ok").to_dict() == {
        "type": "Ready",
        "status": "True",
        "reason": "Ok",
    }


@given(st.dictionaries(st.text(max_size=10), JSON, max_size=5))
def test_unknown_fields_are_kept_whatever_they_hold(unknown: dict[str, Any]):
    raw = {**unknown, "name": "a"}
    raw.pop("mountPath", None)
    raw.pop("from", None)
    part = Part.from_dict(raw)
    assert part.to_dict() == raw
    assert orjson.loads(part.to_json()) == raw
    assert part.deep_copy().to_dict() == raw
    assert Whole.from_dict({"parts": [raw]}).to_dict() == {"parts": [raw]}


def test_a_python_name_on_the_wire_is_no_field():
    part = Part.from_dict({"name": "a", "mount_path": "/x"})
    assert part.mount_path is None
    assert part.model_extra == {"mount_path": "/x"}


def test_from_dict_shares_nothing_with_its_argument():
    raw: dict[str, Any] = {"labels": {"a": "b"}, "unknown": {"list": [1]}}
    whole = Whole.from_dict(raw)
    raw["labels"]["a"] = "c"
    raw["unknown"]["list"].append(2)
    assert whole.to_dict() == {"labels": {"a": "b"}, "unknown": {"list": [1]}}
    written = whole.to_dict()
    written["unknown"]["list"].append(3)
    assert whole.to_dict()["unknown"] == {"list": [1]}


def test_a_container_filled_in_place_is_written():
    whole = Whole()
    whole.labels["a"] = "b"
    whole.inner.notes.append("n")
    assert whole.to_dict() == {"labels": {"a": "b"}, "inner": {"notes": ["n"]}}


def test_a_container_filled_in_place_deep_inside_is_written():
    whole = Whole(inner=Inner(meta=ObjectMeta()))
    assert whole.inner.meta is not None
    whole.inner.meta.labels["a"] = "b"
    assert whole.to_dict() == {"inner": {"meta": {"labels": {"a": "b"}}}}


def test_a_container_emptied_in_place_is_written_empty():
    whole = Whole.from_dict({"labels": {"a": "b"}})
    whole.labels.clear()
    assert whole.to_dict() == {"labels": {}}


def test_a_container_that_was_only_read_is_not_written():
    whole = Whole()
    assert whole.labels.get("a") is None
    assert whole.inner.notes == []
    assert whole.to_dict() == {}


def test_null_reads_as_empty_where_go_writes_null_for_empty():
    meta = ObjectMeta.from_dict({"labels": None, "finalizers": None, "ownerReferences": None})
    assert (meta.labels, meta.finalizers, meta.owner_references) == ({}, [], [])
    assert Status.from_dict({"conditions": None}).conditions == []


def test_deep_copy_is_independent_and_keeps_what_is_unset():
    whole = Whole(parts=[Part(name="a")])
    copy = whole.deep_copy()
    assert copy.parts is not None
    copy.parts[0].name = "b"
    copy.labels["x"] = "y"
    assert whole.to_dict() == {"parts": [{"name": "a"}]}
    assert type(copy) is Whole


def test_a_wrong_type_is_refused_with_the_field():
    with pytest.raises(ValidationError, match="replicas"):
        Whole.from_dict({"replicas": "many"})
    with pytest.raises(ValidationError, match=r"parts\.0\.name"):
        Whole.from_dict({"parts": [{}]})


def test_an_unknown_name_in_a_constructor_names_the_nearest_field():
    with pytest.raises(TypeError, match=r"Part has no field 'mount_pth': did you mean 'mount_path'\?"):
        Part(name="a", mount_pth="/x")  # type: ignore[call-arg]


def test_an_unknown_attribute_cannot_be_set():
    part = Part(name="a")
    with pytest.raises(AttributeError, match="write 'mount_path'"):
        part.mountPath = "/x"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="its fields are from_, mount_path, name"):
        part.zzz = 1  # type: ignore[attr-defined]


def test_a_wire_name_is_taken_by_a_constructor():
    assert Part(name="a", mountPath="/x").mount_path == "/x"


def test_an_unknown_field_from_the_server_can_be_changed():
    part = Part.from_dict({"name": "a", "newField": 1})
    part.newField = 2  # type: ignore[attr-defined]
    assert part.model_extra is not None
    part.model_extra["other"] = 3
    assert part.to_dict() == {"name": "a", "newField": 2, "other": 3}


def test_repr_shows_what_is_set_only():
    assert repr(Part(name="a")) == "Part(name='a')"


def test_time_is_written_as_utc_seconds():
    zone = timezone(timedelta(hours=2))
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=zone)
    assert Times(at=at, exact=at).to_dict() == {"at": "2026-01-02T01:04:05Z", "exact": "2026-01-02T01:04:05.678901Z"}


def test_micro_time_has_six_digits_even_at_a_whole_second():
    at = datetime(2026, 1, 2, tzinfo=UTC)
    assert Times(exact=at).to_dict() == {"exact": "2026-01-02T00:00:00.000000Z"}


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)))
def test_times_survive_a_round_trip(at: datetime):
    times = Times.from_dict(Times(at=at, exact=at).to_dict())
    assert times.at == at.replace(microsecond=0)
    assert times.exact == at


def test_a_quantity_keeps_its_writing():
    class Sized(Spec):
        size: Quantity

    for value in ("1", "1000m", 1, 0.5, "2Gi"):
        written = Sized.from_dict({"size": value}).to_dict()["size"]
        assert written == value
        assert type(written) is type(value)


@given(JSON)
def test_copy_json_is_equal_and_apart(value: Any):
    copy = copy_json(value)
    assert copy == value
    if isinstance(value, list | dict):
        assert copy is not value


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.text(max_size=5),
            "labels": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
            "finalizers": st.lists(st.text(max_size=5), max_size=3),
            "generation": st.none() | st.integers(0, 2**63 - 1),
            "managedFields": st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), max_size=2),
            "somethingNew": JSON,
        },
    )
)
def test_object_meta_round_trips(raw: dict[str, Any]):
    assert ObjectMeta.from_dict(raw).to_dict() == raw
