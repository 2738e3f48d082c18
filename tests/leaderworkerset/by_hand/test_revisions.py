"""Which revision a group is rebuilt from, and which are kept; pods driven by hand (LWS §5, §7.1, §13.1; O-14)."""

import pytest

from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import Pod
from pyreconcile.client import MergePatch

pytestmark = pytest.mark.asyncio(loop_scope="module")

L = "leaderworkerset.sigs.k8s.io/"
KEY = L + "template-revision-hash"
NAME = "test-sample"
AVAILABLE, UPDATING = {"Available"}, {"Progressing", "UpdateInProgress"}


async def images(hand):
    """The image of every group's worker template."""
    return {index: own.spec.template.spec.containers[0].image for index, own in (await hand.worker_sets()).items()}


async def rebuilt(hand, index, key):
    """Lose a group and make its leader anew from a revision; wait for its workers' StatefulSet."""
    await hand.remove(index)
    await hand.leaders(index, key=key)
    return await hand.until(lambda: hand.workers_of(index))


async def test_lws_13_1_a_group_not_updated_yet_is_rebuilt_with_the_old_workers(hand):
    await hand.running(replicas=4)
    (first,) = await hand.revisions()
    old = first.metadata.labels[KEY]
    await hand.change()
    await hand.ready(3)
    await hand.shows(UPDATING, replicas=4, partition=2, ready=4, updated=1)
    assert await images(hand) == {0: "nginx:1", 1: "nginx:1", 2: "nginx:1", 3: "nginx:2"}
    own = await rebuilt(hand, 0, old)
    assert own.metadata.labels[KEY] == own.spec.template.metadata.labels[KEY] == old
    assert await images(hand) == {0: "nginx:1", 1: "nginx:1", 2: "nginx:1", 3: "nginx:2"}
    assert {item.metadata.labels[KEY] for item in await hand.revisions()} > {old}
    assert len(await hand.revisions()) == 2
    await hand.ready(3, 2, 1, 0)
    await hand.shows(AVAILABLE, replicas=4, partition=0, ready=4, updated=4)
    assert set((await images(hand)).values()) == {"nginx:2"}

    async def one_revision():
        return len(await hand.revisions()) == 1

    await hand.until(one_revision)


async def test_lws_13_1_a_group_not_updated_yet_is_rebuilt_with_the_old_size(hand):
    await hand.running(replicas=4, size=4)
    old = (await hand.leader_set()).metadata.labels[KEY]
    await hand.change(template={"size": 2})
    await hand.ready(3)
    await hand.shows(UPDATING, replicas=4, partition=2)
    own = await rebuilt(hand, 0, old)
    assert own.spec.replicas == 3
    assert own.spec.template.metadata.annotations[L + "size"] == "4"
    assert (await hand.workers_of(3)).spec.replicas == 1
    assert len(await hand.revisions()) == 2
    await hand.ready(3, 2, 1, 0)
    await hand.shows(AVAILABLE, replicas=4, partition=0, ready=4, updated=4)


async def test_o_14_a_group_not_updated_yet_is_rebuilt_with_its_subgroups_claims_and_subdomain(hand):
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    template = {"volumeClaimTemplates": [claim], "subGroupPolicy": {"subGroupSize": 2}}
    await hand.running(replicas=2, size=4, template=template)
    old = (await hand.leader_set()).metadata.labels[KEY]
    changed = {"size": 2, "subGroupPolicy": {"subGroupPolicyType": "LeaderExcluded", "subGroupSize": 1}}
    await hand.change(template=changed, networkConfig={"subdomainPolicy": "UniquePerReplica"})
    await hand.shows(UPDATING, replicas=2, partition=1)
    own = await rebuilt(hand, 0, old)
    annotations = own.spec.template.metadata.annotations
    assert annotations[L + "subgroup-size"] == "2"
    assert annotations[L + "subgroup-policy-type"] == "LeaderWorker"
    assert own.spec.service_name == NAME
    assert own.spec.volume_claim_templates[0].metadata.name == "data"
    await hand.ready(1)
    new = await hand.workers_of(1)
    assert new.spec.template.metadata.annotations[L + "subgroup-policy-type"] == "LeaderExcluded"
    assert new.spec.service_name == f"{NAME}-1"


async def test_lws_13_1_a_missing_revision_is_made_with_the_key_of_the_leader_stateful_set(hand):
    await hand.create(replicas=2)
    patch = MergePatch({"metadata": {"labels": {KEY: "template-hash"}}})
    await hand.client.patch(StatefulSet, hand.key(), patch)
    await hand.noted("Creating missing revision with key template-hash for existing LeaderWorkerSet")
    await hand.settled()
    leaders = await hand.leader_set()
    assert leaders.metadata.labels[KEY] == leaders.spec.template.metadata.labels[KEY] == "template-hash"
    assert leaders.spec.update_strategy.rolling_update.partition == 0
    assert "template-hash" in {item.metadata.labels[KEY] for item in await hand.revisions()}
    await hand.ready(0, 1)
    await hand.shows(AVAILABLE, replicas=2, partition=0, ready=2, updated=2)

    async def alone():
        return [item.metadata.labels[KEY] for item in await hand.revisions()] == ["template-hash"]

    await hand.until(alone, what="the revision with that key alone")
    assert not [note for note in await hand.notes() if "updated LWS" in note]


async def test_lws_7_1_workers_wait_for_the_revision_of_their_leader(hand):
    await hand.create(replicas=1, leaders=False)
    await hand.leaders(0)
    await hand.until(lambda: hand.workers_of(0))
    await hand.remove(0)
    (stored,) = await hand.revisions()
    leaders = await hand.leader_set()
    labelled = {"metadata": {"labels": {KEY: "gone"}}}
    assert leaders.metadata.labels[KEY] == stored.metadata.labels[KEY]
    template = leaders.to_dict()["spec"]["template"]
    labels = {**template["metadata"]["labels"], L + "group-index": "0", L + "group-key": "k", KEY: "gone"}
    metadata = {**template["metadata"], "name": f"{NAME}-0", "namespace": hand.namespace, "labels": labels}
    await hand.client.create(Pod.from_dict({"metadata": metadata, "spec": template["spec"]}))
    await hand.settled()
    assert await hand.workers_of(0) is None
    await hand.client.patch(type(stored), stored.key, MergePatch(labelled))
    own = await hand.until(lambda: hand.workers_of(0))  # looked for again after a second
    assert own.metadata.labels[KEY] == "gone"
