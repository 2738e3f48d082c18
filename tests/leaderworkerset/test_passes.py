"""Single passes of both controllers over states that are hard to come by on a control plane (LWS §5, §6.1, §7)."""

from contextlib import asynccontextmanager

import anyio
import orjson
import pytest

from pyreconcile.api.apps_v1 import ControllerRevision, StatefulSet
from pyreconcile.api.core_v1 import Node, Pod
from pyreconcile.cache import Cache
from pyreconcile.client import MergePatch, NotFoundError
from pyreconcile.controller import Request, Result, TerminalError
from pyreconcile.testing import FakeRecorder, Interceptor, fake_client, intercept
from pyreconcile_controllers.leaderworkerset import Settings, groups
from pyreconcile_controllers.leaderworkerset.controller import LeaderWorkerSetReconciler
from pyreconcile_controllers.leaderworkerset.lost_pods import LostPods
from pyreconcile_controllers.leaderworkerset.pod_controller import PodReconciler, TopologyError
from pyreconcile_controllers.leaderworkerset.reading import SetReader
from pyreconcile_controllers.leaderworkerset.revision import revision_of
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

L = "leaderworkerset.sigs.k8s.io/"
KEY = L + "template-revision-hash"
INDEXES = (
    (StatefulSet, groups.BY_SET, groups.index_set),
    (ControllerRevision, groups.BY_SET, groups.index_revision),
    (Pod, groups.LEADERS_BY_SET, groups.index_leader),
    (Pod, groups.BY_GROUP, groups.index_group),
)
GOING = {"deletionTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["test/hold"]}


class Pass:
    """One of the controllers, over a server that holds nothing but what a test puts there."""

    def __init__(self, server, client, cache, settings):
        self.server = server
        self.recorder = FakeRecorder()
        self.sets = LeaderWorkerSetReconciler(self.recorder, SetReader(), settings=settings)
        self.pods = PodReconciler(self.recorder, SetReader(), LostPods(), settings=settings)
        for reconciler in (self.sets, self.pods):
            reconciler.bind(client=client, cache=cache, recorder=self.recorder)

    async def over_set(self):
        return await self.sets.reconcile(Request("ns", "demo"))

    async def over_pod(self, name):
        return await self.pods.reconcile(Request("ns", name))

    @property
    def notes(self):
        return [event.note for event in self.recorder.events]

    async def leaders(self):
        return await self.server.get(StatefulSet, "ns/demo")

    async def revisions(self):
        return {item.metadata.name: item for item in await self.server.list(ControllerRevision)}


@asynccontextmanager
async def a_pass(*objects, settings=None, **hooks):
    server = fake_client(*objects)
    cache = Cache(server)
    for index in INDEXES:
        cache.add_index(*index)
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: cache.run(stop, task_status=task_status))
        client = intercept(server, Interceptor(**hooks)).with_options(reader=cache, write_observer=cache)
        yield Pass(server, client, cache, settings or Settings())
        stop.set()


def make_set(*, replicas=1, size=1, annotations=None, rolling=None, **template):
    worker = {"metadata": {}, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
    spec = {"replicas": replicas, "leaderWorkerTemplate": {"workerTemplate": worker, "size": size, **template}}
    if rolling:
        spec["rolloutStrategy"] = {"rollingUpdateConfiguration": rolling}
    metadata = {"name": "demo", "namespace": "ns", "uid": "u-set", "generation": 1, "annotations": annotations or {}}
    return LeaderWorkerSet.from_dict({"metadata": metadata, "spec": spec})


def make_leaders(*, key, replicas=1, partition=0, **metadata):
    labels = {L + "name": "demo", **({KEY: key} if key else {})}
    return StatefulSet.from_dict(
        {
            "metadata": {
                "name": "demo",
                "namespace": "ns",
                "uid": "u-leaders",
                "labels": labels,
                "annotations": {L + "replicas": str(replicas)},
                **metadata,
            },
            "spec": {
                "replicas": replicas,
                "serviceName": "demo",
                "selector": {"matchLabels": {L + "name": "demo", L + "worker-index": "0"}},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c"}]}},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
            },
        }
    )


def make_revision(name, key, number, data, owner="u-set"):
    owned = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "demo", "controller": True}
    metadata = {"name": name, "namespace": "ns", "labels": {L + "name": "demo", KEY: key}}
    if owner:
        metadata["ownerReferences"] = [{**owned, "uid": owner}]
    return ControllerRevision.from_dict({"metadata": metadata, "data": data, "revision": number})


