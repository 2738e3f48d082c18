"""The registry kind ↔ model ↔ resource.

Built-in kinds register by a table of names, so that a model's module is imported only when the kind is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pyreconcile.api.builtin._kinds import KINDS

if TYPE_CHECKING:
    from pyreconcile.api._object import KubeObject

_models: dict[tuple[str, str], type[KubeObject]] = {}
_lazy: dict[tuple[str, str], str] = {
    (api_version, kind): f"pyreconcile.api.builtin.{module}"
    for api_version, kinds in KINDS.items()
    for kind, module in kinds.items()
}


def register(model: type[KubeObject]) -> None:
    """Make a model known under its apiVersion and kind; a later one of the same name takes its place."""
    _models[model.resource.api_version, model.resource.kind] = model


def register_lazy(api_version: str, kind: str, module: str) -> None:
    """Say which module defines (and registers, when imported) a kind's model."""
    _lazy[api_version, kind] = module


def find_model(api_version: str, kind: str) -> type[KubeObject] | None:
    """Return the model of a kind, importing its module if need be; None for a kind without a model."""
    model = _models.get((api_version, kind))
    if model is None and (module := _lazy.get((api_version, kind))) is not None:
        importlib.import_module(module)
        model = _models.get((api_version, kind))
    return model


def kinds_of(api_version: str) -> list[str]:
    """Return the kinds in one version of a group that have a model; nothing is imported."""
    return list({kind: None for known, kind in (*_lazy, *_models) if known == api_version})
