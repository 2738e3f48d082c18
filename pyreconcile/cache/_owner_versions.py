"""What a controller wrote for each owner, compared with what the cache has reached (rule RY-2)."""

from __future__ import annotations

from typing import Any, Protocol

from pyreconcile.api import KubeObject
from pyreconcile.cache._informer import Informer
from pyreconcile.cache._versions import parse_version


class Watching(Protocol):
    """What is needed of the cache."""

    def informer(self, kind: type[KubeObject]) -> Informer[Any]:
        """Return a kind's informer."""


class OwnerVersions:
    """Remembers the newest version written of each kind for each owner, and tells whether the cache shows it.

    The built-in controllers of Kubernetes 1.37 do the same: they requeue an owner while a cache is behind what they
    wrote for it (``pkg/controller/util/consistency``). With the cache as the client's write observer reads wait by
    themselves, and this is not needed; it is for controllers that turn that off, or would rather requeue than wait.

    Args:
        cache: whose informers are asked.
    """

    def __init__(self, cache: Watching) -> None:
        self._cache = cache
        self._written: dict[str, tuple[str, dict[tuple[type[KubeObject], str], int]]] = {}

    def wrote(self, owner: KubeObject, obj: KubeObject) -> None:
        """Take note of an object as a write for ``owner`` returned it.

        Raises:
            ValueError: its version has no order (rule RY-3).
        """
        version = parse_version(obj.metadata.resource_version)
        uid, versions = self._written.get(owner.key, (owner.metadata.uid, {}))
        if uid != owner.metadata.uid:
            # Another owner of the same name: what was written for the first is of no interest any more.
            versions = {}
        place = type(obj), obj.metadata.namespace
        versions[place] = max(version, versions.get(place, 0))
        self._written[owner.key] = owner.metadata.uid, versions

    def behind(self, owner: str) -> list[type[KubeObject]]:
        """Return the kinds whose cache does not show yet what was written for the owner with this key.

        What is reached is forgotten. Requeue the owner while there are any.
        """
        _, versions = self._written.get(owner, ("", {}))
        for place, version in list(versions.items()):
            kind, namespace = place
            part = self._cache.informer(kind).part_for(namespace)
            if part is None or (part.version and parse_version(part.version) >= version):
                del versions[place]
        if not versions:
            self._written.pop(owner, None)
        return list(dict.fromkeys(kind for kind, _ in versions))

    def forget(self, owner: str, *, uid: str = "") -> None:
        """Forget an owner that is gone; with ``uid`` only if it is that of the owner last written for."""
        known = self._written.get(owner)
        if known is not None and uid in ("", known[0]):
            del self._written[owner]
