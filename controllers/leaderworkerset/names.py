"""Names, labels and annotations that tie a set's objects together (LWS §3). No I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

PREFIX = "leaderworkerset.sigs.k8s.io/"
OWN_PREFIX = "leaderworkerset.pyreconcile.dev/"
"""Starts the annotations that the Go controller does not know."""

FIELD_MANAGER = "lws"
"""Owner of the fields that the controllers apply; the Go controller uses the same (LWS §6.2)."""

SET_NAME_LABEL = PREFIX + "name"
GROUP_INDEX_LABEL = PREFIX + "group-index"
GROUP_KEY_LABEL = PREFIX + "group-key"
WORKER_INDEX_LABEL = PREFIX + "worker-index"
REVISION_LABEL = PREFIX + "template-revision-hash"
SUBGROUP_INDEX_LABEL = PREFIX + "subgroup-index"
SUBGROUP_KEY_LABEL = PREFIX + "subgroup-key"

SIZE_ANNOTATION = PREFIX + "size"
REPLICAS_ANNOTATION = PREFIX + "replicas"
LEADER_NAME_ANNOTATION = PREFIX + "leader-name"
LEADER_REQUESTS_TPUS_ANNOTATION = PREFIX + "leader-requests-tpus"
SUBDOMAIN_POLICY_ANNOTATION = PREFIX + "subdomainPolicy"
EXCLUSIVE_TOPOLOGY_ANNOTATION = PREFIX + "exclusive-topology"
SUBGROUP_POLICY_TYPE_ANNOTATION = PREFIX + "subgroup-policy-type"
SUBGROUP_SIZE_ANNOTATION = PREFIX + "subgroup-size"
SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION = PREFIX + "subgroup-exclusive-topology"
RECREATE_AFTER_START_ANNOTATION = PREFIX + "experimental-recreate-group-after-start"
POD_GROUP_ANNOTATION = OWN_PREFIX + "pod-group"

LEADER_INDEX = "0"

_ORDINAL = re.compile(r"(.*)-([0-9]+)", re.DOTALL)


def parent_and_ordinal(name: str) -> tuple[str, int] | None:
    """Split a pod's name into its StatefulSet's name and its ordinal; None without a trailing number."""
    match = _ORDINAL.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def parse_number(text: str, *, signed: bool = False) -> int | None:
    """Return the number that a text is, None when it is none: ASCII digits and nothing else.

    With ``signed`` one sign may come before them, as for Go's ``strconv.Atoi``.
    """
    digits = text[1:] if signed and text.startswith(("+", "-")) else text
    return int(text) if digits.isascii() and digits.isdigit() else None


def number_in(values: Mapping[str, str], key: str) -> int | None:
    """Return the count or index that a label or annotation holds; None when it is missing or no number."""
    return parse_number(values.get(key, ""))


def group_index(labels: Mapping[str, str]) -> int | None:
    """Return the group's number from an object's labels; None when the label is missing or no number."""
    return number_in(labels, GROUP_INDEX_LABEL)


def group_name(set_name: str, index: int) -> str:
    """Name of a group's leader pod, and of its worker StatefulSet."""
    return f"{set_name}-{index}"


def sha1_key(*parts: str) -> str:
    """Hex SHA-1 of the parts joined by slashes: the form of group and subgroup keys (LWS §3)."""
    return hashlib.sha1("/".join(parts).encode(), usedforsecurity=False).hexdigest()


def group_key(namespace: str, leader_name: str) -> str:
    """Value of the group-key label for the group of a leader pod."""
    return sha1_key(namespace, leader_name)


def hpa_selector(set_name: str) -> str:
    """Selector of the leader pods, as ``.status.hpaPodSelector`` shows it to an autoscaler (LWS §1.2)."""
    return f"{SET_NAME_LABEL}={set_name},{WORKER_INDEX_LABEL}={LEADER_INDEX}"
