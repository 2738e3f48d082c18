"""Equality of JSON values as Kubernetes means it: the same amount, time or emptiness in another writing (rule HE-3)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from pyreconcile.api import quantity

_SORTED = orjson.OPT_SORT_KEYS
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")

# Where built-in types hold quantities: maps from resource names to amounts, and single fields.
_QUANTITY_MAPS = frozenset(
    {
        "requests",
        "limits",
        "capacity",
        "allocatable",
        "allocatedResources",
        "podFixed",
        "overhead",
        "hard",
        "used",
        "min",
        "max",
        "default",
        "defaultRequest",
        "maxLimitRequestRatio",
    }
)
_QUANTITIES = frozenset({"sizeLimit", "divisor", "averageValue"})
_METRIC_TARGETS = frozenset({"target", "current"})
# Maps whose values are the user's own texts; there "1" and "1000m" are two values whatever the keys say.
_TEXT_MAPS = frozenset(
    {"labels", "annotations", "matchLabels", "selector", "nodeSelector", "data", "stringData", "binaryData"}
)


class Place(NamedTuple):
    """Where a value stands, as far as its meaning depends on it.

    Attributes:
        name: the field that holds it; items of a list have their list's.
        parent: the field around that one.
        text: whether it lies in a map of the user's own texts, such as labels.
    """

    name: str = ""
    parent: str = ""
    text: bool = False

    def inside(self, field: str) -> Place:
        """Return the place of a field of the map that stands here."""
        return Place(field, self.name, self.text or self.name in _TEXT_MAPS)


ROOT = Place()


def semantic_equal(a: Any, b: Any, place: Place = ROOT, *, empty_maps_count: bool = False) -> bool:
    """Tell whether two JSON values mean the same to Kubernetes.

    Fields that are absent, null, or an empty map or list are the same; so are times in different zones, and
    quantities in different units where the built-in types hold quantities (``resources.requests`` and the like).

    Args:
        a, b: parsed JSON.
        place: where they stand; by default they are whole objects.
        empty_maps_count: an empty map differs from an absent one, as it does where a type has a pointer:
            ``emptyDir: {}`` is a volume, ``namespaceSelector: {}`` means every namespace.
    """
    if isinstance(a, dict | list) and orjson.dumps(a, option=_SORTED) == orjson.dumps(b, option=_SORTED):
        return True  # the usual case, and the quickest to tell
    return _equal(a, b, place, empty_maps_count)


def _equal(a: Any, b: Any, place: Place, empty_maps_count: bool) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        for key, value in a.items():
            if not _equal(value, b.get(key), place.inside(key), empty_maps_count):
                return False
        return all(key in a or _may_be_absent(value, empty_maps_count) for key, value in b.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_equal(x, y, place, empty_maps_count) for x, y in zip(a, b, strict=True))
    if a is None:
        return _may_be_absent(b, empty_maps_count)
    if b is None:
        return _may_be_absent(a, empty_maps_count)
    if isinstance(a, dict | list) or isinstance(b, dict | list):
        return False
    return scalar_equal(a, b, place)


def scalar_equal(a: Any, b: Any, place: Place) -> bool:
    """Tell whether two values that are neither maps nor lists mean the same."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if a == b:
        return True
    if place.text or not (isinstance(a, str) or isinstance(b, str)):
        return False
    if _holds_quantity(place):
        return a is not None and b is not None and _same_amount(a, b)
    if isinstance(a, str) and isinstance(b, str) and _TIME.fullmatch(a) and _TIME.fullmatch(b):
        return _instant(a) == _instant(b)
    return False


def is_empty(value: Any) -> bool:
    """Tell whether a value is what Kubernetes may leave out: null, or an empty map or list."""
    return value is None or value == {} or value == []


def _may_be_absent(value: Any, empty_maps_count: bool) -> bool:
    return is_empty(value) and not (empty_maps_count and value == {})


def _holds_quantity(place: Place) -> bool:
    name, parent, _ = place
    return parent in _QUANTITY_MAPS or name in _QUANTITIES or (name == "value" and parent in _METRIC_TARGETS)


def _same_amount(a: Any, b: Any) -> bool:
    try:
        return quantity.equal(a, b)
    except quantity.QuantityError:
        return False


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
