"""What pods and groups request (LWS §9), against a model that plays a pod's life step by step."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.api import quantity
from pyreconcile_controllers.leaderworkerset.pod_requests import group_requests, pod_requests


def container(*, always=False, limits=None, **requests):
    made = {"name": "c", "image": "i", "resources": {"requests": requests}}
    if limits:
        made["resources"]["limits"] = limits
    if always:
        made["restartPolicy"] = "Always"
    return made


def test_lws_9_containers_add_up():
    spec = {"containers": [container(cpu="500m", memory="1Gi"), container(cpu=1, memory="512Mi")]}
    assert pod_requests(spec) == {"cpu": "1500m", "memory": "1536Mi"}
    assert pod_requests({"containers": []}) == {}
    assert pod_requests({}) == {}


def test_lws_9_init_containers_run_one_after_the_other_before_the_containers():
    spec = {"containers": [container(cpu=1)], "initContainers": [container(cpu=3), container(cpu=2, memory="1Gi")]}
    assert pod_requests(spec) == {"cpu": "3", "memory": "1Gi"}


def test_lws_9_sidecars_run_beside_all_that_follows():
    spec = {"containers": [container(cpu=1)], "initContainers": [container(always=True, cpu=2), container(cpu=3)]}
    assert pod_requests(spec) == {"cpu": "5"}
    spec["initContainers"].reverse()
    assert pod_requests(spec) == {"cpu": "3"}


def test_lws_9_overhead_comes_on_top():
    spec = {"containers": [container(cpu=1)], "overhead": {"cpu": "250m", "memory": "120Mi"}}
    assert pod_requests(spec) == {"cpu": "1250m", "memory": "120Mi"}


def test_lws_9_a_limit_stands_in_for_a_missing_request():
    spec = {"containers": [container(limits={"cpu": "2", "nvidia.com/gpu": "8"}, cpu="1")]}
    assert pod_requests(spec) == {"cpu": "1", "nvidia.com/gpu": "8"}


def test_lws_9_what_the_pod_asks_for_as_a_whole_replaces_the_sum():
    spec = {
        "containers": [container(cpu=1, **{"nvidia.com/gpu": "1"})],
        "resources": {
            "requests": {"cpu": "4", "nvidia.com/gpu": "9"},
            "limits": {"memory": "8Gi", "hugepages-2Mi": "4Mi"},
        },
        "overhead": {"cpu": "1"},
    }
    wanted = {"cpu": "5", "memory": "8Gi", "hugepages-2Mi": "4Mi", "nvidia.com/gpu": "1"}
    assert pod_requests(spec) == wanted
    # The limit of the pod is no request where its containers have some.
    spec["containers"][0]["resources"]["requests"]["memory"] = "1Gi"
    assert pod_requests(spec)["memory"] == "1Gi"


def test_lws_9_a_group_requests_its_leader_and_its_workers():
    leader = {"containers": [container(cpu="100m", memory="64Mi")]}
    worker = {"containers": [container(cpu=2, **{"nvidia.com/gpu": "4"})]}
    assert group_requests(leader, worker, 3) == {"cpu": "6100m", "memory": "64Mi", "nvidia.com/gpu": "12"}
    assert group_requests(leader, worker, 0) == {"cpu": "100m", "memory": "64Mi", "nvidia.com/gpu": "0"}


def test_lws_9_an_amount_that_is_none_is_an_error():
    with pytest.raises(ValueError, match="lots"):
        pod_requests({"containers": [container(cpu="lots")]})


def lived(spec):
    """The most that runs at any moment of a pod's life: the definition, not the formula."""
    moments, beside = [], Decimal(0)
    for init in spec["initContainers"]:
        amount = quantity.parse(init["resources"]["requests"]["cpu"])
        moments.append(beside + amount)
        if init.get("restartPolicy") == "Always":
            beside += amount
    moments.append(beside + sum(quantity.parse(c["resources"]["requests"]["cpu"]) for c in spec["containers"]))
    return max(moments)


AMOUNTS = st.integers(0, 5000).map(lambda milli: f"{milli}m")


@given(
    st.lists(AMOUNTS, max_size=4),
    st.lists(st.tuples(AMOUNTS, st.booleans()), max_size=4),
)
def test_lws_9_requests_are_the_most_that_runs_at_once(containers, inits):
    spec = {
        "containers": [container(cpu=amount) for amount in containers],
        "initContainers": [container(cpu=amount, always=always) for amount, always in inits],
    }
    assert quantity.parse(pod_requests(spec).get("cpu", "0")) == lived(spec)
