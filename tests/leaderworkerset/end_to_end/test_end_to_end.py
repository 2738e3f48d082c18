"""Sets on a whole cluster, with StatefulSet controller, garbage collection and scheduler: the cases of LWS §13.4.

Gang scheduling, the hand-over between controllers and the metrics of a manager in a pod have tests of their own.
"""

from typing import Any

import pytest

pytestmark = [pytest.mark.plane, pytest.mark.asyncio(loop_scope="module")]

L = "leaderworkerset.sigs.k8s.io/"
TPUS = {"resources": {"limits": {"google.com/tpu": "4"}, "requests": {"google.com/tpu": "4"}}}
CASES = {}


def case(name):
    def add(function):
        CASES[name] = function
        return function

    return add


def pod_template(image="busybox:1", *, name="c", **fields):
    return {"spec": {"containers": [{"name": name, "image": image, **fields}]}}


def rolling(unavailable: Any = 1, surge: Any = 0):
    return {"rolloutStrategy": {"rollingUpdateConfiguration": {"maxUnavailable": unavailable, "maxSurge": surge}}}


def new_image(image="busybox:2"):
    return {"leaderWorkerTemplate": {"workerTemplate": pod_template(image)}}


def uids(pods):
    return {pod["metadata"]["uid"] for pod in pods.values()}


def env(pod, container=0):
    return {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][container].get("env", ())}


def tpus(pod, container=0):
    return {name: value for name, value in env(pod, container).items() if name.startswith("TPU_")}


async def update(at, groups, size, **change):
    """Change a set that is available, and wait until every pod is another and all are available again."""
    old, before = uids(at.pods), at.key
    await at.patch(**change)
    pods = await at.available(groups, size, after=before)
    assert not old & uids(pods)
    return pods


