"""Every case of LWS §13.2 (11 of defaults, 45 of creation and update) through the real API server."""

from itertools import count
from typing import Any

import pytest

from pyreconcile.api import copy_json
from pyreconcile.client import ApiError, ForbiddenError, InvalidError
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

pytestmark = [pytest.mark.plane, pytest.mark.asyncio(loop_scope="module")]

ROLLING = "spec.rolloutStrategy.rollingUpdateConfiguration"
SUBGROUP = "spec.leaderWorkerTemplate.SubGroupPolicy.subGroupSize"
GONE = object()
NUMBERS = count(1)

Changes = dict[str, Any]
"""Values by paths below the set, with a dot between two fields."""


def changed(raw: dict[str, Any], changes: Changes) -> dict[str, Any]:
    result = copy_json(raw)
    for path, value in changes.items():
        *parents, last = path.split(".")
        target = result
        for parent in parents:
            target = target.setdefault(parent, {})
        if value is GONE:
            target.pop(last)
        else:
            target[last] = copy_json(value)
    return result


def pod_template(name: str) -> dict[str, Any]:
    # As it is stored: the CRD fills in the protocol, and nothing else.
    port = {"containerPort": 8080, "protocol": "TCP"}
    image = "nginxinc/nginx-unprivileged:1.27"
    return {"spec": {"containers": [{"name": name, "image": image, "ports": [port], "resources": {}}]}}


def lws(changes: Changes | None = None) -> dict[str, Any]:
    """A set with every field that could be defaulted."""
    raw = {
        "metadata": {"name": f"test-sample-{next(NUMBERS)}"},
        "spec": {
            "replicas": 2,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": 2,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": pod_template("leader"),
                "workerTemplate": pod_template("worker"),
            },
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"partition": 0, "maxUnavailable": 1, "maxSurge": 0},
            },
            "networkConfig": {"subdomainPolicy": "Shared"},
        },
    }
    return changed(raw, changes or {})


def rolling(**fields: Any) -> Changes:
    return {f"{ROLLING}.{field}": value for field, value in fields.items()}


RESTART = "spec.leaderWorkerTemplate.restartPolicy"
SIZE = "spec.leaderWorkerTemplate.size"
STRATEGY = {"type": "RollingUpdate", "rollingUpdateConfiguration": {"partition": 2, "maxUnavailable": 2, "maxSurge": 1}}

DEFAULTING: dict[str, tuple[Changes, Changes]] = {
    "replicas": ({"spec.replicas": GONE}, {"spec.replicas": 1}),
    "size": ({SIZE: GONE}, {SIZE: 1}),
    "nothing where replicas and size are given": ({}, {}),
    "restart policy": ({RESTART: GONE}, {}),
    "no restart policy where one is given": ({RESTART: "None"}, {RESTART: "None"}),
    "the deprecated restart policy becomes None": ({RESTART: "Default"}, {RESTART: "None"}),
    "startup policy": ({"spec.startupPolicy": GONE}, {}),
    "no startup policy where one is given": (
        {"spec.startupPolicy": "LeaderReady"},
        {"spec.startupPolicy": "LeaderReady"},
    ),
    "subdomain policy": ({"spec.networkConfig": GONE}, {}),
    "rollout strategy": ({"spec.rolloutStrategy": {}}, {}),
    "no rollout strategy where one is given": ({"spec.rolloutStrategy": STRATEGY}, {"spec.rolloutStrategy": STRATEGY}),
}


@pytest.mark.parametrize(("sent", "stored"), DEFAULTING.values(), ids=DEFAULTING)
async def test_lws_13_2_defaults(admission, sent, stored):
    created = await admission.create_set(lws(sent))
    assert created["spec"] == lws(stored)["spec"]


NO_LABEL = "a DNS-1035 label must consist of lower case alphanumeric characters"
SCHEMA, WEBHOOK = InvalidError, ForbiddenError
Refusal = tuple[type[ApiError], str] | None


def subgroups(size: int, kind: str | None = None) -> Changes:
    policy = {"subGroupSize": size} | ({} if kind is None else {"subGroupPolicyType": kind})
    return {"spec.leaderWorkerTemplate.subGroupPolicy": policy}


