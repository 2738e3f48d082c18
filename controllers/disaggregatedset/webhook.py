"""Admission of DisaggregatedSets: checks that the schema cannot say (DS §3), on parsed JSON."""

from __future__ import annotations

import re
from typing import Any, Final

from pyreconcile.api import RawObject, quantity
from pyreconcile.webhook import AdmissionRequest, AdmissionWebhook, FieldError, FieldErrors, WebhookServer
from pyreconcile.webhook import webhook_configurations as build_configurations
from pyreconcile_controllers.disaggregatedset import names
from pyreconcile_controllers.disaggregatedset.types import DisaggregatedSet

MUTATING_CONFIGURATION: Final = "disaggregatedset-mutating-webhook-configuration"
VALIDATING_CONFIGURATION: Final = "disaggregatedset-validating-webhook-configuration"

WEBHOOKS: Final = (AdmissionWebhook(name="vdisaggregatedset.kb.io", stage="validating", kind=DisaggregatedSet),)
"""What the API server is to ask, for `pyreconcile.webhook.webhook_configurations`."""

_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_PERCENT = re.compile(r"[0-9]+%", re.ASCII)


def register(server: WebhookServer) -> None:
    """Serve the set's webhook, at the path that the Go controller uses.

    Raises:
        ValueError: the path is taken.
    """
    server.add_raw_validator(DisaggregatedSet, _check)


def webhook_configurations(server: WebhookServer) -> list[RawObject]:
    """Return the webhook configuration; see `pyreconcile.webhook`. None mutates: the schema has all defaults.

    Raises:
        RuntimeError: the server does not listen yet and no Service stands in front of it.
    """
    return build_configurations(
        server, WEBHOOKS, mutating_name=MUTATING_CONFIGURATION, validating_name=VALIDATING_CONFIGURATION
    )


def validate(raw: RawObject) -> list[FieldError]:
    """Check a set. The schema holds already; nothing is immutable, so an update is checked like a creation."""
    errors = [*unsupported(raw), *_check_name(raw.get("metadata") or {}, raw["spec"]["roles"])]
    for index, role in enumerate(raw["spec"]["roles"]):
        errors += _check_strategy(f"spec.roles[{index}].spec.rolloutStrategy", role["spec"])
    return errors


def unsupported(raw: RawObject) -> list[FieldError]:
    """Return what a set asks for that this controller cannot do yet."""
    spec = raw["spec"]
    errors = []
    if (spec.get("slices") or 1) > 1:
        errors.append(FieldError.forbidden("spec.slices", "more than one slice is not supported yet: leave it at 1"))
    policy = (spec.get("placementPolicy") or {}).get("type") or "None"
    if policy != "None":
        text = f"{policy} is not supported yet: leave spec.placementPolicy out, or say None"
        errors.append(FieldError.forbidden("spec.placementPolicy.type", text))
    for index, role in enumerate(spec["roles"]):
        if (role.get("scaling") or {}).get("mode") == "External":
            text = f"External is not supported yet: leave scaling of role {role['name']} out, or say Static"
            errors.append(FieldError.forbidden(f"spec.roles[{index}].scaling.mode", text))
    return errors


def _check(request: AdmissionRequest) -> None:
    if request.operation in ("CREATE", "UPDATE") and request.object is not None:
        errors = validate(request.object)
        if errors:
            raise FieldErrors(errors)


def _check_name(metadata: RawObject, roles: list[RawObject]) -> list[FieldError]:
    name = metadata.get("name") or ""
    if not name:
        return []  # The server reports it.
    errors = []
    if not _DNS_LABEL.fullmatch(name):
        # LeaderWorkerSets and Services begin with it, and theirs must be DNS-1035 labels.
        text = "must be lower-case letters, digits and '-', begin with a letter and end with a letter or digit"
        errors.append(FieldError.invalid("metadata.name", name, text))
    for index, role in enumerate(roles):
        length = names.longest_service_name(name, role["name"])
        if length > names.SERVICE_NAME_LIMIT:
            text = (
                f"the names of the role's Services would have {length} characters, which would exceed the DNS-1035 "
                f"limit of {names.SERVICE_NAME_LIMIT}: shorten metadata.name or the role's name by "
                f"{length - names.SERVICE_NAME_LIMIT}"
            )
            errors.append(FieldError.invalid(f"spec.roles[{index}].name", role["name"], text))
    return errors


def _check_strategy(path: str, spec: RawObject) -> list[FieldError]:
    strategy = spec.get("rolloutStrategy") or {}
    if strategy.get("type") not in (None, "", "RollingUpdate"):
        return [FieldError.unsupported(f"{path}.type", strategy["type"], ["RollingUpdate"])]
    rolling = strategy.get("rollingUpdateConfiguration")
    if rolling is None:
        return []
    path = f"{path}.rollingUpdateConfiguration"
    errors = []
    if rolling.get("partition"):
        text = "a partition would hold back one role and not the others: leave it out"
        errors.append(FieldError.forbidden(f"{path}.partition", text))
    replicas = spec.get("replicas") or 0
    if replicas > 0:
        errors += _check_limits(path, rolling, replicas)
    return errors


def _check_limits(path: str, rolling: RawObject, replicas: int) -> list[FieldError]:
    # Without the schema's defaults (a request that did not pass the API server) a missing one is 0, as in Go.
    surge, unavailable = rolling.get("maxSurge", 0), rolling.get("maxUnavailable", 0)
    errors = [*_check_amount(f"{path}.maxSurge", surge), *_check_amount(f"{path}.maxUnavailable", unavailable)]
    if not errors:
        most = quantity.resolve(surge, replicas, round_up=True), quantity.resolve(unavailable, replicas)
        if most == (0, 0):
            text = "must not be 0 when `maxSurge` is 0"
            errors.append(FieldError.invalid(f"{path}.maxUnavailable", unavailable, text))
    return errors


def _check_amount(path: str, value: Any) -> list[FieldError]:
    if isinstance(value, str):
        if not _PERCENT.fullmatch(value):
            return [FieldError.invalid(path, value, "must be a number or a whole number of percent, as in '25%'")]
        return [FieldError.invalid(path, value, "must not be greater than 100%")] if int(value[:-1]) > 100 else []
    return [FieldError.invalid(path, value, "must be greater than or equal to 0")] if value < 0 else []
