"""Surge groups state by state; pods driven by hand (LWS §6.3, §13.1; field case O-15)."""

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROGRESSING, AVAILABLE, UPDATING = {"Progressing"}, {"Available"}, {"Progressing", "UpdateInProgress"}


async def test_lws_13_1_none_unavailable_and_a_surge_of_1(hand):
    await hand.running(replicas=4, rolling={"maxUnavailable": 0, "maxSurge": 1})
    await hand.change()
    await hand.shows(UPDATING, replicas=5, partition=4, ready=4, updated=0)
    for index, partition in ((4, 3), (3, 2), (2, 1), (1, 0)):
        await hand.ready(index)
        await hand.shows(UPDATING, replicas=5, partition=partition, ready=5, updated=5 - index)
    await hand.ready(0)
    await hand.shows(AVAILABLE, replicas=4, partition=0, ready=5, updated=5)
    await hand.noted("deleting surge replica test-sample-4")
    await hand.remove(4)
    await hand.shows(AVAILABLE, replicas=4, partition=0, ready=4, updated=4)


async def test_lws_13_1_one_unavailable_and_a_surge_of_1(hand):
    await hand.running(replicas=4, rolling={"maxSurge": 1})
    await hand.change()
    await hand.shows(UPDATING, replicas=5, partition=3, ready=4, updated=0)
    await hand.ready(4)
    await hand.shows(UPDATING, replicas=5, partition=2, ready=5, updated=1)
    await hand.ready(3)
    await hand.shows(UPDATING, replicas=5, partition=1, ready=5, updated=2)
    await hand.ready(2)
    await hand.shows(UPDATING, replicas=5, partition=0, ready=5, updated=3)
    await hand.ready(1)
    await hand.shows(UPDATING, replicas=4, partition=0, ready=5, updated=4)
    await hand.remove(4)
    await hand.ready(0)
    await hand.shows(AVAILABLE, replicas=4, partition=0, ready=4, updated=4)


async def test_lws_13_1_two_unavailable_and_a_surge_of_2(hand):
    await hand.running(replicas=4, rolling={"maxUnavailable": 2, "maxSurge": 2})
    await hand.change()
    await hand.shows(UPDATING, replicas=6, partition=2, ready=4, updated=0)
    await hand.leaders(4, 5)
    await hand.ready(3, 2)
    await hand.shows(UPDATING, replicas=4, partition=0)
    await hand.noted("deleting surge replicas from test-sample-4 to test-sample-5")
    await hand.remove(5, 4)
    await hand.shows(UPDATING, replicas=4, partition=0, ready=4, updated=2)
    await hand.ready(1, 0)
    await hand.shows(AVAILABLE, replicas=4, partition=0, ready=4, updated=4)


async def test_lws_13_1_replicas_scaled_up_with_a_surge(hand):
    await hand.running(replicas=2, rolling={"maxSurge": 2})
    await hand.change(replicas=4)
    await hand.shows(UPDATING, replicas=6, partition=2, ready=2, updated=0)
    await hand.ready(5, 4, 3, 2)
    await hand.ready(1, 0)
    await hand.shows(AVAILABLE, replicas=4, partition=0)
    await hand.remove(5, 4)
    await hand.shows(AVAILABLE, replicas=4, partition=0, ready=4, updated=4)


async def test_lws_13_1_replicas_scaled_down_with_a_surge(hand):
    await hand.running(replicas=6, rolling={"maxSurge": 2})
    await hand.change(replicas=3)
    await hand.remove(5)
    await hand.shows(UPDATING, replicas=5, partition=2, ready=5, updated=0)
    await hand.ready(4, 3, 2)
    await hand.ready(1, 0)
    await hand.shows(AVAILABLE, replicas=3, partition=0)
    await hand.remove(4, 3)
    await hand.shows(AVAILABLE, replicas=3, partition=0, ready=3, updated=3)


async def test_lws_13_1_a_surge_greater_than_the_replicas(hand):
    await hand.running(replicas=2, rolling={"maxSurge": 4})
    await hand.change()
    await hand.shows(UPDATING, replicas=3, partition=1, ready=2, updated=0)
    await hand.ready(2, 1)
    await hand.shows(UPDATING, replicas=2, partition=0)
    await hand.remove(2)
    await hand.ready(0)
    await hand.shows(AVAILABLE, replicas=2, partition=0, ready=2, updated=2)