CREATION: dict[str, tuple[Changes, Refusal]] = {
    "invalid name": ({"metadata.name": "2cube"}, (WEBHOOK, f'metadata.name: Invalid value: "2cube": {NO_LABEL}')),
    "product of replicas and size above int32": (
        {"spec.replicas": 100_000, SIZE: 1_000_000},
        (WEBHOOK, "spec.replicas: Invalid value: 100000: the product of replicas and worker replicas must not exceed"),
    ),
    "negative size": (
        {SIZE: -1},
        (WEBHOOK, f"{SIZE}: Invalid value: -1: size must be equal or greater than 1"),
    ),
    "negative replicas": ({"spec.replicas": -1}, (SCHEMA, "spec.replicas")),
    "replicas above 1000000": ({"spec.replicas": 1_000_001}, (SCHEMA, "spec.replicas")),
    "unknown startup policy": ({"spec.startupPolicy": "Sometime"}, (SCHEMA, "spec.startupPolicy")),
    "negative subGroupSize": (
        subgroups(-1),
        (WEBHOOK, f"{SUBGROUP}: Invalid value: -1: subGroupSize must be equal or greater than 1"),
    ),
    "subGroupSize above size": (
        subgroups(3),
        (WEBHOOK, f"{SUBGROUP}: Invalid value: 3: subGroupSize cannot be larger than size"),
    ),
    "LeaderExcluded with size - 1 not divisible": (
        {SIZE: 4, **subgroups(2, "LeaderExcluded")},
        (WEBHOOK, f"{SUBGROUP}: Invalid value: 2: size-1 must be divisible by subGroupSize when using LeaderExcluded"),
    ),
    "restart policy None": ({RESTART: "None"}, None),
    "unknown restart policy": ({RESTART: "Sometimes"}, (SCHEMA, RESTART)),
    "unknown rollout strategy": ({"spec.rolloutStrategy.type": "Sideways"}, (SCHEMA, "spec.rolloutStrategy.type")),
    "maxUnavailable above replicas": (rolling(maxUnavailable=10), None),
    "maxUnavailable above 100%": (
        rolling(maxUnavailable="200%"),
        (WEBHOOK, f'{ROLLING}.maxUnavailable: Invalid value: "200%": must not be greater than 100%'),
    ),
    "maxUnavailable below 0": (
        rolling(maxUnavailable=-1),
        (WEBHOOK, f"{ROLLING}.maxUnavailable: Invalid value: -1: must be greater than or equal to 0"),
    ),
    "maxSurge above replicas": (rolling(maxSurge=10), None),
    "maxSurge above 100%": (
        rolling(maxSurge="200%"),
        (WEBHOOK, f'{ROLLING}.maxSurge: Invalid value: "200%": must not be greater than 100%'),
    ),
    "maxSurge below 0": (
        rolling(maxSurge=-1),
        (WEBHOOK, f"{ROLLING}.maxSurge: Invalid value: -1: must be greater than or equal to 0"),
    ),
    "maxUnavailable and maxSurge both 0": (
        rolling(maxUnavailable=0, maxSurge=0),
        (WEBHOOK, f"{ROLLING}.maxUnavailable: Invalid value: 0: must not be 0 when `maxSurge` is 0"),
    ),
    "maxUnavailable 0 with maxSurge": (rolling(maxUnavailable=0, maxSurge=1), None),
    "no replicas, whatever else": ({"spec.replicas": 0, **rolling(maxUnavailable="25%", maxSurge="25%")}, None),
    "maxUnavailable that rounds down to 0 without maxSurge": (
        rolling(maxUnavailable="25%", maxSurge=0),
        (WEBHOOK, f'{ROLLING}.maxUnavailable: Invalid value: "25%": must not be 0 when `maxSurge` is 0'),
    ),
    "negative partition": (
        rolling(partition=-1),
        (WEBHOOK, f"{ROLLING}.partition: Invalid value: -1: must be greater than or equal to 0"),
    ),
    "partition above replicas": (rolling(partition=3), None),
    "partition equal to replicas": (rolling(partition=2), None),
    "partition 0": (rolling(partition=0), None),
}


@pytest.mark.parametrize(("sent", "refusal"), CREATION.values(), ids=CREATION)
async def test_lws_13_2_creation(admission, sent, refusal):
    raw = lws(sent)
    if refusal is None:
        assert (await admission.create_set(raw))["spec"] == raw["spec"]
        return
    error, message = refusal
    with pytest.raises(ApiError) as caught:
        await admission.create_set(raw)
    check_refusal(caught.value, error, message)


def check_refusal(caught: ApiError, error: type[ApiError], message: str) -> None:
    assert type(caught) is error
    assert message in str(caught)
    by_webhook = 'admission webhook "vleaderworkerset.kb.io" denied the request: ' in str(caught)
    assert by_webhook is (error is WEBHOOK)


