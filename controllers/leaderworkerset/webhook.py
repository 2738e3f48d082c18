"""Admission of LeaderWorkerSets: defaults and checks (LWS §2.1 and §2.2), and the list of the set's webhooks.

Defaults and checks are pure functions on parsed JSON: defaulting runs before the schema is checked, so nothing can be
taken for granted there.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

from pyreconcile.api import RawObject
from pyreconcile.api.core_v1 import Pod
from pyreconcile.webhook import AdmissionRequest, AdmissionWebhook, FieldError, FieldErrors, WebhookServer
from pyreconcile.webhook import webhook_configurations as build_configurations
from pyreconcile_controllers.leaderworkerset import node_loss, restart_budget
from pyreconcile_controllers.leaderworkerset.gangs import Gangs
from pyreconcile_controllers.leaderworkerset.names import SET_NAME_LABEL, SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION
from pyreconcile_controllers.leaderworkerset.pod_webhook import draft_of, mutate_pod
from pyreconcile_controllers.leaderworkerset.rollout import scaled_value
from pyreconcile_controllers.leaderworkerset.settings import Settings
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

MUTATING_CONFIGURATION: Final = "lws-mutating-webhook-configuration"
VALIDATING_CONFIGURATION: Final = "lws-validating-webhook-configuration"

_OF_A_SET = {"matchExpressions": [{"key": SET_NAME_LABEL, "operator": "Exists"}]}
_OF_NOTHING = {"matchExpressions": [{"key": SET_NAME_LABEL, "operator": one} for one in ("Exists", "DoesNotExist")]}

WEBHOOKS: Final = (
    AdmissionWebhook(name="mleaderworkerset.kb.io", stage="mutating", kind=LeaderWorkerSet),
    AdmissionWebhook(name="vleaderworkerset.kb.io", stage="validating", kind=LeaderWorkerSet),
    # Only pods of a set: a manager that is down must not hold up every pod of the cluster.
    AdmissionWebhook(name="mpod.kb.io", stage="mutating", kind=Pod, operations=("CREATE",), object_selector=_OF_A_SET),
    # It would admit everything, and so is never asked. It stands here under its name because an entry that the Go
    # controller's manifests have left would still be asked where that controller was, and hold up all pods.
    AdmissionWebhook(name="vpod.kb.io", stage="validating", kind=Pod, object_selector=_OF_NOTHING),
)
"""What the API server is to ask, for `pyreconcile.webhook.webhook_configurations`."""

MAX_REPLICAS = 1_000_000
MAX_PODS = 2**31 - 1

_TEMPLATE = "spec.leaderWorkerTemplate"
_SUBGROUP_SIZE = f"{_TEMPLATE}.SubGroupPolicy.subGroupSize"  # upstream writes this path with a capital S
_ROLLING_UPDATE = "spec.rolloutStrategy.rollingUpdateConfiguration"
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_LABEL_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_DNS_LABEL_LENGTH = 63
_PERCENT = re.compile(r"[0-9]+%", re.ASCII)
_PERCENT_TEXT = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for "
    "validation is '[0-9]+%')"
)


def register(server: WebhookServer, settings: Settings | None = None, gangs: Gangs | None = None) -> None:
    """Serve the set's four webhooks, at the paths that the Go controller uses.

    Args:
        server: serves them.
        settings: those of the controllers.
        gangs: names the groups of the pods, to have them placed whole.

    Raises:
        ValueError: one of the paths is taken.
    """
    server.add_mutator(LeaderWorkerSet, mutate_set)
    server.add_raw_validator(LeaderWorkerSet, _check_set)
    server.add_mutator(Pod, mutate_pod if gangs is None else partial(_mutate_pod_of_gang, gangs), copy=draft_of)
    server.admit_all(Pod)  # nothing is checked; manifests of the Go controller name it


def webhook_configurations(server: WebhookServer) -> list[RawObject]:
    """Return the two webhook configurations under the Go controller's names; see `pyreconcile.webhook`.

    Raises:
        RuntimeError: the server does not listen yet and no Service stands in front of it.
    """
    return build_configurations(
        server, WEBHOOKS, mutating_name=MUTATING_CONFIGURATION, validating_name=VALIDATING_CONFIGURATION
    )


def mutate_set(raw: RawObject, _request: AdmissionRequest | None = None) -> None:
    """Fill in the defaults that the CRD does not (LWS §2.1); what has the wrong form is left to the schema."""
    spec = raw.get("spec")
    if not isinstance(spec, dict):
        return
    template = spec.get("leaderWorkerTemplate")
    if isinstance(template, dict):
        if not template.get("restartPolicy"):
            template["restartPolicy"] = "RecreateGroupOnPodRestart"
        elif template["restartPolicy"] == "Default":
            template["restartPolicy"] = "None"
    strategy = _object_at(spec, "rolloutStrategy")
    if strategy is not None:
        if not strategy.get("type"):
            strategy["type"] = "RollingUpdate"
        if strategy["type"] == "RollingUpdate" and strategy.get("rollingUpdateConfiguration") is None:
            strategy["rollingUpdateConfiguration"] = {"partition": 0, "maxUnavailable": 1, "maxSurge": 0}
    network = _object_at(spec, "networkConfig")
    if network is not None and network.get("subdomainPolicy") is None:
        network["subdomainPolicy"] = "Shared"


def validate_set(new: RawObject, old: RawObject | None = None) -> list[FieldError]:
    """Check a set, and on an update (``old`` is given) the change as well (LWS §2.2). The schema holds already."""
    spec = new["spec"]
    template = spec["leaderWorkerTemplate"]
    replicas, size = _number(spec, "replicas"), _number(template, "size")
    errors = _check_names(new.get("metadata") or {})
    if replicas < 0:
        errors.append(FieldError.invalid("spec.replicas", replicas, "replicas must be equal or greater than 0"))
    if replicas > MAX_REPLICAS:
        errors.append(
            FieldError.invalid("spec.replicas", replicas, f"replicas must be equal or less than {MAX_REPLICAS}")
        )
    if size < 1:
        errors.append(FieldError.invalid(f"{_TEMPLATE}.size", size, "size must be equal or greater than 1"))
    if replicas * size > MAX_PODS:
        text = f"the product of replicas and worker replicas must not exceed {MAX_PODS}"
        errors.append(FieldError.invalid("spec.replicas", replicas, text))
    rolling = (spec.get("rolloutStrategy") or {}).get("rollingUpdateConfiguration")
    if rolling is not None:
        errors += _check_rolling_update(rolling, replicas)
    policy = template.get("subGroupPolicy")
    annotations = (new.get("metadata") or {}).get("annotations") or {}
    if policy is not None:
        errors += _check_subgroups(policy, size)
    elif SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION in annotations:
        errors.append(
            FieldError.invalid(
                f"metadata.annotations.{SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION}",
                annotations[SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION],
                "cannot have subgroup-exclusive-topology without subGroupSize set",
            )
        )
    errors += _check_own_annotations(annotations)
    if old is not None:
        errors += _check_change(spec, old["spec"])
    return errors


async def _mutate_pod_of_gang(gangs: Gangs, pod: RawObject, request: AdmissionRequest) -> None:
    mutate_pod(pod, request)
    if SET_NAME_LABEL in (pod["metadata"].get("labels") or {}):
        await gangs.admit(pod, request)


def _check_set(request: AdmissionRequest) -> None:
    if request.operation in ("CREATE", "UPDATE") and request.object is not None:
        errors = validate_set(request.object, request.old_object)
        if errors:
            raise FieldErrors(errors)


def _check_own_annotations(annotations: dict[str, str]) -> list[FieldError]:
    wrong = [*restart_budget.problems(annotations)]
    if (why := node_loss.problem(annotations)) is not None:
        wrong.append((node_loss.ANNOTATION, why))
    return [FieldError.invalid(f"metadata.annotations.{name}", annotations[name], why) for name, why in wrong]


def _check_names(metadata: RawObject) -> list[FieldError]:
    # The set's name is the name of a headless service too. The API server checks the rest of the metadata itself.
    errors = []
    for field in ("generateName", "name"):
        name = metadata.get(field) or ""
        # What is generated ends in letters and digits, so a prefix may end with a dash, which counts together with the
        # character before it (apimachinery: api/validation/generic.go).
        prefix = field == "generateName" and len(name) > 1 and name.endswith("-")
        checked = f"{name[:-2]}a" if prefix else name
        if not name:
            continue
        if len(checked) > _DNS_LABEL_LENGTH:
            text = f"must be no more than {_DNS_LABEL_LENGTH} characters"
            errors.append(FieldError.invalid(f"metadata.{field}", name, text))
        if not _DNS_LABEL.fullmatch(checked):
            errors.append(FieldError.invalid(f"metadata.{field}", name, _DNS_LABEL_TEXT))
    return errors


def _check_rolling_update(rolling: RawObject, replicas: int) -> list[FieldError]:
    unavailable, surge = rolling.get("maxUnavailable", 1), rolling.get("maxSurge", 0)
    errors = [
        *_check_int_or_percent(f"{_ROLLING_UPDATE}.maxUnavailable", unavailable),
        *_check_int_or_percent(f"{_ROLLING_UPDATE}.maxSurge", surge),
    ]
    partition = _number(rolling, "partition", 0)
    if partition < 0:
        errors.append(
            FieldError.invalid(f"{_ROLLING_UPDATE}.partition", partition, "must be greater than or equal to 0")
        )
    resolved = []
    for field, value, round_up in (("maxUnavailable", unavailable, False), ("maxSurge", surge, True)):
        try:
            resolved.append(scaled_value(value, replicas, round_up=round_up))
        except ValueError:
            errors.append(FieldError.invalid(f"{_ROLLING_UPDATE}.{field}", value, "invalid value"))
            resolved.append(0)
    if resolved == [0, 0] and replicas != 0:
        text = "must not be 0 when `maxSurge` is 0"
        errors.append(FieldError.invalid(f"{_ROLLING_UPDATE}.maxUnavailable", unavailable, text))
    return errors


def _check_int_or_percent(path: str, value: Any) -> list[FieldError]:
    if isinstance(value, str):
        if not _PERCENT.fullmatch(value):
            return [FieldError.invalid(path, value, _PERCENT_TEXT)]
        return [FieldError.invalid(path, value, "must not be greater than 100%")] if int(value[:-1]) > 100 else []
    return [FieldError.invalid(path, value, "must be greater than or equal to 0")] if value < 0 else []


def _check_subgroups(policy: RawObject, size: int) -> list[FieldError]:
    subgroup = policy.get("subGroupSize")
    if subgroup is None:
        return [FieldError.required(_SUBGROUP_SIZE, "a subGroupPolicy needs the number of pods in a subgroup")]
    if subgroup < 1:
        return [FieldError.invalid(_SUBGROUP_SIZE, subgroup, "subGroupSize must be equal or greater than 1")]
    errors = []
    if size % subgroup != 0 and (size - 1) % subgroup != 0:
        text = "size or size - 1 must be divisible by subGroupSize"
        errors.append(FieldError.invalid(_SUBGROUP_SIZE, subgroup, text))
    if size < subgroup:
        errors.append(FieldError.invalid(_SUBGROUP_SIZE, subgroup, "subGroupSize cannot be larger than size"))
    if policy.get("subGroupPolicyType") == "LeaderExcluded" and (size - 1) % subgroup != 0:
        text = "size-1 must be divisible by subGroupSize when using LeaderExcluded"
        errors.append(FieldError.invalid(_SUBGROUP_SIZE, subgroup, text))
    return errors


def _check_change(new: RawObject, old: RawObject) -> list[FieldError]:
    after = new["leaderWorkerTemplate"].get("subGroupPolicy")
    before = old["leaderWorkerTemplate"].get("subGroupPolicy")
    errors = []
    if after is not None and before is not None:
        if after.get("subGroupSize") != before.get("subGroupSize"):
            errors.append(FieldError.invalid(_SUBGROUP_SIZE, after.get("subGroupSize"), "field is immutable"))
    elif after is not None:
        text = "cannot enable subGroupSize after the lws is already created"
        errors.append(FieldError.invalid(_SUBGROUP_SIZE, after.get("subGroupSize"), text))
    elif before is not None:
        text = "cannot remove subGroupSize after enabled"
        errors.append(FieldError.invalid(_SUBGROUP_SIZE, before.get("subGroupSize"), text))
    network = new.get("networkConfig")
    if network is not None and network.get("subdomainPolicy") is None:
        earlier = (old.get("networkConfig") or {}).get("subdomainPolicy")
        text = "cannot set subdomainPolicy as null"
        errors.append(FieldError.invalid("spec.networkConfig.subdomainPolicy", earlier, text))
    return errors


def _object_at(parent: RawObject, field: str) -> RawObject | None:
    """Return the object at a field, made if it is missing or null; None if there is something else."""
    value = parent.get(field)
    if value is None:
        value = parent[field] = {}
    return value if isinstance(value, dict) else None


def _number(parent: RawObject, field: str, default: int = 1) -> int:
    value = parent.get(field)
    return default if value is None else int(value)
