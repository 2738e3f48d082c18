"""Every case of LWS §13.3 (28) through the real API server: what is stored of a pod."""

from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any

import pytest

pytestmark = [pytest.mark.plane, pytest.mark.asyncio(loop_scope="module")]

L = "leaderworkerset.sigs.k8s.io/"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TPUS = {"limits": {"google.com/tpu": "4"}}
LEADER, WORKER = {"worker-index": "0"}, {"group-index": "1"}
GROUP, SUBGROUP = "exclusive-topology", "subgroup-exclusive-topology"


def container(name: str = "main", **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "nginx"} | fields


def pod(
    name: str,
    *containers: dict[str, Any],
    of_set: bool = True,
    size: int = 2,
    labels: dict[str, str] | None = None,
    subdomain: str = "test",
    affinity: dict[str, Any] | None = None,
    **annotations: str,
) -> dict[str, Any]:
    """A pod as a StatefulSet makes it; annotations with ``_`` for a dash."""
    ours = {"name": "test"} | (labels or {}) if of_set else {}
    notes = {"size": str(size)} | {key.replace("_", "-"): value for key, value in annotations.items()}
    spec: dict[str, Any] = {"subdomain": subdomain, "containers": list(containers or (container(),))}
    if affinity is not None:
        spec["affinity"] = affinity
    return {
        "metadata": {
            "name": name,
            "labels": {"app": "any"} | {L + key: value for key, value in ours.items()},
            "annotations": {L + key: value for key, value in notes.items()} if of_set else {},
        },
        "spec": spec,
    }