NETWORK = "spec.networkConfig"
UNIQUE = {"subdomainPolicy": "UniquePerReplica"}
OTHER_IMAGE = {"spec": {"containers": [{"name": "other", "image": "nginx", "resources": {}}]}}
WORKERS, LEADER = "spec.leaderWorkerTemplate.workerTemplate", "spec.leaderWorkerTemplate.leaderTemplate"
GROUPS = "spec.leaderWorkerTemplate.subGroupPolicy"

UPDATE: dict[str, tuple[Changes, Changes, Refusal | Changes]] = {
    "size": ({}, {SIZE: 3}, None),
    "replicas to a product above int32": (
        {SIZE: 1_000_000},
        {"spec.replicas": 100_000},
        (WEBHOOK, "spec.replicas: Invalid value: 100000: the product of replicas and worker replicas must not exceed"),
    ),
    "replicas to a negative number": ({}, {"spec.replicas": -1}, (SCHEMA, "spec.replicas")),
    "replicas to more than 1000000": ({}, {"spec.replicas": 1_000_001}, (SCHEMA, "spec.replicas")),
    "startup policy to an unknown one": ({}, {"spec.startupPolicy": "Sometime"}, (SCHEMA, "spec.startupPolicy")),
    "number of subGroupSize": (
        {SIZE: 4, **subgroups(2)},
        {f"{GROUPS}.subGroupSize": 4},
        (WEBHOOK, f"{SUBGROUP}: Invalid value: 4: field is immutable"),
    ),
    "subgroups where there were none": (
        {},
        subgroups(2),
        (WEBHOOK, f"{SUBGROUP}: Invalid value: 2: cannot enable subGroupSize after the lws is already created"),
    ),
    "no subgroups where there were some": (
        subgroups(2),
        {GROUPS: GONE},
        (WEBHOOK, f"{SUBGROUP}: Invalid value: 2: cannot remove subGroupSize after enabled"),
    ),
    "replicas": ({}, {"spec.replicas": 3}, None),
    "leader and worker template": ({}, {WORKERS: OTHER_IMAGE, LEADER: OTHER_IMAGE}, None),
    "subdomain policy from UniquePerReplica to Shared": (
        {NETWORK: UNIQUE},
        {NETWORK: {"subdomainPolicy": "Shared"}},
        None,
    ),
    "subdomain policy from Shared to UniquePerReplica": ({}, {NETWORK: UNIQUE}, None),
    "subdomain policy from none to UniquePerReplica": ({NETWORK: GONE}, {NETWORK: UNIQUE}, None),
    "subdomain policy to none": ({NETWORK: UNIQUE}, {NETWORK: GONE}, {NETWORK: {"subdomainPolicy": "Shared"}}),
    "partition": ({}, rolling(partition=1), None),
    "partition to a negative number": (
        {},
        rolling(partition=-1),
        (WEBHOOK, f"{ROLLING}.partition: Invalid value: -1: must be greater than or equal to 0"),
    ),
    "partition to more than replicas": ({}, rolling(partition=3), None),
    "partition to replicas": ({}, rolling(partition=2), None),
    "partition to 0": (rolling(partition=2), rolling(partition=0), None),
}


@pytest.mark.parametrize(("before", "change", "outcome"), UPDATE.values(), ids=UPDATE)
async def test_lws_13_2_update(admission, before, change, outcome):
    raw = lws(before)
    await admission.create_set(raw)
    # What was sent without a network configuration was stored with one.
    raw["spec"].setdefault("networkConfig", {"subdomainPolicy": "Shared"})
    wanted = changed(raw, change)
    if isinstance(outcome, tuple):
        with pytest.raises(ApiError) as caught:
            await admission.update_set(wanted)
        check_refusal(caught.value, *outcome)
        return
    stored = await admission.update_set(wanted)
    assert stored["spec"] == changed(wanted, outcome or {})["spec"]


async def test_lws_15_25_the_scale_subresource_is_held_by_the_schema_alone(admission):
    created = await admission.create_set(lws({SIZE: 1_000_000}))
    key = f"{admission.namespace}/{created.metadata.name}"
    await admission.client.set_scale(LeaderWorkerSet, key, 100_000)  # a product that the webhook would refuse
    with pytest.raises(InvalidError):
        await admission.client.set_scale(LeaderWorkerSet, key, 1_000_001)
    assert (await admission.client.get_scale(LeaderWorkerSet, key)).spec.replicas == 100_000
