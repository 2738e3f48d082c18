"""Groups on nodes that are lost: what is removed, when, and for whom (docs/node-loss.md)."""

from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import pytest_asyncio

from pyreconcile.api import unstructured
from pyreconcile.api.core_v1 import Node, Pod
from pyreconcile.client import MergePatch, NotFoundError
from pyreconcile.controller import CreateEvent, DeleteEvent, Request, UpdateEvent
from pyreconcile.testing import ControlPlane
from pyreconcile_controllers.leaderworkerset import node_loss
from pyreconcile_controllers.leaderworkerset.node_loss import AskingSets, HangingPods, NodeEvents
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

L = "leaderworkerset.sigs.k8s.io/"
Lease = unstructured("coordination.k8s.io/v1", "Lease")
HOSTNAME = "kubernetes.io/hostname"
FORCED = {node_loss.ANNOTATION: node_loss.FORCE}
OUT_OF_SERVICE = {"key": node_loss.OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}


# -- rules ---------------------------------------------------------------------------------------------------------


def make_node(*, ready="True", taints=()):
    conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": "n"}, "spec": {"taints": list(taints)}, "status": {"conditions": conditions}}


def make_pod(*, terminating=False, grace=30, node="n", of="demo"):
    metadata = {"name": "demo-0-1", "namespace": "ns", "uid": "u", "resourceVersion": "1", "labels": {L + "name": of}}
    if terminating:
        metadata |= {"deletionTimestamp": "2026-01-02T03:04:05Z", "deletionGracePeriodSeconds": grace}
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}}


UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("pod", "node", "expected"),
    [
        (make_pod(), None, True),
        (make_pod(terminating=True), None, True),
        (make_pod(terminating=True, grace=0), None, False),
        (make_pod(terminating=True), make_node(ready="Unknown", taints=[UNREACHABLE, OUT_OF_SERVICE]), True),
        (make_pod(terminating=True), make_node(ready="False", taints=[OUT_OF_SERVICE]), True),
        (make_pod(terminating=True), make_node(ready=None, taints=[OUT_OF_SERVICE]), True),
        (make_pod(terminating=True, grace=0), make_node(ready="Unknown", taints=[OUT_OF_SERVICE]), False),
        (make_pod(), make_node(ready="Unknown", taints=[OUT_OF_SERVICE]), False),
        (make_pod(terminating=True), make_node(ready="Unknown", taints=[UNREACHABLE]), False),
        (make_pod(terminating=True), make_node(taints=[OUT_OF_SERVICE]), False),
        (make_pod(terminating=True), make_node(), False),
    ],
)
def test_lws_node_loss_which_pods_may_be_removed(pod, node, expected):
    assert node_loss.removable(pod, node) is expected


@pytest.mark.parametrize(
    ("text", "wrong"), [(None, False), ("Force", False), ("Wait", False), ("", True), ("yes", True)]
)
def test_lws_node_loss_values_of_the_annotation(text, wrong):
    assert (node_loss.problem({} if text is None else {node_loss.ANNOTATION: text}) is not None) == wrong


class Added(list):
    """A queue that keeps what is added."""

    def add(self, key, *, priority=0):
        self.append(key)


def make_set(name, policy=None):
    annotations = {} if policy is None else {node_loss.ANNOTATION: policy}
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": "1", "annotations": annotations}}


def test_lws_node_loss_sets_that_ask_are_known_from_their_events():
    asking, queue = AskingSets(), Added()
    asking.create(CreateEvent(make_set("a"), LeaderWorkerSet), queue)
    asking.create(CreateEvent(make_set("b", "Wait"), LeaderWorkerSet), queue)
    assert queue == []
    assert not asking.some.is_set()
    asking.update(UpdateEvent(make_set("a"), make_set("a", "Force"), LeaderWorkerSet), queue)
    asking.update(UpdateEvent(make_set("a", "Force"), make_set("a", "Force"), LeaderWorkerSet), queue)
    assert queue == [Request("ns", "a")]
    assert asking.some.is_set()
    asking.create(CreateEvent(make_set("b", "Force"), LeaderWorkerSet), queue)
    assert asking.requests() == [Request("ns", "a"), Request("ns", "b")]
    asking.update(UpdateEvent(make_set("a", "Force"), make_set("a"), LeaderWorkerSet), queue)
    asking.delete(DeleteEvent(make_set("b", "Force"), LeaderWorkerSet), queue)
    assert asking.requests() == []


