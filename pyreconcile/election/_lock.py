"""The Lease in the API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from pyreconcile.api import RawObject, object_key, split_key, unstructured
from pyreconcile.client import Client, ConnectOptions, connect
from pyreconcile.election._campaign import LeaseLock
from pyreconcile.election._options import ElectionOptions

# Without a model: fields of the Lease that we do not know are written back, and a strange body cannot break a try.
_LEASE = unstructured("coordination.k8s.io/v1", "Lease")


class ApiLeaseLock:
    """Keeps the Lease through a client."""

    def __init__(self, client: Client, options: ElectionOptions) -> None:
        self._client = client
        self._key = object_key(options.namespace, options.name)

    async def get(self) -> RawObject | None:
        """Read the Lease; None when there is none."""
        lease = await self._client.find(_LEASE, self._key)
        return None if lease is None else lease.to_dict()

    async def create(self, lease: RawObject) -> RawObject:
        """Create the Lease."""
        return (await self._client.create(_LEASE.from_dict(lease))).to_dict()

    async def update(self, lease: RawObject) -> RawObject:
        """Replace the Lease, if its version is still the one in ``lease``."""
        return (await self._client.update(_LEASE.from_dict(lease))).to_dict()

    async def released(self) -> bool:
        """Watch the Lease until it is empty or deleted; False when the watch ends before."""
        namespace, name = split_key(self._key)
        async with aclosing(self._client.watch(_LEASE, namespace=namespace, fields={"metadata.name": name})) as events:
            async for event in events:
                if event.type == "DELETED" or not (event.object.get("spec") or {}).get("holderIdentity"):
                    return True
        return False


@asynccontextmanager
async def open_lock(connection: ConnectOptions, options: ElectionOptions) -> AsyncIterator[LeaseLock]:
    """Open a client of its own for the Lease, on the running loop."""
    async with connect(replace(connection, timeout=options.request_timeout)) as client:
        yield ApiLeaseLock(client, options)