@case("replicas, size and restart policy are what was asked for")
async def _(at):
    await at.create(replicas=4, size=5, template={"restartPolicy": "None"})
    pods = await at.available(4, 5)
    assert len(pods) == 20
    assert len(at.worker_sets) + 1 == 5
    assert at.set["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "None"
    for name, pod in pods.items():
        assert pod["metadata"]["annotations"][L + "size"] == "5"
        group, worker = [*name.split("-"), "0"][1:3]
        labels = pod["metadata"]["labels"]
        assert (labels[L + "group-index"], labels[L + "worker-index"]) == (group, worker)


@case("groups of one pod are made and updated")
async def _(at):
    await at.create(replicas=4, size=1, **rolling(surge=1))
    await at.available(4, 1)
    await update(at, 4, 1, **new_image())
    assert at.view.replicas[at.name][:2] == [4, 5]
    assert at.view.replicas[at.name][-1] == 4
    assert not at.worker_sets


@case("deletion in the foreground leaves nothing")
async def _(at):
    await at.create(replicas=2, size=2)
    await at.available(2, 2)
    await at.delete(propagation="Foreground")
    kinds = ("pod", "statefulset", "service")
    await at.until(
        lambda: at.set is None and not any(at.view.of(at.name, kind) for kind in kinds), "everything is gone"
    )


@case("a rolling update reaches every group")
async def _(at):
    await at.create(replicas=4, size=2)
    await at.available(4, 2)
    pods = await update(at, 4, 2, **new_image())
    assert {pod["spec"]["containers"][0]["image"] for pod in pods.values()} == {"busybox:2"}
    assert at.view.replicas[at.name] == [4]


@case("maxSurge makes as many groups more as are unavailable beyond the limit")
async def _(at):
    await at.create(replicas=4, size=2, **rolling(surge=4))
    await at.available(4, 2)
    await update(at, 4, 2, **new_image())
    assert max(at.view.replicas[at.name]) == 7
    assert at.view.replicas[at.name][:2] == [4, 7]
    assert at.view.replicas[at.name][-1] == 4


@case("maxUnavailable 0 with maxSurge keeps all groups until new ones are there")
async def _(at):
    await at.create(replicas=4, size=2, **rolling(unavailable=0, surge=1))
    await at.available(4, 2)
    await update(at, 4, 2, **new_image())
    assert at.view.replicas[at.name] == [4, 5, 4]


@case("an update replaces groups that were never ready")
async def _(at):
    held = pod_template("broken")
    held["spec"]["schedulingGates"] = [{"name": "test/hold"}]
    await at.create(replicas=4, size=1, pod=held, **rolling(unavailable=0, surge=1))
    await at.pods_there(4, 1)
    before = at.key
    good = pod_template("good")
    good["spec"]["schedulingGates"] = None
    await at.patch(leaderWorkerTemplate={"workerTemplate": good})
    pods = await at.available(4, 1, after=before)
    assert {pod["spec"]["containers"][0]["image"] for pod in pods.values()} == {"good"}


@case("subgroups are named, and their pods find each other")
async def _(at):
    await at.create(replicas=2, size=4, pod=pod_template(**TPUS), template={"subGroupPolicy": {"subGroupSize": 2}})
    pods = await at.pods_there(2, 4)
    for name, pod in pods.items():
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        leader, worker = "-".join(name.split("-")[:2]), int(labels[L + "worker-index"])
        assert labels[L + "subgroup-index"] == str(worker // 2)
        assert annotations[L + "subgroup-size"] == "2"
        assert annotations[L + "subgroup-policy-type"] == "LeaderWorker"
        names = [leader, f"{leader}-1"] if worker < 2 else [f"{leader}-2", f"{leader}-3"]
        assert tpus(pod)["TPU_WORKER_HOSTNAMES"] == ",".join(f"{host}.{at.name}" for host in names)
        assert tpus(pod)["TPU_WORKER_ID"] == str(worker % 2)
    keys = {pod["metadata"]["labels"][L + "subgroup-key"] for pod in pods.values()}
    assert len(keys) == 4


@case("a set with subgroups is updated with maxSurge")
async def _(at):
    policy = {"subGroupPolicy": {"subGroupSize": 2, "subGroupPolicyType": "LeaderWorker"}}
    await at.create(replicas=4, size=4, template=policy, **rolling(surge=4))
    await at.available(4, 4)
    pods = await update(at, 4, 4, **new_image())
    assert at.view.replicas[at.name][:2] == [4, 7]
    assert at.view.replicas[at.name][-1] == 4
    assert all(pod["metadata"]["annotations"][L + "subgroup-size"] == "2" for pod in pods.values())


@case("pods that use TPUs are told their hosts")
async def _(at):
    await at.create(replicas=2, size=2, pod=pod_template(**TPUS))
    for name, pod in (await at.pods_there(2, 2)).items():
        leader, number = "-".join(name.split("-")[:2]), pod["metadata"]["labels"][L + "worker-index"]
        hosts = [f"{leader}.{at.name}", f"{leader}-1.{at.name}"]
        assert tpus(pod) == {
            "TPU_WORKER_HOSTNAMES": ",".join(hosts),
            "TPU_WORKER_ID": number,
            "TPU_NAME": leader,
            "TPU_PROCESS_ADDRESSES": ",".join(f"{host}:8476" for host in hosts),
            "TPU_PROCESS_PORT": "8476",
        }


@case("each container that uses TPUs is a host of its own")
async def _(at):
    two = {"spec": {"containers": [{"name": name, "image": "busybox:1", **TPUS} for name in ("a", "b")]}}
    await at.create(replicas=1, size=2, pod=two)
    for name, pod in (await at.pods_there(1, 2)).items():
        leader, worker = "-".join(name.split("-")[:2]), int(pod["metadata"]["labels"][L + "worker-index"])
        hosts = [f"{host}.{at.name}" for host in (leader, leader, f"{leader}-1", f"{leader}-1")]
        ports = [8476, 8477] * 2
        for number in (0, 1):
            assert tpus(pod, number) == {
                "TPU_WORKER_HOSTNAMES": ",".join(hosts),
                "TPU_WORKER_ID": str(2 * worker + number),
                "TPU_NAME": leader,
                "TPU_PROCESS_ADDRESSES": ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)),
                "TPU_PROCESS_PORT": str(8476 + number),
            }


