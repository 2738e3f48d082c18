"""Which of several old revisions gives up the replicas that a step takes away (DS §7.3). Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Replicas = Mapping[str, int]
"""Replicas by role."""


def distribute(budget: Replicas, revisions: Sequence[Replicas]) -> list[dict[str, int]]:
    """Return the replicas that each old revision is to keep.

    The newest revision gives first: it served the least. When that would end one role of a revision, the whole
    revision ends, for what is left of it could serve nobody; only a role that had replicas counts as ended
    (upstream counts one that had none already, DS §13.1). A revision that ends so may give more than the budget; of
    the budget it then uses only what the ended roles gave.

    Args:
        budget: replicas to take away, by role.
        revisions: replicas by role of each old revision, the newest first. A role that a revision does not have is
            left out.
    """
    left = {role: max(0, number) for role, number in budget.items()}
    kept: list[dict[str, int]] = []
    for replicas in revisions:
        taken = {role: min(left.get(role, 0), number) for role, number in replicas.items()}
        ended = {role for role, number in replicas.items() if number > 0 and number == taken[role]}
        kept.append({role: 0 if ended else number - taken[role] for role, number in replicas.items()})
        for role in ended or taken:
            left[role] = left.get(role, 0) - taken[role]
    return kept


def newest_first(created: Mapping[str, Iterable[str]]) -> list[str]:
    """Return revisions by age, the newest first; the age of one is that of its youngest object.

    Args:
        created: by revision, the creation times of its objects as the API writes them (RFC 3339, UTC).
    """
    return sorted(created, key=lambda revision: (max(created[revision], default=""), revision), reverse=True)
