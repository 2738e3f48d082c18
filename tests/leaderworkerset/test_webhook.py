"""Admission of LeaderWorkerSets (LWS §2.1, §2.2); the cases are those of LWS §13.2."""

from typing import Any

import pytest

from pyreconcile.api import copy_json
from pyreconcile.webhook import ServiceReference, WebhookOptions, WebhookServer, admission_review, apply_patch
from pyreconcile_controllers import leaderworkerset
from pyreconcile_controllers.leaderworkerset.webhook import WEBHOOKS, mutate_set, register, validate_set

ROLLING = "spec.rolloutStrategy.rollingUpdateConfiguration"
SUBGROUP = "spec.leaderWorkerTemplate.SubGroupPolicy.subGroupSize"
NO_PERCENT = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for "
    "validation is '[0-9]+%')"
)
NO_LABEL = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
GONE = object()


def lws(**changes: Any) -> dict[str, Any]:
    """A valid set as the API server stores it; ``changes`` are paths below it with ``__`` for a dot."""
    raw: dict[str, Any] = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "test-sample", "namespace": "default"},
        "spec": {
            "replicas": 2,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": 2,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "workerTemplate": {"spec": {"containers": [{"name": "worker", "image": "nginx"}]}},
            },
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"partition": 0, "maxUnavailable": 1, "maxSurge": 0},
            },
            "networkConfig": {"subdomainPolicy": "Shared"},
        },
    }
    for path, value in changes.items():
        target = raw
        *parents, last = path.split("__")
        for parent in parents:
            target = target.setdefault(parent, {})
        if value is GONE:
            target.pop(last, None)
        else:
            target[last] = value
    return raw


def rolling(**fields: Any) -> dict[str, Any]:
    return {"partition": 0, "maxUnavailable": 1, "maxSurge": 0} | fields


def subgroups(size: int | None, **fields: Any) -> dict[str, Any]:
    return ({} if size is None else {"subGroupSize": size}) | {"subGroupPolicyType": "LeaderWorker"} | fields


DEFAULTING = {
    "nothing to default": ({}, {}),
    "restart policy is not set": (
        {"spec__leaderWorkerTemplate__restartPolicy": GONE},
        {"spec__leaderWorkerTemplate__restartPolicy": "RecreateGroupOnPodRestart"},
    ),
    "restart policy is empty": (
        {"spec__leaderWorkerTemplate__restartPolicy": ""},
        {"spec__leaderWorkerTemplate__restartPolicy": "RecreateGroupOnPodRestart"},
    ),
    "restart policy is set": (
        {"spec__leaderWorkerTemplate__restartPolicy": "None"},
        {"spec__leaderWorkerTemplate__restartPolicy": "None"},
    ),
    "deprecated restart policy Default becomes None": (
        {"spec__leaderWorkerTemplate__restartPolicy": "Default"},
        {"spec__leaderWorkerTemplate__restartPolicy": "None"},
    ),
    "network config is not set": ({"spec__networkConfig": GONE}, {}),
    "network config is null": ({"spec__networkConfig": None}, {}),
    "subdomain policy is null": ({"spec__networkConfig": {"subdomainPolicy": None}}, {}),
    "subdomain policy is set": (
        {"spec__networkConfig__subdomainPolicy": "UniquePerReplica"},
        {"spec__networkConfig__subdomainPolicy": "UniquePerReplica"},
    ),
    "rollout strategy is not set": ({"spec__rolloutStrategy": GONE}, {}),
    "rollout strategy is empty": ({"spec__rolloutStrategy": {}}, {}),
    "rollout type is empty": ({"spec__rolloutStrategy__type": ""}, {}),
    "rolling update configuration is not set": ({"spec__rolloutStrategy": {"type": "RollingUpdate"}}, {}),
    "rollout strategy is configured": (
        {"spec__rolloutStrategy__rollingUpdateConfiguration": rolling(maxUnavailable=2, maxSurge=2, partition=1)},
        {"spec__rolloutStrategy__rollingUpdateConfiguration": rolling(maxUnavailable=2, maxSurge=2, partition=1)},
    ),
    "startup policy is left to the CRD": ({"spec__startupPolicy": GONE}, {"spec__startupPolicy": GONE}),
    "replicas and size are left to the CRD": (
        {"spec__replicas": GONE, "spec__leaderWorkerTemplate__size": GONE},
        {"spec__replicas": GONE, "spec__leaderWorkerTemplate__size": GONE},
    ),
}


