"""Names, labels and annotations that tie a DisaggregatedSet's objects together (DS §2.3). No I/O."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "disaggregatedset.x-k8s.io/"

NAME_LABEL: Final = PREFIX + "name"
ROLE_LABEL: Final = PREFIX + "role"
SLICE_LABEL: Final = PREFIX + "slice"
REVISION_LABEL: Final = PREFIX + "revision"
APP_LABEL: Final = "app"

INITIAL_REPLICAS_ANNOTATION: Final = PREFIX + "initial-replicas"

FIELD_MANAGER: Final = "disaggregatedset"

SLICE: Final = "0"
"""The only slice: more than one is not supported yet."""

SERVICE_SUFFIX: Final = "-prv"
SERVICE_NAME_LIMIT: Final = 63
"""Longest name of a Service: a DNS-1035 label."""
REVISION_LENGTH: Final = 8


def lws_name(set_name: str, revision: str, role: str) -> str:
    """Name of the LeaderWorkerSet of a role at a revision."""
    return f"{set_name}-{SLICE}-{revision}-{role}"


def service_name(lws: str) -> str:
    """Name of the headless Service of a LeaderWorkerSet's pods."""
    return f"{lws}{SERVICE_SUFFIX}"


def longest_service_name(set_name: str, role: str) -> int:
    """Return how many characters the Service of a role has in its name."""
    return len(service_name(lws_name(set_name, "0" * REVISION_LENGTH, role)))


def selector(set_name: str, revision: str, role: str, *, slice_label: bool = True) -> dict[str, str]:
    """Labels that all pods of a role at a revision have; ``slice_label`` is false for objects without that label."""
    labels = {NAME_LABEL: set_name, ROLE_LABEL: role, REVISION_LABEL: revision}
    return {**labels, SLICE_LABEL: SLICE} if slice_label else labels


def system_labels(set_name: str, revision: str, role: str) -> dict[str, str]:
    """Labels of a LeaderWorkerSet and of its pod templates."""
    return {**selector(set_name, revision, role), APP_LABEL: f"{set_name}-{SLICE}-{role}"}