def make_pod(name, index, *, key="k", uid="", owner=None, annotations=None, node="", **metadata):
    labels = {L + "name": "demo", L + "worker-index": index, L + "group-index": "0", L + "group-key": "g", KEY: key}
    metadata = {"name": name, "namespace": "ns", "uid": uid or f"u-{name}", "labels": labels, **metadata}
    metadata["annotations"] = {L + "size": "1", **(annotations or {})}
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    ready = [{"type": "Ready", "status": "True"}]
    spec = {"containers": [{"name": "c"}], **({"nodeName": node} if node else {})}
    return Pod.from_dict({"metadata": metadata, "spec": spec, "status": {"phase": "Running", "conditions": ready}})


def owner_of(kind, name, uid):
    return {
        "apiVersion": "v1" if kind == "Pod" else "apps/v1",
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
    }


def content(lws):
    revision = revision_of(lws.spec.to_dict())
    return revision.key, orjson.loads(revision.data)


OTHER = {"spec": {"networkConfig": {"$patch": "replace", "subdomainPolicy": "UniquePerReplica"}}}
"""The content of a revision that is not the set's."""


# --- The set's own controller


async def test_lws_6_1_a_leader_stateful_set_that_goes_away_is_waited_for_five_seconds():
    leaders = make_leaders(key="old", replicas=7, **GOING)
    async with a_pass(make_set(), leaders) as one:
        assert await one.over_set() == Result(requeue_after=5.0)
        assert (await one.leaders()).spec.replicas == 7
        assert await one.revisions() == {}
        assert one.notes == []


async def test_lws_6_1_a_status_that_meets_a_newer_set_waits_for_another_pass():
    async def changed_meanwhile(client, obj, **options):
        patch = MergePatch({"metadata": {"labels": {"team": "a"}}})
        await client.patch(LeaderWorkerSet, "ns/demo", patch)
        return await client.apply(obj, **options)

    async with a_pass(make_set(), apply=changed_meanwhile) as one:
        assert await one.over_set() == Result(requeue=True)
        assert (await one.server.get(LeaderWorkerSet, "ns/demo")).status is None
        assert "Created leader statefulset demo" in one.notes
        assert not [note for note in one.notes if "groups ready" in note]  # It is told once it is stored.


@pytest.mark.parametrize(
    ("known", "note"),
    [
        ("", "Creating revision with key {} for a newly created LeaderWorkerSet"),
        ("adopted", "Creating missing revision with key {} for existing LeaderWorkerSet"),
    ],
)
async def test_lws_5_a_leader_stateful_set_without_revision_gets_one_under_its_own_key(known, note):
    lws = make_set()
    key, data = content(lws)
    async with a_pass(lws, make_leaders(key=known)) as one:
        await one.over_set()
        (stored,) = (await one.revisions()).values()
        assert stored.metadata.name == f"demo-{key}-1"  # The name tells the content, the label the key (§15.27).
        assert stored.metadata.labels == {L + "name": "demo", KEY: known or key}
        assert stored.data == data
        assert (await one.leaders()).metadata.labels[KEY] == known or key
        assert one.notes[0] == note.format(known or key)
        assert not [text for text in one.notes if "updated LWS" in text]


async def test_lws_5_revisions_are_numbered_after_the_sets_own_and_orphans():
    lws = make_set(replicas=1)
    key, _ = content(lws)
    stored = (
        make_revision("own", "k", 2, OTHER),
        make_revision("orphan", "x", 4, OTHER, owner=""),
        make_revision("foreign", "y", 9, OTHER, owner="u-other"),
    )
    async with a_pass(lws, make_leaders(key="k"), *stored) as one:
        await one.over_set()
        revisions = await one.revisions()
        assert revisions[f"demo-{key}-5"].revision == 5
        assert set(revisions) == {"own", "orphan", "foreign", f"demo-{key}-5"}  # The update is not complete.
        assert f"Creating revision with key {key} for updated LWS" in one.notes


