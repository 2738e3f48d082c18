"""Acting as another user, which the server allows to those who have the right to impersonate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

_SAFE = "!#$&'*+-.^_`|~"
"""Characters beside letters and digits that stand for themselves in the name of a header (RFC 9110)."""


@dataclass(frozen=True, kw_only=True)
class Impersonation:
    """Whom requests are made as; audit logs show both users.

    Attributes:
        user: the user's name, as in ``system:serviceaccount:NAMESPACE:NAME``.
        uid: the user's UID.
        groups: the user's groups; the server adds ``system:authenticated``.
        extra: further attributes by key.

    Raises:
        ValueError: there are other attributes but no user.
    """

    user: str
    uid: str = ""
    groups: Sequence[str] = ()
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.user:
            raise ValueError("impersonate: uid, groups and extra need a user")
        if isinstance(self.groups, str):
            raise ValueError(f"impersonate: groups is a list of names, as in groups=[{self.groups!r}]")

    @classmethod
    def of_user(cls, user: Mapping[str, Any]) -> Impersonation | None:
        """Return what a kubeconfig's user entry asks for (``as``, ``as-uid``, ``as-groups``, ``as-user-extra``).

        Raises:
            ValueError: it names no user in ``as``.
        """
        name, uid = user.get("as") or "", user.get("as-uid") or ""
        groups, extra = user.get("as-groups") or (), user.get("as-user-extra") or {}
        if not (name or uid or groups or extra):
            return None
        return cls(user=name, uid=uid, groups=tuple(groups), extra=dict(extra))

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers that ask for it, one for each group and each value."""
        found = [("Impersonate-User", self.user)]
        if self.uid:
            found.append(("Impersonate-Uid", self.uid))
        found += [("Impersonate-Group", group) for group in self.groups]
        for key, values in self.extra.items():
            name = f"Impersonate-Extra-{quote(key.lower(), safe=_SAFE)}"
            found += [(name, value) for value in values]
        return found
