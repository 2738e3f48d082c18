"""Gang scheduling on a cluster without the gate GenericWorkload: nothing is pretended (LWS §9)."""

import pytest

from pyreconcile.api.core_v1 import Pod
from pyreconcile_controllers.leaderworkerset import Settings
from pyreconcile_controllers.leaderworkerset.gang_support import Support

NOT_SERVED = "this API server does not serve podgroups.scheduling.k8s.io (v1beta1): native gang scheduling needs"


@pytest.fixture
def settings():
    return Settings(scheduler_provider="kubernetes")


async def has_event(sets, name, text):
    async def check():
        return any(text in note for note in await sets.notes(name))

    await sets.until(check, what=f"an event of {name} with {text!r}")


async def test_lws_9_without_the_gate_no_pod_is_made_and_everyone_is_told_why(sets):
    await sets.create(replicas=1, size=2)

    async def refused():
        condition = (await sets.conditions()).get("GangScheduling")
        return condition is not None and condition[0] == "False" and NOT_SERVED in condition[1]

    await sets.until(refused, what="the condition says why")
    await has_event(sets, "demo", NOT_SERVED)
    # The leader StatefulSet is named like the set, and its controller reports what the webhook said.
    await has_event(sets, "demo", "pod demo-0 must be placed with its whole group, but " + NOT_SERVED)
    assert not await sets.client.list(Pod, namespace=sets.namespace)


async def test_lws_9_a_leader_that_lost_its_group_is_no_group(sets, monkeypatch):
    """As when another API server than the one that was asked has the gate off: the field goes without a word."""

    async def served(_self):
        return ""

    monkeypatch.setattr(Support, "problem", served)
    await sets.create(replicas=1, size=2)
    await has_event(sets, "demo", "The API server dropped spec.schedulingGroup of leader pod demo-0")
    assert not await sets.worker_sets()
    monkeypatch.undo()

    async def gone():
        return not await sets.client.list(Pod, namespace=sets.namespace)

    await sets.until(gone, what="the leader is taken away, and no other is let in")