@pytest.mark.parametrize(("same", "other", "changed"), [(3, 2, False), (2, 3, True)])
async def test_lws_5_of_several_revisions_with_a_key_the_newest_counts(same, other, changed):
    lws = make_set()
    key, data = content(lws)
    stored = make_revision("same", "k", same, data), make_revision("other", "k", other, OTHER)
    async with a_pass(lws, make_leaders(key="k"), *stored) as one:
        await one.over_set()
        assert (await one.leaders()).metadata.labels[KEY] == (key if changed else "k")
        assert len(await one.revisions()) == (3 if changed else 2)


async def test_lws_5_a_complete_update_forgets_every_listed_revision_of_another_key():
    lws = make_set(replicas=0)
    key, data = content(lws)
    stored = (
        make_revision("current", key, 3, data),
        make_revision("old", "k", 2, OTHER),
        make_revision("orphan", "x", 1, OTHER, owner=""),
        make_revision("foreign", "y", 9, OTHER, owner="u-other"),
    )
    async with a_pass(lws, make_leaders(key=key, replicas=0), *stored) as one:
        await one.over_set()
        assert set(await one.revisions()) == {"current", "foreign"}


async def test_lws_5_a_partition_keeps_the_older_revisions():
    lws = make_set(replicas=0, rolling={"partition": 1})
    key, data = content(lws)
    stored = make_revision("current", key, 3, data), make_revision("old", "k", 2, OTHER)
    async with a_pass(lws, make_leaders(key=key, replicas=0, partition=1), *stored) as one:
        await one.over_set()
        assert set(await one.revisions()) == {"current", "old"}


@pytest.mark.parametrize(("upstream_surge", "partition"), [(False, 3), (True, 2)])
async def test_lws_6_3_a_leader_that_is_being_deleted_counts_as_upstream_does_only_if_asked_for(
    upstream_surge, partition
):
    lws = make_set(replicas=3)
    key, data = content(lws)
    pods = []
    for index in range(3):
        pod = make_pod(f"demo-{index}", "0", key="old", **(GOING if index == 0 else {}))
        pod.metadata.labels[L + "group-index"] = str(index)
        pods.append(pod)
    leaders = make_leaders(key=key, replicas=3, partition=3)
    settings = Settings(upstream_surge=upstream_surge)
    async with a_pass(lws, leaders, make_revision("current", key, 1, data), *pods, settings=settings) as one:
        await one.over_set()
        assert (await one.leaders()).spec.update_strategy.rolling_update.partition == partition


# --- The controller of pods


async def test_lws_7_1_a_pod_of_a_set_without_worker_index_is_an_error():
    pod = make_pod("demo-0", "0")
    del pod.metadata.labels[L + "worker-index"]
    async with a_pass(make_set(), pod) as one:
        with pytest.raises(TerminalError, match=r"pod ns/demo-0 has no label .*/worker-index"):
            await one.over_pod("demo-0")


@pytest.mark.parametrize(
    ("nodes", "error"),
    [((), NotFoundError), (({"rack": "r1"},), None), (({},), TopologyError)],
    ids=["no node", "its node", "a node without the label"],
)
async def test_lws_7_1_a_leaders_node_has_to_tell_where_its_workers_go(nodes, error):
    lws = make_set(size=2, annotations={L + "exclusive-topology": "rack"})
    key, data = content(lws)
    pod = make_pod("demo-0", "0", key=key, annotations={L + "size": "2"}, node="n1")
    made = [Node.from_dict({"metadata": {"name": "n1", "labels": labels}}) for labels in nodes]
    async with a_pass(lws, pod, make_revision("current", key, 1, data), *made) as one:
        if error is None:
            await one.over_pod("demo-0")
            workers = await one.server.get(StatefulSet, "ns/demo-0")
            assert workers.spec.template.spec.node_selector == nodes[0]
            return
        with pytest.raises(error):
            await one.over_pod("demo-0")
        assert await one.server.find(StatefulSet, "ns/demo-0") is None


