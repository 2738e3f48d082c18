"""Who gets which share of the traffic: pure arithmetic, no I/O (KServe §1.2, §1.3, §1.9 items 4 to 8 and 12).

A *target* is a share as the user thinks of it: the newest revision's, or that of the one rolled out before. A *weight*
is what a revision gets in the route. Targets change with the spec; weights follow when there are pods to bear them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

PREVIOUS_TAG: Final = "prev"
ALL: Final = 100

Weights = Mapping[str, int]
"""Percent of the traffic by revision, each above 0; they add up to 100, or there is none."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """The four revisions that the status names; an empty text stands for none."""

    created: str = ""
    ready: str = ""
    rolledout: str = ""
    previous: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A share of the traffic and the revision that it goes to."""

    revision: str
    percent: int
    latest: bool

    @property
    def tag(self) -> str:
        """The tag that tells the share of the revision before."""
        return "" if self.latest else PREVIOUS_TAG


@dataclass(frozen=True, slots=True)
class Seen:
    """What a revision's Deployment shows.

    Attributes:
        replicas: pods that it is to have.
        available: pods that serve.
        settled: whether its status is of its newest spec, and all its pods are of the newest template.
    """

    replicas: int = 0
    available: int = 0
    settled: bool = False

    @property
    def up(self) -> bool:
        """Whether anything serves."""
        return self.available > 0


