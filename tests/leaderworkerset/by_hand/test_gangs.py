"""PodGroups of Volcano for leaders that are made by hand, with a stand-in for its CRD (LWS §9, §13.1)."""

from pathlib import Path

import pytest
import pytest_asyncio

from pyreconcile_controllers.leaderworkerset import Settings, volcano

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "leaderworkerset.sigs.k8s.io/template-revision-hash"
NAME = "test-sample"
CRD = Path(__file__).parents[1] / "data" / "volcano-podgroup.yaml"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def settings(bare_plane):
    await bare_plane.install_crds(CRD)
    return Settings(scheduler_provider="volcano")


def template():
    """Templates whose pods ask for something."""

    def pod(name, cpu):
        requests = {"requests": {"cpu": cpu}}
        container = {"name": name, "image": "nginx:1", "resources": requests}
        return {"spec": {"schedulerName": "volcano", "containers": [container]}}

    return {"leaderTemplate": pod("leader", "1"), "workerTemplate": pod("worker", "500m")}


async def pod_groups(hand, *names):
    async def all_there():
        found = {item.metadata.name: item for item in await hand.client.list(kind, namespace=hand.namespace)}
        return all(name in found for name in names) and found

    kind = volcano.POD_GROUP
    return await hand.until(all_there, what=f"PodGroups {names}")


async def key_of(hand):
    return (await hand.leader_set()).metadata.labels[KEY]


async def test_lws_13_1_every_group_has_a_pod_group_that_its_leader_owns(hand):
    hand.admit = volcano.annotate
    await hand.create(replicas=2, size=3, template=template())
    key = await key_of(hand)
    found = await pod_groups(hand, f"{NAME}-0-{key}", f"{NAME}-1-{key}")
    assert len(found) == 2
    for index in (0, 1):
        made = found[f"{NAME}-{index}-{key}"].to_dict()
        (owner,) = made["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Pod", (await hand.leader(index)).metadata.uid)
        assert owner["controller"]
        assert made["spec"]["minMember"] == 3
        assert made["spec"]["minResources"]["cpu"] == "2"
    await hand.valid(2)


async def test_lws_13_1_a_rolling_update_gives_updated_groups_new_pod_groups(hand):
    hand.admit = volcano.annotate
    await hand.running(replicas=3, template=template())
    old = await key_of(hand)
    changed = template()
    changed["workerTemplate"]["spec"]["containers"][0]["image"] = "nginx:2"
    await hand.change(template=changed)
    new = await key_of(hand)
    await hand.shows({"Progressing", "UpdateInProgress"}, replicas=3, partition=2, ready=3, updated=0)
    for index, partition in ((2, 1), (1, 0)):
        await hand.ready(index)
        await hand.shows({"Progressing", "UpdateInProgress"}, replicas=3, partition=partition, ready=3)
        found = await pod_groups(hand, f"{NAME}-{index}-{new}")
        assert f"{NAME}-{index - 1}-{new}" not in found
        assert f"{NAME}-{index}-{old}" in found  # The garbage collector would take it, with its leader.
    await hand.ready(0)
    await hand.shows({"Available"}, replicas=3, partition=0, ready=3, updated=3)
    await pod_groups(hand, f"{NAME}-0-{new}")