@pytest.mark.parametrize(("sent", "expected"), DEFAULTING.values(), ids=DEFAULTING.keys())
def test_lws_2_1_defaults(sent, expected):
    raw = lws(**sent)
    mutate_set(raw)
    assert raw == lws(**expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": GONE},
        {"spec": "text"},
        {"spec__leaderWorkerTemplate": GONE},
        {"spec__leaderWorkerTemplate": []},
        {"spec__rolloutStrategy": 3},
        {"spec__networkConfig": "Shared"},
        {"spec__rolloutStrategy__type": "Sideways", "spec__rolloutStrategy__rollingUpdateConfiguration": GONE},
    ],
)
def test_lws_2_1_what_the_schema_will_refuse_is_left_alone(changes):
    raw = lws(**changes)
    mutate_set(raw)
    assert raw == lws(**changes)


CREATE = {
    "a valid set": ({}, []),
    "invalid name": ({"metadata__name": "2cube"}, [f'metadata.name: Invalid value: "2cube": {NO_LABEL}']),
    "name with a dot": ({"metadata__name": "a.b"}, [f'metadata.name: Invalid value: "a.b": {NO_LABEL}']),
    "name of 64 characters": (
        {"metadata__name": "a" * 64},
        [f'metadata.name: Invalid value: "{"a" * 64}": must be no more than 63 characters'],
    ),
    "generated name": ({"metadata__name": GONE, "metadata__generateName": "test-"}, []),
    "invalid generated name": (
        {"metadata__name": GONE, "metadata__generateName": "2x-"},
        [f'metadata.generateName: Invalid value: "2x-": {NO_LABEL}'],
    ),
    "generated name of a dash": (
        {"metadata__name": GONE, "metadata__generateName": "-"},
        [f'metadata.generateName: Invalid value: "-": {NO_LABEL}'],
    ),
    "generated name of 63 characters and a dash": (
        {"metadata__name": GONE, "metadata__generateName": "a" * 63 + "-"},
        [],
    ),
    "generated name of 64 characters and a dash": (
        {"metadata__name": GONE, "metadata__generateName": "a" * 64 + "-"},
        [f'metadata.generateName: Invalid value: "{"a" * 64}-": must be no more than 63 characters'],
    ),
    "invalid replicas and size": (
        {"spec__replicas": 100_000, "spec__leaderWorkerTemplate__size": 1_000_000},
        [
            "spec.replicas: Invalid value: 100000: the product of replicas and worker replicas must not exceed "
            "2147483647"
        ],
    ),
    "largest product": ({"spec__replicas": 1, "spec__leaderWorkerTemplate__size": 2**31 - 1}, []),
    "invalid size": (
        {"spec__leaderWorkerTemplate__size": -1},
        ["spec.leaderWorkerTemplate.size: Invalid value: -1: size must be equal or greater than 1"],
    ),
    "invalid replicas": (
        {"spec__replicas": -1},
        ["spec.replicas: Invalid value: -1: replicas must be equal or greater than 0"],
    ),
    "replicas greater than 1000000": (
        {"spec__replicas": 1_000_001},
        ["spec.replicas: Invalid value: 1000001: replicas must be equal or less than 1000000"],
    ),
    "several problems at once": (
        {"spec__replicas": -1, "spec__leaderWorkerTemplate__size": 0},
        [
            "spec.replicas: Invalid value: -1: replicas must be equal or greater than 0",
            "spec.leaderWorkerTemplate.size: Invalid value: 0: size must be equal or greater than 1",
        ],
    ),
    "invalid subGroupSize": (
        {"spec__leaderWorkerTemplate__subGroupPolicy": subgroups(-1)},
        [f"{SUBGROUP}: Invalid value: -1: subGroupSize must be equal or greater than 1"],
    ),
    "subGroupSize of 0": (
        {"spec__leaderWorkerTemplate__subGroupPolicy": subgroups(0)},
        [f"{SUBGROUP}: Invalid value: 0: subGroupSize must be equal or greater than 1"],
    ),
    "missing subGroupSize": (
        {"spec__leaderWorkerTemplate__subGroupPolicy": subgroups(None)},
        [f"{SUBGROUP}: Required value: a subGroupPolicy needs the number of pods in a subgroup"],
    ),
    "subGroupSize larger than size": (
        {"spec__leaderWorkerTemplate__subGroupPolicy": subgroups(3)},
        [
            f"{SUBGROUP}: Invalid value: 3: size or size - 1 must be divisible by subGroupSize",
            f"{SUBGROUP}: Invalid value: 3: subGroupSize cannot be larger than size",
        ],
    ),
    "size - 1 divisible by subGroupSize": (
        {"spec__leaderWorkerTemplate__size": 5, "spec__leaderWorkerTemplate__subGroupPolicy": subgroups(2)},
        [],
    ),
    "size - 1 not divisible by subGroupSize and LeaderExcluded": (
        {
            "spec__leaderWorkerTemplate__size": 4,
            "spec__leaderWorkerTemplate__subGroupPolicy": subgroups(2, subGroupPolicyType="LeaderExcluded"),
        },
        [f"{SUBGROUP}: Invalid value: 2: size-1 must be divisible by subGroupSize when using LeaderExcluded"],
    ),
    "subgroup-exclusive-topology without subGroupPolicy": (
        {"metadata__annotations": {"leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology": "rack"}},
        [
            'metadata.annotations.leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology: Invalid value: "rack": '
            "cannot have subgroup-exclusive-topology without subGroupSize set"
        ],
    ),
}


