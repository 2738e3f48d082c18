"""Field ownership and server-side apply, after apimachinery's structured-merge-diff.

A field is named by its path: a tuple of steps as they stand in ``fieldsV1`` (``f:spec``, ``k:{"name":"a"}``,
``v:"x"``). Who owns what is a set of such paths for each manager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import orjson

from pyreconcile.api import RawObject
from pyreconcile.client import ConflictError
from pyreconcile.testing._fake._schema import ANYTHING, field, is_atomic_map, items_of, key_of_item, list_kind

Path: TypeAlias = tuple[str, ...]
Fields: TypeAlias = frozenset[Path]

_MISSING: Any = object()
_META = "f:metadata"
# What names an object or is the server's own has no owner.
_UNOWNED = {("f:apiVersion",), ("f:kind",), (_META,)} | {
    (_META, f"f:{name}")
    for name in (
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generateName",
        "managedFields",
        "selfLink",
    )
}


@dataclass(frozen=True)
class Entry:
    """What one manager owns through one kind of writing."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    time: str
    fields: Fields

    def is_of(self, other: Entry) -> bool:
        """Tell whether both are the same manager's, written in the same way."""
        return (self.manager, self.operation, self.subresource) == (other.manager, other.operation, other.subresource)


def read_entries(obj: RawObject) -> list[Entry]:
    """Return the owners recorded in an object's ``managedFields``."""
    return [
        Entry(
            raw.get("manager", ""),
            raw.get("operation", ""),
            raw.get("apiVersion", ""),
            raw.get("subresource", ""),
            raw.get("time", ""),
            frozenset(_decode(raw.get("fieldsV1") or {}, ())),
        )
        for raw in obj["metadata"].get("managedFields") or ()
    ]


def write_entries(obj: RawObject, entries: Iterable[Entry]) -> RawObject:
    """Return the object with these owners recorded."""
    managed = []
    # The server sorts: who applies first, then by time.
    for entry in sorted(entries, key=lambda entry: (entry.operation != "Apply", entry.time, entry.manager)):
        raw: RawObject = {"manager": entry.manager, "operation": entry.operation, "apiVersion": entry.api_version}
        raw |= {"time": entry.time, "fieldsType": "FieldsV1", "fieldsV1": _encode(entry.fields)}
        if entry.subresource:
            raw["subresource"] = entry.subresource
        managed.append(raw)
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "metadata": {**metadata, "managedFields": managed} if managed else metadata}


def after_update(old: RawObject | None, new: RawObject, schema: RawObject, by: Entry) -> list[Entry]:
    """Return the owners after a write that is no apply: whoever changes a field owns it alone.

    Args:
        old: the object before; None when it is new.
        new: the object after.
        schema: of both.
        by: who writes; its fields are ignored.
    """
    change = compare(old, new, schema)
    gone = change.changed | change.removed
    entries = []
    own: Fields = frozenset()
    for entry in read_entries(old) if old else ():
        if entry.is_of(by):
            own = entry.fields
            by = replace(by, time=entry.time) if not gone else by
        else:
            entries.append(replace(entry, fields=entry.fields - gone))
    mine = (own | change.changed) - change.removed
    return [entry for entry in (*entries, replace(by, fields=mine)) if entry.fields]


def after_apply(
    live: RawObject | None, config: RawObject, schema: RawObject, by: Entry, *, force: bool
) -> tuple[RawObject, list[Entry]]:
    """Return the object after an apply, and its owners.

    Args:
        live: the object before; None when there is none.
        config: what is applied.
        schema: of both.
        by: who applies; its fields are ignored.
        force: take fields over from others.

    Raises:
        ConflictError: others own fields that would change.
        ValueError: an item of a list lacks its keys.
    """
    entries = read_entries(live) if live else []
    last: Fields = next((entry.fields for entry in entries if entry.is_of(by)), frozenset())
    time = next((entry.time for entry in entries if entry.is_of(by)), "")
    others = [entry for entry in entries if not entry.is_of(by)]
    mine = fields_of(config, schema)
    merged = merge(live, config, schema) if live else config
    owned = mine.union(*(entry.fields for entry in others))
    merged = _without(merged, schema, last - owned, owned)
    change = compare(live, merged, schema)
    clashes = [(entry, entry.fields & change.changed) for entry in others if entry.fields & change.changed]
    if clashes and not force:
        raise _conflict(clashes)
    gone = change.changed | change.removed
    kept = [replace(entry, fields=entry.fields - gone) for entry in others]
    if not gone and mine == last:
        by = replace(by, time=time)
    return merged, [entry for entry in (*kept, replace(by, fields=mine)) if entry.fields]