def test_lws_node_loss_hanging_pods_and_lost_nodes_wake_sets_that_ask():
    asking, queue = AskingSets(), Added()
    pods, nodes = HangingPods(asking), NodeEvents(asking)
    hanging, lost = make_pod(terminating=True), make_node(ready="Unknown")
    pods.update(UpdateEvent(hanging, hanging, Pod), queue)
    nodes.update(UpdateEvent(lost, lost, Node), queue)
    assert queue == []
    asking.create(CreateEvent(make_set("demo", "Force"), LeaderWorkerSet), Added())
    for event in (make_pod(), make_pod(terminating=True, node=""), make_pod(terminating=True, of="other")):
        pods.create(CreateEvent(event, Pod), queue)
    nodes.create(CreateEvent(make_node(), Node), queue)
    assert queue == []
    pods.create(CreateEvent(hanging, Pod), queue)
    nodes.create(CreateEvent(lost, Node), queue)
    nodes.delete(DeleteEvent(make_node(), Node), queue)
    assert queue == [Request("ns", "demo")] * 3


class World:
    """Stands for cache, client and recorder of a reconciler."""

    def __init__(self, policy="Force"):
        self.set = make_set("demo", policy)
        self.pods = [make_pod(terminating=True)]
        self.node = make_node(ready="Unknown", taints=[UNREACHABLE])
        self.live_node = None
        self.now = 100.0
        self.removed = []
        self.notes = []
        self.live = SimpleNamespace(find_raw=self.find_live)
        self.reconciler = node_loss.NodeLossReconciler(self, time=lambda: self.now)
        self.reconciler.bind(client=self, cache=self, recorder=self, name="node-loss")

    def with_options(self, **_):
        return self

    def event(self, _obj, _type, _reason, note, **_):
        self.notes.append(note)

    async def find_raw(self, kind, _key):
        return self.set if kind is LeaderWorkerSet else self.node

    async def find_live(self, _kind, _key):
        return self.live_node

    async def list_raw(self, _kind, **_):
        return self.pods

    async def delete(self, _kind, key, *, grace_period_seconds, uid, missing_ok):
        assert (grace_period_seconds, uid, missing_ok) == (0, "u", True)
        self.removed.append(key)

    async def look(self):
        """Reconcile once; return when to look again."""
        result = await self.reconciler.reconcile(Request("ns", "demo"))
        return result.requeue_after if result else 0.0


async def test_lws_node_loss_pods_are_removed_once_the_taint_has_settled():
    world = World()
    assert await world.look() == 0
    assert [note.startswith("Pod demo-0-1 cannot end on node n, which is not ready") for note in world.notes] == [True]
    world.node = world.live_node = make_node(ready="Unknown", taints=[UNREACHABLE, OUT_OF_SERVICE])
    assert await world.look() == node_loss.SETTLE
    world.now += 1.5
    assert await world.look() == node_loss.SETTLE - 1.5
    assert world.removed == []
    world.now += 0.5
    assert await world.look() == 0
    assert world.removed == ["ns/demo-0-1"]
    assert world.notes[1:] == ["Removed pod demo-0-1: its node n is out of service"]


async def test_lws_node_loss_leaders_go_after_the_workers_of_all_nodes():
    world = World()
    world.node = None
    world.pods = []
    for name, index in (("demo-0", "0"), ("demo-0-1", "1"), ("demo-1", "0"), ("demo-1-2", "2")):
        pod = make_pod(node=f"node of {name}")
        pod["metadata"] |= {"name": name, "labels": {L + "name": "demo", L + "worker-index": index}}
        world.pods.append(pod)
    await world.look()
    assert world.removed == ["ns/demo-0-1", "ns/demo-1-2", "ns/demo-0", "ns/demo-1"]


async def test_lws_node_loss_a_taint_that_was_taken_back_has_to_settle_anew():
    world = World()
    tainted = make_node(ready="Unknown", taints=[OUT_OF_SERVICE])
    for node, wait in ((tainted, node_loss.SETTLE), (make_node(), 0), (tainted, node_loss.SETTLE)):
        world.node = world.live_node = node
        assert await world.look() == wait
        world.now += 10
    assert world.removed == []