async def test_lws_13_1_scaled_up_and_down_in_an_update_with_a_surge(hand):
    await hand.running(replicas=4, rolling={"maxSurge": 2})
    await hand.change()
    await hand.shows(UPDATING, replicas=6, partition=3, ready=4, updated=0)
    await hand.leaders(4, 5)
    await hand.patch(replicas=6)
    await hand.shows(UPDATING, replicas=8, partition=3, ready=4, updated=2)
    await hand.ready(7, 6)
    await hand.shows(UPDATING, replicas=8, partition=3, ready=6, updated=4)
    await hand.patch(replicas=2)
    await hand.remove(7, 6, 5, 4, 3)
    await hand.shows(UPDATING, replicas=3, partition=1, ready=3, updated=0)
    await hand.ready(2)
    await hand.shows(UPDATING, replicas=3, partition=0, ready=3, updated=1)
    await hand.ready(1)
    await hand.shows(UPDATING, replicas=2, partition=0)
    await hand.remove(2)
    await hand.shows(UPDATING, replicas=2, partition=0, ready=2, updated=1)
    await hand.ready(0)
    await hand.shows(AVAILABLE, replicas=2, partition=0, ready=2, updated=2)


async def test_lws_13_1_a_second_change_in_an_update_with_a_surge(hand):
    await hand.running(replicas=4, rolling={"maxSurge": 2})
    assert len(await hand.revisions()) == 1
    await hand.change("nginx:2")
    await hand.shows(UPDATING, replicas=6, partition=3, ready=4, updated=0)
    await hand.ready(5, 4)
    await hand.shows(UPDATING, replicas=6, partition=1, ready=6, updated=2)
    assert len(await hand.revisions()) == 2
    await hand.change("nginx:3")
    await hand.shows(UPDATING, replicas=6, partition=3, ready=6, updated=0)
    assert len(await hand.revisions()) == 3
    await hand.ready(5, 4, 3, 2, 1, 0)
    await hand.shows(AVAILABLE, replicas=4, partition=0)
    await hand.remove(5, 4)
    await hand.shows(AVAILABLE, replicas=4, partition=0, ready=4, updated=4)

    async def one_revision():
        return len(await hand.revisions()) == 1

    await hand.until(one_revision)
    await hand.valid(4)


async def test_o_15_surge_groups_go_when_no_group_moves_any_more(hand):
    await hand.running(replicas=3, rolling={"maxUnavailable": 0, "maxSurge": 1, "partition": 2})
    await hand.change()
    await hand.shows(UPDATING, replicas=4, partition=3, ready=3, updated=0)
    await hand.ready(3)
    await hand.shows(UPDATING, replicas=4, partition=2, ready=4, updated=1)
    await hand.ready(2)
    await hand.shows(AVAILABLE, replicas=3, partition=2)
    await hand.remove(3)
    await hand.shows(AVAILABLE, replicas=3, partition=2, ready=3, updated=1)
    await hand.roll(partition=0)
    await hand.shows(UPDATING, replicas=4, partition=2, ready=3, updated=1)
    await hand.ready(3)
    await hand.shows(UPDATING, replicas=4, partition=1, ready=4, updated=2)
    await hand.ready(1)
    await hand.shows(UPDATING, replicas=4, partition=0, ready=4, updated=3)
    await hand.ready(0)
    await hand.shows(AVAILABLE, replicas=3, partition=0)


async def test_o_15_groups_that_can_be_spared_need_no_surge(hand):
    await hand.running(replicas=6, rolling={"maxUnavailable": 2, "maxSurge": 3, "partition": 9}, size=1)
    assert (await hand.leader_set()).spec.replicas == 6


async def test_lws_16_5_unhealthy_groups_at_rest_are_no_reason_for_a_surge_when_scaling_down(hand):
    await hand.running(replicas=4, rolling={"maxSurge": 1})
    for index in range(3):
        await hand.unready(index)
    await hand.shows(PROGRESSING, replicas=4, partition=0, ready=1)
    await hand.patch(replicas=3)
    await hand.settled()
    await hand.shows(PROGRESSING, replicas=3, partition=0)