@case("another size makes all groups anew in that size")
async def _(at):
    await at.create(replicas=2, size=2)
    await at.available(2, 2)
    pods = await update(at, 2, 3, leaderWorkerTemplate={"size": 3})
    assert {pod["metadata"]["annotations"][L + "size"] for pod in pods.values()} == {"3"}
    assert {env(pod)["LWS_GROUP_SIZE"] for pod in pods.values()} == {"3"}


@case("another subdomain policy reaches the addresses in the pods, and back")
async def _(at):
    await at.create(replicas=1, size=2)
    await at.available(1, 2)
    for policy, domain in (("UniquePerReplica", f"{at.name}-0"), ("Shared", at.name)):
        pods = await update(at, 1, 2, networkConfig={"subdomainPolicy": policy})
        wanted = f"{at.name}-0.{domain}.{at.namespace}"
        assert {env(pod)["LWS_LEADER_ADDRESS"] for pod in pods.values()} == {wanted}
        assert {pod["spec"]["subdomain"] for pod in pods.values()} == {domain}
        await at.until(lambda domain=domain: domain in at.services, f"the service {domain}")


@case("another subdomain policy reaches the hosts of pods that use TPUs, and back")
async def _(at):
    await at.create(replicas=1, size=2, pod=pod_template(**TPUS))  # they stay pending, and are updated all the same
    await at.pods_there(1, 2)
    for policy, domain in (("UniquePerReplica", f"{at.name}-0"), ("Shared", at.name)):
        await at.patch(networkConfig={"subdomainPolicy": policy})
        pods = await at.pods_there(1, 2, lambda pod, domain=domain: pod["spec"]["subdomain"] == domain)
        hosts = f"{at.name}-0.{domain},{at.name}-0-1.{domain}"
        assert {tpus(pod)["TPU_WORKER_HOSTNAMES"] for pod in pods.values()} == {hosts}


@case("each surge group has its service")
async def _(at):
    await at.create(replicas=4, size=2, networkConfig={"subdomainPolicy": "UniquePerReplica"}, **rolling(surge=4))
    await at.available(4, 2)
    await at.until(lambda: len(at.services) == 4, "four services")
    await update(at, 4, 2, **new_image())
    await at.until(lambda: at.services.keys() == at.names(4, 1), "the services of the four groups that stay")
    assert max(at.view.services[at.name]) == 7


@case("pods that use no TPUs are told nothing of them")
async def _(at):
    await at.create(replicas=1, size=2)
    pods = await at.available(1, 2)
    assert [tpus(pod) for pod in pods.values()] == [{}, {}]


@case("a container that restarts takes its group along, and no other")
async def _(at):
    await at.create(replicas=2, size=3, template={"restartPolicy": "RecreateGroupOnPodRestart"})
    old = await at.available(2, 3)
    (status,) = old[f"{at.name}-0-1"]["status"]["containerStatuses"]
    restarted = {"status": {"containerStatuses": [{**status, "restartCount": 1}]}}
    await at.patch_pod(f"{at.name}-0-1", restarted, subresource="status")
    lost = {name for name in old if name.startswith(f"{at.name}-0")}
    await at.until(
        lambda: all(uid not in uids(at.pods) for uid in uids({name: old[name] for name in lost})), "the group is gone"
    )
    new = await at.available(2, 3)
    same = {name for name in old if old[name]["metadata"]["uid"] == new[name]["metadata"]["uid"]}
    assert same == old.keys() - lost


@pytest.mark.parametrize("case", CASES)
async def test_lws_13_4(outcomes, case):
    await outcomes.of(case)
