"""The cache: list and watch, stores with indexes, event handlers, and reads that see one's own writes.

`Cache` is what a manager runs and a client reads from; `Informer` is one kind's part of it, to which handlers are
added. `Reflector` and `Store` are the pieces below, for those who need a watch without a cache.
"""

from pyreconcile.cache._backoff import Backoff
from pyreconcile.cache._cache import Cache
from pyreconcile.cache._consistency import PendingWrite, collect_own_writes
from pyreconcile.cache._errors import (
    CacheNotStartedError,
    CacheSyncTimeoutError,
    CacheUnhealthyError,
    NamespaceNotCachedError,
)
from pyreconcile.cache._informer import Informer
from pyreconcile.cache._options import (
    CacheOptions,
    KindOptions,
    NamespaceOptions,
    Scope,
)
from pyreconcile.cache._owner_versions import OwnerVersions
from pyreconcile.cache._reflector import Reflector
from pyreconcile.cache._registration import EventHandler, InformerStoppedError, Registration
from pyreconcile.cache._store import IndexFunction, Store, key_of
from pyreconcile.cache._transforms import Transform, chain, drop_annotations, drop_fields, strip_managed_fields
from pyreconcile.cache._versions import parse_version
from pyreconcile.cache._watching import ServerSupport, Sink, Transport

__all__ = [
    "Backoff",
    "Cache",
    "CacheNotStartedError",
    "CacheOptions",
    "CacheSyncTimeoutError",
    "CacheUnhealthyError",
    "EventHandler",
    "IndexFunction",
    "Informer",
    "InformerStoppedError",
    "KindOptions",
    "NamespaceNotCachedError",
    "NamespaceOptions",
    "OwnerVersions",
    "PendingWrite",
    "Reflector",
    "Registration",
    "Scope",
    "ServerSupport",
    "Sink",
    "Store",
    "Transform",
    "Transport",
    "chain",
    "collect_own_writes",
    "drop_annotations",
    "drop_fields",
    "key_of",
    "parse_version",
    "strip_managed_fields",
]
