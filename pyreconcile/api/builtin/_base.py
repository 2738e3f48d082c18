"""Bases of the generated models: wire names with Kubernetes's acronyms, and registration of kinds."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from pyreconcile.api import _registry
from pyreconcile.api._model import Model, to_wire_name
from pyreconcile.api._object import KubeObject
from pyreconcile.api.builtin._names import IRREGULAR


def wire_name(name: str) -> str:
    """Return the wire name of a built-in field, as in ``hostIP`` for ``host_ip``."""
    return IRREGULAR.get(name) or to_wire_name(name)


class BuiltinModel(Model):
    """Base of the parts of built-in kinds."""

    model_config = ConfigDict(alias_generator=wire_name)


class BuiltinKind(KubeObject):
    """Base of built-in kinds; each registers itself when its module is imported."""

    model_config = ConfigDict(alias_generator=wire_name)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        own = cls.__dict__.get("resource")
        if own is not None and own.plural:
            _registry.register(cls)
