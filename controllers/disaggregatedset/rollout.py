"""One step of a rolling update, from the LeaderWorkerSets and the roles of a set (DS §7.1). No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyreconcile.api import quantity
from pyreconcile_controllers.disaggregatedset.children import Child, Family
from pyreconcile_controllers.disaggregatedset.drain import distribute
from pyreconcile_controllers.disaggregatedset.planner import Limits, Rollout, State, next_state, unstick
from pyreconcile_controllers.disaggregatedset.types import Role


@dataclass(frozen=True, slots=True)
class Scaling:
    """One LeaderWorkerSet is to have another number of replicas."""

    child: Child
    replicas: int


def limits_of(role: Role) -> Limits:
    """Return what a role's rollout may do: surge 1 and unavailable 0 unless the role says otherwise (DS §7.1.5).

    Percentages are of the role's replicas; a surge rounds up, an unavailability down. Two zeros give the default.

    Raises:
        pyreconcile.api.quantity.QuantityError: a text is no percentage.
    """
    strategy = role.spec.rollout_strategy
    rolling = strategy.rolling_update_configuration if strategy is not None else None
    if rolling is None:
        return Limits()
    replicas = role.spec.replicas
    surge = quantity.resolve(rolling.max_surge, replicas, round_up=True)
    unavailable = quantity.resolve(rolling.max_unavailable, replicas)
    return Limits(surge, unavailable) if surge > 0 or unavailable > 0 else Limits()


def is_stable(family: Family, roles: Sequence[Role]) -> bool:
    """Tell whether the current revision has every role, and each has all its groups ready."""
    return all(role.name in family.target and family.target[role.name].stable for role in roles)


def plan(family: Family, roles: Sequence[Role]) -> list[Scaling]:
    """Return what to scale in the next step: first what grows, then what shrinks, each in the order of the roles.

    Every role must have its LeaderWorkerSet of the current revision. Roles that only old revisions have take part
    with a target of 0. Nothing comes back only when the old revisions have no replicas left.
    """
    wanted: dict[str, int] = {role.name: role.spec.replicas for role in roles}
    limits = {role.name: limits_of(role) for role in roles}
    for child in family.old_children:
        wanted.setdefault(child.role, 0)
    order = list(wanted)
    rollout = Rollout.of(
        _totals(order, family, initial=True), list(wanted.values()), [limits.get(role, Limits()) for role in order]
    )
    new = tuple(family.target[role].replicas if role in family.target else 0 for role in order)
    state = State(tuple(_totals(order, family)), new)
    following = next_state(rollout, state) or (unstick(rollout, state) if any(state.old) else None)
    if following is None:
        return []
    grown = [
        Scaling(family.target[role], replicas)
        for role, before, replicas in zip(order, state.new, following.new, strict=True)
        if replicas > before
    ]
    taken = (before - after for before, after in zip(state.old, following.old, strict=True))
    return [*grown, *_drained(family, dict(zip(order, taken, strict=True)))]


def _totals(order: Sequence[str], family: Family, *, initial: bool = False) -> list[int]:
    totals = dict.fromkeys(order, 0)
    for child in family.old_children:
        totals[child.role] += child.initial if initial and child.initial is not None else child.replicas
    return list(totals.values())


def _drained(family: Family, budget: Mapping[str, int]) -> list[Scaling]:
    before = [{role: child.replicas for role, child in revision.items()} for revision in family.old]
    return [
        Scaling(revision[role], kept[role])
        for revision, kept in zip(family.old, distribute(budget, before), strict=True)
        for role in budget
        if role in kept and kept[role] < revision[role].replicas
    ]
