"""Owner references: who owns an object, and setting it under the server's rules (rules HE-4 and HE-5)."""

from __future__ import annotations

from pyreconcile.api._meta import OwnerReference
from pyreconcile.api._object import KubeObject
from pyreconcile.api._resource import split_api_version


class OwnerError(ValueError):
    """An object cannot have this owner."""


class AlreadyOwnedError(OwnerError):
    """Another controller owns the object.

    Attributes:
        controller: the reference that is there.
    """

    def __init__(self, obj: KubeObject, controller: OwnerReference) -> None:
        super().__init__(f"{_name(obj)} is already controlled by {controller.kind} {controller.name!r}")
        self.controller = controller


def set_controller_reference(obj: KubeObject, owner: KubeObject, *, block_owner_deletion: bool = True) -> None:
    """Make ``owner`` the controller of ``obj``, in place.

    A reference to the same owner (group, kind and name; not version or UID) is replaced where it stands.

    Args:
        obj: the object that shall be owned; only its metadata changes.
        owner: an object that the server has, so one with a UID.
        block_owner_deletion: whether deleting the owner in the foreground waits for ``obj``.

    Raises:
        AlreadyOwnedError: another controller owns ``obj``.
        OwnerError: ``owner`` has no UID, or is namespaced while ``obj`` is cluster-scoped or in another namespace.
    """
    present = controller_of(obj)
    if present is not None and present.block_owner_deletion is block_owner_deletion and _is_of(present, owner):
        return
    reference = _reference(obj, owner)
    reference.controller = True
    reference.block_owner_deletion = block_owner_deletion
    if present is not None and not _same_owner(present, reference):
        raise AlreadyOwnedError(obj, present)
    _put(obj, reference)


def set_owner_reference(obj: KubeObject, owner: KubeObject, *, block_owner_deletion: bool | None = None) -> None:
    """Add ``owner`` to the owners of ``obj``, in place and without making it the controller.

    A reference to the same owner is replaced where it stands.

    Raises:
        OwnerError: as for `set_controller_reference`.
    """
    reference = _reference(obj, owner)
    if block_owner_deletion is not None:
        reference.block_owner_deletion = block_owner_deletion
    _put(obj, reference)


def remove_owner_reference(obj: KubeObject, owner: KubeObject) -> None:
    """Take ``owner`` out of the owners of ``obj``, in place.

    Raises:
        OwnerError: it is none of them.
    """
    references = obj.metadata.owner_references
    wanted = _reference_of(owner)
    kept = [reference for reference in references if not _same_owner(reference, wanted)]
    if len(kept) == len(references):
        raise OwnerError(f"{_name(obj)} is not owned by {_name(owner)}")
    obj.metadata.owner_references = kept


def has_owner_reference(obj: KubeObject, owner: KubeObject) -> bool:
    """Tell whether ``owner`` is one of the owners of ``obj`` (by group, kind and name)."""
    wanted = _reference_of(owner)
    return any(_same_owner(reference, wanted) for reference in obj.metadata.owner_references)


def controller_of(obj: KubeObject) -> OwnerReference | None:
    """Return the reference to the controller that owns ``obj``, or None."""
    for reference in obj.metadata.owner_references:
        if reference.controller:
            return reference
    return None


def _reference_of(owner: KubeObject) -> OwnerReference:
    resource = type(owner).resource
    metadata = owner.metadata
    return OwnerReference(api_version=resource.api_version, kind=resource.kind, name=metadata.name, uid=metadata.uid)


def _reference(obj: KubeObject, owner: KubeObject) -> OwnerReference:
    namespace = owner.metadata.namespace
    if not (owner.metadata.name and owner.metadata.uid):
        raise OwnerError(f"{_name(owner)} has no name or no uid: an owner must be read from the server first")
    if namespace and not type(obj).resource.namespaced:
        raise OwnerError(f"{_name(obj)} is cluster-scoped, so the namespaced {_name(owner)} cannot own it")
    if namespace and namespace != obj.metadata.namespace:
        raise OwnerError(
            f"{_name(obj)} is in namespace {obj.metadata.namespace!r}, its owner {_name(owner)} in {namespace!r}: "
            "both must be in the same one"
        )
    return _reference_of(owner)


def _put(obj: KubeObject, reference: OwnerReference) -> None:
    references = obj.metadata.owner_references
    for position, present in enumerate(references):
        if _same_owner(present, reference):
            references[position] = reference
            return
    # Assigned, so that the field counts as set even when the list was never touched before.
    obj.metadata.owner_references = [*references, reference]


def _is_of(reference: OwnerReference, owner: KubeObject) -> bool:
    """Tell whether a reference is to this very object, as this version of its kind."""
    metadata, resource = owner.metadata, type(owner).resource
    return (
        bool(metadata.uid)
        and reference.uid == metadata.uid
        and reference.name == metadata.name
        and reference.kind == resource.kind
        and reference.api_version == resource.api_version
    )


def _same_owner(a: OwnerReference, b: OwnerReference) -> bool:
    groups = split_api_version(a.api_version)[0], split_api_version(b.api_version)[0]
    return groups[0] == groups[1] and a.kind == b.kind and a.name == b.name


def _name(obj: KubeObject) -> str:
    return f"{type(obj).resource.kind} {obj.key!r}"