def _conflict(clashes: list[tuple[Entry, Fields]]) -> ConflictError:
    causes, lines = [], []
    for entry, paths in clashes:
        who = f'"{entry.manager}"' + (f' with subresource "{entry.subresource}"' if entry.subresource else "")
        if entry.operation != "Apply":
            who += f" using {entry.api_version}"
        lines.append(f"conflicts with {who}:")
        for path in sorted(map(_text, paths)):
            lines.append(f"- {path}")
            causes.append({"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": path})
    if len(causes) == 1:
        text = f"1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        text = f"{len(causes)} conflicts: " + "\n".join(lines)
    return ConflictError(f"Apply failed with {text}", details={"causes": causes})


def _text(path: Path) -> str:
    text = ""
    for step in path:
        kind, _, name = step.partition(":")
        if kind == "f":
            text += f".{name}"
        elif kind == "k":
            text += "[" + ",".join(f"{key}={_json(value)}" for key, value in orjson.loads(name).items()) + "]"
        else:
            text += f"[={name}]"
    return text


# -- sets of fields --------------------------------------------------------------------------------------------------


def fields_of(value: RawObject, schema: RawObject) -> Fields:
    """Return the fields that a configuration sets."""
    found: set[Path] = set()
    _collect(value, schema, (), found, containers=False)
    return frozenset(found - _UNOWNED)


def _collect(value: Any, schema: RawObject, path: Path, found: set[Path], *, containers: bool) -> None:
    if isinstance(value, dict):
        if is_atomic_map(schema):
            found.add(path)
            return
        for name, inner in value.items():
            child, declared = field(schema, name)
            sub = (*path, f"f:{name}")
            _collect(inner, child or ANYTHING, sub, found, containers=containers)
            if inner is None or inner == {} or not declared or (containers and _is_open(inner, child or ANYTHING)):
                found.add(sub)
    elif isinstance(value, list):
        kind = list_kind(schema)
        if not kind.merges:
            found.add(path)
            return
        for item, step in _steps(value, schema):
            sub = (*path, step)
            _collect(item, items_of(schema), sub, found, containers=containers)
            found.add(sub)
    else:
        found.add(path)


def _is_open(value: Any, schema: RawObject) -> bool:
    """Tell whether a container is recorded itself when it appears: lists, and maps with keys of the user's own."""
    return isinstance(value, list) or (isinstance(value, dict) and "properties" not in schema)


def _steps(items: list[Any], schema: RawObject) -> list[tuple[Any, str]]:
    kind = list_kind(schema)
    if kind.is_set:
        return [(item, f"v:{_json(item)}") for item in items]
    return [(item, f"k:{_json(key_of_item(item, kind, schema))}") for item in items]


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _encode(fields: Fields) -> RawObject:
    tree: RawObject = {}
    for path in sorted(fields):
        node = tree
        for step in path:
            node = node.setdefault(step, {})
        node["."] = {}
    return _plain_leaves(tree)


def _plain_leaves(tree: RawObject) -> RawObject:
    return {step: {} if node == {".": {}} else _plain_leaves(node) for step, node in tree.items()}


def _decode(tree: RawObject, path: Path) -> Iterable[Path]:
    for step, node in tree.items():
        if step == ".":
            yield path
        elif node:
            yield from _decode(node, (*path, step))
        else:
            yield (*path, step)


# -- comparing, merging, removing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """Fields that a write sets to another value or adds, and those that it takes away."""

    changed: Fields
    removed: Fields


