"""Names of controllers, unique in the process: two of one name would count in the same metrics (RC-7)."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary


class ControllerNames:
    """The names that controllers have taken.

    A manager frees the names of its controllers when it is left; so does the end of its life. Tests that run several
    managers at once give each a registry of its own.
    """

    def __init__(self) -> None:
        self._taken: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()

    def __contains__(self, name: object) -> bool:
        return any(name in names for names in list(self._taken.values()))

    def check(self, name: str) -> None:
        """Refuse a name that is taken.

        Raises:
            ValueError: it is; the message says what to do.
        """
        if name in self:
            raise ValueError(
                f"this process has a controller named {name!r} already, and both would count in the same metrics; say "
                "named('…'), or set skip_name_validation in the options of the controller or the manager"
            )

    def claim(self, name: str, *, owner: object) -> None:
        """Take a name for a controller of ``owner``.

        Raises:
            ValueError: as `check`.
        """
        self.check(name)
        self._taken.setdefault(owner, set()).add(name)

    def release(self, owner: object) -> None:
        """Free every name of ``owner``."""
        self._taken.pop(owner, None)

    def clear(self) -> None:
        """Free all names."""
        self._taken.clear()


PROCESS_NAMES: Final = ControllerNames()
"""The registry of managers that were not given one."""
