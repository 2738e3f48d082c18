"""What the errors of lists and watches mean."""

from __future__ import annotations

from pyreconcile.client import BadRequestError, ConnectionLostError, InvalidError, RequestTimeoutError


def is_lost(error: Exception) -> bool:
    """Tell whether no answer came, or a stream broke off."""
    # A request timeout with code 0 is the client's own limit.
    return isinstance(error, ConnectionLostError) or (isinstance(error, RequestTimeoutError) and error.code == 0)


def is_unsupported(error: Exception) -> bool:
    """Tell a refusal of streaming lists from one of a selector, which says nothing about other kinds (rule RF-5).

    A server that does not even know the parameter finds fault with the one that comes with it.
    """
    return isinstance(error, InvalidError | BadRequestError) and (
        "sendInitialEvents" in error.message or "resourceVersionMatch" in error.message
    )


def is_refused(error: Exception) -> bool:
    """Tell whether nobody took the connection."""
    return isinstance(error, ConnectionLostError) and error.refused
