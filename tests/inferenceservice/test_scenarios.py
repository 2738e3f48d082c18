"""The worked scenarios of KServe §6.1, by their names, on the real control plane.

States are C,Y,R,V: latest created, ready and rolled out, and previously rolled out.
"""

import pytest

pytestmark = pytest.mark.plane

NEVER = {"kwok.pyreconcile.dev/never-ready": "true"}
CRASH = {"kwok.pyreconcile.dev/crash": "true"}
CLEAR = {"kwok.pyreconcile.dev/never-ready": None, "kwok.pyreconcile.dev/crash": None}


async def first_revision(services, **spec):
    await services.create(**spec)
    await services.reaches("r1,r1,r1,-", ["r1 100"])


async def canary(services, percent=10):
    """A3: the first revision serves, and a second one is a ready canary."""
    await first_revision(services)
    await services.update(model="v2", canaryTrafficPercent=percent)
    await services.reaches("r2,r2,r1,-", [f"r2 {percent}", f"r1 {100 - percent} prev"])


async def test_a1_the_first_create_ignores_the_percent(services):
    await services.create(percent=20, annotations=NEVER)
    await services.says(Ready="Unknown", PredictorConfigurationReady=("Unknown", "Deploying"))
    assert await services.state() == ("r1,-,-,-", [])
    assert await services.route() is None
    await services.set_pods(1, never_ready=None)
    await services.reaches("r1,r1,r1,-", ["r1 20", "r1 80 prev"])
    await services.says(Ready="True", LatestDeploymentReady="True", RoutesReady="True", IngressReady="True")
    assert services.history() == [{"r1": 100}]


async def test_a2_a_starting_canary_gets_nothing(services):
    await first_revision(services)
    await services.update(model="v2", canaryTrafficPercent=10, annotations=NEVER)
    await services.reaches("r2,r1,r1,-", ["r1 10", "r1 90 prev"])
    await services.says(
        PredictorConfigurationReady=("Unknown", "Deploying"),
        LatestDeploymentReady=("Unknown", "PredictorConfigurationReady not ready"),
        Ready="True",
    )
    assert services.history() == [{"r1": 100}]


async def test_a3_a_ready_canary_gets_its_share(services):
    await canary(services)
    await services.says(Ready="True", LatestDeploymentReady="True", RoutesReady="True")
    assert services.history() == [{"r1": 100}, {"r2": 10, "r1": 90}]
    assert await services.front() == "r1"


async def test_a4_a_step_moves_weights_and_no_revision(services):
    await canary(services)
    services.gateway.held = True
    await services.update(canaryTrafficPercent=50)
    await services.says(RoutesReady=("Unknown", "PredictorRouteReady not ready"), Ready="True")
    assert (await services.conditions())["PredictorRouteReady"] == ("Unknown", "TrafficNotMigrated")
    services.gateway.held = False
    await services.reaches("r2,r2,r1,-", ["r2 50", "r1 50 prev"])
    await services.says(RoutesReady="True")
    assert services.history() == [{"r1": 100}, {"r2": 10, "r1": 90}, {"r2": 50, "r1": 50}]


async def test_a5_removing_the_percent_promotes(services):
    await canary(services)
    await services.update(canaryTrafficPercent=None)
    await services.reaches("r2,r2,r2,r1", ["r2 100"])
    assert await services.front() == "r2"
    await services.scales_to(r1=0, r2=1)
    assert set(await services.records()) == {"r1", "r2"}


async def test_a5_a_hundred_percent_promotes_too(services):
    await canary(services)
    await services.update(canaryTrafficPercent=100)
    await services.reaches("r2,r2,r2,r1", ["r2 100"])


async def test_a6_zero_rolls_a_canary_back(services):
    await canary(services)
    await services.update(canaryTrafficPercent=0)
    await services.reaches("r2,r2,r1,-", ["r2 0", "r1 100 prev"])
    await services.says(Ready="True", LatestDeploymentReady="True")
    await services.scales_to(r1=1, r2=1)  # r2 is still referenced


async def test_a7_zero_rolls_a_promoted_revision_back(services):
    await canary(services)
    await services.update(canaryTrafficPercent=None)
    await services.reaches("r2,r2,r2,r1", ["r2 100"])
    await services.scales_to(r1=0, r2=1)
    await services.update(canaryTrafficPercent=0)
    await services.reaches("r2,r2,r1,r1", ["r2 0", "r1 100 prev"])
    await services.says(Ready="True")
    assert await services.front() == "r1"
    assert services.history()[-2:] == [{"r2": 100}, {"r1": 100}]
    await services.until(has_reason(services, "RevisionRolledBack"))


