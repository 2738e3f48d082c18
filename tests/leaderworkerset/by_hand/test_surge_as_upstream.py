"""Surge groups with a partition as the Go controller has them, by a setting; pods driven by hand (LWS §6.3, §13.1)."""

import pytest

from pyreconcile_controllers.leaderworkerset import Settings

pytestmark = pytest.mark.asyncio(loop_scope="module")

AVAILABLE, UPDATING = {"Available"}, {"Progressing", "UpdateInProgress"}


@pytest.fixture(scope="module")
def settings():
    return Settings(upstream_surge=True)


async def test_lws_13_1_a_partition_and_a_surge_keep_the_surge_group_until_the_partition_is_0(hand):
    await hand.create(replicas=3, rolling={"maxSurge": 1, "partition": 2})
    await hand.ready(0, 1, 2)
    await hand.shows(AVAILABLE, replicas=3, partition=2, ready=3, updated=3)
    await hand.change()
    await hand.shows(UPDATING, replicas=4, partition=2, ready=3, updated=0)
    await hand.ready(3, 2)
    await hand.shows(AVAILABLE, replicas=4, partition=2, ready=4, updated=2)
    await hand.roll(partition=0)
    await hand.shows(UPDATING, replicas=4, partition=0, ready=4, updated=2)
    await hand.ready(1, 0)
    await hand.shows(AVAILABLE, replicas=3, partition=0, ready=4, updated=4)
    await hand.remove(3)
    await hand.shows(AVAILABLE, replicas=3, partition=0, ready=3, updated=3)


async def test_o_15_with_the_setting_a_new_set_with_a_partition_has_surge_groups_at_first(hand):
    await hand.create(replicas=2, size=1, rolling={"maxSurge": 1, "maxUnavailable": 0, "partition": 1})
    await hand.shows(replicas=3, partition=1)
    await hand.ready(0, 1)
    await hand.shows(AVAILABLE, replicas=2, partition=1, ready=2, updated=2)
