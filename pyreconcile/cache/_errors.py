"""What a read from the cache can raise beside the client's errors."""

from pyreconcile.client import NotCachedError


class CacheNotStartedError(NotCachedError, RuntimeError):
    """The cache does not run, or does not watch the kind, so there is nothing to read."""


class CacheSyncTimeoutError(TimeoutError):
    """A kind's first list did not arrive in time; the message repeats the last error of its watch."""


class NamespaceNotCachedError(NotCachedError, ValueError):
    """The read is about a namespace that the cache does not watch (rule CA-5)."""


class CacheUnhealthyError(RuntimeError):
    """The cache is behind the server, or a handler fails; the message says which kind and why."""
