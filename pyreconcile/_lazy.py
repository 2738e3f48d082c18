"""Module attributes that are imported when they are first asked for, so that a front door costs nothing to open."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(module: str, table: Mapping[str, Sequence[str]], *, package: str = "") -> Callable[[str], Any]:
    """Return a ``__getattr__`` for ``module``.

    Args:
        module: the name of the module that gets it.
        table: maps a module of ``package`` to the names that it defines.
        package: where those modules are; by default ``module`` itself.
    """
    homes = {name: home for home, names in table.items() for name in names}

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package or module}.{home}"), name)
        setattr(sys.modules[module], name, value)
        return value

    return get
