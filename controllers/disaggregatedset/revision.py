"""The revision of a set: which of its content makes new LeaderWorkerSets, as a short hash (DS §2.4). No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from pyreconcile.api import RawObject
from pyreconcile_controllers.disaggregatedset.names import REVISION_LENGTH
from pyreconcile_controllers.disaggregatedset.types import Role
from pyreconcile_controllers.gojson import go_struct, go_text


def revision_of(roles: Iterable[Role]) -> str:
    """Return the hash over the roles in their order: the name and ``leaderWorkerTemplate`` of each.

    Raises:
        ValueError: a template holds a quantity that is none.
    """
    return hash_of((role.name, role.spec.leader_worker_template.to_dict()) for role in roles)


def hash_of(templates: Iterable[tuple[str, RawObject]]) -> str:
    """Return the hash over names and templates (parsed JSON) of roles.

    The text is the one that the Go controller hashes, so a set may change hands between the two without being rolled.

    Raises:
        ValueError: a template holds a quantity that is none.
    """
    named = [{"name": name, "template": go_struct("v1.LeaderWorkerTemplate", template)} for name, template in templates]
    return hashlib.sha256(go_text(named, sort_keys=False)).hexdigest()[:REVISION_LENGTH]
