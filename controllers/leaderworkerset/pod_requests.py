"""What a pod asks a node for, as a scheduler counts it. No I/O.

The arithmetic is the one of ``component-helpers: resource/helpers.go``: containers run side by side, init containers
one after the other before them, and sidecars (init containers with ``restartPolicy: Always``) beside all that follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from pyreconcile.api import RawObject, quantity

Amounts = dict[str, Decimal]

_POD_LEVEL = ("cpu", "memory")
_HUGE_PAGES = "hugepages-"


def pod_requests(spec: RawObject) -> dict[str, str]:
    """Return what a pod with this ``spec`` (parsed JSON) requests, its overhead included, by resource.

    A request that is missing is its limit, as the API server fills it in when the pod is made.

    Raises:
        ValueError: an amount is no quantity.
    """
    return _written(_requests(spec), (spec,))


def group_requests(leader: RawObject, worker: RawObject, workers: int) -> dict[str, str]:
    """Return what a group requests: one pod of the spec ``leader`` and ``workers`` pods of the spec ``worker``.

    Raises:
        ValueError: an amount is no quantity.
    """
    total = _requests(leader)
    for name, amount in _requests(worker).items():
        total[name] = total.get(name, Decimal(0)) + amount * workers
    return _written(total, (leader, worker))


def _requests(spec: RawObject) -> Amounts:
    total: Amounts = {}
    for container in spec.get("containers") or ():
        _add(total, _container_requests(container))
    sidecars: Amounts = {}
    most: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(total, own)
            _add(sidecars, own)
            _raise(most, sidecars)
        else:
            _add(own, sidecars)
            _raise(most, own)
    _raise(total, most)
    whole = spec.get("resources") or {}
    # What the pod asks for as a whole counts instead of the sum; its limit does so only where there is no sum.
    limits = {name: amount for name, amount in (whole.get("limits") or {}).items() if name not in total}
    for name, amount in _parsed({**limits, **(whole.get("requests") or {})}).items():
        if name in _POD_LEVEL or name.startswith(_HUGE_PAGES):
            total[name] = amount
    _add(total, _parsed(spec.get("overhead") or {}))
    return total


def _container_requests(container: RawObject) -> Amounts:
    resources = container.get("resources") or {}
    return _parsed({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _parsed(amounts: Mapping[str, Any]) -> Amounts:
    return {name: quantity.parse(amount) for name, amount in amounts.items()}


def _add(total: Amounts, more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Decimal(0)) + amount


def _raise(total: Amounts, least: Mapping[str, Decimal]) -> None:
    for name, amount in least.items():
        total[name] = max(total.get(name, amount), amount)


def _written(amounts: Amounts, specs: Iterable[RawObject]) -> dict[str, str]:
    """Write amounts as quantities: with binary suffixes where the templates use them."""
    binary = {name for spec in specs for name, text in _texts(spec) if str(text).endswith("i")}
    return {
        name: quantity.to_text(amount, form="binary" if name in binary else "decimal")
        for name, amount in sorted(amounts.items())
    }


def _texts(spec: RawObject) -> Iterable[tuple[str, Any]]:
    containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()), spec)
    for container in containers:
        resources = container.get("resources") or {}
        for kind in ("limits", "requests"):
            yield from (resources.get(kind) or {}).items()
    yield from (spec.get("overhead") or {}).items()
