"""Rolling updates state by state; pods driven by hand (LWS §6.3, §13.1)."""

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

L = "leaderworkerset.sigs.k8s.io/"
KEY = L + "template-revision-hash"
NAME = "test-sample"
PROGRESSING, AVAILABLE, UPDATING = {"Progressing"}, {"Available"}, {"Progressing", "UpdateInProgress"}
LEADER = {"leaderTemplate": {"spec": {"containers": [{"name": "leader", "image": "nginx:2"}]}}}


async def test_lws_13_1_leader_template_changed_with_the_default_strategy(hand):
    await hand.running(replicas=4)
    await hand.valid(4)
    await hand.change(template=LEADER)
    await hand.shows(UPDATING, replicas=4, partition=3, ready=4, updated=0)
    await hand.noted("Updating replica 3")
    await hand.ready(3)
    await hand.shows(UPDATING, replicas=4, partition=2, ready=4, updated=1)
    await hand.noted("Updating replica 2")
    await hand.ready(1)  # out of order
    await hand.shows(UPDATING, replicas=4, partition=2, ready=4, updated=2)
    await hand.unready(3)  # The partition does not go back.
    await hand.shows(UPDATING, replicas=4, partition=2, ready=3, updated=2)
    await hand.ready(3, 2, 1, 0)
    await hand.shows(AVAILABLE, replicas=4, partition=0, ready=4, updated=4)
    await hand.valid(4)


async def test_lws_13_1_worker_template_changed_with_two_unavailable(hand):
    await hand.running(replicas=4, rolling={"maxUnavailable": 2})
    await hand.change()
    await hand.shows(UPDATING, replicas=4, partition=2, ready=4, updated=0)
    await hand.noted("Updating replicas 2 to 3 (inclusive)")
    await hand.ready(3)
    await hand.shows(UPDATING, replicas=4, partition=1, ready=4, updated=1)
    await hand.ready(2)
    await hand.shows(UPDATING, replicas=4, partition=0, ready=4, updated=2)
    await hand.ready(1, 0)
    await hand.shows(AVAILABLE, replicas=4, partition=0, ready=4, updated=4)


async def test_lws_13_1_worker_template_changed_with_more_unavailable_than_replicas(hand):
    await hand.running(replicas=4, rolling={"maxUnavailable": 10})
    await hand.change()
    await hand.shows(UPDATING, replicas=4, partition=0, ready=4, updated=0)
    await hand.ready(0, 1, 2, 3)
    await hand.shows(AVAILABLE, replicas=4, partition=0, ready=4, updated=4)


async def test_lws_13_1_worker_template_and_replicas_changed_at_once(hand):
    await hand.running(replicas=4)
    await hand.change(replicas=6)
    await hand.shows(UPDATING, replicas=6, partition=4, ready=4, updated=0)
    await hand.ready(5, 4)
    await hand.shows(UPDATING, replicas=6, partition=3, ready=6, updated=2)
    await hand.ready(3, 2, 1, 0)
    await hand.shows(AVAILABLE, replicas=6, partition=0, ready=6, updated=6)


async def test_lws_13_1_replicas_increase_in_a_rolling_update(hand):
    await hand.running(replicas=4)
    await hand.change()
    await hand.shows(UPDATING, replicas=4, partition=3, ready=4, updated=0)
    await hand.ready(3)
    await hand.shows(UPDATING, replicas=4, partition=2, ready=4, updated=1)
    await hand.patch(replicas=6)
    await hand.shows(UPDATING, replicas=6, partition=2, ready=4, updated=1)
    await hand.leaders(4, 5)  # New groups are of the new revision.
    await hand.shows(UPDATING, replicas=6, partition=2, ready=4, updated=3)
    await hand.ready(5, 4)
    await hand.shows(UPDATING, replicas=6, partition=2, ready=6, updated=3)
    await hand.ready(2)
    await hand.shows(UPDATING, replicas=6, partition=1, ready=6, updated=4)
    await hand.ready(1, 0)
    await hand.shows(AVAILABLE, replicas=6, partition=0, ready=6, updated=6)


async def test_lws_13_1_replicas_decrease_in_a_rolling_update(hand):
    await hand.running(replicas=6)
    await hand.change()
    await hand.shows(UPDATING, replicas=6, partition=5, ready=6, updated=0)
    await hand.ready(5, 4, 3)
    await hand.shows(UPDATING, replicas=6, partition=2, ready=6, updated=3)
    await hand.patch(replicas=3)
    await hand.remove(5, 4, 3)
    await hand.shows(UPDATING, replicas=3, partition=2, ready=3, updated=0)
    await hand.ready(2, 1, 0)
    await hand.shows(AVAILABLE, replicas=3, partition=0, ready=3, updated=3)


