"""Reads and writes that a test repeats until they give what it waits for (rule TE-7)."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from pyreconcile.api import KubeObject
from pyreconcile.client import Client

T = TypeVar("T", bound=KubeObject)
V = TypeVar("V")

Check: TypeAlias = Callable[[], Awaitable[V]]
"""What `eventually` calls again and again."""


class Listed(builtins.list[V]):
    """A list that counts as found even when it is empty."""

    def __bool__(self) -> bool:
        return True


class Poller:
    """Makes checks for `eventually` of a client's verbs::

        poll = Poller(client)
        web = await eventually(poll.get(Deployment, key, when=lambda web: web.status.ready_replicas == 2))

    All read from the server. An object that is not there and a conflict count as "not yet", as `eventually` has it.

    Args:
        client: reads and writes.
    """

    def __init__(self, client: Client) -> None:
        self._client = client.live

    def get(self, kind: type[T], key: str, *, when: Callable[[T], object] | None = None) -> Check[T | None]:
        """Return a check that gives an object once it is there and ``when`` holds for it."""

        async def check() -> T | None:
            found = await self._client.get(kind, key)
            return found if when is None or when(found) else None

        return _named(check, f"get {kind.__name__} {key}")

    def gone(self, kind: type[KubeObject], key: str) -> Check[bool]:
        """Return a check that is true once an object is not there any more."""

        async def check() -> bool:
            return await self._client.find(kind, key) is None

        return _named(check, f"gone {kind.__name__} {key}")

    def list(
        self, kind: type[T], *, when: Callable[[builtins.list[T]], object] = bool, **options: Any
    ) -> Check[Listed[T] | None]:
        """Return a check that gives the objects of a kind once ``when`` holds for them; by default once there are any.

        Args:
            kind: the model class.
            when: what they must be; it is given all of them.
            options: those of `Client.list`.
        """

        async def check() -> Listed[T] | None:
            found = await self._client.list(kind, **options)
            return Listed(found) if when(found) else None

        return _named(check, f"list {kind.__name__}")

    def update(self, kind: type[T], key: str, change: Callable[[T], object]) -> Check[T]:
        """Return a check that reads an object, lets ``change`` change it in place, and gives it as updated."""

        async def check() -> T:
            found = await self._client.get(kind, key)
            change(found)
            return await self._client.update(found)

        return _named(check, f"update {kind.__name__} {key}")

    def update_status(self, kind: type[T], key: str, change: Callable[[T], object]) -> Check[T]:
        """As `update`, of the status."""

        async def check() -> T:
            found = await self._client.get(kind, key)
            change(found)
            return await self._client.update(found, subresource="status")

        return _named(check, f"update status of {kind.__name__} {key}")


def _named(check: Check[V], name: str) -> Check[V]:
    # What `eventually` says when time is up.
    check.__setattr__("__name__", name)
    return check
