"""Nodes are lost for real: no heartbeat, and Kubernetes' own controllers at work, with flags that make them quick."""

import pytest

from hack.node_loss import Trial, measure, table
from pyreconcile_controllers.leaderworkerset.node_loss import FORCE, WAIT


@pytest.mark.plane
async def test_lws_node_loss_groups_of_lost_nodes_and_only_those_are_recreated_whole():
    back, tainted, deleted = trials = [Trial("return", WAIT), Trial("taint", FORCE), Trial("delete", FORCE)]
    await measure(trials, quick=True)  # it fails when a pod of the other group of a set is touched
    for trial in trials:
        assert trial.tainted < trial.deleted <= trial.helped < trial.freed <= trial.running
    # By itself Kubernetes takes up to 20 s after the taint, and more than 40 s after the node is gone.
    assert tainted.running - tainted.helped < 10
    assert deleted.running - deleted.helped < 10
    assert back.running - back.helped < 10
    assert len(table(trials)) == 2 + len(trials)