LEADER_OWNS = owner_of("Pod", "demo-0", "u-demo-0")
OWNERS = {
    "the leader": (LEADER_OWNS, None, True),
    "an earlier leader": (owner_of("Pod", "demo-0", "u-before"), None, False),
    "another pod": (owner_of("Pod", "demo-1", "u-demo-0"), None, False),
    "nobody": (None, None, False),
    "something else": (owner_of("Job", "demo-0", "u-demo-0"), None, False),
    "the leader's StatefulSet": (owner_of("StatefulSet", "demo-0", "u-workers"), LEADER_OWNS, True),
    "an earlier StatefulSet": (owner_of("StatefulSet", "demo-0", "u-before"), LEADER_OWNS, False),
    "a StatefulSet that is gone": (owner_of("StatefulSet", "demo-0", "u-workers"), None, False),
    "a StatefulSet of an earlier leader": (
        owner_of("StatefulSet", "demo-0", "u-workers"),
        owner_of("Pod", "demo-0", "u-before"),
        False,
    ),
}


@pytest.mark.parametrize(("owner", "owner_of_workers", "goes"), OWNERS.values(), ids=OWNERS)
async def test_lws_7_2_a_worker_takes_along_the_leader_that_it_belongs_to(owner, owner_of_workers, goes):
    deleted = []

    async def delete(_client, kind, key, **options):
        deleted.append((kind, key, options["propagation"], options["uid"]))

    objects = [make_pod("demo-0", "0"), make_pod("demo-0-1", "1", owner=owner, **GOING)]
    if owner_of_workers is not None:
        workers = make_leaders(key="k", name="demo-0", uid="u-workers", ownerReferences=[owner_of_workers])
        workers.metadata.labels[L + "group-index"] = "0"
        objects.append(workers)
    async with a_pass(make_set(size=2), *objects, delete=delete) as one:
        await one.over_pod("demo-0-1")
        note = "Worker pod demo-0-1 failed, deleted leader pod demo-0 to recreate group 0"
        assert deleted == ([(Pod, "ns/demo-0", "Foreground", "u-demo-0")] if goes else [])
        assert one.notes == ([note] if goes else [])


@pytest.mark.parametrize(
    ("leader", "policy"),
    [
        (make_pod("demo-0", "0", key="newer"), "RecreateGroupOnPodRestart"),
        (make_pod("demo-0", "0", **GOING), "RecreateGroupOnPodRestart"),
        (make_pod("demo-9", "0"), "RecreateGroupOnPodRestart"),
        (make_pod("demo-0", "0"), "None"),
        (make_pod("demo-0", "0"), "Default"),
    ],
    ids=["of another revision", "on its way out", "gone", "None", "Default"],
)
async def test_lws_7_2_a_worker_leaves_its_leader_alone(leader, policy):
    async def delete(*_, **__):
        raise AssertionError("nothing is to be deleted")

    worker = make_pod("demo-0-1", "1", owner=LEADER_OWNS, **GOING)
    async with a_pass(make_set(size=2, restartPolicy=policy), leader, worker, delete=delete) as one:
        assert await one.over_pod("demo-0-1") is None
        assert one.notes == []


@pytest.mark.parametrize(
    ("status", "restarted"),
    [
        ({"phase": "Running", "containerStatuses": [{"restartCount": 0}, {"restartCount": 2}]}, True),
        ({"phase": "Running", "initContainerStatuses": [{"restartCount": 1}]}, True),
        ({"phase": "Pending", "initContainerStatuses": [{"restartCount": 1}]}, True),
        ({"phase": "Running", "ephemeralContainerStatuses": [{"restartCount": 1}]}, False),
        ({"phase": "Failed", "containerStatuses": [{"restartCount": 1}]}, False),
        ({"phase": "Succeeded", "initContainerStatuses": [{"restartCount": 1}]}, False),
        ({"phase": "Failed"}, False),
        ({"phase": "Unknown", "containerStatuses": [{"restartCount": 1}]}, False),
        ({"phase": "Running"}, False),
        ({}, False),
    ],
)
def test_lws_7_2_restarts_of_normal_and_init_containers_count_while_a_pod_runs_or_begins(status, restarted):
    assert groups.pod_restarted({"metadata": {"name": "demo-0-1"}, "status": status}) is restarted