async def test_a8_a_broken_canary_never_gets_traffic(services):
    await first_revision(services)
    await services.update(model="v2", canaryTrafficPercent=10, annotations=CRASH)
    await services.says(
        PredictorConfigurationReady=("False", "RevisionFailed"),
        LatestDeploymentReady=("False", "PredictorConfigurationReady not ready"),
        Ready="True",
        PredictorReady="True",
    )
    await services.reaches("r2,r1,r1,-", ["r1 10", "r1 90 prev"])
    assert "ModelLoadFailed" in (await services.told())["PredictorConfigurationReady"][2]
    assert services.history() == [{"r1": 100}]
    assert (await services.deployments())["r1"].status.available_replicas == 1
    await services.until(has_reason(services, "RevisionFailed"))


async def test_a9_a_broken_revision_without_percent_never_gets_traffic(services):
    await first_revision(services)
    await services.update(model="v2", annotations=CRASH)
    await services.says(PredictorConfigurationReady=("False", "RevisionFailed"), Ready="True")
    await services.reaches("r2,r1,r1,-", ["r1 100"])
    assert services.history() == [{"r1": 100}]
    assert await services.front() == "r1"


async def test_a10_a_fix_takes_the_broken_ones_place(services):
    await first_revision(services)
    await services.update(model="v2", canaryTrafficPercent=10, annotations=CRASH)
    await services.says(PredictorConfigurationReady=("False", "RevisionFailed"))
    await services.update(model="v3", annotations=CLEAR)
    await services.reaches("r3,r3,r1,-", ["r3 10", "r1 90 prev"])
    await services.scales_to(r1=1, r3=1)
    assert all("r2" not in weights for weights in services.history())


async def test_a11_promoting_and_changing_in_one_edit_promotes_only_the_new_one(services):
    await canary(services)
    await services.update(model="v3", canaryTrafficPercent=None, annotations=NEVER)
    await services.reaches("r3,r2,r1,-", ["r1 100"])  # upstream gives r2, which nobody promoted, everything
    await services.set_pods(3, never_ready=None)
    await services.reaches("r3,r3,r3,r1", ["r3 100"])
    assert {"r2": 100} not in services.history()


async def test_a12_a_first_revision_that_never_works_is_not_routed_to(services):
    await services.create(annotations=CRASH)
    await services.says(PredictorReady=("False", "RevisionFailed"), Ready="False", IngressReady="False")
    assert await services.state() == ("r1,-,-,-", [])
    assert await services.route() is None


async def test_a13_a_hundred_percent_kept_switches_when_the_new_one_is_ready(services):
    await first_revision(services, percent=100)
    await services.update(model="v2", annotations=NEVER)
    await services.reaches("r2,r1,r1,-", ["r1 100"])
    await services.set_pods(2, never_ready=None)
    await services.reaches("r2,r2,r2,r1", ["r2 100"])


async def test_a14_a_percent_without_a_new_template_splits_against_the_one_before(services):
    await canary(services)
    await services.update(canaryTrafficPercent=None)
    await services.reaches("r2,r2,r2,r1", ["r2 100"])
    await services.update(canaryTrafficPercent=10)
    await services.reaches("r2,r2,r1,r1", ["r2 10", "r1 90 prev"])


async def test_o_16_a_rejected_canary_gets_nothing_from_the_next_one(services):
    await canary(services, percent=20)
    await services.update(canaryTrafficPercent=0)
    await services.reaches("r2,r2,r1,-", ["r2 0", "r1 100 prev"])
    rejected_at = len(services.history())
    await services.update(model="v3", canaryTrafficPercent=20, annotations=NEVER)
    await services.reaches("r3,r2,r1,-", ["r1 20", "r1 80 prev"])
    await services.says(PredictorConfigurationReady=("Unknown", "Deploying"))
    await services.set_pods(3, never_ready=None)
    await services.reaches("r3,r3,r1,-", ["r3 20", "r1 80 prev"])
    assert all("r2" not in weights for weights in services.history()[rejected_at:])
    assert all(sum(weights.values()) == 100 for weights in services.history())


def has_reason(services, reason):
    async def check():
        return reason in await services.reasons()

    return check