@pytest.mark.parametrize(("changes", "expected"), CREATE.values(), ids=CREATE.keys())
def test_lws_2_2_creation(changes, expected):
    assert [str(error) for error in validate_set(lws(**changes))] == expected


ROLLOUTS = {
    "maxUnavailable greater than replicas": (2, {"maxUnavailable": 10}, []),
    "maxUnavailable greater than 100%": (
        2,
        {"maxUnavailable": "200%"},
        [f'{ROLLING}.maxUnavailable: Invalid value: "200%": must not be greater than 100%'],
    ),
    "maxUnavailable less than 0": (
        2,
        {"maxUnavailable": -1},
        [f"{ROLLING}.maxUnavailable: Invalid value: -1: must be greater than or equal to 0"],
    ),
    "maxUnavailable no percentage": (
        2,
        {"maxUnavailable": "2", "maxSurge": 1},
        [
            f'{ROLLING}.maxUnavailable: Invalid value: "2": {NO_PERCENT}',
            f'{ROLLING}.maxUnavailable: Invalid value: "2": invalid value',
        ],
    ),
    "maxSurge greater than replicas": (2, {"maxSurge": 10}, []),
    "maxSurge greater than 100%": (
        2,
        {"maxSurge": "200%"},
        [f'{ROLLING}.maxSurge: Invalid value: "200%": must not be greater than 100%'],
    ),
    "maxSurge less than 0": (
        2,
        {"maxSurge": -1},
        [f"{ROLLING}.maxSurge: Invalid value: -1: must be greater than or equal to 0"],
    ),
    "maxUnavailable and maxSurge both 0": (
        2,
        {"maxUnavailable": 0, "maxSurge": 0},
        [f"{ROLLING}.maxUnavailable: Invalid value: 0: must not be 0 when `maxSurge` is 0"],
    ),
    "maxUnavailable 0 and maxSurge not": (2, {"maxUnavailable": 0, "maxSurge": 1}, []),
    "maxSurge rounds up": (2, {"maxUnavailable": 0, "maxSurge": "1%"}, []),
    "replicas 0 whatever maxUnavailable and maxSurge": (0, {"maxUnavailable": "25%", "maxSurge": "25%"}, []),
    "maxUnavailable rounds down to 0 and maxSurge 0": (
        2,
        {"maxUnavailable": "25%", "maxSurge": 0},
        [f'{ROLLING}.maxUnavailable: Invalid value: "25%": must not be 0 when `maxSurge` is 0'],
    ),
    "negative partition": (
        2,
        {"partition": -1},
        [f"{ROLLING}.partition: Invalid value: -1: must be greater than or equal to 0"],
    ),
    "partition greater than replicas": (2, {"partition": 5}, []),
    "partition equal to replicas": (2, {"partition": 2}, []),
    "partition zero": (2, {"partition": 0}, []),
}


