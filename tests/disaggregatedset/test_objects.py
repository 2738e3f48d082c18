"""Names, labels, revision hash and children of a set (DS §2.3, §2.4, §6, §8)."""

import copy

import pytest

from pyreconcile_controllers.disaggregatedset import DisaggregatedSet
from pyreconcile_controllers.disaggregatedset.children import Child
from pyreconcile_controllers.disaggregatedset.objects import headless_service, leader_worker_set
from pyreconcile_controllers.disaggregatedset.revision import revision_of

D = "disaggregatedset.x-k8s.io/"


@pytest.fixture
def raw(role):
    roles = [role("prefill", 2, metadata={"labels": {"team": "x", "app": "mine"}, "annotations": {"note": "y"}})]
    roles.append(role("decode"))
    roles[0]["spec"]["leaderWorkerTemplate"]["leaderTemplate"] = {
        "metadata": {"labels": {"part": "leader", D + "role": "wrong"}},
        "spec": {"containers": []},
    }
    roles[0]["spec"] |= {
        "startupPolicy": "LeaderReady",
        "networkConfig": {"subdomainPolicy": "Shared"},
        "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxSurge": 2}},
    }
    return {"metadata": {"name": "demo", "namespace": "ns", "uid": "u"}, "spec": {"roles": roles}}


def hashed(raw):
    return revision_of(DisaggregatedSet.from_dict(raw).spec.roles)


def changed(raw, **role):
    other = copy.deepcopy(raw)
    other["spec"]["roles"][0] |= role
    return other


def test_ds_2_4_revision_is_8_hex_digits_and_stable(raw):
    first = hashed(raw)
    assert len(first) == 8
    assert int(first, 16) >= 0
    assert hashed(copy.deepcopy(raw)) == first
    assert len(revision_of([])) == 8
    # The Go controller's, too. Checked in, so that a new release does not roll every set of its users.
    assert first == "745c44a2"


def test_ds_2_4_what_makes_a_new_revision(raw):
    first = hashed(raw)
    template = raw["spec"]["roles"][0]["spec"]["leaderWorkerTemplate"]
    seen = {first, hashed(changed(raw, name="other"))}
    for field, value in (
        ("size", 2),
        ("restartPolicy", "None"),
        ("workerTemplate", {"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}}),
        ("subGroupPolicy", {"subGroupSize": 1}),
    ):
        spec = {**raw["spec"]["roles"][0]["spec"], "leaderWorkerTemplate": {**template, field: value}}
        seen.add(hashed(changed(raw, spec=spec)))
    turned = copy.deepcopy(raw)
    turned["spec"]["roles"].reverse()
    seen.add(hashed(turned))
    assert len(seen) == 7


def test_ds_2_4_what_does_not_make_a_new_revision(raw):
    first = hashed(raw)
    spec = raw["spec"]["roles"][0]["spec"]
    for field in ("replicas", "rolloutStrategy", "networkConfig", "startupPolicy"):
        assert hashed(changed(raw, spec={key: value for key, value in spec.items() if key != field})) == first
    assert hashed(changed(raw, metadata={"labels": {"new": "label"}})) == first
    assert hashed(changed(raw, scaling={"mode": "Static"})) == first
    other = copy.deepcopy(raw)
    other["spec"] |= {"slices": 1, "placementPolicy": {"type": "None"}}
    assert hashed(other) == first
    template = {**spec["leaderWorkerTemplate"], "subGroupPolicy": None}
    assert hashed(changed(raw, spec={**spec, "leaderWorkerTemplate": template})) == first


def test_ds_6_child_has_the_roles_spec_and_labels(raw):
    owner = DisaggregatedSet.from_dict(raw)
    before = owner.to_dict()
    made = leader_worker_set(owner, owner.spec.roles[0], "abcdef01", 5).to_dict()
    own = {
        D + "name": "demo",
        D + "role": "prefill",
        D + "slice": "0",
        D + "revision": "abcdef01",
        "app": "demo-0-prefill",
    }
    assert made["metadata"]["name"] == "demo-0-abcdef01-prefill"
    assert made["metadata"]["labels"] == {"team": "x", **own}
    assert made["metadata"]["annotations"] == {"note": "y"}
    template = made["spec"]["leaderWorkerTemplate"]
    assert template["leaderTemplate"]["metadata"]["labels"] == {"part": "leader", **own}
    assert template["workerTemplate"]["metadata"]["labels"] == own
    assert made["spec"]["replicas"] == 5
    for field in ("startupPolicy", "networkConfig", "rolloutStrategy"):
        assert made["spec"][field] == raw["spec"]["roles"][0]["spec"][field]
    (reference,) = made["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["uid"], reference["controller"]) == ("DisaggregatedSet", "u", True)
    assert owner.to_dict() == before


def test_ds_8_service_is_headless_and_selects_the_pods_of_one_revision(raw):
    owner = DisaggregatedSet.from_dict(raw)
    child = leader_worker_set(owner, owner.spec.roles[1], "abcdef01", 1).to_dict()
    child["metadata"] |= {"uid": "c", "creationTimestamp": "2026-01-01T00:00:00Z"}
    made = headless_service(owner, Child.read(child)).to_dict()
    labels = {D + "name": "demo", D + "role": "decode", D + "slice": "0", D + "revision": "abcdef01"}
    assert made["metadata"]["name"] == "demo-0-abcdef01-decode-prv"
    assert made["metadata"]["labels"] == labels
    assert made["spec"] == {"clusterIP": "None", "selector": labels}
    assert made["metadata"]["ownerReferences"][0]["controller"] is True
    del child["metadata"]["labels"][D + "slice"]
    assert D + "slice" not in headless_service(owner, Child.read(child)).spec.selector
