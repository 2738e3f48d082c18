"""Whether applying a configuration would change anything, told from the live object's managed fields.

The server records per field manager which fields it owns, as a tree (``fieldsV1``): ``f:name`` is a field,
``k:{…}`` an item of a list told by its keys, ``v:…`` a member of a set, ``.`` the thing itself; a node without
children is owned whole (apimachinery's structured-merge-diff).
"""

from __future__ import annotations

from typing import Any

import orjson

from pyreconcile.api import RawObject
from pyreconcile.client._equality import ROOT, Place, is_empty, scalar_equal, semantic_equal

_IDENTITY = frozenset({"apiVersion", "kind"})
_META_IDENTITY = frozenset({"name", "namespace"})
_META_MAPS = frozenset({"labels", "annotations"})


def applying_changes_nothing(applied: RawObject, live: RawObject, *, manager: str, subresource: str = "") -> bool:
    """Tell whether the live object has every applied field, and the manager owns exactly those.

    False is always safe: then the configuration is sent. So it is for a live object without managed fields.

    Args:
        applied: the configuration, as it would be sent.
        live: the object as the server or a cache has it.
        manager: the field manager that applies.
        subresource: the sub-resource applied to, or empty.
    """
    owned = _owned_fields(applied, live, manager, subresource)
    if owned is None:
        return False
    left, right = _comparable(applied), _comparable(live)
    return _covers(left, right, owned, ROOT)


def _owned_fields(applied: RawObject, live: RawObject, manager: str, subresource: str) -> RawObject | None:
    found = None
    for entry in live.get("metadata", {}).get("managedFields") or ():
        if (
            entry.get("manager") == manager
            and entry.get("operation") == "Apply"
            and entry.get("subresource", "") == subresource
        ):
            # Paths of another version may not fit; two entries mean that a version change is under way.
            if found is not None or entry.get("apiVersion") != applied.get("apiVersion"):
                return None
            found = entry.get("fieldsV1")
    return found


def _comparable(obj: RawObject) -> RawObject:
    # What names the object is never owned.
    fields = {name: value for name, value in obj.items() if name not in _IDENTITY}
    metadata = {name: value for name, value in fields.pop("metadata", {}).items() if name not in _META_IDENTITY}
    return {**fields, "metadata": metadata} if metadata else fields


def _covers(applied: Any, live: Any, owned: RawObject, place: Place) -> bool:
    """Tell whether ``live`` has all of ``applied`` and ``owned`` names nothing that ``applied`` lacks."""
    if isinstance(applied, dict):
        if not isinstance(live, dict):
            return False
        if not owned:
            return semantic_equal(applied, live, place, empty_maps_count=True)
        return _covers_map(applied, live, owned, place)
    if isinstance(applied, list):
        if not isinstance(live, list):
            return False
        if not owned:
            return semantic_equal(applied, live, place, empty_maps_count=True)
        return _covers_list(applied, live, owned, place)
    return not isinstance(live, dict | list) and scalar_equal(applied, live, place)


def _covers_map(applied: RawObject, live: RawObject, owned: RawObject, place: Place) -> bool:
    for key, value in applied.items():
        node, present = owned.get(f"f:{key}"), live.get(key)
        if is_empty(value) and _empty_is_there(key, value, node, present, place):
            continue
        if node is None or present is None or not _covers(value, present, node, place.inside(key)):
            return False
    return all(child == "." or (child.startswith("f:") and child[2:] in applied) for child in owned)


def _empty_is_there(key: str, value: Any, node: RawObject | None, present: Any, place: Place) -> bool:
    # Labels and annotations merge by key, so an empty map of them is in any other; of another map that is not known.
    merging = place.name == "metadata" and key in _META_MAPS and value == {}
    if is_empty(present):
        # The server drops what is empty, and may or may not record who owned it. Not so an empty map that is an
        # object of its own, such as emptyDir: {}; which maps are such ones is not known here.
        return bool(merging or value != {} or present == {})
    return merging and isinstance(present, dict) and not any(child != "." for child in node or ())


def _covers_list(applied: list[Any], live: list[Any], owned: RawObject, place: Place) -> bool:
    children = [child for child in owned if child != "."]
    if len(children) != len(applied):
        return False
    if all(child.startswith("k:") for child in children):
        return _covers_keyed(applied, live, owned, children, place)
    if all(child.startswith("v:") for child in children):
        members = [orjson.loads(child[2:]) for child in children]
        return all(value in members for value in applied) and _in_order(applied, live)
    return False


def _covers_keyed(applied: list[Any], live: list[Any], owned: RawObject, children: list[str], place: Place) -> bool:
    keys = [(child, orjson.loads(child[2:])) for child in children]
    position = -1
    for item in applied:
        if not isinstance(item, dict):
            return False
        fitting = [(child, key) for child, key in keys if _is_meant(item, key, owned[child])]
        if len(fitting) != 1:
            return False
        child, key = fitting[0]
        at = next((i for i, other in enumerate(live) if _has_key(other, key)), -1)
        # The order of the applied items counts, as for init containers.
        if at <= position:
            return False
        position = at
        full = {**key, **item}
        node = owned[child]
        if not node:
            # Owned whole, or nothing but its keys.
            if not (semantic_equal(full, live[at], place, empty_maps_count=True) or full.keys() == key.keys()):
                return False
            continue
        node = {**{f"f:{part}": {} for part in key}, **node}
        if not _covers_map(full, live[at], node, place):
            return False
    return True


def _is_meant(item: RawObject, key: RawObject, owned: RawObject) -> bool:
    # A key that the item leaves out was filled in with its default (a port's protocol); then it is not owned.
    return all(item[part] == value if part in item else f"f:{part}" not in owned for part, value in key.items())


def _has_key(item: Any, key: RawObject) -> bool:
    return isinstance(item, dict) and all(item.get(part) == value for part, value in key.items())


def _in_order(values: list[Any], live: list[Any]) -> bool:
    position = -1
    for value in values:
        try:
            position = live.index(value, position + 1)
        except ValueError:
            return False
    return True