async def test_lws_node_loss_what_the_cache_says_of_a_node_is_not_believed():
    world = World()
    world.node, world.live_node = None, make_node()
    assert await world.look() == 0
    assert world.removed == []
    world.live_node = None
    await world.look()
    assert world.removed == ["ns/demo-0-1"]
    assert world.notes == ["Removed pod demo-0-1: its node n is gone"]


@pytest.mark.parametrize("policy", [None, "Wait"])
async def test_lws_node_loss_sets_that_do_not_ask_are_left_alone(policy):
    world = World(policy)
    world.node = None
    assert await world.look() == 0
    world.set = None
    assert await world.look() == 0
    assert (world.removed, world.notes) == ([], [])


async def test_lws_node_loss_pods_that_are_nowhere_yet_are_left_alone():
    world = World()
    world.pods, world.node = [make_pod(terminating=True, node="")], None
    assert await world.look() == 0
    assert world.removed == []


# -- on the control plane ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def control_plane(_control_plane_portal):
    # Of its own: how fast pods are evicted from a lost node depends on the state of all nodes.
    # A node is lost when a test says so, and not when it has taken so long that a heartbeat would be due.
    patient = {"kube-controller-manager": ("--node-monitor-grace-period=1h",)}
    plane = ControlPlane(nodes=1, controller_manager=True, scheduler=True, extra_args=patient, use_existing=False)
    with _control_plane_portal.wrap_async_context_manager(plane):
        yield plane


class Machines:
    """Nodes of a test's own, whose state kwok leaves alone as somebody else holds their leases.

    It may start pods there all the same, but is told not to end them: that is for the test.
    """

    def __init__(self, client, namespace):
        self.client = client
        self.namespace = namespace
        self.names = [f"{namespace}-{number}" for number in range(3)]
        self.lost = set()

    async def add(self):
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        for name in self.names:
            spec = {"holderIdentity": "nobody", "leaseDurationSeconds": 3600, "renewTime": now}
            lease = {"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": spec}
            await self.client.create(Lease.from_dict(lease))
            labels = {HOSTNAME: name, "test": self.namespace}
            await self.client.create(Node.from_dict({"metadata": {"name": name, "labels": labels}}))
            await self._report(name, "True")

    async def _report(self, name, ready):
        room = {"cpu": "64", "memory": "64Gi", "pods": "100"}
        conditions = [{"type": "Ready", "status": ready, "reason": "Test", "message": ""}]
        status = {"conditions": conditions, "capacity": room, "allocatable": room}
        await self.client.patch(Node, name, MergePatch({"status": status}), subresource="status")

    async def remove(self):
        for name in self.names:
            await self.client.delete(Node, name, missing_ok=True)
            await self.client.delete(Lease, f"kube-node-lease/{name}", missing_ok=True)

    async def work(self):
        """Do what the kubelets of the nodes that are not lost do: start pods, and end those that are deleted."""
        for pod in await self.client.list(Pod, namespace=self.namespace):
            if not pod.spec.node_name or pod.spec.node_name in self.lost:
                continue
            if pod.metadata.deletion_grace_period_seconds:
                uid = pod.metadata.uid
                await self.client.delete(Pod, pod.key, grace_period_seconds=0, uid=uid, missing_ok=True)
            elif pod.status.phase == "Pending" and not pod.metadata.deletion_timestamp:
                conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "Ready")]
                started = MergePatch({"status": {"phase": "Running", "conditions": conditions}})
                with suppress(NotFoundError):
                    await self.client.patch(Pod, pod.key, started, subresource="status")

    async def lose(self, name):
        """The node does not answer any more; nothing happens on it."""
        self.lost.add(name)
        await self._report(name, "False")

    async def put_out_of_service(self, name):
        node = await self.client.get(Node, name)
        taints = [taint.to_dict() for taint in node.spec.taints or ()]
        await self.client.patch(Node, name, MergePatch({"spec": {"taints": [*taints, OUT_OF_SERVICE]}}))


@pytest_asyncio.fixture
async def machines(client, namespace):
    found = Machines(client, namespace)
    await found.add()
    yield found
    await found.remove()