@dataclass(frozen=True, slots=True)
class Wish:
    """What the spec asks for.

    Attributes:
        percent: share of the newest revision; None for all.
        replicas: pods for all of the traffic.
        autoscaled: whether somebody else scales the Deployments.
    """

    percent: int | None = None
    replicas: int = 1
    autoscaled: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pass makes of the traffic.

    Attributes:
        ready: the newest revision that was ready.
        targets: the shares, each with the revision that is to get it now.
        ideal: the weights that follow from the targets.
        weights: the weights to set now: the ideal ones, or those present while pods are missing.
        stable: the revision that clients in the cluster are sent to; empty when none is ready.
        missing: a revision that has a share and is gone; empty when there is none.
    """

    ready: str
    targets: tuple[Target, ...] = ()
    ideal: Weights = field(default_factory=dict)
    weights: Weights = field(default_factory=dict)
    stable: str = ""
    missing: str = ""


def shares(percent: int | None, rolledout: str) -> tuple[int, int | None]:
    """Return the newest revision's share, and that of the one before if there is to be one (KServe §1.2).

    The first revision gets everything, whatever the percent.
    """
    if percent is None or percent >= ALL or not rolledout:
        return ALL, None
    return percent, ALL - percent


def capacity(replicas: int, share: int) -> int:
    """Return how many pods a share of the traffic needs; one at least."""
    return max(1, math.ceil(max(replicas, 1) * share / ALL))


def plan(wish: Wish, rollout: Rollout, seen: Mapping[str, Seen], present: Weights, *, can_split: bool = True) -> Plan:
    """Decide on targets and weights.

    Args:
        wish: what the spec asks for.
        rollout: the revisions as the status has them, with the newest as ``created``.
        seen: every revision that there is a record of.
        present: the weights in the route; empty without a route.
        can_split: whether more than one revision can get traffic.
    """
    newest, before = shares(wish.percent, rollout.rolledout)
    created = seen.get(rollout.created, Seen())
    ready = rollout.ready
    if rollout.created in seen and _bears(created, newest, wish):
        ready = rollout.created
    if before is not None and rollout.rolledout not in seen:
        return Plan(ready, weights=present, stable=_largest(present), missing=rollout.rolledout)

    candidate = rollout.created if ready == rollout.created else ""
    settled = rollout.rolledout or rollout.ready
    stable = _first_up((settled, candidate), seen)
    targets = [Target(_first_up((candidate, settled), seen), newest, latest=True)]
    if before is not None:
        targets.append(Target(stable, before, latest=False))
    if not stable:
        # Nothing serves. Weights that lead nowhere are no worse than none, and right again once a pod is back.
        return Plan(ready, weights=present, stable=_largest(present))
    ideal = {name: share for name, share in weights_of(targets).items() if share}
    weights = ideal if _can_move(present, ideal, wish, seen) and (can_split or len(ideal) == 1) else present
    return Plan(ready, tuple(targets), ideal, weights, stable if stable in weights else _largest(weights))


def weights_of(targets: Iterable[Target]) -> dict[str, int]:
    """Add up the shares of each revision."""
    weights: dict[str, int] = {}
    for target in targets:
        weights[target.revision] = weights.get(target.revision, 0) + target.percent
    return weights


def propagate(rollout: Rollout, traffic: Sequence[Target], *, keeps: Iterable[str]) -> Rollout:
    """Move ``rolledout`` and ``previous`` by the traffic that is in force (KServe §1.3 step 3).

    A revision is rolled out when the newest's target has brought it all of the traffic. When the revision that is
    rolled out is put below 100 % with no newer one, the one before takes its place: that is a roll-back.

    Args:
        rollout: ``created`` and ``ready`` are of this pass, the others of the one before.
        traffic: the targets, once the gateway has accepted the weights that follow from them.
        keeps: revisions that there is a record of; one that is gone cannot come back.
    """
    total = weights_of(traffic)
    for target in traffic:
        if not target.latest or target.revision != rollout.ready:
            continue
        if rollout.rolledout != rollout.ready:
            if target.percent == ALL:
                rollout = replace(rollout, previous=rollout.rolledout, rolledout=rollout.ready)
        elif (
            rollout.ready == rollout.created
            and target.percent < ALL
            and total[target.revision] == ALL
            and rollout.previous in keeps
        ):
            rollout = replace(rollout, rolledout=rollout.previous)
    return rollout


def replicas(
    wish: Wish, rollout: Rollout, planned: Plan, seen: Mapping[str, Seen], present: Weights, *, drained: bool
) -> dict[str, int]:
    """Return how many pods each revision is to have.

    Pods are there before their traffic, and stay until it has gone elsewhere: nothing gets fewer before ``drained``.

    Args:
        wish, rollout, seen, present: as for `plan`.
        planned: what came of it.
        drained: whether the planned weights have been in force for long enough.
    """
    newest, before = shares(wish.percent, rollout.rolledout)
    claims: dict[str, list[int]] = {name: [] for name in seen}
    for name, share in [(rollout.created, newest), (rollout.rolledout, before)]:
        if share is not None and name in claims:
            claims[name].append(share)
    for weights in (present, planned.ideal, planned.weights):
        for name, share in weights.items():
            if name in claims:
                claims[name].append(share)
    total = wish.replicas
    if wish.autoscaled:
        total = max([total, *(seen[name].replicas for name in (rollout.rolledout, rollout.ready) if name in seen)])
    result = {}
    for name, wanted in claims.items():
        now = seen[name].replicas
        count = capacity(total, max(wanted)) if wanted else 0
        if wanted and wish.autoscaled and now:
            count = now
        result[name] = count if drained else max(count, now)
    return result


def kept(rollout: Rollout, planned: Plan, present: Weights) -> frozenset[str]:
    """Return the revisions that are still needed: those that the status names, and those with traffic (§1.9 item 8)."""
    named = (rollout.created, rollout.ready, rollout.rolledout, rollout.previous)
    return frozenset({*named, *present, *planned.weights} - {""})


def _bears(revision: Seen, share: int, wish: Wish) -> bool:
    """Tell whether a revision has the pods for a share (§1.9 item 4)."""
    needed = capacity(wish.replicas, share)
    if wish.autoscaled:
        needed = min(needed, max(1, revision.replicas))
    return revision.settled and revision.available >= needed


def _can_move(present: Weights, ideal: Weights, wish: Wish, seen: Mapping[str, Seen]) -> bool:
    if not all(seen.get(name, Seen()).up for name in present):
        return True  # Traffic is being lost: too few pods are better than none.
    grown = ((name, share) for name, share in ideal.items() if present and share > present.get(name, 0))
    return all(_bears(seen[name], share, wish) for name, share in grown)


def _first_up(names: Sequence[str], seen: Mapping[str, Seen]) -> str:
    return next((name for name in names if seen.get(name, Seen()).up), "")


def _largest(weights: Weights) -> str:
    return max(weights, key=lambda name: weights[name], default="")
