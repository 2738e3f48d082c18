"""Label and field selectors: their text grammar, and matching in memory.

A label selector is a comma-separated list of requirements that must all hold: ``key``, ``!key``, ``key=value``,
``key==value``, ``key!=value``, ``key in (a,b)``, ``key notin (a,b)``, ``key>1``, ``key<1``. Grammar and meaning are
those of ``apimachinery: pkg/labels/selector.go``; a missing key satisfies ``!=`` and ``notin``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

Operator = Literal["exists", "!", "in", "notin", ">", "<"]

_TOKEN = re.compile(r"\s*(==|!=|[=!(),<>]|[^\s=!(),<>]+)\s*")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_SYMBOLS = frozenset({"=", "==", "!=", "!", "(", ")", ",", "<", ">"})


class SelectorError(ValueError):
    """A selector that does not follow the grammar; the message quotes it and names the fault."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label. ``values`` is empty for ``exists`` and ``!``."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a set of labels meets the condition."""
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "!":
                return value is None
        if value is None or not _INTEGER.fullmatch(value):
            return False
        (bound,) = self.values
        return int(value) > int(bound) if self.operator == ">" else int(value) < int(bound)

    def __str__(self) -> str:
        match self.operator:
            case "exists":
                return self.key
            case "!":
                return f"!{self.key}"
            case "in" if len(self.values) == 1:
                return f"{self.key}={next(iter(self.values))}"
            case "notin" if len(self.values) == 1:
                return f"{self.key}!={next(iter(self.values))}"
            case "in" | "notin":
                return f"{self.key} {self.operator} ({','.join(sorted(self.values))})"
        return f"{self.key}{self.operator}{next(iter(self.values))}"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Requirements that must all hold; without any it selects everything. ``str()`` gives the text for a request."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> LabelSelector:
        """Read the text form.

        Raises:
            SelectorError: the text does not follow the grammar, or a key or value is no valid label.
        """
        return _parse_labels(text)

    @classmethod
    def equal(cls, labels: Mapping[str, str | Sequence[str]]) -> LabelSelector:
        """Select objects that carry all of these labels; several values for one label mean any of them.

        Raises:
            SelectorError: a key or value is no valid label.
        """
        return cls(
            tuple(
                _checked(key, "in", (value,) if isinstance(value, str) else value, f"{key}={value}")
                for key, value in sorted(labels.items())
            )
        )

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any] | None) -> LabelSelector | None:
        """Read a ``metav1.LabelSelector`` (``matchLabels``, ``matchExpressions``).

        None, which as an API value selects nothing, is given back as None; an empty one selects everything.

        Raises:
            SelectorError: an operator is unknown, or its values do not suit it.
        """
        if raw is None:
            return None
        requirements = list(cls.equal(raw.get("matchLabels") or {}).requirements)
        for expression in raw.get("matchExpressions") or ():
            key, name, values = expression.get("key", ""), expression.get("operator"), expression.get("values") or ()
            operator = _API_OPERATORS.get(name)
            if operator is None:
                raise SelectorError(
                    f"matchExpressions: operator {name!r} is not one of In, NotIn, Exists, DoesNotExist"
                )
            if bool(values) != (operator in ("in", "notin")):
                raise SelectorError(f"matchExpressions: {name} on {key!r} takes {'no ' if values else ''}values")
            requirements.append(_checked(key, operator, values, f"matchExpressions on {key!r}"))
        return cls(tuple(requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a set of labels meets every requirement."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """One condition on one field: its path, its value, and whether they must be equal or differ."""

    path: str
    value: str
    equal: bool = True

    def __str__(self) -> str:
        return f"{self.path}{'=' if self.equal else '!='}{_escape(self.value)}"


def parse_fields(text: str) -> tuple[FieldTerm, ...]:
    r"""Read a field selector: comma-separated ``path=value``, ``path==value`` or ``path!=value``.

    In a value ``\,``, ``\=`` and ``\\`` stand for the character after the backslash.

    Raises:
        SelectorError: a term has no operator, or a backslash stands before another character.
    """
    terms = []
    for part in _split_unescaped(text):
        found = re.match(r"([^=!]*)(==|!=|=)(.*)", part, re.DOTALL)
        if found is None:
            raise SelectorError(f"field selector {text!r}: {part!r} needs '=' or '!=' between path and value")
        path, operator, value = found.groups()
        terms.append(FieldTerm(path, _unescape(value, text), operator != "!="))
    return tuple(terms)


def field_terms(fields: str | Mapping[str, str] | None) -> tuple[FieldTerm, ...]:
    """Read a field selector given as text, or as a mapping of paths to the values they must equal."""
    if not fields:
        return ()
    if isinstance(fields, str):
        return parse_fields(fields)
    return tuple(FieldTerm(path, value) for path, value in fields.items())


def label_selector(labels: str | Mapping[str, str | Sequence[str]] | LabelSelector | None) -> LabelSelector:
    """Read a label selector given as text, as a mapping of labels that must be equal, or ready made."""
    if not labels:
        return LabelSelector()
    if isinstance(labels, LabelSelector):
        return labels
    return _parse_labels(labels) if isinstance(labels, str) else LabelSelector.equal(labels)


_API_OPERATORS: dict[str, Operator] = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


@lru_cache(maxsize=256)
def _parse_labels(text: str) -> LabelSelector:
    tokens = _tokens(text)
    if not tokens:
        return LabelSelector()
    requirements = []
    position = 0
    while True:
        requirement, position = _requirement(tokens, position, text)
        requirements.append(requirement)
        if position == len(tokens):
            return LabelSelector(tuple(requirements))
        if tokens[position] != ",":
            raise SelectorError(f"label selector {text!r}: a comma must stand before {tokens[position]!r}")
        position += 1


def _tokens(text: str) -> list[str]:
    tokens = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            # Only white space is left: everything else is a symbol or a word.
            break
        tokens.append(found[1])
        position = found.end()
    return tokens


def _requirement(tokens: list[str], position: int, text: str) -> tuple[Requirement, int]:
    def word(at: int, what: str) -> str:
        if at >= len(tokens) or tokens[at] in _SYMBOLS:
            found = repr(tokens[at]) if at < len(tokens) else "the end"
            raise SelectorError(f"label selector {text!r}: {what} must stand where {found} is")
        return tokens[at]

    if position < len(tokens) and tokens[position] == "!":
        return _checked(word(position + 1, "a key"), "!", (), text), position + 2
    key = word(position, "a key")
    position += 1
    following = tokens[position] if position < len(tokens) else ","
    match following:
        case ",":
            return _checked(key, "exists", (), text), position
        case "=" | "==" | "!=":
            ends = position + 1 == len(tokens) or tokens[position + 1] == ","
            value = "" if ends else word(position + 1, "a value")
            operator: Operator = "notin" if following == "!=" else "in"
            return _checked(key, operator, (value,), text), position + (1 if ends else 2)
        case ">" | "<":
            value = word(position + 1, "an integer")
            return _checked(key, following, (value,), text), position + 2
        case "in" | "notin":
            values, position = _value_list(tokens, position + 1, text)
            return _checked(key, following, values, text), position
    raise SelectorError(f"label selector {text!r}: {following!r} after {key!r} is no operator")


def _value_list(tokens: list[str], position: int, text: str) -> tuple[list[str], int]:
    if position >= len(tokens) or tokens[position] != "(":
        raise SelectorError(f"label selector {text!r}: in and notin need their values in parentheses")
    values = []
    value = ""
    for end in range(position + 1, len(tokens)):
        found = tokens[end]
        if found in (",", ")"):
            values.append(value)
            value = ""
            if found == ")":
                return values, end + 1
        elif found in _SYMBOLS or value:
            raise SelectorError(f"label selector {text!r}: {found!r} cannot stand in a list of values")
        else:
            value = found
    raise SelectorError(f"label selector {text!r}: a closing parenthesis is missing")


def _checked(key: str, operator: Operator, values: Iterable[str], where: str) -> Requirement:
    values = frozenset(values)
    prefix, slash, name = key.rpartition("/")
    bad_prefix = slash and (len(prefix) > 253 or not _PREFIX.fullmatch(prefix))
    if bad_prefix or not _NAME.fullmatch(name):
        raise SelectorError(f"label selector {where!r}: {key!r} is no valid label key")
    for value in values:
        if operator in (">", "<"):
            if not _INTEGER.fullmatch(value):
                raise SelectorError(f"label selector {where!r}: {operator} needs an integer, not {value!r}")
        elif value and not _NAME.fullmatch(value):
            raise SelectorError(f"label selector {where!r}: {value!r} is no valid label value")
    return Requirement(key, operator, values)


def _split_unescaped(text: str) -> list[str]:
    return [part for part in re.findall(r"(?:\\.|[^,\\]|\\$)+", text, re.DOTALL) if part]


def _unescape(value: str, text: str) -> str:
    def plain(found: re.Match[str]) -> str:
        character = found[1]
        if character not in ("\\", ",", "="):
            raise SelectorError(rf"field selector {text!r}: a backslash stands only before \, a comma or =")
        return character

    return re.sub(r"\\(.?)", plain, value, flags=re.DOTALL)


def _escape(value: str) -> str:
    return re.sub(r"([\\,=])", r"\\\1", value)
