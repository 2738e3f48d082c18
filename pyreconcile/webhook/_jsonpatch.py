"""The difference between two JSON values: as a JSON patch (RFC 6902), and carried over to a third value."""

from __future__ import annotations

from typing import Any


def json_patch(old: Any, new: Any) -> list[dict[str, Any]]:
    """Return the operations that turn ``old`` into ``new``; none when they are equal.

    Values are compared as JSON: ``1`` differs from ``true`` and from ``1.0``, null from a missing key. Items that a
    list has in common at its front and at its back are kept, so appending, inserting and removing are one operation
    for each item. Parts that both share are not looked into.
    """
    operations: list[dict[str, Any]] = []
    _diff(old, new, "", operations)
    return operations


def same_json(a: Any, b: Any) -> bool:
    """Tell whether two values are the same JSON; unlike ``==``, ``1``, ``true`` and ``1.0`` differ."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(key in b and same_json(value, b[key]) for key, value in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_json, a, b))
    return bool(a == b)


def rebase(raw: Any, before: Any, after: Any) -> Any:
    """Carry the change ``before`` → ``after`` over to ``raw`` and return the result; nothing is changed in place.

    ``before`` is ``raw`` as seen through a model, which may have dropped fields that it does not know and rewritten
    values. What did not change between ``before`` and ``after`` stays as it is in ``raw`` (rules WH-6 and WH-6a).
    """
    if same_json(before, after):
        return raw
    if isinstance(raw, dict) and isinstance(before, dict) and isinstance(after, dict):
        result = {
            key: rebase(value, before[key], after[key]) if key in before and key in after else value
            for key, value in raw.items()
            if key in after or key not in before
        }
        # A value that the model itself made up (a default of a field never set) is no change of the handler.
        result |= {
            key: value
            for key, value in after.items()
            if key not in before or (key not in raw and not same_json(before[key], value))
        }
        return result
    if isinstance(raw, list) and isinstance(before, list) and isinstance(after, list) and len(raw) == len(before):
        front, back = _common_ends(before, after)
        middle = after[front : len(after) - back]
        if len(before) == len(after):
            ends = len(before) - back
            middle = [rebase(*three) for three in zip(raw[front:ends], before[front:ends], middle, strict=True)]
        return [*raw[:front], *middle, *raw[len(raw) - back :]]
    return after


def _diff(old: Any, new: Any, path: str, operations: list[dict[str, Any]]) -> None:
    if old is new:
        return
    if type(old) is type(new):
        if isinstance(old, dict):
            _diff_objects(old, new, path, operations)
            return
        if isinstance(old, list):
            _diff_lists(old, new, path, operations)
            return
        if old == new:
            return
    operations.append({"op": "replace", "path": path, "value": new})


def _diff_objects(old: dict[str, Any], new: dict[str, Any], path: str, operations: list[dict[str, Any]]) -> None:
    for key, value in old.items():
        if key in new:
            _diff(value, new[key], f"{path}/{_escape(key)}", operations)
        else:
            operations.append({"op": "remove", "path": f"{path}/{_escape(key)}"})
    for key, value in new.items():
        if key not in old:
            operations.append({"op": "add", "path": f"{path}/{_escape(key)}", "value": value})


def _diff_lists(old: list[Any], new: list[Any], path: str, operations: list[dict[str, Any]]) -> None:
    front, back = _common_ends(old, new)
    old_end, new_end = len(old) - back, len(new) - back
    shared = min(old_end, new_end)
    for index in range(front, shared):
        _diff(old[index], new[index], f"{path}/{index}", operations)
    # From the back, so that each removal leaves the places of the others alone.
    operations.extend({"op": "remove", "path": f"{path}/{index}"} for index in range(old_end - 1, shared - 1, -1))
    operations.extend({"op": "add", "path": f"{path}/{index}", "value": new[index]} for index in range(shared, new_end))


def _common_ends(old: list[Any], new: list[Any]) -> tuple[int, int]:
    """Count the equal items at the front and, apart from those, at the back."""
    limit = min(len(old), len(new))
    front = 0
    while front < limit and same_json(old[front], new[front]):
        front += 1
    back = 0
    while back < limit - front and same_json(old[-1 - back], new[-1 - back]):
        back += 1
    return front, back


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1") if "~" in key or "/" in key else key
