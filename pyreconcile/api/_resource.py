"""Names of kinds and where the API server serves them."""

from __future__ import annotations

from dataclasses import dataclass


def split_api_version(api_version: str) -> tuple[str, str]:
    """Split ``apps/v1`` into ``("apps", "v1")``; the core group is the empty string."""
    group, _, version = api_version.rpartition("/")
    return group, version


def plural_of(kind: str) -> str:
    """Return the lower-case English plural of a kind, the path segment that most kinds have."""
    name = kind.lower()
    if name.endswith(("s", "x", "z", "ch", "sh")):
        return f"{name}es"
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}s"


@dataclass(frozen=True, slots=True)
class GroupVersionKind:
    """A kind's full name: group (empty for core), version and kind."""

    group: str
    version: str
    kind: str

    @property
    def api_version(self) -> str:
        """``group/version``, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.api_version} {self.kind}"


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind and the REST resource that serves it.

    ``plural`` is the lower-case path segment (``statefulsets``), empty for a kind that only sub-resources have;
    ``namespaced`` tells the scope.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """``group/version``, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def gvk(self) -> GroupVersionKind:
        """The kind's name without its path."""
        return GroupVersionKind(self.group, self.version, self.kind)

    @property
    def group_kind(self) -> str:
        """``Kind.group``, as controller-runtime writes it in options and logs (``Kind`` for core)."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection, of one object, or of its sub-resource.

        An empty ``namespace`` gives the collection over all namespaces.

        Raises:
            ValueError: a namespaced object is named without a namespace, or the kind is one of a sub-resource only
                (``autoscaling/v1 Scale``) and has no path of its own.
        """
        if not self.plural:
            raise ValueError(f"{self.kind} is the kind of a sub-resource: name the resource that it belongs to")
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if self.namespaced:
            if namespace:
                parts.append(f"namespaces/{namespace}")
            elif name:
                raise ValueError(f"{self.kind} {name!r} is namespaced: give its namespace")
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


def object_key(namespace: str, name: str) -> str:
    """Join a key: ``namespace/name``, or ``name`` for a cluster-scoped object (rule IN-17)."""
    return f"{namespace}/{name}" if namespace else name


def split_key(key: str) -> tuple[str, str]:
    """Split a key into namespace (empty when cluster-scoped) and name.

    Raises:
        ValueError: the key is empty or has more than one slash.
    """
    namespace, _, name = key.rpartition("/")
    if not name or "/" in namespace:
        raise ValueError(f"{key!r} is no key: write 'namespace/name', or 'name' for a cluster-scoped object")
    return namespace, name
