"""Controllers that come with pyreconcile, one folder each.

Every folder is a module with the names of `Bundle`; one with webhooks also has ``webhook_configurations(server)``.
`load` imports one by its name in `BUNDLED`; nothing else is imported before.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from pyreconcile.api import CustomResource, RawObject
    from pyreconcile.manager import Manager
    from pyreconcile.webhook import WebhookServer

__all__ = ["BUNDLED", "Bundle", "UnknownControllerError", "check_names", "load", "webhook_configurations"]

BUNDLED = {
    "disaggregatedset": "pyreconcile_controllers.disaggregatedset",
    "inferenceservice": "pyreconcile_controllers.inferenceservice",
    "leaderworkerset": "pyreconcile_controllers.leaderworkerset",
    "modelcache": "pyreconcile_controllers.modelcache",
}
"""Names that ``pyreconcile run --controllers`` takes, and the module of each."""


class Bundle(Protocol):
    """What a bundled controller's module offers."""

    MODELS: tuple[type[CustomResource[Any, Any]], ...]
    """The custom resources that it serves."""

    @staticmethod
    def setup(manager: Manager) -> None:
        """Register the controllers, and the webhooks if the manager serves them."""


class UnknownControllerError(ValueError):
    """A name is not in `BUNDLED`."""


def check_names(names: Iterable[str]) -> list[str]:
    """Return the names, each once, in the given order; nothing is imported.

    Raises:
        UnknownControllerError: a name is unknown; the message lists those that exist.
    """
    checked = list(dict.fromkeys(names))
    for name in checked:
        if name not in BUNDLED:
            raise UnknownControllerError(f"unknown controller {name!r}: choose from {', '.join(sorted(BUNDLED))}")
    return checked


def load(names: Iterable[str]) -> dict[str, Bundle]:
    """Import the named controllers, in the given order, each once.

    Raises:
        UnknownControllerError: a name is unknown; the message lists those that exist.
    """
    bundles: dict[str, Bundle] = {}
    for name in check_names(names):
        bundles[name] = cast(Bundle, importlib.import_module(BUNDLED[name]))
    return bundles


def webhook_configurations(bundle: Bundle, server: WebhookServer) -> list[RawObject]:
    """Return what makes the API server ask ``server`` about a bundle's kinds; empty for one without webhooks.

    Raises:
        RuntimeError: the server does not listen yet.
    """
    build = getattr(bundle, "webhook_configurations", None)
    return list(build(server)) if build is not None else []
