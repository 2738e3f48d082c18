"""The Gateway API for tests and the demo: its CRDs, and a stand-in for a gateway.

The CRDs are read from the Go module ``sigs.k8s.io/gateway-api`` in the version that ``hack/gatewayapi/go.mod`` pins.
Go keeps it in its module cache, so only the first run on a machine needs the network. They are not in this repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import anyio
import orjson
import yaml

from pyreconcile.api import RawObject, Unstructured, unstructured
from pyreconcile.api.apiextensions_v1 import CustomResourceDefinition
from pyreconcile.api.core_v1 import Service
from pyreconcile.client import Client, ConflictError, NotFoundError, UnknownKindError
from pyreconcile.controller import Builder, ControllerOptions, Reconciler, Request, Result

if TYPE_CHECKING:
    from pyreconcile.manager import Manager

MODULE = Path(__file__).with_name("gatewayapi")
PATH = "sigs.k8s.io/gateway-api"
RESOURCES = ("gatewayclasses", "gateways", "httproutes")
HTTP_ROUTE = unstructured("gateway.networking.k8s.io/v1", "HTTPRoute")
CONTROLLER = "pyreconcile.dev/stand-in-gateway"

_LOOK_AGAIN = 0.05  # seconds
_FIELD_MANAGER = "stand-in-gateway"


class GatewayApiError(RuntimeError):
    """The CRDs of the Gateway API could not be had; the message has what Go said."""


async def gateway_api_crds(resources: Sequence[str] = RESOURCES) -> list[CustomResourceDefinition]:
    """Return the CRDs of the Gateway API's standard channel.

    Raises:
        GatewayApiError: Go is missing, or does not get the module.
    """
    try:
        result = await anyio.run_process(
            ["go", "mod", "download", "-json", PATH], cwd=MODULE, check=False, stdout=PIPE, stderr=PIPE
        )
    except OSError as error:
        raise GatewayApiError(f"go cannot be run: {error}; install Go 1.26 or newer") from error
    found = orjson.loads(result.stdout) if result.stdout.strip() else {}
    if result.returncode or "Dir" not in found:
        text = found.get("Error") or result.stderr.decode(errors="replace")
        raise GatewayApiError(f"go mod download {PATH}: {text.strip()}")
    folder = anyio.Path(found["Dir"], "config", "crd", "standard")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    crds = []
    for resource in resources:
        text = await (folder / f"gateway.networking.k8s.io_{resource}.yaml").read_text()
        crds.append(CustomResourceDefinition.from_dict(yaml.load(text, Loader=loader)))
    return crds


async def install_gateway_api(client: Client, *, timeout: float = 30.0) -> None:
    """Apply the CRDs, and wait until HTTPRoutes are served.

    Raises:
        GatewayApiError: the CRDs could not be had.
        TimeoutError: the server does not serve them within ``timeout`` seconds.
    """
    for crd in await gateway_api_crds():
        await client.apply(crd)
    with anyio.fail_after(timeout):
        while True:
            try:
                await client.kind_for("gateway.networking.k8s.io/v1", "HTTPRoute")
                await client.list(HTTP_ROUTE, namespace="default")
                return
            except (UnknownKindError, NotFoundError):
                await anyio.sleep(_LOOK_AGAIN)


class StandInGateway(Reconciler[Unstructured]):
    """Writes what a gateway would into the status of HTTPRoutes, and moves no traffic.

    Each parent of a route is told Accepted and, when every backend Service exists, ResolvedRefs, both with the route's
    generation. Give it to a manager with `serve`; the CRDs must be there.

    Attributes:
        held: while true, no status is written, as if the gateway were slow.
        refusing: a message; while it is not empty, routes are told that they are not accepted.
        accepted: weights by backend, for every route key, in the order in which they came into force.
    """

    def __init__(self) -> None:
        self.held = False
        self.refusing = ""
        self.accepted: dict[str, list[dict[str, int]]] = {}

    def serve(self, manager: Manager) -> None:
        """Register with a manager."""
        options = ControllerOptions(max_concurrent_reconciles=1)
        Builder(manager).for_(HTTP_ROUTE).named("stand-in-gateway").with_options(options).complete(self)

    def weights(self, key: str) -> dict[str, int]:
        """Return the weights of a route that are in force; empty when there are none."""
        return (self.accepted.get(key) or [{}])[-1]

    async def reconcile(self, request: Request) -> Result | None:
        """Look at one route."""
        route = await self.client.find(HTTP_ROUTE, request.key)
        if route is None:
            return None
        if self.held:
            return Result(requeue_after=_LOOK_AGAIN)
        weights, missing = await self._backends(route)
        conditions = [
            _condition(route, "Accepted", "" if not self.refusing else "NotAllowedByListeners", self.refusing),
            _condition(route, "ResolvedRefs", "BackendNotFound" if missing else "", f"no Service {', '.join(missing)}"),
        ]
        parents = [
            {"parentRef": parent, "controllerName": CONTROLLER, "conditions": conditions}
            for parent in route["spec"]["parentRefs"]
        ]
        history = self.accepted.setdefault(request.key, [])
        if not self.refusing and not missing and (not history or history[-1] != weights):
            history.append(weights)  # In force before the status says so: whoever reads that finds it here.
        known = (route.get("status") or {}).get("parents") or []
        if _without_times(known) != _without_times(parents):
            try:
                await self.client.with_options(field_manager=_FIELD_MANAGER).update_status(route, parents=parents)
            except ConflictError:
                return Result(requeue=True)
        return Result(requeue_after=_LOOK_AGAIN) if missing or self.refusing else None

    async def _backends(self, route: Unstructured) -> tuple[dict[str, int], list[str]]:
        weights, missing = {}, []
        for rule in route["spec"].get("rules") or ():
            for backend in rule.get("backendRefs") or ():
                weights[backend["name"]] = backend.get("weight", 1)
                if await self.client.find(Service, f"{route.metadata.namespace}/{backend['name']}") is None:
                    missing.append(backend["name"])
        return weights, missing


def _condition(route: Unstructured, kind: str, reason: str, message: str) -> RawObject:
    return {
        "type": kind,
        "status": "False" if reason else "True",
        "reason": reason or kind,
        "message": message if reason else "",
        "observedGeneration": route.metadata.generation,
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _without_times(parents: Any) -> Any:
    return [
        {**parent, "conditions": [{**item, "lastTransitionTime": ""} for item in parent.get("conditions") or ()]}
        for parent in parents
    ]
