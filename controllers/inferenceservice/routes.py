"""HTTPRoutes: building one, reading what a gateway made of it, and doing without while the kind is not served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import orjson
import structlog

from pyreconcile.api import RawObject, Unstructured, unstructured
from pyreconcile.cache import Cache, key_of
from pyreconcile.client import ApiError, Client, NotFoundError
from pyreconcile.controller import EnqueueOwner, KindSource, Request, RequestQueue
from pyreconcile_controllers.inferenceservice import names
from pyreconcile_controllers.inferenceservice.objects import PORT, is_controlled_by
from pyreconcile_controllers.inferenceservice.settings import Settings
from pyreconcile_controllers.inferenceservice.types import InferenceService

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

HTTP_ROUTE: Final = unstructured("gateway.networking.k8s.io/v1", "HTTPRoute")
DEFAULT_TIMEOUT: Final = 60
"""Seconds that a request may take when the predictor gives no ``timeout`` (KServe §3.5)."""

_GROUP_PATH = f"/apis/{HTTP_ROUTE.resource.api_version}"
_REQUIRED = ("Accepted", "ResolvedRefs")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Route:
    """A service's route as it is.

    Attributes:
        weights: percent by revision.
        accepted: whether the gateway has taken over these very weights.
        trouble: reason and message when the gateway has not said yes, or said no; empty when all is well.
    """

    weights: Mapping[str, int] = field(default_factory=dict)
    accepted: bool = False
    trouble: tuple[str, str] | None = None


def host(service: InferenceService, settings: Settings) -> str:
    """Return the host name of a service."""
    return f"{service.metadata.name}-{service.metadata.namespace}.{settings.ingress_domain}"


def predictor_host(service: InferenceService, settings: Settings) -> str:
    """Return the host name of a service's predictor."""
    return f"{service.metadata.name}-{names.PREDICTOR}-{service.metadata.namespace}.{settings.ingress_domain}"


def http_route(service: InferenceService, weights: Mapping[str, int], settings: Settings) -> Unstructured:
    """Return the route that splits the traffic of a service's hosts by weights.

    Everything that the server would default is given, for in a list that is one value to server-side apply a default
    looks like a difference.

    Raises:
        ValueError: no weight is above 0, which a gateway answers with errors (§1.9 item 12).
    """
    if not any(weights.values()):
        raise ValueError(f"route of {service.key}: no revision has a weight")
    namespace, _, gateway = settings.gateway.partition("/")
    headers = [
        {"name": "KServe-Isvc-Name", "value": service.metadata.name},
        {"name": "KServe-Isvc-Namespace", "value": service.metadata.namespace},
    ]
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": headers}}],
        "timeouts": {"request": f"{service.spec.predictor.timeout or DEFAULT_TIMEOUT}s"},
        "backendRefs": [
            {"group": "", "kind": "Service", "name": name, "port": PORT, "weight": weight}
            for name, weight in sorted(weights.items())
            if weight
        ],
    }
    parent = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": namespace, "name": gateway}
    return HTTP_ROUTE.from_dict(
        {
            "metadata": {
                "name": service.metadata.name,
                "namespace": service.metadata.namespace,
                "labels": {names.NAME_LABEL: service.metadata.name},
            },
            "spec": {
                "parentRefs": [parent],
                "hostnames": [host(service, settings), predictor_host(service, settings)],
                "rules": [rule],
            },
        }
    )


def read_route(raw: RawObject | None, service: InferenceService, settings: Settings) -> Route | None:
    """Read a route; None when there is none of this service."""
    if raw is None or not is_controlled_by(raw, service):
        return None
    weights: dict[str, int] = {}
    for rule in raw["spec"].get("rules") or ():
        for backend in rule.get("backendRefs") or ():
            if backend.get("weight", 1):
                weights[backend["name"]] = backend.get("weight", 1)
    parents = (raw.get("status") or {}).get("parents") or []
    mine = [parent for parent in parents if _is_gateway(parent["parentRef"], raw["metadata"]["namespace"], settings)]
    if not mine:
        return Route(weights, trouble=("ParentStatusNotAvailable", f"{settings.gateway} has not seen the route yet"))
    conditions = [condition for parent in mine for condition in parent.get("conditions") or ()]
    for condition in conditions:
        if condition["status"] == "False":
            reason = condition.get("reason") or condition["type"]
            return Route(weights, trouble=(reason, condition.get("message") or ""))
    generation = raw["metadata"].get("generation", 0)
    good = {
        condition["type"]
        for condition in conditions
        if condition["status"] == "True" and condition.get("observedGeneration", 0) == generation
    }
    return Route(weights, accepted=good.issuperset(_REQUIRED))


def _is_gateway(parent: RawObject, namespace: str, settings: Settings) -> bool:
    return f"{parent.get('namespace', namespace)}/{parent['name']}" == settings.gateway


class RouteSource:
    """Wakes services by their HTTPRoutes, once the cluster has that kind.

    A controller that simply watched a kind which is not served would not start. This source asks the server whether it
    serves HTTPRoutes, again and again until it does (SR-1), and then watches. It goes on asking, for CRDs can be
    deleted, and wakes all services when the answer changes.

    Attributes:
        served: whether HTTPRoutes can be read and written now.
    """

    name = f"kind {HTTP_ROUTE.resource.gvk}, if served"

    def __init__(self, cache: Cache, client: Client, *, period: float = 10.0) -> None:
        """Ask every ``period`` seconds."""
        self._cache = cache
        self._client = client
        self._period = period
        self.served = False

    async def run(self, queue: RequestQueue, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled; started once it is known whether there is anything to watch, and that is read."""
        served = await self._is_served()
        while served is None:
            await anyio.sleep(self._period)
            served = await self._is_served()
        tell = task_status.started
        while True:
            if served:
                async with anyio.create_task_group() as tasks:
                    await tasks.start(KindSource(self._cache, HTTP_ROUTE, EnqueueOwner(InferenceService)).run, queue)
                    self.served = True
                    log.debug("gateway_api_found", kind=str(HTTP_ROUTE.resource.gvk))
                    tell()
                    await self._changed(served)
                    tasks.cancel_scope.cancel()
                self.served = False
                self._cache.remove_informer(HTTP_ROUTE)
            else:
                log.warning("gateway_api_not_installed", kind=str(HTTP_ROUTE.resource.gvk), retry_in=self._period)
                tell()
                await self._changed(served)
            served = not served
            tell = partial(self._wake_all, queue)

    async def _changed(self, served: bool) -> None:
        """Wait until the server says something else."""
        while True:
            await anyio.sleep(self._period)
            if await self._is_served() is (not served):
                return

    async def _is_served(self) -> bool | None:
        """Ask the server; None when it does not answer."""
        try:
            answer: dict[str, Any] = orjson.loads(await self._client.transport.request("GET", _GROUP_PATH))
        except NotFoundError:
            return False
        except ApiError as error:
            log.warning("discovery_failed", path=_GROUP_PATH, error=str(error))
            return None
        return any(item["name"] == HTTP_ROUTE.resource.plural for item in answer.get("resources") or ())

    def _wake_all(self, queue: RequestQueue) -> None:
        store = self._cache.informer(InferenceService).store
        for key in map(key_of, store.values()):
            queue.add(Request.from_key(key))
