"""Module attributes that are imported when they are first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(module: str, table: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for ``module``.

    ``table`` maps a module below ``pyreconcile.api.builtin`` to the names that it defines.
    """
    sources = {name: source for source, names in table.items() for name in names}

    def get(name: str) -> Any:
        source = sources.get(name)
        if source is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"pyreconcile.api.builtin.{source}"), name)
        setattr(sys.modules[module], name, value)
        return value

    return get