def leader(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return pod("test-1", *containers, labels=LEADER, **more)


def worker(number: int, *containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return pod(f"test-1-{number}", *containers, labels=WORKER, leader_name="test-1", **more)


def hosts(*numbers: int, domain: str = "test") -> list[str]:
    """Host names of pods of the group, 0 for the leader."""
    return [f"test-1.{domain}" if number == 0 else f"test-1-{number}.{domain}" for number in numbers]


def term(topology: str, label: str, value: str, *, anti: bool) -> dict[str, Any]:
    inside = [{"key": L + label, "operator": "In", "values": [value]}]
    outside = [{"key": L + label, "operator": "Exists"}, {"key": L + label, "operator": "NotIn", "values": [value]}]
    return {"labelSelector": {"matchExpressions": outside if anti else inside}, "topologyKey": topology}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is asserted of a stored pod; keys stand for what depends on the namespace.

    Args:
        labels: all labels of ours; ``GROUP-KEY`` stands for the group's.
        tpus: for each container the host names and the pod's number, or None for no variable.
        terms: topology, label and value of each required term, the same for affinity and anti-affinity.
        leader_address: that variable's value up to the namespace; it and the two others come first. None: not there.
    """

    labels: dict[str, str] | None = None
    tpus: list[tuple[list[str], str] | None] = field(default_factory=lambda: [None])
    terms: list[tuple[str, str, str]] = field(default_factory=list)
    leader_address: str | None = "test-1.test"


KEY = "GROUP-KEY"
MINE = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "zone"}
MINE_TOO = {"labelSelector": {"matchLabels": {"c": "d"}}, "topologyKey": "rack-of-mine"}
ALREADY = {
    "podAffinity": {REQUIRED: [term("rack", "group-key", "given", anti=False)]},
    "podAntiAffinity": {REQUIRED: [term("rack", "group-key", "given", anti=True)]},
}
SUBGROUP_0 = sha1(b"test-1/0").hexdigest()
SUBGROUP_1 = sha1(b"test-1/1").hexdigest()
OF_LEADER = {"name": "test", "worker-index": "0", "group-index": "1", "group-key": KEY}
BOTH = {GROUP.replace("-", "_"): "block", SUBGROUP.replace("-", "_"): "rack", "subgroup_size": "2"}
LT = {"leader_requests_tpus": "true"}
TPU = container(resources=TPUS)
NOTHING = Expected(labels={}, leader_address=None)

CASES: dict[str, tuple[dict[str, Any], Expected]] = {
    "a pod of no set keeps its labels": (pod("test-1", of_set=False), NOTHING),
    "a pod of no set may be made": (pod("alone", of_set=False), NOTHING),
    "a worker gets its index": (
        worker(1),
        Expected(labels={"name": "test", "group-index": "1", "worker-index": "1"}),
    ),
    "a leader gets its group": (leader(), Expected(labels=OF_LEADER)),
    "a leader that requests TPUs gets its subgroup": (
        leader(TPU, size=4, subgroup_size="2"),
        Expected(
            labels=OF_LEADER | {"subgroup-index": "0", "subgroup-key": SUBGROUP_0},
            tpus=[(hosts(0, 1), "0")],
        ),
    ),
    "a worker gets its subgroup when the leader requests TPUs": (
        worker(3, TPU, size=4, subgroup_size="2", **LT),
        Expected(
            labels={
                "name": "test",
                "group-index": "1",
                "worker-index": "3",
                "subgroup-index": "1",
                "subgroup-key": SUBGROUP_1,
            },
            tpus=[(hosts(2, 3), "1")],
        ),
    ),
    "a worker gets its subgroup when the leader requests none": (
        worker(4, TPU, size=5, subgroup_size="2"),
        Expected(
            labels={
                "name": "test",
                "group-index": "1",
                "worker-index": "4",
                "subgroup-index": "1",
                "subgroup-key": SUBGROUP_1,
            },
            tpus=[(hosts(3, 4), "1")],
        ),
    ),
    "a pod of no set that requests TPUs gets no variables": (pod("test-1", TPU, of_set=False), NOTHING),
    "a leader that requests no TPUs gets none of their variables": (leader(), Expected()),
    "a worker that requests no TPUs gets none of their variables": (worker(1), Expected()),
    "a leader of five that request TPUs": (leader(TPU, size=5), Expected(tpus=[(hosts(0, 1, 2, 3, 4), "0")])),
    "a leader with a service of its own": (
        leader(TPU, subdomainPolicy="UniquePerReplica"),
        Expected(tpus=[(hosts(0, 1, domain="test-1"), "0")], leader_address="test-1.test-1"),
    ),
    "a leader of subgroups of five": (
        leader(TPU, size=10, subgroup_size="5"),
        Expected(tpus=[(hosts(0, 1, 2, 3, 4), "0")]),
    ),
    "a worker of a leader that requests TPUs": (
        worker(3, TPU, size=5, **LT),
        Expected(tpus=[(hosts(0, 1, 2, 3, 4), "3")]),
    ),
    "a worker in a subgroup, of a leader that requests TPUs": (
        worker(3, TPU, size=10, subgroup_size="5", **LT),
        Expected(tpus=[(hosts(0, 1, 2, 3, 4), "3")]),
    ),
    "a worker of a leader that requests none": (worker(3, TPU, size=5), Expected(tpus=[(hosts(1, 2, 3, 4), "2")])),
    "a worker in a subgroup, of a leader that requests none": (
        worker(7, TPU, size=11, subgroup_size="5"),
        Expected(tpus=[(hosts(6, 7, 8, 9, 10), "1")]),
    ),
    "a worker of two": (worker(1, TPU, size=2, **LT), Expected(tpus=[(hosts(0, 1), "1")])),
    "a leader alone": (leader(TPU, size=1), Expected(tpus=[(hosts(0), "0")])),
    "containers of which some request TPUs": (
        leader(container("without"), container("with", resources=TPUS)),
        Expected(tpus=[None, (hosts(0, 1), "0")]),
    ),
    "a leader with a topology of its own": (
        leader(exclusive_topology="rack"),
        Expected(terms=[("rack", "group-key", KEY)]),
    ),
    "a leader with topologies for group and subgroup": (
        leader(size=4, **BOTH),
        Expected(terms=[("block", "group-key", KEY), ("rack", "subgroup-key", SUBGROUP_0)]),
    ),
    "a worker with topologies for group and subgroup": (
        worker(3, size=4, **BOTH),
        Expected(terms=[("rack", "subgroup-key", SUBGROUP_1)]),
    ),
    "a leader without a topology of its own": (leader(), Expected()),
    "a leader that has its terms": (
        leader(exclusive_topology="rack", affinity=ALREADY),
        Expected(terms=[("rack", "group-key", "given")]),
    ),
    "the variables come first": (
        leader(container(env=[{"name": "ADDRESS", "value": "$(LWS_LEADER_ADDRESS)"}])),
        Expected(labels=OF_LEADER),
    ),
}


@pytest.mark.parametrize(("sent", "expected"), CASES.values(), ids=CASES)
async def test_lws_13_3_pod(admission, sent, expected):
    stored = await admission.create_pod(sent)
    key = sha1(f"{admission.namespace}/test-1".encode()).hexdigest()
    labels = {name.removeprefix(L): value for name, value in stored["metadata"]["labels"].items() if name != "app"}
    if expected.labels is not None:
        assert labels == {name: key if value == KEY else value for name, value in expected.labels.items()}
    assert stored["metadata"].get("annotations", {}) == sent["metadata"]["annotations"]

    terms = [(topology, label, key if value == KEY else value) for topology, label, value in expected.terms]
    affinity = stored["spec"].get("affinity", {})
    for kind, anti in (("podAffinity", False), ("podAntiAffinity", True)):
        assert affinity.get(kind, {}).get(REQUIRED, []) == [term(*one, anti=anti) for one in terms]

    for given, had, tpus in zip(stored["spec"]["containers"], sent["spec"]["containers"], expected.tpus, strict=True):
        env = [(entry["name"], entry.get("value", "")) for entry in given.get("env", ())]
        ours = []
        if expected.leader_address is not None:
            ours = [
                ("LWS_LEADER_ADDRESS", f"{expected.leader_address}.{admission.namespace}"),
                ("LWS_GROUP_SIZE", sent["metadata"]["annotations"][L + "size"]),
                ("LWS_WORKER_INDEX", labels["worker-index"]),
            ]
        ours += [(entry["name"], entry["value"]) for entry in had.get("env", ())]
        assert env == ours + tpu_variables(tpus)


def tpu_variables(tpus: tuple[list[str], str] | None) -> list[tuple[str, str]]:
    if tpus is None:
        return []
    names, number = tpus
    return [
        ("TPU_WORKER_HOSTNAMES", ",".join(names)),
        ("TPU_WORKER_ID", number),
        ("TPU_NAME", "test-1"),
        ("TPU_PROCESS_ADDRESSES", ",".join(f"{name}:8476" for name in names)),
        ("TPU_PROCESS_PORT", "8476"),
    ]


async def test_lws_13_3_other_terms_stay_and_come_first(admission):
    affinity = {
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}},
        "podAffinity": {REQUIRED: [MINE]},
        "podAntiAffinity": {REQUIRED: [MINE_TOO]},
    }
    stored = (await admission.create_pod(leader(exclusive_topology="rack", affinity=affinity)))["spec"]["affinity"]
    key = sha1(f"{admission.namespace}/test-1".encode()).hexdigest()
    assert stored == {
        "nodeAffinity": affinity["nodeAffinity"],
        "podAffinity": {REQUIRED: [MINE, term("rack", "group-key", key, anti=False)]},
        "podAntiAffinity": {REQUIRED: [MINE_TOO, term("rack", "group-key", key, anti=True)]},
    }


async def test_lws_13_3_with_volcano_a_pod_names_its_group(admission_with_volcano):
    async with admission_with_volcano() as admission:
        raw = leader()
        raw["metadata"]["labels"][L + "template-revision-hash"] = "hash"
        stored = await admission.create_pod(raw)
        assert stored["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "test-1-hash"
        labels = {L + "group-index": "1", L + "template-revision-hash": "hash"}
        raw = worker(1)
        raw["metadata"]["labels"] |= labels
        stored = await admission.create_pod(raw, dry_run=True)
        assert stored["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "test-1-hash"
