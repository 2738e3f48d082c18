"""Patches as the API server applies them: JSON patch, JSON merge patch and strategic merge patch."""

from __future__ import annotations

from typing import Any

from pyreconcile.api import RawObject, copy_json
from pyreconcile.client import BadRequestError, InvalidError
from pyreconcile.testing._fake._schema import ANYTHING, ListKind, field, items_of, list_kind

_GONE: Any = object()
_IGNORED = "$setElementOrder/"
_DELETE_VALUES = "$deleteFromPrimitiveList/"


def json_patch(obj: RawObject, operations: Any) -> RawObject:
    """Return the object after the operations of RFC 6902.

    Raises:
        InvalidError: an operation cannot be done, or a test failed.
        BadRequestError: the patch is no list of operations.
    """
    if not isinstance(operations, list):
        raise BadRequestError("a JSON patch is a list of operations")
    root: Any = {"": copy_json(obj)}
    try:
        for operation in operations:
            _operate(root, operation)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidError("the server rejected our request due to an error in our request") from error
    patched: RawObject = root[""]
    return patched


def _operate(root: Any, operation: RawObject) -> None:
    path = _steps(operation["path"])
    match operation["op"]:
        case "add":
            _add(root, path, copy_json(operation["value"]))
        case "remove":
            _remove(root, path)
        case "replace":
            # The API server takes a replace of a field that is not there for an add.
            if isinstance(_find(root, path[:-1]), list):
                _remove(root, path)
            _add(root, path, copy_json(operation["value"]))
        case "move":
            source = _steps(operation["from"])
            value = _find(root, source)
            _remove(root, source)
            _add(root, path, value)
        case "copy":
            _add(root, path, copy_json(_find(root, _steps(operation["from"]))))
        case "test":
            if _find(root, path) != operation.get("value"):
                raise ValueError("test failed")
        case other:
            raise ValueError(f"no operation {other!r}")


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is no JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")]


def _index(items: list[Any], step: str, *, end: int) -> int:
    if not step.isdigit() or int(step) >= end:
        raise IndexError(step)
    return int(step)


def _find(root: Any, path: list[str]) -> Any:
    for step in path:
        root = root[_index(root, step, end=len(root))] if isinstance(root, list) else root[step]
    return root


def _add(root: Any, path: list[str], value: Any) -> None:
    parent, step = _find(root, path[:-1]), path[-1]
    if isinstance(parent, list):
        parent.insert(len(parent) if step == "-" else _index(parent, step, end=len(parent) + 1), value)
    else:
        parent[step] = value


def _remove(root: Any, path: list[str]) -> None:
    parent, step = _find(root, path[:-1]), path[-1]
    if isinstance(parent, list):
        del parent[_index(parent, step, end=len(parent))]
    else:
        del parent[step]


def merge_patch(target: Any, patch: RawObject) -> RawObject:
    """Return the object after a JSON merge patch (RFC 7386); nothing is changed in place."""
    merged: RawObject = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value) if isinstance(value, dict) else value
    return merged


def strategic_merge(target: RawObject, patch: RawObject, schema: RawObject) -> RawObject:
    """Return the object after a strategic merge patch; lists merge as the schema says.

    Raises:
        BadRequestError: a directive is unknown, or an item lacks its key.
    """
    merged = _merge(target, patch, schema)
    if merged is _GONE:
        raise BadRequestError("a patch cannot delete the whole object")
    result: RawObject = merged
    return result


def _merge(target: Any, patch: Any, schema: RawObject) -> Any:
    if not isinstance(patch, dict):
        return patch
    directive = patch.get("$patch")
    if directive == "delete":
        return _GONE
    if directive == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    if directive not in (None, "merge"):
        raise BadRequestError(f"$patch: {directive!r} is none of merge, replace and delete")
    merged = dict(target) if isinstance(target, dict) else {}
    if "$retainKeys" in patch:
        merged = {name: value for name, value in merged.items() if name in patch["$retainKeys"]}
    for name, value in patch.items():
        if name in ("$patch", "$retainKeys") or name.startswith(_IGNORED):
            continue
        if name.startswith(_DELETE_VALUES):
            name = name.removeprefix(_DELETE_VALUES)
            merged[name] = [item for item in merged.get(name) or () if item not in value]
        elif name.startswith("$"):
            raise BadRequestError(f"the patch has the unknown directive {name!r}")
        elif value is None:
            merged.pop(name, None)
        else:
            result = _merge_field(merged.get(name), value, field(schema, name)[0] or ANYTHING)
            if result is _GONE:
                merged.pop(name, None)
            else:
                merged[name] = result
    return merged


def _merge_field(target: Any, patch: Any, schema: RawObject) -> Any:
    if not isinstance(patch, list):
        return _merge(target, patch, schema)
    kind = list_kind(schema)
    items = target if isinstance(target, list) else []
    if kind.is_set:
        return [*items, *(value for value in patch if value not in items)]
    if not kind.keys:
        return patch
    return _merge_items(items, patch, kind, items_of(schema))


def _merge_items(items: list[Any], patch: list[Any], kind: ListKind, schema: RawObject) -> list[Any]:
    key = kind.keys[0]  # a strategic merge looks at one key, even where an apply looks at several
    if any(isinstance(item, dict) and item.get("$patch") == "replace" and key not in item for item in patch):
        return [item for item in patch if "$patch" not in item]
    merged = {item[key]: item for item in items}
    order = {name: position for position, name in enumerate(merged)}
    gone = set()
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise BadRequestError(f"an item of the patch lacks {key!r}, by which its list is merged")
        result = _merge(merged.get(item[key]), item, schema)
        if result is _GONE:
            gone.add(item[key])
        else:
            merged[item[key]] = result
    # What is new goes to the front, as on the server.
    names = sorted((name for name in merged if name not in gone), key=lambda name: order.get(name, -1))
    return [merged[name] for name in names]
