"""The revision payload and its key, against vectors written by the Go code (LWS §5)."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile_controllers.gojson import canonical_quantity, go_struct, go_text
from pyreconcile_controllers.leaderworkerset.revision import (
    RevisionCache,
    differs,
    hash_key,
    restore,
    revision_name,
    revision_of,
)

LINES = (Path(__file__).parent / "data" / "revision_vectors.jsonl").read_text(encoding="utf-8")
VECTORS = [json.loads(line) for line in LINES.strip().split("\n")]


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["case"] for vector in VECTORS])
def test_lws_5_payload_and_key_equal_go_byte_for_byte(vector):
    revision = revision_of(vector["spec"])
    assert revision.data.decode() == vector["data"]
    assert revision.key == vector["key"]


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["case"] for vector in VECTORS])
def test_lws_5_restoring_a_stored_revision_gives_it_back(vector):
    stored = json.loads(vector["data"])
    assert restore(stored, {"replicas": 3}).data.decode() == vector["data"]
    assert not differs(revision_of(vector["spec"]), stored, lambda: vector["spec"])


def test_lws_5_there_are_46_vectors():
    assert len(VECTORS) == 46


def test_lws_5_key_is_fnv_1_in_safe_characters():
    assert hash_key(b"") == "".join({"0": "4", "1": "5", "2": "6", "3": "7", "6": "b"}[c] for c in "2166136261")


def pod(**container):
    return {"spec": {"containers": [{"name": "c", "image": "busybox:1", **container}]}}


def spec_of(**template):
    return {"leaderWorkerTemplate": {"workerTemplate": pod(), "size": 2, **template}}


def test_lws_5_only_template_and_network_make_a_revision():
    base = revision_of(spec_of())
    other = {**spec_of(), "replicas": 7, "startupPolicy": "LeaderReady", "rolloutStrategy": {"type": "RollingUpdate"}}
    assert revision_of(other) == base
    assert revision_of({**spec_of(), "networkConfig": {"subdomainPolicy": "Shared"}}) == base
    assert revision_of({**spec_of(), "networkConfig": {"subdomainPolicy": "UniquePerReplica"}}).key != base.key
    assert revision_of(spec_of(size=3)).key != base.key


def test_lws_5_empty_fields_and_unknown_ones_do_not_count():
    noisy = pod(args=[], env=None, tty=False, workingDir="", resources={}, later="x")
    noisy["metadata"] = {"labels": {}, "creationTimestamp": None}
    assert revision_of(spec_of(workerTemplate=noisy)) == revision_of(spec_of())


def test_lws_15_2_payload_of_an_older_controller_is_no_change():
    spec = spec_of()
    stored = json.loads(revision_of(spec).data)
    stored["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["creationTimestamp"] = None
    assert not differs(revision_of(spec), stored, lambda: spec)


def test_lws_5_a_changed_template_is_a_change():
    stored = json.loads(revision_of(spec_of()).data)
    changed = spec_of(size=5)
    assert differs(revision_of(changed), stored, lambda: changed)


def test_lws_5_html_characters_are_escaped_as_go_does():
    text = go_text({"b": "<&>\u2028\u2029é\n\x01", "a": 1})
    assert text == '{"a":1,"b":"\\u003c\\u0026\\u003e\\u2028\\u2029é\\n\\u0001"}'.encode()


def test_lws_5_revision_names_are_cut_to_fit():
    revision = revision_of(spec_of())
    assert revision_name("demo", revision, 3) == f"demo-{revision.key}-3"
    assert revision_name("x" * 300, revision, 1) == f"{'x' * 220}-{revision.key}-1"


def test_lws_5_revision_of_a_generation_is_hashed_once():
    cache = RevisionCache(size=2)
    calls = []

    def spec():
        calls.append(1)
        return spec_of()

    first = cache.get("u1", 1, spec)
    assert cache.get("u1", 1, spec) is first
    assert len(calls) == 1
    cache.get("u1", 2, spec)
    cache.get("u2", 1, spec)
    assert cache.get("u1", 1, spec) is not first  # The oldest had to go.


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (1, "1"), (0, "0"), (0.5, "500m"), ("0", "0"), ("0.000", "0"), ("1000000", "1M"), ("1000", "1k"),
        ("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"), ("0.1Mi", "104857600m"), ("12E6", "12E6"), ("1.500", "1.500"),
        ("1.5", "1500m"), ("-0.5", "-500m"), ("1e3", "1e3"), ("10e2", "1e3"), ("0.1n", "1n"), (" 2Gi ", "2Gi"),
        ("8Gi", "8Gi"), ("12E", "12E"), ("512Ki", "512Ki"), ("1023Ki", "1023Ki"), ("0Gi", "0"),
    ],
)  # fmt: skip
def test_lws_5_quantities_read_as_go_reads_them(text, canonical):
    assert canonical_quantity(text) == canonical


@pytest.mark.parametrize("text", ["", ".", "x", "1Xi", "1 Gi", "--1", "1e"])
def test_lws_5_text_that_is_no_quantity_is_named(text):
    with pytest.raises(ValueError, match=r"quantity|suffix"):
        canonical_quantity(text)


SUFFIXES = st.sampled_from(["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti", "Ei", "e3", "E-2", "e0"])
QUANTITIES = st.builds(
    lambda sign, whole, fraction, suffix: f"{sign}{whole}{fraction}{suffix}",
    st.sampled_from(["", "-"]),
    st.integers(0, 10**12),
    st.sampled_from(["", ".5", ".125", ".000001", ".500"]),
    SUFFIXES,
)


@given(QUANTITIES)
def test_lws_5_canonical_quantities_stay(text):
    canonical = canonical_quantity(text)
    assert canonical_quantity(canonical) == canonical


JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CONTAINERS = st.fixed_dictionaries(
    {"name": JSON_TEXT},
    optional={
        "image": JSON_TEXT,
        "args": st.lists(JSON_TEXT, max_size=3),
        "env": st.lists(st.fixed_dictionaries({"name": JSON_TEXT}, optional={"value": JSON_TEXT}), max_size=3),
        "tty": st.booleans(),
        "resources": st.fixed_dictionaries({}, optional={"limits": st.dictionaries(JSON_TEXT, QUANTITIES, max_size=2)}),
        "ports": st.lists(st.fixed_dictionaries({"containerPort": st.integers(1, 65535)}), max_size=2),
        "unknown": JSON_TEXT,
    },
)
TEMPLATES = st.fixed_dictionaries(
    {"spec": st.fixed_dictionaries({"containers": st.lists(CONTAINERS, max_size=3)})},
    optional={"metadata": st.fixed_dictionaries({}, optional={"labels": st.dictionaries(JSON_TEXT, JSON_TEXT)})},
)


@given(TEMPLATES)
def test_lws_5_writing_twice_is_writing_once(template):
    given_before = copy.deepcopy(template)
    once = go_struct("v1.PodTemplateSpec", template)
    assert template == given_before
    assert go_struct("v1.PodTemplateSpec", once) == once
    spec = spec_of(workerTemplate=template)
    revision = revision_of(spec)
    assert restore(json.loads(revision.data), spec) == revision
    assert revision_of({"leaderWorkerTemplate": revision.template, "networkConfig": revision.network}) == revision
