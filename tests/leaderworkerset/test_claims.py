"""Volume claims of a set on the real control plane (LWS §6.1, §6.2)."""

from dataclasses import replace

import pytest
import pytest_asyncio

from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import PersistentVolume
from pyreconcile.testing import Match

L = "leaderworkerset.sigs.k8s.io/"
LISTS = Match(resource="statefulsets", where=lambda request: request.verb == "list" or request.streaming_list)
WRITES = Match(resource="statefulsets", where=lambda request: request.verb not in ("get", "list", "watch"))
CLAIM = {
    "metadata": {"name": "d"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
RETENTION = {"whenDeleted": "Delete", "whenScaled": "Retain"}


@pytest.fixture
def manager_options(manager_options, proxy):
    """What the manager sends goes through the proxy, which writes it down."""
    return replace(manager_options, connect=proxy.connect_options())


@pytest_asyncio.fixture
async def volumes(client, namespace):
    """A volume for each claim of a group of two: nobody here makes any."""
    claims = ["d-demo-0", "d-demo-0-1"]
    for claim in claims:
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/nowhere"},
            "claimRef": {"namespace": namespace, "name": claim},
        }
        await client.create(PersistentVolume.from_dict({"metadata": {"name": f"{namespace}-{claim}"}, "spec": spec}))
    yield claims
    for claim in claims:
        await client.delete(PersistentVolume, f"{namespace}-{claim}", missing_ok=True)


async def stateful_sets(sets):
    found = await sets.client.list(StatefulSet, namespace=sets.namespace, labels={L + "name": "demo"})
    return {item.metadata.name: item.to_dict() for item in found}


async def looked_at(sets, startup_policy):
    """Change what reaches no StatefulSet, and wait until the controller has made a pass over that."""
    await sets.patch("demo", startupPolicy=startup_policy)
    await sets.available()
    await sets.settled()


async def test_lws_6_1_a_set_with_claims_at_rest_is_not_written_to_by_this_process_or_the_next(process, proxy, volumes):
    """The server fills in fields of the claims, whose list is owned as one: to apply it anew would seem a change."""
    async with process() as sets:
        template = {"volumeClaimTemplates": [CLAIM], "persistentVolumeClaimRetentionPolicy": RETENTION}
        await sets.create(replicas=1, size=2, template=template)
        pods = await sets.running("demo", 1, 2)
        claimed = [volume.persistent_volume_claim for pod in pods.values() for volume in pod.spec.volumes]
        assert sorted(claim.claim_name for claim in claimed if claim) == volumes
        await sets.available()
        await sets.settled()
        before, written = await stateful_sets(sets), proxy.requests(WRITES)
        assert set(before) == {"demo", "demo-0"}
        assert {request.name for request in written if request.verb == "patch"} == {"demo"}
        await looked_at(sets, "LeaderReady")
        assert await stateful_sets(sets) == before
    listed = proxy.requests(LISTS)
    async with process() as sets:
        await looked_at(sets, "LeaderCreated")
        assert len(proxy.requests(LISTS)) > len(listed)
        assert await stateful_sets(sets) == before
    assert proxy.requests(WRITES) == written