@pytest.mark.parametrize("update", [False, True], ids=["create", "update"])
@pytest.mark.parametrize(("replicas", "fields", "expected"), ROLLOUTS.values(), ids=ROLLOUTS.keys())
def test_lws_2_2_rollout_strategy(replicas, fields, expected, update):
    new = lws(spec__replicas=replicas, spec__rolloutStrategy__rollingUpdateConfiguration=rolling(**fields))
    assert [str(error) for error in validate_set(new, lws() if update else None)] == expected


SUBGROUPED = {"spec__leaderWorkerTemplate__subGroupPolicy": subgroups(2)}
UPDATES = {
    "size": ({}, {"spec__leaderWorkerTemplate__size": 3}, []),
    "replicas": ({}, {"spec__replicas": 3}, []),
    "replicas to a negative number": (
        {},
        {"spec__replicas": -1},
        ["spec.replicas: Invalid value: -1: replicas must be equal or greater than 0"],
    ),
    "replicas to a product larger than int32": (
        {},
        {"spec__replicas": 1_000_000, "spec__leaderWorkerTemplate__size": 3000},
        [
            "spec.replicas: Invalid value: 1000000: the product of replicas and worker replicas must not exceed "
            "2147483647"
        ],
    ),
    "worker template": ({}, {"spec__leaderWorkerTemplate__workerTemplate": {"spec": {}}}, []),
    "leader template": ({}, {"spec__leaderWorkerTemplate__leaderTemplate": {"spec": {}}}, []),
    "subGroupSize is immutable": (
        SUBGROUPED,
        {"spec__leaderWorkerTemplate__subGroupPolicy": subgroups(1)},
        [f"{SUBGROUP}: Invalid value: 1: field is immutable"],
    ),
    "subGroupSize cannot be added": (
        {},
        SUBGROUPED,
        [f"{SUBGROUP}: Invalid value: 2: cannot enable subGroupSize after the lws is already created"],
    ),
    "subGroupSize cannot be removed": (
        SUBGROUPED,
        {},
        [f"{SUBGROUP}: Invalid value: 2: cannot remove subGroupSize after enabled"],
    ),
    "subgroup type may change": (
        SUBGROUPED | {"spec__leaderWorkerTemplate__size": 3},
        {
            "spec__leaderWorkerTemplate__size": 3,
            "spec__leaderWorkerTemplate__subGroupPolicy": subgroups(2, subGroupPolicyType="LeaderExcluded"),
        },
        [],
    ),
    "subdomainPolicy from UniquePerReplica to Shared": (
        {"spec__networkConfig": {"subdomainPolicy": "UniquePerReplica"}},
        {},
        [],
    ),
    "subdomainPolicy from Shared to UniquePerReplica": (
        {},
        {"spec__networkConfig": {"subdomainPolicy": "UniquePerReplica"}},
        [],
    ),
    "subdomainPolicy from nil": ({"spec__networkConfig": GONE}, {}, []),
    "subdomainPolicy to null past the defaults": (
        {},
        {"spec__networkConfig": {"subdomainPolicy": None}},
        ['spec.networkConfig.subdomainPolicy: Invalid value: "Shared": cannot set subdomainPolicy as null'],
    ),
    "restart policy": ({}, {"spec__leaderWorkerTemplate__restartPolicy": "None"}, []),
}


