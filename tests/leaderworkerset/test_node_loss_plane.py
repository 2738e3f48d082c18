"""Nodes are lost for real: no heartbeat, and Kubernetes' own controllers at work, with flags that make them quick."""

import pytest

from hack.node_loss import Trial, measure, table
from pyreconcile_controllers.leaderworkerset.node_loss import FORCE, WAIT


@pytest.mark.plane
async def test_lws_node_loss_groups_of_lost_nodes_and_only_those_are_recreated_whole():
    trials = [Trial("return", WAIT), Trial("taint", FORCE), Trial("delete", FORCE)]
    # By itself Kubernetes removes the pods within 20 s of the taint, and 40 s or more after the node is gone. Without
    # its collector it has to be our controller. It fails when a pod of the other group of a set is touched.
    await measure(trials, quick=True, collector=False)
    for trial in trials:
        assert trial.tainted < trial.deleted <= trial.helped < trial.freed <= trial.running
        assert trial.running - trial.helped < 40
    assert len(table(trials)) == 2 + len(trials)
