"""The LeaderWorkerSets of a set, read from the cache and sorted by revision. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyreconcile.api import RawObject
from pyreconcile_controllers.disaggregatedset import names
from pyreconcile_controllers.disaggregatedset.drain import newest_first

BY_OWNER = "disaggregatedset.owner"
"""Name of the index of LeaderWorkerSets and Services by the UID of their controller."""


def owner_index(raw: RawObject) -> Iterable[str]:
    """Give the UID of an object's controller, for `BY_OWNER`."""
    uid = controller_uid(raw)
    return (uid,) if uid else ()


def controller_uid(raw: RawObject) -> str:
    """Return the UID of the controller that owns an object; empty when none does."""
    for reference in raw["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference["uid"])
    return ""


def labels_of(raw: RawObject) -> Mapping[str, str]:
    """Return an object's labels."""
    return raw["metadata"].get("labels") or {}


@dataclass(frozen=True, slots=True)
class Child:
    """One LeaderWorkerSet of a set, as the cache shows it.

    Attributes:
        initial: replicas when the rollout that replaces it began; None when that was not noted, or not as a number.
        ready: groups that are ready.
        present: groups that exist.
        updated: groups of its newest template.
        sliced: it has the slice label; objects of old releases do not.
    """

    name: str
    namespace: str
    uid: str
    role: str
    revision: str
    slice: str
    sliced: bool
    created: str
    replicas: int
    initial: int | None
    present: int
    updated: int
    ready: int

    @classmethod
    def read(cls, raw: RawObject) -> Child | None:
        """Read one; None when it lacks the labels that say which it is."""
        metadata, labels = raw["metadata"], labels_of(raw)
        role, revision = labels.get(names.ROLE_LABEL), labels.get(names.REVISION_LABEL)
        if not role or not revision:
            return None
        status = raw.get("status") or {}
        noted = (metadata.get("annotations") or {}).get(names.INITIAL_REPLICAS_ANNOTATION, "")
        return cls(
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            role=role,
            revision=revision,
            slice=labels.get(names.SLICE_LABEL, names.SLICE),
            sliced=names.SLICE_LABEL in labels,
            created=metadata["creationTimestamp"],
            replicas=raw["spec"].get("replicas", 1),
            initial=int(noted) if noted.isascii() and noted.isdigit() else None,
            present=status.get("replicas", 0),
            updated=status.get("updatedReplicas", 0),
            ready=status.get("readyReplicas", 0),
        )

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def stable(self) -> bool:
        """Whether every group that is wanted is ready."""
        return self.replicas == self.ready


Revision = Mapping[str, Child]
"""The LeaderWorkerSets of one revision, by role."""


@dataclass(frozen=True, slots=True)
class Family:
    """A set's LeaderWorkerSets.

    Attributes:
        target: those of the current revision, by role.
        old: the older revisions, the newest first.
        surplus: those of slices that the set does not have.
    """

    target: Revision
    old: Sequence[Revision]
    surplus: Sequence[Child]

    @classmethod
    def of(cls, raws: Iterable[RawObject], revision: str) -> Family:
        """Sort the LeaderWorkerSets that a set owns; ``revision`` is its current one."""
        children = sorted(filter(None, map(Child.read, raws)), key=lambda child: child.name)
        surplus = [child for child in children if child.slice != names.SLICE]
        # A LeaderWorkerSet without the slice label counts for slice 0, as a revision of its own: nothing else tells
        # it from the one with the label that has the same role and revision.
        groups: dict[str, dict[str, Child]] = defaultdict(dict)
        for child in children:
            if child.slice == names.SLICE:
                groups[child.revision if child.sliced else f"{child.revision} (no slice)"][child.role] = child
        target = groups.pop(revision, {})
        order = newest_first({name: [child.created for child in group.values()] for name, group in groups.items()})
        return cls(target, [groups[name] for name in order], surplus)

    @property
    def old_children(self) -> list[Child]:
        """All LeaderWorkerSets of older revisions, those of the newest revision first."""
        return [child for group in self.old for child in group.values()]

    @property
    def all(self) -> list[Child]:
        """All LeaderWorkerSets of the slice."""
        return [*self.target.values(), *self.old_children]


def is_ready(revision: Revision, roles: Iterable[str] = ()) -> bool:
    """Tell whether each role of a revision, and each of ``roles``, has a group that is ready and wanted."""
    return all(role in revision for role in roles) and all(min(c.ready, c.replicas) >= 1 for c in revision.values())
