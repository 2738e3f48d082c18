"""When a control plane is ready for use."""

from __future__ import annotations

from ._components import node
from ._http import PlaneHttp

__all__ = ["Readiness"]


class Readiness:
    """Looks at a plane that is starting. Every method is one look, to be repeated until it says True."""

    def __init__(self, http: PlaneHttp, url: str) -> None:
        self._http = http
        self._url = url
        self._created = 0

    async def serving(self) -> bool:
        """Whether the API server is ready and has made the namespace default (TE-3)."""
        ready = await self._http.ok(f"{self._url}/readyz")
        return ready and await self._http.ok(f"{self._url}/api/v1/namespaces/default")

    async def create_nodes(self, count: int) -> bool:
        """Create the simulated nodes that are not there yet."""
        while self._created < count:
            status, _ = await self._http.request("POST", f"{self._url}/api/v1/nodes", node(self._created))
            if status not in (201, 409):
                return False
            self._created += 1
        return True

    async def nodes_usable(self, count: int, *, untainted: bool) -> bool:
        """Whether every node is Ready.

        Args:
            count: How many nodes there must be.
            untainted: Also want no taints; the controller-manager takes them away a moment after a node is Ready.
        """
        status, body = await self._http.request("GET", f"{self._url}/api/v1/nodes")
        if status != 200 or len(body["items"]) < count:
            return False
        return all(
            any(c["type"] == "Ready" and c["status"] == "True" for c in item.get("status", {}).get("conditions", []))
            and not (untainted and item["spec"].get("taints"))
            for item in body["items"]
        )
