"""The text Go's ``resource.Quantity`` prints for a quantity that it read (LWS §5, rule 3)."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

_FORM = re.compile(r"(?P<sign>[+-]?)(?P<whole>\d*)(?:\.(?P<fraction>\d*))?(?P<suffix>[a-zA-Z]*(?:[+-]?\d+)?)", re.ASCII)
_EXPONENT = re.compile(r"[eE]([+-]?\d+)", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_NAMES = {exponent: name for name, exponent in _DECIMAL.items()}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_NAMES = {exponent: name for name, exponent in _BINARY.items()}
_NANO = -9


@lru_cache(maxsize=4096)
def canonical_quantity(value: str | int | float) -> str:
    """Return the text that a Go controller would write back for ``value``.

    A text that already looks canonical is kept as it is; ``0.5`` becomes ``500m``, ``1024Mi`` becomes ``1Gi``.

    Raises:
        ValueError: the text is no quantity.
    """
    text = str(value).strip()
    match = _FORM.fullmatch(text)
    if match is None or not (match["whole"] or match["fraction"]):
        raise ValueError(f"{value!r} is no quantity: write a number with an optional suffix, as in 500m or 2Gi")
    whole, fraction, suffix = match["whole"].lstrip("0"), match["fraction"] or "", match["suffix"]
    if suffix in _BINARY:
        if not fraction and _keeps_binary(whole, _BINARY[suffix]):
            return text
        return _print_binary(_number(match["sign"], whole, fraction) * 2 ** _BINARY[suffix])
    exponent_form = _EXPONENT.fullmatch(suffix)
    if exponent_form is None and suffix not in _DECIMAL:
        raise ValueError(
            f"{value!r} has an unknown suffix {suffix!r}: use one of m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei"
        )
    exponent = int(exponent_form[1]) if exponent_form else _DECIMAL[suffix]
    if _keeps_decimal(whole, fraction, exponent):
        return text
    number = _number(match["sign"], whole, fraction) * Fraction(10) ** exponent
    return _print_decimal(number, exponent_form=exponent_form is not None)


def _number(sign: str, whole: str, fraction: str) -> Fraction:
    number = Fraction(int((whole + fraction) or "0"), 10 ** len(fraction))
    return -number if sign == "-" else number


def _keeps_decimal(whole: str, fraction: str, exponent: int) -> bool:
    digits = (whole or "0") + fraction
    scale = exponent - len(fraction)
    return (
        len(digits) <= 18
        and scale >= _NANO
        and scale % 3 == 0
        and not digits.startswith("0")
        and not digits.endswith("000")
    )


def _keeps_binary(whole: str, exponent: int) -> bool:
    digits = whole or "0"
    return 15 - len(digits) - exponent * 3 // 10 - 1 >= 0 and int(digits) % 8 != 0


def _print_binary(number: Fraction) -> str:
    if number.denominator != 1 or abs(number) < 1024:
        return _print_decimal(number)
    mantissa, exponent = int(number), 0
    while mantissa % 1024 == 0 and exponent < _BINARY["Ei"]:
        mantissa //= 1024
        exponent += 10
    return f"{mantissa}{_BINARY_NAMES.get(exponent, '')}"


def _print_decimal(number: Fraction, *, exponent_form: bool = False) -> str:
    nanos = number * 10**-_NANO
    mantissa = abs(nanos.numerator) // nanos.denominator
    if mantissa * nanos.denominator != abs(nanos.numerator):
        mantissa += 1  # What is finer than a billionth goes away from zero.
    if mantissa == 0:
        return "0"
    exponent = _NANO
    while mantissa % 1000 == 0 and (exponent_form or exponent < _DECIMAL["E"]):
        mantissa //= 1000
        exponent += 3
    sign = "-" if number < 0 else ""
    if exponent_form:
        return f"{sign}{mantissa}e{exponent}" if exponent else f"{sign}{mantissa}"
    return f"{sign}{mantissa}{_DECIMAL_NAMES[exponent]}"
