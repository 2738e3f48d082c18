"""Arithmetic of quantities (``500m``, ``2Gi``) and of int-or-percent values (``3``, ``25%``).

Grammar, limits and canonical form are those of ``apimachinery: pkg/api/resource/quantity.go``: amounts finer than a
billionth are rounded away from zero, and none is above 2⁶³ - 1 in magnitude.
"""

from __future__ import annotations

import re
from decimal import ROUND_UP, Context, Decimal, localcontext
from functools import lru_cache
from typing import Literal

__all__ = ["QuantityError", "canonical", "compare", "equal", "parse", "resolve", "to_text"]

_TEXT = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?", re.ASCII)
_PERCENT = re.compile(r"-?[0-9]+%", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIX = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_NANO = Decimal("1e-9")
_MAX = Decimal(2**63 - 1)
# Past this exponent every amount is at one of the limits, and its digits would only cost memory.
_MAX_EXPONENT = Decimal(1000)

Form = Literal["decimal", "binary", "exponent"]


class QuantityError(ValueError):
    """A text is no quantity, or no int-or-percent; the message quotes it and says what to write."""


def parse(value: str | int | float) -> Decimal:
    """Return the amount of a quantity, exactly.

    Raises:
        QuantityError: the text is no quantity.
    """
    return _parse(_text(value))[0]


def equal(a: str | int | float, b: str | int | float) -> bool:
    """Tell whether two quantities are the same amount, as ``1`` and ``1000m`` are.

    Raises:
        QuantityError: one of them is no quantity.
    """
    return parse(a) == parse(b)


def compare(a: str | int | float, b: str | int | float) -> int:
    """Return -1, 0 or 1 as ``a`` is less than, equal to or greater than ``b``.

    Raises:
        QuantityError: one of them is no quantity.
    """
    left, right = parse(a), parse(b)
    return (left > right) - (left < right)


def canonical(value: str | int | float) -> str:
    """Return the canonical text of a quantity: no fraction, the largest suffix of its own kind.

    ``0.5`` becomes ``500m``, ``1024Mi`` becomes ``1Gi``, ``12E6`` becomes ``12e6``.

    Raises:
        QuantityError: the text is no quantity.
    """
    amount, form = _parse(_text(value))
    return to_text(amount, form=form)


def to_text(amount: Decimal | int, *, form: Form = "decimal") -> str:
    """Return the canonical text of an amount.

    Args:
        amount: what is finer than a billionth is rounded away from zero.
        form: suffixes to use: ``decimal`` (k, M, G), ``binary`` (Ki, Mi, Gi) or ``exponent`` (e3, e6). An amount below
            1024 or with a fraction has no binary suffix and is written in decimal form.
    """
    with localcontext(_context(64)):
        amount = _limited(Decimal(amount))
        if form == "binary" and abs(amount) >= 1024 and amount == amount.to_integral_value():
            number, power = int(amount), 0
            while number % 1024 == 0 and power < len(_BINARY_SUFFIX) - 1:
                number //= 1024
                power += 1
            return f"{number}{_BINARY_SUFFIX[power]}"
        number, exponent = int(amount / _NANO), -9
    if number == 0:
        return "0"
    while number % 1000 == 0 and exponent < 18:
        number //= 1000
        exponent += 3
    if form == "exponent":
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_DECIMAL_SUFFIX[exponent]}"


def resolve(value: int | str, total: int, *, round_up: bool = False) -> int:
    """Return the number that an int-or-percent stands for: itself, or a percentage of ``total``.

    Args:
        value: a number, or a percentage as in ``25%``.
        total: what the percentage is of.
        round_up: whether a fraction counts as one more (``maxSurge``) or not (``maxUnavailable``).

    Raises:
        QuantityError: a text that is no whole number of percent.
    """
    if isinstance(value, int):
        return value
    if not _PERCENT.fullmatch(value):
        raise QuantityError(f"{value!r} is no percentage: write a number, or a whole number of percent as in '25%'")
    product = int(value[:-1]) * total
    return -(-product // 100) if round_up else product // 100


def _text(value: str | int | float) -> str:
    # A float's own text may have an exponent, which would make it a quantity of that form.
    return format(Decimal(repr(value)), "f") if isinstance(value, float) else str(value)


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[Decimal, Form]:
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise QuantityError(f"{text!r} is no quantity: write a number with an optional suffix, as in 500m or 2Gi")
    sign, number, suffix = match.groups("")
    form: Form = "decimal"
    with localcontext(_context(len(text) + 64)):
        amount = Decimal(f"{sign}{number}")
        if suffix in _DECIMAL:
            amount = amount.scaleb(_DECIMAL[suffix])
        elif suffix in _BINARY_SUFFIX:
            amount *= 1024 ** _BINARY_SUFFIX.index(suffix)
            form = "binary"
        else:
            exponent = Decimal(suffix[1:])
            amount = amount.scaleb(max(-_MAX_EXPONENT, min(_MAX_EXPONENT, exponent)))
            form = "exponent"
        return _limited(amount), form


def _limited(amount: Decimal) -> Decimal:
    """Round to billionths away from zero, and cap."""
    if abs(amount) >= _MAX:
        return _MAX.copy_sign(amount)
    return amount.quantize(_NANO, rounding=ROUND_UP)


def _context(digits: int) -> Context:
    return Context(prec=digits, Emax=10**6, Emin=-(10**6))
