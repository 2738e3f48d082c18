"""InferenceService: a canary gets a tenth of the traffic, is promoted, and a broken version gets nothing."""

from __future__ import annotations

from typing import Any

from hack.demo._stage import Stage, sample
from hack.gateway_api import StandInGateway
from pyreconcile.client import MergePatch
from pyreconcile_controllers.inferenceservice import InferenceService

_R = "chat-predictor-0000"


async def serve(stage: Stage, gateway: StandInGateway) -> None:
    """The first version gets all traffic."""
    stage.say("[bold]A model is served[/]: InferenceService chat on four pods")
    await stage.client.create(sample("servingruntime.yaml", stage.namespace))
    await stage.client.create(sample("inferenceservice.yaml", stage.namespace))
    await _weights(stage, gateway, {f"{_R}1": 100})
    await stage.until_condition(InferenceService, "chat", "Ready")


async def canary(stage: Stage, gateway: StandInGateway) -> None:
    """A new version gets a tenth of the traffic, then all of it."""
    stage.say("[bold]Canary[/]: version 2 with 10 % of the traffic")
    await _change(stage, model={"storageUri": "hf://example/chat-v2"}, canaryTrafficPercent=10)
    await _weights(stage, gateway, {f"{_R}1": 90, f"{_R}2": 10})
    stage.say("[bold]Promoted[/]: the percent is taken out")
    await _change(stage, canaryTrafficPercent=None)
    await _weights(stage, gateway, {f"{_R}2": 100})
    await stage.until_condition(InferenceService, "chat", "Ready")


async def broken(stage: Stage, gateway: StandInGateway) -> None:
    """A version whose pods crash gets no traffic, and the last good one goes on serving."""
    stage.say("[bold]A broken version[/]: version 3 crashes")
    crash = {"kwok.pyreconcile.dev/crash": "true"}
    await _change(stage, model={"storageUri": "hf://example/chat-v3"}, canaryTrafficPercent=10, annotations=crash)

    async def failed() -> bool:
        found = await stage.client.get(InferenceService, stage.key("chat"))
        conditions = {item.type: item for item in found.status.conditions} if found.status else {}
        revision, ready = conditions.get("PredictorConfigurationReady"), conditions.get("Ready")
        return bool(revision and revision.reason == "RevisionFailed" and ready and ready.status == "True")

    await stage.until_found(failed, "the new revision has failed, the service is still Ready")
    stage.passed("the new revision has failed (RevisionFailed), the service is still Ready")
    history = gateway.accepted[stage.key("chat")]
    stage.check(not any(f"{_R}3" in split for split in history), f"version 3 never was in one of {len(history)} splits")
    stage.check(all(sum(split.values()) == 100 for split in history), "every split adds up to 100")
    stage.say("[bold]Back[/]: version 2 again")
    await _change(stage, model={"storageUri": "hf://example/chat-v2"}, canaryTrafficPercent=None, annotations=None)
    await stage.until_condition(InferenceService, "chat", "LatestDeploymentReady")
    await _weights(stage, gateway, {f"{_R}2": 100})


async def _change(stage: Stage, **predictor: Any) -> None:
    await stage.client.patch(InferenceService, stage.key("chat"), MergePatch({"spec": {"predictor": predictor}}))


async def _weights(stage: Stage, gateway: StandInGateway, wanted: dict[str, int]) -> None:
    async def in_force() -> bool:
        return gateway.weights(stage.key("chat")) == wanted

    text = ", ".join(f"version {name.removeprefix(_R)} {share} %" for name, share in wanted.items())
    await stage.until_found(in_force, f"the gateway splits traffic: {text}")
    stage.passed(f"the gateway splits traffic: {text}")
