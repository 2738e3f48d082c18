from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.api import RawObject
from pyreconcile.cache import Store, key_of


def by_labels(obj: RawObject) -> list[str]:
    return list((obj["metadata"].get("labels") or {}).values())


def thing(key: str, *values: str) -> RawObject:
    namespace, _, name = key.rpartition("/")
    metadata: dict[str, Any] = {"name": name, "labels": {str(at): value for at, value in enumerate(values)}}
    return {"metadata": {**metadata, "namespace": namespace} if namespace else metadata}


def store_of(*objects: RawObject) -> Store:
    store = Store()
    store.add_index("label", by_labels)
    for obj in objects:
        store.put(key_of(obj), obj)
    return store


@pytest.mark.parametrize("key", ["n/a", "a"])
def test_in_17_key_is_namespace_and_name_or_name(key: str):
    assert key_of(thing(key)) == key


def test_in_17_objects_come_in_the_order_of_their_keys():
    store = store_of(thing("n/b"), thing("m/z"), thing("n/a"))
    assert store.keys() == [key_of(obj) for obj in store.values()] == ["m/z", "n/a", "n/b"]
    assert store.keys("n") == [key_of(obj) for obj in store.values("n")] == ["n/a", "n/b"]
    assert (len(store), "n/a" in store, "n/c" in store) == (3, True, False)


@pytest.mark.rules("U-54")
def test_in_17_update_moves_the_object_in_its_indexes_and_drops_empty_values():
    store = store_of(thing("n/a", "x", "y"))
    store.put("n/a", thing("n/a", "y", "z"))
    assert store.index_values("label") == ["y", "z"]
    assert store.by_index("label", "x") == []
    store.delete("n/a")
    assert store.index_values("label") == []
    assert store.delete("n/a") is None


@pytest.mark.rules("CA-8")
def test_in_17_an_index_is_read_by_namespace_too():
    store = store_of(thing("n/a", "x"), thing("m/a", "x"), thing("c", "x"))
    assert store.index_keys("label", "x") == ["c", "m/a", "n/a"]
    assert store.index_keys("label", "x", "n") == ["n/a"]
    assert store.index_keys("label", "x", "other") == []


def test_in_15_a_late_index_covers_the_objects_already_stored():
    store = store_of(thing("n/a", "x"))
    store.add_index("name", lambda obj: [obj["metadata"]["name"]])
    assert store.index_keys("name", "a") == ["n/a"]


def test_in_18_reading_an_unknown_index_is_an_error():
    with pytest.raises(KeyError, match=r"no index 'owner' \(known: label\)"):
        store_of().by_index("owner", "x")


def test_in_15_an_index_name_is_taken_once():
    store = store_of()
    store.add_index("label", by_labels)
    with pytest.raises(ValueError, match="exists already"):
        store.add_index("label", lambda obj: [])


def test_in_17_an_object_on_which_the_index_function_fails_is_found_under_no_value():
    store = Store()
    store.add_index("node", lambda obj: [obj["spec"]["nodeName"]])
    store.put("n/a", thing("n/a"))
    store.put("n/a", {**thing("n/a"), "spec": {"nodeName": "x"}})
    assert store.index_keys("node", "x") == ["n/a"]


KEYS = st.sampled_from(["n/a", "n/b", "m/a", "c"])
STEPS = st.tuples(KEYS, st.one_of(st.none(), st.lists(st.sampled_from("xyz"), max_size=3)))


@given(st.lists(STEPS, max_size=30))
@pytest.mark.rules("U-54", "CA-8")
def test_in_17_indexes_hold_exactly_what_the_objects_say(steps: list[tuple[str, list[str] | None]]):
    store = store_of()
    model: dict[str, RawObject] = {}
    for key, values in steps:
        old = model.pop(key, None)
        if values is None:
            assert store.delete(key) is old
        else:
            model[key] = thing(key, *values)
            assert store.put(key, model[key]) is old
    assert store.keys() == sorted(model)
    wanted = {value for obj in model.values() for value in by_labels(obj)}
    assert store.index_values("label") == sorted(wanted)
    for value in wanted:
        assert store.index_keys("label", value) == sorted(key for key, obj in model.items() if value in by_labels(obj))
