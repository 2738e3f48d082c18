"""The revision of a set, against hashes that the Go code made (DS §2.4)."""

import json
from pathlib import Path

import pytest

from pyreconcile_controllers.disaggregatedset.revision import hash_of

HERE = Path(__file__).parent


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").strip().split("\n")]


TEMPLATES = {
    vector["case"]: vector["spec"]["leaderWorkerTemplate"]
    for vector in lines(HERE.parent / "leaderworkerset" / "data" / "revision_vectors.jsonl")
}
VECTORS = lines(HERE / "data" / "revision_vectors.jsonl")


@pytest.mark.parametrize("vector", VECTORS, ids=[" + ".join(vector["roles"].values()) for vector in VECTORS])
def test_ds_2_4_revision_equals_gos(vector):
    assert hash_of((name, TEMPLATES[case]) for name, case in vector["roles"].items()) == vector["revision"]


def test_ds_2_4_there_is_a_vector_for_each_template():
    assert {case for vector in VECTORS for case in vector["roles"].values()} == TEMPLATES.keys()
    assert len({vector["revision"] for vector in VECTORS}) == len(VECTORS) == 46


def test_ds_2_4_neither_the_order_of_fields_nor_the_form_of_a_quantity_matters():
    one = {"containers": [{"name": "c", "resources": {"limits": {"b": "2", "a": "1000m"}}}]}
    other = {"containers": [{"resources": {"limits": {"a": "1", "b": "2"}}, "name": "c"}]}
    assert hash_of([("a", {"workerTemplate": {"spec": one}})]) == hash_of([("a", {"workerTemplate": {"spec": other}})])
