"""Comparing objects in tests, with what the server made up left out (rule TE-7)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from pyreconcile.api import Model
from pyreconcile.client._equality import ROOT, Place, semantic_equal

_Steps: TypeAlias = tuple[str, ...]

SERVER_METADATA = (
    "metadata.uid",
    "metadata.generation",
    "metadata.creationTimestamp",
    "metadata.resourceVersion",
    "metadata.managedFields",
    "metadata.deletionGracePeriodSeconds",
    "metadata.deletionTimestamp",
    "metadata.selfLink",
    "metadata.generateName",
)
"""The fields that the server fills in by itself, and ``generateName``, which it made a name of."""

_STEP = re.compile(r"\.?([^.\[\]]+)|\[([^\]]*)\]")


class Difference(NamedTuple):
    """A field that two objects have otherwise; None stands for a field that is not there."""

    path: str
    actual: Any
    expected: Any

    def __str__(self) -> str:
        return f"{self.path}: {self.actual!r}, expected {self.expected!r}"


def differences(
    actual: Model | Mapping[str, Any],
    expected: Model | Mapping[str, Any],
    *,
    ignore: Iterable[str] = (),
    only: Iterable[str] = (),
    server_metadata: bool = True,
) -> list[Difference]:
    """Return the fields in which two objects differ; none when they mean the same.

    Values are compared by meaning, as Kubernetes does: ``1000m`` of CPU is ``1``, an empty list is no list.

    Args:
        actual: an object, as a model or as parsed JSON.
        expected: what it should be.
        ignore: paths of fields to leave out, with all in them: wire names as in ``spec.template``, an item or a key
            with dots in brackets, as in ``spec.containers[0].image`` and ``metadata.labels[app.kubernetes.io/name]``.
        only: paths of the fields to look at; all when there are none.
        server_metadata: whether what the server fills into metadata by itself counts (UID, versions, times, owners of
            fields).

    Raises:
        ValueError: a path cannot be read.
    """
    left_out = [_steps(path) for path in (*ignore, *(() if server_metadata else SERVER_METADATA))]
    chosen = [_steps(path) for path in only]
    found: list[Difference] = []
    _compare(_raw(actual), _raw(expected), (), ROOT, _Choice(left_out, chosen), found)
    return found


def assert_equal(
    actual: Model | Mapping[str, Any],
    expected: Model | Mapping[str, Any],
    *,
    ignore: Iterable[str] = (),
    only: Iterable[str] = (),
    server_metadata: bool = True,
) -> None:
    """Fail with a line for each difference of two objects; see `differences` for the arguments.

    Raises:
        AssertionError: they differ.
    """
    found = differences(actual, expected, ignore=ignore, only=only, server_metadata=server_metadata)
    if found:
        raise AssertionError("\n".join(("the objects differ:", *map(str, found))))


class _Choice:
    """Which paths count."""

    def __init__(self, left_out: Sequence[_Steps], chosen: Sequence[_Steps]) -> None:
        self._left_out = set(left_out)
        self._chosen = chosen

    def skips(self, path: _Steps) -> bool:
        if path in self._left_out:
            return True
        return bool(self._chosen) and not any(_related(path, one) for one in self._chosen)

    def splits(self, path: _Steps) -> bool:
        """Tell whether some of what is in a field counts and some does not."""
        return any(len(one) > len(path) and _related(path, one) for one in (*self._left_out, *self._chosen))


def _related(a: _Steps, b: _Steps) -> bool:
    return all(x == y for x, y in zip(a, b, strict=False))


def _raw(obj: Model | Mapping[str, Any]) -> Any:
    return obj.to_dict() if isinstance(obj, Model) else obj


def _compare(a: Any, b: Any, path: _Steps, place: Place, choice: _Choice, found: list[Difference]) -> None:
    if choice.skips(path) or (not choice.splits(path) and semantic_equal(a, b, place)):
        return
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        if isinstance(a or {}, Mapping) and isinstance(b or {}, Mapping):
            before, after = a or {}, b or {}
            for name in {**before, **after}:
                _compare(before.get(name), after.get(name), (*path, name), place.inside(name), choice, found)
            return
    elif isinstance(a, list) and isinstance(b, list):
        for index in range(max(len(a), len(b))):
            one = a[index] if index < len(a) else None
            other = b[index] if index < len(b) else None
            _compare(one, other, (*path, str(index)), place, choice, found)
        return
    if not semantic_equal(a, b, place):
        found.append(Difference(_text(path), a, b))


def _steps(path: str) -> _Steps:
    steps, end = [], 0
    for match in _STEP.finditer(path):
        if match.start() != end:
            break
        steps.append(match[1] or match[2])
        end = match.end()
    if end != len(path) or not steps or "" in steps:
        raise ValueError(f"{path!r} is no path: write it as in 'spec.containers[0].image'")
    return tuple(steps)


def _text(path: _Steps) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if "." in step or step.isdigit() else f".{step}"
    return text.lstrip(".")
