"""When a lost pod takes its group along; pods driven by hand (LWS §7.2, §13.1)."""

import pytest

from pyreconcile.api.apps_v1 import StatefulSet
from pyreconcile.api.core_v1 import Pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

L = "leaderworkerset.sigs.k8s.io/"
KEY = L + "template-revision-hash"
NAME = "test-sample"
WORKERS = [f"{NAME}-0-{number}" for number in (1, 2, 3)]
RECREATED = f"Worker pod {NAME}-0-1 failed, deleted leader pod {NAME}-0 to recreate group 0"


async def one_group(hand, policy, **wanted):
    """One group of four pods that run."""
    await hand.create(replicas=1, size=4, template={"restartPolicy": policy}, **wanted)
    await hand.workers(0)
    await hand.phase("Running", f"{NAME}-0", *WORKERS, ready=True)


async def deleted(hand, name):
    await hand.client.delete(Pod, hand.key(name), grace_period_seconds=0)


async def stays(hand):
    """The leader is there when all has been seen, and so are the other workers."""
    await hand.settled()
    assert (await hand.leader(0)).metadata.deletion_timestamp is None
    assert set(await hand.pods()) == {f"{NAME}-0", *WORKERS[1:]}
    assert RECREATED not in await hand.notes()


async def goes(hand, index=0):
    async def terminating():
        return (await hand.leader(index)).metadata.deletion_timestamp

    await hand.until(terminating, what="the leader is being deleted")


async def test_lws_13_1_policy_none_leaves_the_group_when_a_pod_restarts(hand):
    await one_group(hand, "None")
    await deleted(hand, WORKERS[0])
    await stays(hand)


async def test_lws_13_1_policy_on_pod_restart_deletes_the_group(hand):
    await one_group(hand, "RecreateGroupOnPodRestart")
    await deleted(hand, WORKERS[0])
    await goes(hand)
    leader = await hand.leader(0)
    assert leader.metadata.finalizers == ["foregroundDeletion"]
    await hand.noted(RECREATED)


async def test_lws_13_1_policy_on_pod_restart_with_the_annotation_leaves_a_group_with_a_pending_pod(hand):
    annotations = {L + "experimental-recreate-group-after-start": "true"}
    await one_group(hand, "RecreateGroupOnPodRestart", annotations=annotations)
    await hand.phase("Pending", WORKERS[1])
    await deleted(hand, WORKERS[0])
    await stays(hand)


async def test_lws_13_1_policy_after_start_leaves_a_group_with_a_pending_pod(hand):
    await one_group(hand, "RecreateGroupAfterStart")
    await hand.phase("Pending", WORKERS[1])
    await deleted(hand, WORKERS[0])
    await stays(hand)


async def test_lws_13_1_policy_after_start_deletes_a_group_without_a_pending_pod(hand):
    await one_group(hand, "RecreateGroupAfterStart")
    await deleted(hand, WORKERS[0])
    await goes(hand)
    await hand.noted(RECREATED)


async def test_lws_13_1_a_leader_is_restarted_once_in_a_rolling_update(hand):
    rolling = {"maxUnavailable": 1}
    await hand.create(replicas=1, size=3, rolling=rolling, template={"restartPolicy": "RecreateGroupOnPodRestart"})
    await hand.workers(0)
    await hand.ready(0)
    await hand.shows({"Available"}, replicas=1, partition=0, ready=1, updated=1)
    old_workers = {name for name in await hand.pods() if name != f"{NAME}-0"}
    assert len(old_workers) == 2
    await hand.change()
    # The StatefulSet controller replaces the leader; the workers of the old group go after it.
    await hand.remove(0)
    await hand.leaders(0)
    new = await hand.leader(0)
    await hand.until(lambda: hand.workers_of(0))
    for name in old_workers:
        await deleted(hand, name)
    await hand.settled()
    leader = await hand.leader(0)
    assert (leader.metadata.uid, leader.metadata.deletion_timestamp) == (new.metadata.uid, None)
    await hand.ready(0)
    await hand.shows({"Available"}, replicas=1, partition=0, ready=1, updated=1)
    await hand.workers(0)
    await deleted(hand, f"{NAME}-0-1")
    await goes(hand)


async def test_lws_7_2_workers_of_an_earlier_leader_with_the_same_revision_take_nothing_along(hand):
    await hand.create(replicas=1, size=3)
    await hand.workers(0)
    await hand.remove(0)
    await hand.leaders(0)
    await hand.until(lambda: hand.workers_of(0))
    for number in (1, 2):
        await deleted(hand, f"{NAME}-0-{number}")
    await hand.settled()
    assert (await hand.leader(0)).metadata.deletion_timestamp is None


async def test_lws_15_18_a_group_of_the_old_size_is_complete_with_its_own_number_of_pods(hand):
    await one_group(hand, "RecreateGroupAfterStart", rolling={"partition": 1})
    await hand.patch(leaderWorkerTemplate={"size": 2})
    await hand.settled()
    await deleted(hand, WORKERS[0])
    await goes(hand)


async def test_lws_15_20_nothing_is_made_for_a_leader_that_is_going(hand):
    await one_group(hand, "RecreateGroupOnPodRestart")
    await deleted(hand, WORKERS[0])
    await goes(hand)
    await hand.client.delete(StatefulSet, hand.key(f"{NAME}-0"))
    await hand.settled()
    assert await hand.workers_of(0) is None


async def test_lws_15_7_another_restart_policy_holds_at_once_for_groups_of_the_old_revision(hand):
    await one_group(hand, "RecreateGroupOnPodRestart", rolling={"partition": 1})
    await hand.change(template={"restartPolicy": "None"})
    await hand.settled()
    await deleted(hand, WORKERS[0])
    await stays(hand)