async def test_lws_13_1_unhealthy_groups_below_the_partition_use_up_the_budget(hand):
    await hand.running(replicas=4, rolling={"maxUnavailable": 2})
    await hand.unready(1)
    await hand.shows(PROGRESSING, replicas=4, partition=0, ready=3, updated=4)
    await hand.change()
    await hand.shows(UPDATING, replicas=4, partition=3, ready=3, updated=0)
    await hand.ready(3, 2, 1, 0)
    await hand.shows(AVAILABLE, replicas=4, partition=0, ready=4, updated=4)


async def test_lws_13_1_no_group_was_ready_before_a_rolling_update(hand):
    await hand.running(replicas=2)
    await hand.unready(0)
    await hand.shows(PROGRESSING, replicas=2, partition=0, ready=1)
    await hand.unready(1)
    await hand.shows(PROGRESSING, replicas=2, partition=0, ready=0)
    await hand.change()
    await hand.shows(UPDATING, replicas=2, partition=1, ready=0, updated=0)
    await hand.ready(1)
    await hand.shows(replicas=2, partition=0)
    await hand.ready(0)
    await hand.shows(AVAILABLE, replicas=2, partition=0, ready=2, updated=2)


async def test_lws_13_1_resize_updates_the_size_of_the_groups(hand):
    await hand.running(replicas=2, size=3)
    await hand.change(template={"size": 4})
    await hand.noted("Rolling Upgrade is in progress, with 2 groups ready of total 2 groups")
    await hand.ready(1, 0)
    await hand.shows(AVAILABLE, replicas=2, partition=0, ready=2, updated=2)
    await hand.valid(2)
    assert {own.spec.replicas for own in (await hand.worker_sets()).values()} == {3}


async def test_lws_13_1_partition_holds_groups_back_until_it_is_lowered(hand):
    await hand.running(replicas=6, rolling={"partition": 4})
    await hand.change()
    await hand.shows(UPDATING, replicas=6, partition=5, ready=6, updated=0)
    await hand.ready(5)
    await hand.shows(UPDATING, replicas=6, partition=4, ready=6, updated=1)
    await hand.ready(4)
    await hand.shows(AVAILABLE, replicas=6, partition=4, ready=6, updated=2)
    await hand.roll(partition=2)
    await hand.shows(UPDATING, replicas=6, partition=3, ready=6, updated=2)
    await hand.ready(3)
    await hand.shows(UPDATING, replicas=6, partition=2, ready=6, updated=3)
    await hand.ready(2)
    await hand.shows(AVAILABLE, replicas=6, partition=2, ready=6, updated=4)
    assert len(await hand.revisions()) == 2


async def test_lws_15_8_a_raised_partition_moves_the_cut_up(hand):
    await hand.running(replicas=4)
    await hand.change()
    await hand.ready(3)
    await hand.shows(UPDATING, replicas=4, partition=2)
    await hand.roll(partition=3)
    await hand.shows(AVAILABLE, replicas=4, partition=3, ready=4, updated=1)
    await hand.noted("Updating replicas 3 to 1 (inclusive)")


async def test_lws_15_7_a_restart_policy_is_part_of_the_revision_and_a_startup_policy_is_not(hand):
    await hand.running(replicas=1)
    await hand.patch(startupPolicy="LeaderReady")
    await hand.settled()
    assert len(await hand.revisions()) == 1
    await hand.change(template={"restartPolicy": "None"})
    await hand.ready(0)
    await hand.shows(AVAILABLE, replicas=1, partition=0, ready=1, updated=1)


async def test_lws_16_3_old_groups_of_several_pods_keep_their_workers_while_the_size_goes_to_1(hand):
    await hand.running(replicas=2, size=3)
    old = (await hand.leader(0)).metadata.labels[KEY]
    await hand.change(template={"size": 1})
    await hand.shows(UPDATING, replicas=2, partition=1, ready=2, updated=0)
    await hand.remove(0)  # lost while it is below the partition
    await hand.leaders(0, key=old)
    await hand.until(lambda: hand.workers_of(0))
    assert (await hand.workers_of(0)).spec.replicas == 2
    await hand.phase("Running", f"{NAME}-0", ready=True)
    await hand.shows(UPDATING, replicas=2, partition=1, ready=1, updated=0)  # not ready by its leader alone
    await hand.ready(1)
    await hand.workers_status(0, currentRevision="", updateRevision="")
    await hand.shows(UPDATING, replicas=2, partition=0, ready=2, updated=1)
    await hand.ready(0)
    await hand.shows(AVAILABLE, replicas=2, partition=0, ready=2, updated=2)
    assert not await hand.worker_sets()


async def test_lws_16_3_old_groups_of_one_pod_count_while_the_size_grows(hand):
    await hand.running(replicas=2, size=1)
    await hand.change(template={"size": 3})
    await hand.shows(UPDATING, replicas=2, partition=1, ready=2, updated=0)
    await hand.settled()
    assert not await hand.worker_sets()
    await hand.ready(1)
    await hand.shows(UPDATING, replicas=2, partition=0, ready=2, updated=1)
    await hand.ready(0)
    await hand.shows(AVAILABLE, replicas=2, partition=0, ready=2, updated=2)
    await hand.valid(2)