def compare(old: RawObject | None, new: RawObject, schema: RawObject) -> Change:
    """Return what differs between two states of an object."""
    changed: set[Path] = set()
    removed: set[Path] = set()
    _compare(old or {}, new, schema, (), changed, removed)
    return Change(frozenset(changed - _UNOWNED), frozenset(removed - _UNOWNED))


def _compare(old: Any, new: Any, schema: RawObject, path: Path, changed: set[Path], removed: set[Path]) -> None:
    if isinstance(old, dict) and isinstance(new, dict) and not is_atomic_map(schema):
        for name in {**old, **new}:
            child, _ = field(schema, name)
            before, after = old.get(name, _MISSING), new.get(name, _MISSING)
            _compare_part(before, after, child or ANYTHING, (*path, f"f:{name}"), changed, removed)
    elif isinstance(old, list) and isinstance(new, list) and list_kind(schema).merges:
        befores = {step: item for item, step in _steps(old, schema)}
        afters = {step: item for item, step in _steps(new, schema)}
        for step in {**befores, **afters}:
            before, after = befores.get(step, _MISSING), afters.get(step, _MISSING)
            _compare_part(before, after, items_of(schema), (*path, step), changed, removed)
    elif not _same(old, new):
        changed.add(path)


def _compare_part(
    before: Any, after: Any, schema: RawObject, path: Path, changed: set[Path], removed: set[Path]
) -> None:
    if before is _MISSING or after is _MISSING:
        value, found = (after, changed) if before is _MISSING else (before, removed)
        inside: set[Path] = set()
        _collect(value, schema, path, inside, containers=True)
        if not path[-1].startswith("f:") or _is_open(value, schema) or value == {}:
            inside.add(path)
        found |= inside
    else:
        _compare(before, after, schema, path, changed, removed)


def _same(a: Any, b: Any) -> bool:
    return _json(a) == _json(b)


def merge(live: Any, config: Any, schema: RawObject) -> Any:
    """Return ``live`` with all of ``config`` in it."""
    if isinstance(live, dict) and isinstance(config, dict) and not is_atomic_map(schema):
        merged = dict(live)
        for name, value in config.items():
            child, _ = field(schema, name)
            merged[name] = merge(live[name], value, child or ANYTHING) if name in live else value
        return merged
    if isinstance(live, list) and isinstance(config, list) and list_kind(schema).merges:
        return _merge_lists(live, config, schema)
    return config


def _merge_lists(live: list[Any], config: list[Any], schema: RawObject) -> list[Any]:
    # The applied order wins; an item that only the live list has stays in front of what followed it there.
    rights = _steps(config, schema)
    wanted = {step for _, step in rights}
    lefts = deque(_steps(live, schema))
    known = {step: item for item, step in lefts}
    shared = deque(step for _, step in rights if step in known)
    merged: list[Any] = []
    for item, step in rights:
        while lefts and not (shared and lefts[0][1] == shared[0]):
            left, its_step = lefts.popleft()
            if its_step not in wanted:
                merged.append(left)
        if step in known:
            shared.popleft()
            if lefts and lefts[0][1] == step:
                lefts.popleft()
        merged.append(merge(known[step], item, items_of(schema)) if step in known else item)
    return [*merged, *(left for left, step in lefts if step not in wanted)]


def _without(value: Any, schema: RawObject, doomed: Fields, kept: Fields, path: Path = ()) -> Any:
    """Return a value without the fields that nobody owns any more."""
    if not doomed:
        return value

    def goes(sub: Path) -> bool:
        return sub in doomed and not any(other[: len(sub)] == sub for other in kept)

    if isinstance(value, dict) and not is_atomic_map(schema):
        left = {}
        for name, inner in value.items():
            sub = (*path, f"f:{name}")
            if goes(sub):
                continue
            child, _ = field(schema, name)
            remains = _without(inner, child or ANYTHING, doomed, kept, sub)
            # A container that lost all it had goes as well, as the server leaves empty ones out.
            if path and inner and remains in ({}, []) and sub not in kept:
                continue
            left[name] = remains
        return left
    if isinstance(value, list) and list_kind(schema).merges:
        return [
            _without(item, items_of(schema), doomed, kept, (*path, step))
            for item, step in _steps(value, schema)
            if not goes((*path, step))
        ]
    return value
