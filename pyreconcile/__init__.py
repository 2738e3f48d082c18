"""pyreconcile: a controller-runtime-style reconciler framework in pure Python.

What most controllers need can be imported from here::

    from pyreconcile import Builder, CustomResource, Manager, Reconciler, Request, Result, Spec, Status

The sub-packages have the rest: `pyreconcile.api` (object model and built-in kinds), `pyreconcile.client`,
`pyreconcile.cache`, `pyreconcile.workqueue`, `pyreconcile.controller`, `pyreconcile.election`, `pyreconcile.events`,
`pyreconcile.webhook`, `pyreconcile.manager`, `pyreconcile.crd`, `pyreconcile.metrics` and `pyreconcile.testing`.

Names are loaded when first used, so importing the package is cheap.
"""

from typing import TYPE_CHECKING

from pyreconcile._lazy import lazy_names

if TYPE_CHECKING:
    from pyreconcile.api import (
        Column,
        Condition,
        CustomResource,
        KubeObject,
        ObjectMeta,
        OwnerReference,
        Spec,
        Status,
        Unstructured,
        unstructured,
    )
    from pyreconcile.cache import Cache, CacheOptions
    from pyreconcile.client import Client, ConnectOptions, connect
    from pyreconcile.controller import (
        Builder,
        ControllerOptions,
        Reconciler,
        Request,
        Result,
        TerminalError,
        ensure_finalizer,
        release_finalizer,
        set_condition,
    )
    from pyreconcile.crd import cel, crd_for, crd_yaml, install_crds
    from pyreconcile.election import ElectionOptions
    from pyreconcile.events import EventRecorder
    from pyreconcile.manager import Manager, ManagerOptions, run
    from pyreconcile.webhook import WebhookOptions

__all__ = [
    "Builder",
    "Cache",
    "CacheOptions",
    "Client",
    "Column",
    "Condition",
    "ConnectOptions",
    "ControllerOptions",
    "CustomResource",
    "ElectionOptions",
    "EventRecorder",
    "KubeObject",
    "Manager",
    "ManagerOptions",
    "ObjectMeta",
    "OwnerReference",
    "Reconciler",
    "Request",
    "Result",
    "Spec",
    "Status",
    "TerminalError",
    "Unstructured",
    "WebhookOptions",
    "cel",
    "connect",
    "crd_for",
    "crd_yaml",
    "ensure_finalizer",
    "install_crds",
    "release_finalizer",
    "run",
    "set_condition",
    "unstructured",
]

_HOMES = {
    "api": (
        "Column",
        "Condition",
        "CustomResource",
        "KubeObject",
        "ObjectMeta",
        "OwnerReference",
        "Spec",
        "Status",
        "Unstructured",
        "unstructured",
    ),
    "cache": ("Cache", "CacheOptions"),
    "client": ("Client", "ConnectOptions", "connect"),
    "controller": (
        "Builder",
        "ControllerOptions",
        "Reconciler",
        "Request",
        "Result",
        "TerminalError",
        "ensure_finalizer",
        "release_finalizer",
        "set_condition",
    ),
    "crd": ("cel", "crd_for", "crd_yaml", "install_crds"),
    "election": ("ElectionOptions",),
    "events": ("EventRecorder",),
    "manager": ("Manager", "ManagerOptions", "run"),
    "webhook": ("WebhookOptions",),
}


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