async def running(sets, machines, groups, size):
    """Wait until exactly these pods run; return them."""

    async def check():
        await machines.work()
        pods = await sets.pods()
        states = [{item.type: item.status for item in pod.status.conditions or ()} for pod in pods.values()]
        ready = all(state.get("Ready") == "True" for state in states)
        on_live = all(pod.spec.node_name not in machines.lost for pod in pods.values())
        return len(pods) == groups * size and ready and on_live and pods

    return await sets.until(check, what=f"{groups} groups run")


def template(sets, **spec):
    """Pods for the test's nodes, which nobody but the test ends."""
    pod = {"nodeSelector": {"test": sets.namespace}, "containers": [{"name": "c", "image": "x"}], **spec}
    metadata = {"annotations": {"kwok.pyreconcile.dev/delete-delay": "1h"}}
    return {"workerTemplate": {"metadata": metadata, "spec": pod}}


async def started(sets, machines, **annotations):
    """Two groups of two, each alone on its node. Pods leave a node that is not ready after a second."""
    quick = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
        for key in ("not-ready", "unreachable")
    ]
    annotations = {**annotations, L + "exclusive-topology": HOSTNAME}
    await sets.create(replicas=2, size=2, template=template(sets, tolerations=quick), annotations=annotations)
    return await running(sets, machines, 2, 2)


def nodes_of(pods):
    return {name: pod.spec.node_name for name, pod in pods.items()}


async def all_pods(sets):
    return {pod.metadata.uid: pod for pod in await sets.client.list(Pod, namespace=sets.namespace)}


async def test_lws_node_loss_a_group_that_hangs_is_free_once_its_node_is_out_of_service(sets, machines):
    before = await started(sets, machines, **FORCED)
    node = before["demo-0"].spec.node_name
    assert nodes_of(before)["demo-0-1"] == node
    await machines.lose(node)
    mine = [before[name].metadata.uid for name in ("demo-0", "demo-0-1")]

    async def hang():
        pods = await all_pods(sets)
        return all(pods[uid].metadata.deletion_timestamp for uid in mine)

    await sets.until(hang, what="the pods are being deleted")
    for name in ("demo-0", "demo-0-1"):
        await sets.noted(
            f"Pod {name} cannot end on node {node}, which is not ready: once nothing runs there, delete the node or "
            "give it the taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        )
    assert set(mine) <= set(await all_pods(sets))
    await machines.put_out_of_service(node)
    after = await running(sets, machines, 2, 2)
    assert not {after[name].metadata.uid for name in ("demo-0", "demo-0-1")} & set(mine)
    for name in ("demo-1", "demo-1-1"):
        assert after[name].metadata.uid == before[name].metadata.uid


async def test_lws_node_loss_a_set_may_ask_when_its_node_is_gone_already(sets, machines):
    before = await started(sets, machines)
    node = before["demo-1"].spec.node_name
    machines.lost.add(node)
    await sets.client.delete(Node, node)
    other = next(name for name in machines.names if name not in nodes_of(before).values())
    asked = MergePatch({"metadata": {"annotations": FORCED}})
    assert set(await all_pods(sets)) == {pod.metadata.uid for pod in before.values()}
    await sets.client.patch(LeaderWorkerSet, sets.key("demo"), asked)
    after = await running(sets, machines, 2, 2)
    assert nodes_of(after) == {**nodes_of(before), "demo-1": other, "demo-1-1": other}
    assert {name for name in after if after[name].metadata.uid == before[name].metadata.uid} == {"demo-0", "demo-0-1"}
    await sets.noted(f"Removed pod demo-1: its node {node} is gone")


async def test_lws_node_loss_a_group_over_two_nodes_is_recreated_whole(sets, machines):
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {L + "name": "demo"}}, "topologyKey": HOSTNAME}
            ]
        }
    }
    await sets.create(replicas=1, size=2, template=template(sets, affinity=apart), annotations=FORCED)
    before = await running(sets, machines, 1, 2)
    worker = before["demo-0-1"].spec.node_name
    assert worker != before["demo-0"].spec.node_name
    machines.lost.add(worker)
    await sets.client.delete(Node, worker)
    after = await running(sets, machines, 1, 2)
    assert not {pod.metadata.uid for pod in before.values()} & {pod.metadata.uid for pod in after.values()}
    await sets.noted("Worker pod demo-0-1 failed, deleted leader pod demo-0 to recreate group 0")
