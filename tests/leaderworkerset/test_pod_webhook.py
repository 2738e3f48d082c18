"""Admission of a set's pods (LWS §2.3, §4); the cases are those of LWS §13.3."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.api import copy_json
from pyreconcile.webhook import Denied, WebhookServer, admission_review, apply_patch
from pyreconcile.webhook._jsonpatch import json_patch
from pyreconcile_controllers.leaderworkerset.pod_webhook import draft_of, mutate_pod, subgroup_index
from pyreconcile_controllers.leaderworkerset.webhook import register

L = "leaderworkerset.sigs.k8s.io/"
TPUS = {"limits": {"google.com/tpu": "4"}}
LEADER, WORKER = {L + "worker-index": "0"}, {L + "group-index": "1"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def container(name: str = "main", **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "nginx"} | fields


def pod(
    name: str,
    *containers: dict[str, Any],
    size: int | str | None = 2,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    subdomain: str = "test",
    **spec: Any,
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {L + "name": "test"} | (labels or {}),
            "annotations": ({} if size is None else {L + "size": str(size)})
            | {L + key: value for key, value in (annotations or {}).items()},
        },
        "spec": {"subdomain": subdomain, "containers": list(containers or (container(),))} | spec,
    }


def admitted(raw: dict[str, Any]) -> dict[str, Any]:
    result = copy_json(raw)
    mutate_pod(result)
    return result


def labels(raw: dict[str, Any]) -> dict[str, str]:
    return {key.removeprefix(L): value for key, value in admitted(raw)["metadata"]["labels"].items()}


def env(raw: dict[str, Any], index: int = 0, kind: str = "containers") -> list[tuple[str, str]]:
    return [(item["name"], item.get("value", "")) for item in admitted(raw)["spec"][kind][index]["env"]]


def tpu_env(raw: dict[str, Any], index: int = 0) -> dict[str, str]:
    return {name: value for name, value in env(raw, index) if name.startswith("TPU_")}


def hosts(raw: dict[str, Any], index: int = 0) -> tuple[list[str], str]:
    found = tpu_env(raw, index)
    names = found["TPU_WORKER_HOSTNAMES"].split(",")
    port = found["TPU_PROCESS_PORT"]
    assert found["TPU_PROCESS_ADDRESSES"] == ",".join(f"{name}:{port}" for name in names)
    return names, found["TPU_WORKER_ID"]


@pytest.mark.parametrize("tpus", [False, True])
def test_lws_2_3_not_leaderworkerset_pods_have_no_effect(tpus):
    raw = pod("test-1", container(resources=TPUS if tpus else {}), size=None)
    raw["metadata"]["labels"] = {"app": "other"}
    assert admitted(raw) == raw
    del raw["metadata"]["labels"], raw["metadata"]["annotations"]
    assert admitted(raw) == raw


def test_lws_2_3_worker_index_label_is_populated_for_worker_pods():
    assert labels(pod("test-1-1", labels=WORKER)) == {"name": "test", "group-index": "1", "worker-index": "1"}


def test_lws_2_3_worker_index_is_always_overwritten():
    assert labels(pod("test-1-3", labels=WORKER | {L + "worker-index": "7"}))["worker-index"] == "3"


def test_lws_2_3_group_labels_are_populated_for_leader_pods():
    assert labels(pod("test-sample", labels=LEADER | {L + "group-index": "1"})) == {
        "name": "test",
        "worker-index": "0",
        "group-index": "1",
        "group-key": "95e88034e460983f51a9952fe128729fbc0663b5",
    }
    assert labels(pod("test-1", labels=LEADER))["group-index"] == "1"


def test_lws_2_3_existing_group_labels_are_kept():
    given = LEADER | {L + "group-index": "9", L + "group-key": "mine"}
    assert labels(pod("test-1", labels=given)) == {
        "name": "test",
        "worker-index": "0",
        "group-index": "9",
        "group-key": "mine",
    }


@pytest.mark.parametrize("resources", [TPUS, {}], ids=["leader requests tpus", "leader does not"])
def test_lws_2_3_subgroup_labels_are_populated_in_leader(resources):
    raw = pod("test-1", container(resources=resources), size=4, labels=LEADER, annotations={"subgroup-size": "2"})
    found = labels(raw)
    assert found["subgroup-index"] == "0"
    assert found["subgroup-key"] == "59bac77b64b24f75ab12f1432a5d2eac2a8648c4"  # SHA-1 of test-1/0


def test_lws_2_3_leader_excluded_leaves_the_leader_without_subgroup():
    annotations = {
        "subgroup-size": "2",
        "subgroup-policy-type": "LeaderExcluded",
        "subgroup-exclusive-topology": "rack",
    }
    result = admitted(pod("test-1", size=5, labels=LEADER, annotations=annotations))
    assert L + "subgroup-index" not in result["metadata"]["labels"]
    assert "affinity" not in result["spec"]


@pytest.mark.parametrize(("size", "worker", "index"), [(4, 3, "1"), (5, 4, "1"), (5, 2, "0"), (4, 1, "0")])
def test_lws_2_3_subgroup_labels_are_populated_in_worker(size, worker, index):
    annotations = {"subgroup-size": "2", "leader-name": "test-1"}
    found = labels(pod(f"test-1-{worker}", size=size, labels=WORKER, annotations=annotations))
    assert (found["subgroup-index"], found["worker-index"]) == (index, str(worker))
    leader = labels(pod("test-1", size=size, labels=LEADER, annotations={"subgroup-size": "2"}))
    assert (found["subgroup-key"] == leader["subgroup-key"]) is (index == "0")


@pytest.mark.parametrize(
    ("size", "subgroup_size", "indices"),
    [(4, 2, [0, 0, 1, 1]), (5, 2, [None, 0, 0, 1, 1]), (3, 1, [0, 1, 2]), (10, 5, [0] * 5 + [1] * 5)],
)
def test_lws_2_3_subgroup_index_formula(size, subgroup_size, indices):
    for worker in range(1, size):
        assert subgroup_index(size, subgroup_size, worker) == indices[worker]


@given(st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_lws_2_3_subgroups_are_of_one_size_and_in_order(subgroup_size, count, leader_is_extra):
    size = subgroup_size * count + leader_is_extra
    indices = [subgroup_index(size, subgroup_size, worker) for worker in range(1, size)]
    if size % subgroup_size == 0:
        indices.insert(0, 0)  # the leader is one of the first subgroup
    assert indices == [index for index in range(len(indices) // subgroup_size) for _ in range(subgroup_size)]


REFUSED = {
    "no size annotation": (pod("test-1", size=None, labels=LEADER), "size annotation is unexpectedly missing"),
    "size is no number": (pod("test-1", size="two", labels=LEADER), "must be an integer, not 'two'"),
    "leader without ordinal": (pod("test", labels=LEADER), "parsing pod ordinal for pod test"),
    "worker without ordinal": (pod("test", labels=WORKER), "parsing pod ordinal for pod test"),
    "worker without group index": (pod("test-1-1"), "group-index of pod test-1-1 is missing"),
    "subgroup size is no number": (
        pod("test-1-1", labels=WORKER, annotations={"subgroup-size": "x"}),
        "must be an integer, not 'x'",
    ),
    "subgroup size is 0": (pod("test-1-1", labels=WORKER, annotations={"subgroup-size": "0"}), "must be at least 1"),
    "leader with tpus is excluded from the subgroups": (
        pod(
            "test-1",
            container(resources=TPUS),
            size=5,
            labels=LEADER,
            annotations={"subgroup-size": "2", "subgroup-policy-type": "LeaderExcluded"},
        ),
        "subgroup-index of pod test-1 must be an integer",
    ),
}


@pytest.mark.parametrize(("raw", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_lws_2_3_pod_is_refused(raw, message):
    with pytest.raises(Denied, match=message):
        mutate_pod(raw)


# --- TPU environment (LWS §4.2)


@pytest.mark.parametrize(
    "resources",
    [
        {},
        {"limits": {"cpu": "1"}},
        {"limits": {"google.com/tpu": "0"}},
        {"requests": {"google.com/tpu": 0}},
        {"limits": {"google.com/tpu": "0"}, "requests": {"google.com/tpu": "0"}},
    ],
)
@pytest.mark.parametrize(("name", "given"), [("test-1", LEADER), ("test-1-1", WORKER)], ids=["leader", "worker"])
def test_lws_4_2_pod_not_requesting_tpus_has_no_tpu_variables(name, given, resources):
    assert tpu_env(pod(name, container(resources=resources), labels=given)) == {}


@pytest.mark.parametrize(
    "resources",
    [
        {"limits": {"google.com/tpu": 4}},
        {"requests": {"google.com/tpu": "4"}},
        {"limits": {"google.com/tpu": "0"}, "requests": {"google.com/tpu": "4"}},
        {"limits": {"google.com/tpu": "4"}, "requests": {"google.com/tpu": "0"}},
    ],
)
def test_lws_4_2_a_limit_counts_and_where_it_is_zero_the_request(resources):
    assert hosts(pod("test-1", container(resources=resources), labels=LEADER))[1] == "0"


def test_lws_4_2_size_5_leader_pod():
    raw = pod("test-1", container(resources=TPUS), size=5, labels=LEADER)
    assert hosts(raw) == (["test-1.test", *(f"test-1-{i}.test" for i in range(1, 5))], "0")
    assert tpu_env(raw)["TPU_NAME"] == "test-1"


def test_lws_4_2_unique_per_replica_injects_the_subdomain():
    annotations = {"subdomainPolicy": "UniquePerReplica"}
    raw = pod("test-1", container(resources=TPUS), labels=LEADER, annotations=annotations)
    assert admitted(raw)["spec"]["subdomain"] == "test-1"
    assert hosts(raw)[0] == ["test-1.test-1", "test-1-1.test-1"]
    assert env(raw)[0] == ("LWS_LEADER_ADDRESS", "test-1.test-1.default")


def test_lws_4_2_subgroup_size_5_leader_pod():
    raw = pod("test-1", container(resources=TPUS), size=10, labels=LEADER, annotations={"subgroup-size": "5"})
    assert hosts(raw) == (["test-1.test", *(f"test-1-{i}.test" for i in range(1, 5))], "0")


def test_lws_4_2_worker_pod_when_the_leader_requests_tpus_too():
    raw = pod(
        "test-1-3", container(resources=TPUS), size=5, labels=WORKER, annotations={"leader-requests-tpus": "true"}
    )
    assert hosts(raw) == (["test-1.test", *(f"test-1-{i}.test" for i in range(1, 5))], "3")


@pytest.mark.parametrize(
    ("worker", "expected", "worker_id"),
    [
        (3, ["test-1.test", *(f"test-1-{i}.test" for i in range(1, 5))], "3"),
        (7, [f"test-1-{i}.test" for i in range(5, 10)], "2"),
    ],
)
def test_lws_4_2_worker_pod_with_subgroups_when_the_leader_requests_tpus_too(worker, expected, worker_id):
    annotations = {"leader-requests-tpus": "true", "subgroup-size": "5", "leader-name": "test-1"}
    raw = pod(f"test-1-{worker}", container(resources=TPUS), size=10, labels=WORKER, annotations=annotations)
    assert hosts(raw) == (expected, worker_id)


def test_lws_4_2_worker_pod_when_the_leader_requests_none():
    raw = pod("test-1-3", container(resources=TPUS), size=5, labels=WORKER)
    assert hosts(raw) == ([f"test-1-{i}.test" for i in range(1, 5)], "2")


@pytest.mark.parametrize(("worker", "first", "worker_id"), [(7, 6, "1"), (5, 1, "4"), (10, 6, "4")])
def test_lws_4_2_worker_pod_with_subgroups_when_the_leader_requests_none(worker, first, worker_id):
    annotations = {"subgroup-size": "5", "leader-name": "test-1"}
    raw = pod(f"test-1-{worker}", container(resources=TPUS), size=11, labels=WORKER, annotations=annotations)
    assert hosts(raw) == ([f"test-1-{i}.test" for i in range(first, first + 5)], worker_id)


def test_lws_4_2_size_2_worker_pod():
    annotations = {"leader-requests-tpus": "true"}
    raw = pod("test-1-1", container(resources=TPUS), labels=WORKER, annotations=annotations)
    assert hosts(raw) == (["test-1.test", "test-1-1.test"], "1")


def test_lws_4_2_size_1_leader_pod():
    assert hosts(pod("test-1", container(resources=TPUS), size=1, labels=LEADER)) == (["test-1.test"], "0")


def test_lws_4_2_only_requesting_containers_get_variables():
    raw = pod("test-1", container("a"), container("b", resources=TPUS), labels=LEADER)
    assert tpu_env(raw, 0) == {}
    assert hosts(raw, 1)[1] == "0"


def test_lws_4_2_several_requesting_containers_share_the_hosts_init_containers_last():
    raw = pod(
        "test-1-1",
        container("a", resources=TPUS),
        container("b", resources={"requests": {"google.com/tpu": 4}}, env=[{"name": "TPU_PROCESS_PORT", "value": "9"}]),
        initContainers=[container("c", resources=TPUS)],
        labels=WORKER,
        annotations={"leader-requests-tpus": "true"},
    )
    first, second = tpu_env(raw, 0), tpu_env(raw, 1)
    assert first["TPU_WORKER_HOSTNAMES"] == ",".join(["test-1.test"] * 3 + ["test-1-1.test"] * 3)
    assert first["TPU_PROCESS_ADDRESSES"] == ",".join(
        f"{host}:{port}" for host in ("test-1.test", "test-1-1.test") for port in ("8476", "9", "8478")
    )
    assert second["TPU_PROCESS_ADDRESSES"] == first["TPU_PROCESS_ADDRESSES"]
    assert (first["TPU_WORKER_ID"], second["TPU_WORKER_ID"]) == ("3", "4")
    assert (first["TPU_PROCESS_PORT"], second["TPU_PROCESS_PORT"]) == ("8476", "9")
    assert dict(env(raw, 0, "initContainers"))["TPU_WORKER_ID"] == "5"


def test_lws_4_2_variables_come_in_order_after_the_users_own():
    raw = pod("test-1", container(resources=TPUS, env=[{"name": "MINE", "value": "1"}]), labels=LEADER)
    assert [name for name, _ in env(raw)] == [
        "LWS_LEADER_ADDRESS",
        "LWS_GROUP_SIZE",
        "LWS_WORKER_INDEX",
        "MINE",
        "TPU_WORKER_HOSTNAMES",
        "TPU_WORKER_ID",
        "TPU_NAME",
        "TPU_PROCESS_ADDRESSES",
        "TPU_PROCESS_PORT",
    ]


@pytest.mark.parametrize("given", ["TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"])
@pytest.mark.parametrize("annotations", [{}, {"subgroup-size": "2"}])
def test_lws_4_2_nothing_is_injected_over_the_users_own_values(given, annotations):
    raw = pod(
        "test-1",
        container(resources=TPUS, env=[{"name": given, "value": "x"}]),
        labels=LEADER,
        annotations=annotations,
    )
    assert tpu_env(raw) == {given: "x"}


@given(st.data())
def test_lws_4_2_every_pod_finds_itself_in_the_list_that_its_group_shares(data):
    leader_takes_part = data.draw(st.booleans(), "the leader requests TPUs")
    subgroup_size = data.draw(st.none() | st.integers(1, 5), "subgroup size")
    parts = data.draw(st.integers(1, 5), "subgroups or pods")
    size = parts * (subgroup_size or 1) + (not leader_takes_part)
    wanted = data.draw(st.integers(1, 3), "containers that request TPUs")
    unique = data.draw(st.booleans(), "a service of its own for the group")
    notes = {} if subgroup_size is None else {"subgroup-size": str(subgroup_size)}
    found: dict[str, set[str]] = {}
    for number in range(0 if leader_takes_part else 1, size):
        name = "test-1" if number == 0 else f"test-1-{number}"
        raw = pod(
            name,
            *(container(f"c{i}", resources=TPUS) for i in range(wanted)),
            size=size,
            labels=LEADER if number == 0 else WORKER,
            annotations=notes
            | ({"leader-name": "test-1", "leader-requests-tpus": str(leader_takes_part).lower()} if number else {})
            | ({"subdomainPolicy": "UniquePerReplica"} if unique and not number else {}),
            subdomain="test-1" if unique else "test",
        )
        told = [tpu_env(raw, i) for i in range(wanted)]
        assert all(told) if subgroup_size is None else not any(told[1:])
        for variables in filter(None, told):
            place, names = int(variables["TPU_WORKER_ID"]), variables["TPU_WORKER_HOSTNAMES"].split(",")
            assert names[place] == f"{name}.{'test-1' if unique else 'test'}"
            port = variables["TPU_PROCESS_PORT"]
            assert variables["TPU_PROCESS_ADDRESSES"].split(",")[place] == f"{names[place]}:{port}"
            found.setdefault(variables["TPU_WORKER_HOSTNAMES"], set()).add(names[place])
    hosts_of_all = size - (not leader_takes_part)
    assert sorted(map(len, found.values())) == ([hosts_of_all] if subgroup_size is None else [subgroup_size] * parts)
    assert all(set(names.split(",")) == themselves for names, themselves in found.items())


# --- Exclusive placement (LWS §2.3)


def terms(raw: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    affinity = admitted(raw)["spec"].get("affinity", {})
    return affinity.get("podAffinity", {}).get(REQUIRED, []), affinity.get("podAntiAffinity", {}).get(REQUIRED, [])


def pair(topology: str, label: str, value: str) -> tuple[dict[str, Any], dict[str, Any]]:
    inside = {"key": L + label, "operator": "In", "values": [value]}
    outside = [{"key": L + label, "operator": "Exists"}, {"key": L + label, "operator": "NotIn", "values": [value]}]
    return (
        {"labelSelector": {"matchExpressions": [inside]}, "topologyKey": topology},
        {"labelSelector": {"matchExpressions": outside}, "topologyKey": topology},
    )


def test_lws_2_3_leader_pod_with_exclusive_placement_has_both_terms():
    raw = pod("test-1", labels=LEADER, annotations={"exclusive-topology": "rack"})
    inside, outside = pair("rack", "group-key", labels(raw)["group-key"])
    assert terms(raw) == ([inside], [outside])


def test_lws_2_3_leader_pod_with_exclusive_placement_of_group_and_subgroup_has_two_pairs():
    annotations = {"exclusive-topology": "block", "subgroup-exclusive-topology": "rack", "subgroup-size": "2"}
    raw = pod("test-1", size=4, labels=LEADER, annotations=annotations)
    group = pair("block", "group-key", labels(raw)["group-key"])
    subgroup = pair("rack", "subgroup-key", labels(raw)["subgroup-key"])
    assert terms(raw) == ([group[0], subgroup[0]], [group[1], subgroup[1]])


def test_lws_2_3_worker_pod_gets_only_the_subgroup_pair():
    annotations = {"exclusive-topology": "block", "subgroup-exclusive-topology": "rack", "subgroup-size": "2"}
    raw = pod("test-1-3", size=4, labels=WORKER, annotations=annotations | {"leader-name": "test-1"})
    inside, outside = pair("rack", "subgroup-key", labels(raw)["subgroup-key"])
    assert terms(raw) == ([inside], [outside])


def test_lws_2_3_leader_pod_without_exclusive_placement_has_no_terms():
    assert terms(pod("test-1", labels=LEADER)) == ([], [])


def test_lws_2_3_exclusive_terms_are_not_applied_again():
    once = admitted(pod("test-1", labels=LEADER, annotations={"exclusive-topology": "rack"}))
    assert admitted(once)["spec"] == once["spec"]


MINE = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "rack"}


@pytest.mark.parametrize(
    ("affinity", "added"),
    [
        ({"podAffinity": {REQUIRED: [MINE]}, "podAntiAffinity": {REQUIRED: [MINE]}}, False),
        ({"podAffinity": {REQUIRED: [MINE]}}, True),
        ({"podAntiAffinity": {REQUIRED: [MINE]}}, True),
        ({"podAffinity": {REQUIRED: [MINE]}, "podAntiAffinity": {REQUIRED: [MINE | {"topologyKey": "zone"}]}}, True),
        ({"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": MINE}]}, "podAntiAffinity": {}}, True),
        ({"podAffinity": None, "podAntiAffinity": None}, True),
        ({}, True),
    ],
)
def test_lws_2_3_terms_are_added_unless_required_ones_of_both_sorts_name_the_topology(affinity, added):
    raw = pod("test-1", labels=LEADER, annotations={"exclusive-topology": "rack"}, affinity=affinity)
    pairs = pair("rack", "group-key", labels(raw)["group-key"])
    for kind, found, own in zip(("podAffinity", "podAntiAffinity"), terms(raw), pairs, strict=True):
        before = (affinity.get(kind) or {}).get(REQUIRED, [])
        assert found == [*before, *([own] if added else [])]


@pytest.mark.parametrize("policy", ["Shared", ""])
def test_lws_2_3_only_unique_per_replica_changes_the_subdomain(policy):
    raw = pod("test-1", labels=LEADER, annotations={"subdomainPolicy": policy})
    assert admitted(raw)["spec"]["subdomain"] == "test"
    worker = pod("test-1-1", labels=WORKER, annotations={"subdomainPolicy": "UniquePerReplica"})
    assert admitted(worker)["spec"]["subdomain"] == "test"


def test_lws_15_22_equal_topologies_skip_the_subgroup_terms():
    annotations = {"exclusive-topology": "rack", "subgroup-exclusive-topology": "rack", "subgroup-size": "2"}
    raw = pod("test-1", size=4, labels=LEADER, annotations=annotations)
    assert [len(found) for found in terms(raw)] == [1, 1]


def test_lws_2_3_other_affinity_terms_stay_and_come_first():
    mine = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "zone"}
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    affinity = {"nodeAffinity": node, "podAffinity": {REQUIRED: [mine]}, "podAntiAffinity": {REQUIRED: [mine]}}
    raw = pod("test-1", labels=LEADER, annotations={"exclusive-topology": "rack"}, affinity=affinity)
    inside, outside = pair("rack", "group-key", labels(raw)["group-key"])
    assert terms(raw) == ([mine, inside], [mine, outside])
    assert admitted(raw)["spec"]["affinity"]["nodeAffinity"] == node


# --- The set's variables (LWS §4.1)


def test_lws_4_1_variables_come_first_in_every_container():
    raw = pod("test-1", container(env=[{"name": "A", "value": "$(LWS_LEADER_ADDRESS)"}]), labels=LEADER)
    raw["spec"]["initContainers"] = [container("init")]
    ours = [("LWS_LEADER_ADDRESS", "test-1.test.default"), ("LWS_GROUP_SIZE", "2"), ("LWS_WORKER_INDEX", "0")]
    assert env(raw) == [*ours, ("A", "$(LWS_LEADER_ADDRESS)")]
    assert env(raw, kind="initContainers") == ours


def test_lws_4_1_a_name_given_twice_keeps_its_first_value_and_ours_win():
    given = [("A", "1"), ("LWS_GROUP_SIZE", "9"), ("A", "2"), ("B", "3")]
    raw = pod("test-1-1", container(env=[{"name": name, "value": value} for name, value in given]), labels=WORKER)
    assert env(raw) == [
        ("LWS_LEADER_ADDRESS", "test-1.test.default"),
        ("LWS_GROUP_SIZE", "2"),
        ("LWS_WORKER_INDEX", "1"),
        ("A", "1"),
        ("B", "3"),
    ]


def test_lws_4_1_ephemeral_containers_are_left_alone():
    raw = pod("test-1", labels=LEADER, ephemeralContainers=[container("debug")])
    assert admitted(raw)["spec"]["ephemeralContainers"] == [container("debug")]


async def test_lws_2_3_served_webhook_answers_with_a_patch_or_the_reason():
    server = WebhookServer()
    register(server)
    raw = pod("test-1-1", labels=WORKER)
    answer = await server.call("/mutate--v1-pod", admission_review(raw))
    assert apply_patch(answer, raw) == admitted(raw)
    refused = await server.call("/mutate--v1-pod", admission_review(pod("test-1-1", size=None, labels=WORKER)))
    assert refused["response"]["status"]["code"] == 403
    assert "size annotation is unexpectedly missing for pod test-1-1" in refused["response"]["status"]["message"]
    assert (await server.call("/validate--v1-pod", admission_review(raw)))["response"]["allowed"] is True


# --- What is copied


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """Pods of a set as they may come, with whatever decides what is done to them."""
    leader = draw(st.booleans())
    terms = {REQUIRED: [{"topologyKey": draw(st.sampled_from(["rack", "zone"]))}]}
    optional = {
        "exclusive-topology": st.just("rack"),
        "subgroup-exclusive-topology": st.sampled_from(["rack", "zone"]),
        "subgroup-size": st.sampled_from(["1", "2"]),
        "subgroup-policy-type": st.sampled_from(["LeaderWorker", "LeaderExcluded"]),
        "subdomainPolicy": st.just("UniquePerReplica"),
        "leader-requests-tpus": st.just("true"),
        "leader-name": st.just("test-1"),
    }
    variables = st.lists(st.sampled_from(["A", "LWS_GROUP_SIZE", "TPU_PROCESS_PORT", "TPU_WORKER_ID"]), max_size=3)
    made = [
        container(
            f"c{number}",
            resources=draw(st.sampled_from([{}, TPUS])),
            **draw(st.sampled_from([{}, {"env": [{"name": name, "value": "1"} for name in draw(variables)]}])),
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    affinity = draw(
        st.sampled_from([None, {}, {"podAffinity": terms}, {"podAffinity": terms, "podAntiAffinity": terms}])
    )
    return pod(
        "test-1" if leader else "test-1-2",
        *made[:2],
        size=draw(st.sampled_from([3, 4])),
        labels=LEADER if leader else WORKER,
        annotations=draw(st.fixed_dictionaries({}, optional=optional)),
        **({} if affinity is None else {"affinity": affinity}),
        **({"initContainers": made[2:]} if len(made) > 2 else {}),
    )


@given(pods())
def test_lws_2_3_the_patch_is_the_same_bytes_whether_all_of_a_pod_is_copied_or_what_changes(raw):
    before, whole, draft = orjson.dumps(raw), copy_json(raw), draft_of(raw)
    assert refusal(draft) == refusal(whole)
    assert orjson.dumps(raw) == before
    if refusal(copy_json(raw)) is None:
        assert orjson.dumps(json_patch(raw, draft)) == orjson.dumps(json_patch(copy_json(raw), whole))


def refusal(raw: dict[str, Any]) -> str | None:
    """Have a pod changed; say why not."""
    try:
        mutate_pod(raw)
    except Denied as error:
        return error.message
    return None
