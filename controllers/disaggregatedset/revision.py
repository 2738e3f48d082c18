"""The revision of a set: which of its content makes new LeaderWorkerSets, as a short hash (DS §2.4). No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import orjson

from pyreconcile_controllers.disaggregatedset.names import REVISION_LENGTH
from pyreconcile_controllers.disaggregatedset.types import Role


def revision_of(roles: Iterable[Role]) -> str:
    """Return the hash over the roles in their order: the name and ``leaderWorkerTemplate`` of each.

    The text is canonical JSON of what the API server stores: sorted keys, fields without a value left out. It is not
    the text that the Go controller hashes, so a set that changes hands between the two is rolled once.
    """
    named = [
        {"name": role.name, "template": _without_nulls(role.spec.leader_worker_template.to_dict())} for role in roles
    ]
    return hashlib.sha256(orjson.dumps(named, option=orjson.OPT_SORT_KEYS)).hexdigest()[:REVISION_LENGTH]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
