"""What the server makes of objects, apart from requests."""

from __future__ import annotations

from pyreconcile.api import RawObject
from pyreconcile.testing._fake._kinds import Served
from pyreconcile.testing._fake._ownership import read_entries
from pyreconcile.testing._fake._schema import pruned
from pyreconcile.testing._fake._store import Store, key_of, table_of

_IDENTITY = ("apiVersion", "kind", "metadata")


def load(store: Store, served: Served, obj: RawObject, *, time: str, uid: str) -> None:
    """Put an object that is there from the start; its version is 999 unless it has one (rule TE-8).

    Raises:
        ValueError: it has no name, it is being deleted without a finalizer, or its version is no number.
    """
    resource, metadata = served.resource, dict(obj.get("metadata") or {})
    what = f"{resource.kind} {metadata.get('name', '')!r}"
    if not metadata.get("name"):
        raise ValueError(f"{resource.kind}: metadata.name: an object that is there from the start has a name")
    if resource.namespaced != bool(metadata.get("namespace")):
        scope = "namespaced, so it needs one" if resource.namespaced else "cluster-scoped, so leave it out"
        raise ValueError(f"{what}: metadata.namespace: the kind is {scope}")
    if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
        raise ValueError(f"{what}: metadata.deletionTimestamp: an object without finalizers would be gone already")
    version = metadata.get("resourceVersion") or "999"
    if not version.isdigit():
        raise ValueError(f"{what}: metadata.resourceVersion: {version!r} is no number")
    metadata = {"uid": uid, "creationTimestamp": time, **{name: value for name, value in metadata.items() if value}}
    metadata["resourceVersion"] = version
    if served.counts_generations:
        metadata.setdefault("generation", 1)
    stored = {**obj, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    if store.get(table_of(resource), key_of(stored)) is not None:
        raise ValueError(f"{what} is there already")
    store.load(table_of(resource), pruned(stored, served.schema, []), int(version))


def only(obj: RawObject, name: str) -> RawObject:
    """Return one field of an object, if it has it."""
    return {name: obj[name]} if name in obj else {}


def part_of(served: Served, config: RawObject, subresource: str) -> RawObject:
    """Return the part of a configuration that an endpoint takes."""
    if subresource == "status":
        identity = {name: value for name, value in config["metadata"].items() if name in ("name", "namespace")}
        return {
            "apiVersion": config["apiVersion"],
            "kind": config["kind"],
            "metadata": identity,
            **only(config, "status"),
        }
    return {name: value for name, value in config.items() if name != "status" or not served.status}


def wanted(served: Served, obj: RawObject) -> RawObject:
    """Return what an object's generation counts."""
    ignored = (*_IDENTITY, "status") if served.status else _IDENTITY
    return {name: value for name, value in obj.items() if name not in ignored}


def same(served: Served, old: RawObject, obj: RawObject) -> bool:
    """Tell whether a write changed nothing."""
    if wanted(served, old) != wanted(served, obj) or old.get("status") != obj.get("status"):
        return False
    before = {name: value for name, value in old["metadata"].items() if name != "managedFields"}
    after = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return before == after and set(read_entries(old)) == set(read_entries(obj))


def established(crd: RawObject, time: str) -> RawObject:
    """Return a CRD with the status that the server gives it."""
    status = crd.get("status") or {}
    if status.get("acceptedNames") == crd["spec"]["names"]:
        return crd
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": time, "reason": reason, "message": "served by the fake"}
        for kind, reason in (("NamesAccepted", "NoConflicts"), ("Established", "InitialNamesAccepted"))
    ]
    stored = [version["name"] for version in crd["spec"]["versions"] if version.get("storage")]
    status = {"conditions": conditions, "acceptedNames": crd["spec"]["names"], "storedVersions": stored}
    return {**crd, "status": status}
