"""The order of resource versions within one resource (rule RY-3)."""

from __future__ import annotations


def parse_version(text: str) -> int:
    """Return a resource version as a number that orders it; only versions of one resource may be compared.

    Raises:
        ValueError: the text is not a decimal number without leading zero, so the server gives it no order.
    """
    if text.isdigit() and text.isascii() and text[0] != "0":
        return int(text)
    raise ValueError(f"resource version {text!r} is no decimal number without leading zero, so it has no order")


def newer(version: str, known: str) -> str:
    """Return the later of two versions; one without an order counts as earlier."""
    if not version.isdigit() or not version.isascii():
        return known
    if len(version) != len(known):
        return version if len(version) > len(known) else known
    return max(version, known)
