"""The client, and how to connect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Self

from pyreconcile.api import KubeObject
from pyreconcile.client._config import ConfigError, ConnectOptions, load_config
from pyreconcile.client._core import FieldValidation, Reader, Settings, WriteObserver
from pyreconcile.client._discovery import Discovery
from pyreconcile.client._observed import ObservedTransport
from pyreconcile.client._partial_reader import PartialReader
from pyreconcile.client._reading import ReadVerbs
from pyreconcile.client._transport import Transport
from pyreconcile.client._writing import WriteVerbs
from pyreconcile.workqueue import BucketRateLimiter


class _Keep:
    """The value of an option that stays as it is."""


_KEEP: Any = _Keep()


class Client(ReadVerbs, WriteVerbs):
    """Reads and writes API objects, with models or without.

    Every verb takes the model class or an object; a key is ``namespace/name``, or ``name`` of a cluster-scoped
    object. Get one from `connect`, or from the manager (then it reads from the cache).
    """

    def with_options(
        self,
        *,
        reader: Reader | None = _KEEP,
        write_observer: WriteObserver | None = _KEEP,
        field_manager: str = _KEEP,
        write_guard: Callable[[], None] | None = _KEEP,
        dry_run: bool = _KEEP,
        field_validation: FieldValidation | None = _KEEP,
        uncached: Sequence[type[KubeObject]] = (),
    ) -> Self:
        """Return a client on the same connections with some options changed.

        Args:
            reader: where get, find and list read from; None for the server.
            write_observer: learns of each confirmed write.
            field_manager: the name under which the server records written fields.
            write_guard: called before each write is sent, and raises to stop it (rule LE-11).
            dry_run: let the server check all writes and store none (rule CL-7).
            field_validation: what the server does with unknown and repeated fields of a write that does not say.
            uncached: kinds that are read from the server, past the reader; a base such as ``Unstructured`` stands
                for all its classes (rule CL-1).
        """
        changes = {
            "reader": reader,
            "write_observer": write_observer,
            "field_manager": field_manager,
            "write_guard": write_guard,
            "dry_run": dry_run,
            "field_validation": field_validation,
        }
        changed = self._with(**{name: value for name, value in changes.items() if value is not _KEEP})
        inner = changed._settings.reader
        if not uncached or inner is None:
            return changed
        return changed._with(reader=PartialReader(inner, changed.live, uncached))

    def in_namespace(self, namespace: str) -> Client:
        """Return a client for one namespace (rule CL-7).

        Keys and objects of namespaced kinds may leave the namespace out; another one is a ValueError. Lists and
        watches see this namespace only. Cluster-scoped kinds are as ever.
        """
        from pyreconcile.client._namespaced import NamespacedClient

        return NamespacedClient(self, namespace)


@asynccontextmanager
async def connect(options: ConnectOptions | None = None, **overrides: Any) -> AsyncIterator[Client]:
    """Connect to the API server; leaving the context closes all connections.

    No request is sent yet. kubernetes_asyncio, which takes 0.3 s and 35 MiB to import, is loaded only when a kubeconfig
    asks for an exec plugin or an auth provider.

    Args:
        options: where the settings come from.
        overrides: single fields of `ConnectOptions`, such as ``kubeconfig="…"``.

    Raises:
        ConfigError: no settings were found, or they cannot be used.
        TypeError: an override is no field of ConnectOptions.
    """
    chosen = replace(options or ConnectOptions(), **overrides)
    loaded = await load_config(chosen)
    impersonation = chosen.impersonate or loaded.impersonation
    observer = getattr(chosen.metrics, "request_details", None)
    try:
        transport = (Transport if observer is None else partial(ObservedTransport, observer=observer))(
            loaded.configuration,
            credentials=loaded.credentials,
            user_agent=chosen.user_agent,
            timeout=chosen.timeout,
            metrics=chosen.metrics,
            max_concurrent_requests=chosen.max_concurrent_requests,
            rate_limiter=None if chosen.qps is None else BucketRateLimiter(chosen.qps, chosen.burst, time=monotonic),
            extra_headers=() if impersonation is None else impersonation.headers(),
            sleep=chosen.sleep,
        )
    except (OSError, ValueError) as error:
        # A certificate or key file that is missing or malformed; ssl.SSLError is an OSError.
        raise ConfigError(f"{loaded.source} cannot be used: {error}") from error
    try:
        yield Client(transport, Settings(field_manager=chosen.field_manager), Discovery(transport))
    finally:
        await transport.aclose()