@pytest.mark.parametrize(("before", "after", "expected"), UPDATES.values(), ids=UPDATES.keys())
def test_lws_2_2_update(before, after, expected):
    assert [str(error) for error in validate_set(lws(**after), lws(**before))] == expected


@pytest.fixture
def server():
    server = WebhookServer()
    register(server)
    return server


def test_lws_2_paths_names_and_selectors_are_the_go_controllers(server):
    assert [(webhook.name, webhook.served_path, tuple(webhook.operations)) for webhook in WEBHOOKS] == [
        ("mleaderworkerset.kb.io", "/mutate-leaderworkerset-x-k8s-io-v1-leaderworkerset", ("CREATE", "UPDATE")),
        ("vleaderworkerset.kb.io", "/validate-leaderworkerset-x-k8s-io-v1-leaderworkerset", ("CREATE", "UPDATE")),
        ("mpod.kb.io", "/mutate--v1-pod", ("CREATE",)),
        ("vpod.kb.io", "/validate--v1-pod", ("CREATE", "UPDATE")),
    ]
    assert set(server.paths) == {webhook.served_path for webhook in WEBHOOKS}
    mutating, validating = (webhook.object_selector["matchExpressions"] for webhook in WEBHOOKS[2:])
    assert mutating == [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]
    # What would admit everything is not asked: no pod has the label and has it not.
    assert validating == [*mutating, {**mutating[0], "operator": "DoesNotExist"}]


def test_lws_2_bundle_builds_the_configurations_under_the_go_controllers_names():
    server = WebhookServer(WebhookOptions(service=ServiceReference(namespace="lws-system", name="lws-webhook-service")))
    register(server)
    mutating, validating = leaderworkerset.webhook_configurations(server)
    assert mutating["metadata"]["name"] == "lws-mutating-webhook-configuration"
    assert validating["metadata"]["name"] == "lws-validating-webhook-configuration"
    assert [entry["name"] for entry in mutating["webhooks"]] == ["mleaderworkerset.kb.io", "mpod.kb.io"]
    assert [entry["name"] for entry in validating["webhooks"]] == ["vleaderworkerset.kb.io", "vpod.kb.io"]


async def test_lws_2_served_webhooks_default_and_refuse(server):
    sent = lws(spec__networkConfig=GONE)
    answer = await server.call(WEBHOOKS[0].served_path, admission_review(sent))
    assert apply_patch(answer, sent) == lws()
    bad = lws(spec__rolloutStrategy__rollingUpdateConfiguration=rolling(maxUnavailable=0))
    for review in (admission_review(bad), admission_review(bad, operation="UPDATE", old=lws())):
        response = (await server.call(WEBHOOKS[1].served_path, review))["response"]
        assert response["status"] == {
            "code": 403,
            "reason": "Forbidden",
            "message": f"{ROLLING}.maxUnavailable: Invalid value: 0: must not be 0 when `maxSurge` is 0",
        }
    deleted = admission_review(bad, operation="DELETE")
    assert (await server.call(WEBHOOKS[1].served_path, deleted))["response"]["allowed"] is True
    assert (await server.call(WEBHOOKS[0].served_path, deleted))["response"]["allowed"] is True


def test_lws_2_defaults_are_stable():
    raw = lws(spec__networkConfig=GONE, spec__rolloutStrategy=GONE)
    mutate_set(raw)
    again = copy_json(raw)
    mutate_set(again)
    assert again == raw
