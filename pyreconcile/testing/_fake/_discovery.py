"""What the fake says about the kinds that it serves."""

from __future__ import annotations

from pyreconcile.api import RawObject
from pyreconcile.testing._fake._errors import no_such_path
from pyreconcile.testing._fake._kinds import Kinds, Served


def discover(kinds: Kinds, path: str) -> RawObject | None:
    """Return the answer to a request of discovery; None for another path.

    Raises:
        NotFoundError: nothing is served in that version of the group.
    """
    match path.strip("/").split("/"):
        case ["api"]:
            return {"kind": "APIGroupDiscoveryList", "items": [_group("", kinds.all_of("v1"))]}
        case ["apis"]:
            groups = {served.resource.group: None for served in kinds.added if served.resource.group}
            items = [_group(group, [s for s in kinds.added if s.resource.group == group]) for group in groups]
            return {"kind": "APIGroupDiscoveryList", "items": items}
        case ["api", version]:
            return _resources(kinds, version)
        case ["apis", group, version]:
            return _resources(kinds, f"{group}/{version}")
    return None


def _group(group: str, found: list[Served]) -> RawObject:
    versions: dict[str, list[RawObject]] = {}
    for served in found:
        entry = {
            "resource": served.resource.plural,
            "responseKind": {"group": group, "version": served.resource.version, "kind": served.resource.kind},
            "scope": "Namespaced" if served.resource.namespaced else "Cluster",
        }
        versions.setdefault(served.resource.version, []).append(entry)
    listed = [{"version": name, "freshness": "Current", "resources": entries} for name, entries in versions.items()]
    return {"metadata": {"name": group}, "versions": listed}


def _resources(kinds: Kinds, api_version: str) -> RawObject:
    found = kinds.all_of(api_version)
    if not found:
        raise no_such_path()
    entries = [{"name": s.resource.plural, "kind": s.resource.kind, "namespaced": s.resource.namespaced} for s in found]
    return {"kind": "APIResourceList", "groupVersion": api_version, "resources": entries}
