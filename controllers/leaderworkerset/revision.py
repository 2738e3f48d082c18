"""The revision of a set: what of its spec counts, in which bytes, and under which key (LWS §5). No I/O.

Only ``leaderWorkerTemplate`` and ``networkConfig`` make a revision. Their text is the one the Go controller would
hash, so a set may change hands between the two without its groups being rolled.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from pyreconcile.api import RawObject
from pyreconcile_controllers.gojson import go_struct, go_text

_SHARED: RawObject = {"subdomainPolicy": "Shared"}
_FNV_OFFSET = 2166136261
_FNV_PRIME = 16777619
# Letters and digits that spell no word, as apimachinery's SafeEncodeString takes them.
_SAFE = "bcdfghjklmnpqrstvwxz2456789"
_SAFE_DIGITS = {ord(digit): _SAFE[ord(digit) % len(_SAFE)] for digit in "0123456789"}


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a set's templates.

    Attributes:
        data: the exact bytes of the ControllerRevision's ``.data``.
        key: the hash over them, the value of the revision label.
        template: ``leaderWorkerTemplate`` as Go writes it; read only.
        network: ``networkConfig`` as Go writes it; read only.
    """

    data: bytes
    key: str
    template: RawObject
    network: RawObject


def hash_key(data: bytes) -> str:
    """Return the key of a payload: 32-bit FNV-1, its decimal digits written in safe characters."""
    value = _FNV_OFFSET
    for byte in data:
        value = (value * _FNV_PRIME & 0xFFFFFFFF) ^ byte
    return str(value).translate(_SAFE_DIGITS)


def revision_of(spec: RawObject) -> Revision:
    """Return the revision of a set's ``spec`` (parsed JSON).

    Raises:
        ValueError: a template holds a quantity that is none.
    """
    template = go_struct("v1.LeaderWorkerTemplate", spec.get("leaderWorkerTemplate"))
    network = go_struct("v1.NetworkConfig", spec.get("networkConfig") or _SHARED)
    replaced = {
        "leaderWorkerTemplate": {"$patch": "replace", **template},
        "networkConfig": {"$patch": "replace", **network},
    }
    data = go_text({"spec": replaced})
    return Revision(data, hash_key(data), template, network)


def restore(stored: RawObject, spec: RawObject) -> Revision:
    """Return the revision whose parsed ``.data`` is ``stored``, laid over a live ``spec``.

    The key is the hash of the content; an adopted revision may carry another one as its label.
    """
    return revision_of({**spec, **(stored.get("spec") or {})})


def differs(revision: Revision, stored: RawObject, spec: Callable[[], RawObject]) -> bool:
    """Tell whether a live spec with this revision says something else than a stored revision does.

    ``spec`` is called for the live spec when the bytes differ.
    Data written by an older controller, with other empty fields, is the same when it reads the same (LWS §15.2).
    """
    return go_text(stored) != revision.data and restore(stored, spec()).data != revision.data


def revision_name(set_name: str, revision: Revision, number: int) -> str:
    """Name of the ControllerRevision that stores a revision under a number."""
    return f"{set_name[:220]}-{revision.key}-{number}"


class RevisionCache:
    """Remembers the revision of every set's current spec, by uid and generation: a spec is hashed once."""

    def __init__(self, size: int = 10_000) -> None:
        """Keep at most ``size`` revisions, the last used ones."""
        self._size = size
        self._known: OrderedDict[tuple[str, int | None], Revision] = OrderedDict()

    def get(self, uid: str, generation: int | None, spec: Callable[[], RawObject]) -> Revision:
        """Return the revision of an object's generation; ``spec`` is called for its content when it is new."""
        key = (uid, generation)
        revision = self._known.get(key)
        if revision is None:
            revision = self._known[key] = revision_of(spec())
            if len(self._known) > self._size:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return revision
