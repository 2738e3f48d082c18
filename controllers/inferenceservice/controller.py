"""The ``inferenceservice`` controller: revisions, their pods, the traffic between them, the status (KServe §1.9)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyreconcile.api import object_key
from pyreconcile.api.apps_v1 import ControllerRevision, Deployment
from pyreconcile.api.core_v1 import Service
from pyreconcile.client import ApiError, BadRequestError, ConflictError, InvalidError, NotFoundError
from pyreconcile.controller import Reconciler, Request, Result, release_finalizer, set_controller_reference
from pyreconcile_controllers.inferenceservice import names, traffic
from pyreconcile_controllers.inferenceservice.children import Children
from pyreconcile_controllers.inferenceservice.conditions import Fact
from pyreconcile_controllers.inferenceservice.objects import (
    Record,
    front_service,
    revision_deployment,
    revision_record,
    revision_service,
)
from pyreconcile_controllers.inferenceservice.observe import Failure
from pyreconcile_controllers.inferenceservice.routes import HTTP_ROUTE, Route, RouteSource, http_route, read_route
from pyreconcile_controllers.inferenceservice.settings import Settings
from pyreconcile_controllers.inferenceservice.status import (
    NO_GATEWAY_API,
    Outcome,
    news,
    next_status,
    rollout_of,
    traffic_of,
)
from pyreconcile_controllers.inferenceservice.template import InvalidPredictorError, Template, render
from pyreconcile_controllers.inferenceservice.types import (
    ClusterServingRuntime,
    InferenceService,
    ServingRuntime,
    ServingRuntimeSpec,
)

AUTOSCALED = ("hpa", "keda", "external")
"""Values of the autoscaler's annotation with which somebody else scales the Deployments."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The template of a spec, or why there is none; and the runtime that it uses."""

    template: Template | None = None
    invalid: Failure | None = None
    runtime: type[ServingRuntime] | type[ClusterServingRuntime] | None = None


class InferenceServiceReconciler(Reconciler[InferenceService]):
    """Brings one service to its newest revision, as far as pods and gateway allow in a pass."""

    def __init__(
        self,
        routes: RouteSource,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC).replace(microsecond=0),
    ) -> None:
        """Use routes while ``routes`` says that there are any; ``clock`` is monotonic, ``now`` the time of day."""
        self._routes = routes
        self._settings = settings
        self._clock = clock
        self._now = now
        # Since when a service's weights are in force. A restart forgets it, and pods then stay for somewhat longer.
        self._in_force: dict[str, tuple[dict[str, int], float]] = {}

    async def reconcile(self, request: Request) -> Result | None:
        """Make one pass: record, create, move traffic, scale, tell, and only then delete (§1.9 items 7 and 8)."""
        service = await self.client.find(InferenceService, request.key)
        if service is None or service.metadata.deletion_timestamp is not None:
            self._in_force.pop(request.key, None)
            if service is not None:
                await release_finalizer(self.client, service, names.FINALIZER)
            return None  # The garbage collector takes the children.
        if service.metadata.annotations.get(names.MODE_ANNOTATION) == "ModelMesh":
            return None

        rendered = await self._render(service)
        children = await Children.read(self.cache, service)
        before = rollout_of(service)
        rollout = replace(before, created=await self._created(service, rendered, children, before))
        wish = wish_of(service)

        route, present = await self._present(service, children)
        seen = children.seen()
        planned = traffic.plan(wish, rollout, seen, present, can_split=route is not None)
        rollout = replace(rollout, ready=planned.ready)
        steady = bool(present) and planned.weights == present and (route is None or route.accepted)
        wait = self._wait(request.key, children, planned, present, steady=steady)
        counts = traffic.replicas(wish, rollout, planned, seen, present, drained=wait <= 0)
        kept = traffic.kept(rollout, planned, present)
        failure = await self._apply_revisions(children, kept, counts, rollout.created)
        newest = children.records.get(rollout.created)
        if newest is not None and failure is None and not (rollout.ready == newest.name and seen[newest.name].up):
            failure = await children.failure(self.cache, newest)

        error = await self._move(children, planned, seen)
        migrated = steady and planned.weights == planned.ideal and not planned.missing
        if migrated:
            rollout = traffic.propagate(rollout, planned.targets, keeps=children.records)
        outcome = Outcome(
            rollout=rollout,
            plan=planned,
            seen=seen,
            invalid=rendered.invalid,
            failure=failure,
            migrated=migrated,
            ingress=self._ingress(route, planned, error),
            targets=planned.targets if migrated else traffic_of(service),
            ready_follows_candidate=self._settings.ready_follows_candidate,
            runtime=rendered.runtime,
        )
        if not await self._tell(service, outcome):
            return Result(requeue=True)
        if error is not None:
            raise error
        leftover = await self._drop(children, traffic.kept(rollout, planned, present), drained=wait <= 0)
        shrinks = any(
            seen[name].replicas > count
            for name, count in traffic.replicas(wish, rollout, planned, seen, present, drained=True).items()
        )
        return Result(requeue_after=wait) if steady and wait > 0 and (leftover or shrinks) else None

    async def _render(self, service: InferenceService) -> Rendered:
        model = service.spec.predictor.model
        found: ServingRuntime | ClusterServingRuntime | None = None
        try:
            check_percent(service)
            if model is not None:
                if not model.runtime:
                    raise InvalidPredictorError(
                        "NoSupportingRuntime",
                        "spec.predictor.model.runtime: name a ServingRuntime; none is chosen by the model's format",
                    )
                key = object_key(service.metadata.namespace, model.runtime)
                found = await self.client.find(ServingRuntime, key)
                found = found or await self.client.find(ClusterServingRuntime, model.runtime)
                check_runtime(model.runtime, found.spec if found is not None else None)
            template = render(
                service,
                found.spec if found is not None else None,
                storage_initializer=self._settings.storage_initializer,
            )
        except InvalidPredictorError as error:
            return Rendered(invalid=Failure(error.reason, str(error)), runtime=type(found) if found else None)
        return Rendered(template, runtime=type(found) if found else None)

    async def _created(
        self, service: InferenceService, rendered: Rendered, children: Children, before: traffic.Rollout
    ) -> str:
        """Return the revision of the present spec, recorded if it is new; the last one while the spec is invalid."""
        if rendered.template is None:
            if before.created in children.records:
                return before.created
            return max(children.records, key=lambda name: children.records[name].number, default="")
        known = children.with_template(rendered.template)
        if known is not None:
            return known.name
        wanted = revision_record(service, children.newest + 1, rendered.template, children.adoptable)
        set_controller_reference(wanted, service)
        record = Record.read((await self.client.create(wanted)).to_dict())
        children.records[record.name] = record
        self.log.info("revision_created", revision=record.name, adopted=record.adopted)
        return record.name

    async def _present(self, service: InferenceService, children: Children) -> tuple[Route | None, traffic.Weights]:
        """Return the route, None while there can be none, and the weights in force."""
        if not self._routes.served:
            return None, children.front_weights()
        raw = await self.cache.find_raw(HTTP_ROUTE, service.key)
        route = read_route(raw, service, self._settings) or Route()
        return route, dict(route.weights)

    def _wait(
        self, key: str, children: Children, planned: traffic.Plan, present: traffic.Weights, *, steady: bool
    ) -> float:
        """Return for how many seconds pods without traffic are still needed (§1.9 item 7); more when not yet known."""
        if not present and not planned.weights:
            return 0.0
        if not steady:
            self._in_force.pop(key, None)
            return float("inf")
        weights = dict(present)
        known, since = self._in_force.get(key, ({}, 0.0))
        if known != weights:
            known, since = self._in_force[key] = weights, self._clock()
        grace = max(
            (record.grace_seconds for name, record in children.records.items() if name not in weights), default=0
        )
        return max(0.0, since + self._settings.propagation + grace - self._clock())

    async def _apply_revisions(
        self, children: Children, kept: frozenset[str], counts: dict[str, int], created: str
    ) -> Failure | None:
        """Make Deployments and Services what they are to be; return why the server refuses the newest one."""
        refused = None
        for name in sorted(kept & children.records.keys()):
            record = children.records[name]
            try:
                await self._apply_deployment(children, record, counts.get(name, 0))
            except (InvalidError, BadRequestError) as error:
                self.log.warning("deployment_refused", revision=name, error=str(error))
                if name == created:
                    refused = Failure("InvalidPredictorSpec", error.message)
                continue
            service = revision_service(children.service, record, children.selector(record))
            await self.client.apply(service, owner=children.service)
        return refused

    async def _apply_deployment(self, children: Children, record: Record, count: int) -> None:
        """Create or repair a Deployment, and scale it.

        Replicas are not part of what is applied: a field that was applied once and is then left out is reset by the
        server, which would take away an autoscaler's pods.
        """
        service, live = children.service, children.deployment_of(record)
        if live is None or not record.adopted:
            wanted = revision_deployment(service, record, progress_deadline=self._settings.progress_deadline)
            if live is None:
                assert wanted.spec is not None
                wanted.spec.replicas = count
                set_controller_reference(wanted, service)
                await self.client.create(wanted)
                return
            await self.client.apply(wanted, owner=service)
        if live["spec"].get("replicas", 1) != count:
            await self.client.set_scale(Deployment, object_key(service.metadata.namespace, record.deployment), count)

    async def _move(self, children: Children, planned: traffic.Plan, seen: dict[str, traffic.Seen]) -> ApiError | None:
        """Send traffic where it is to go; return what went wrong with the route."""
        service = children.service
        if planned.missing or not planned.weights or not planned.stable:
            return None
        front = children.records.get(planned.stable)
        if front is not None and (seen[front.name].up or not children.front_weights()):
            await self.client.apply(front_service(service, front, children.selector(front)), owner=service)
        if not self._routes.served or not planned.weights.keys() <= children.records.keys():
            return None
        try:
            await self.client.apply(http_route(service, planned.weights, self._settings), owner=service)
        except ConflictError:
            raise
        except ApiError as error:
            return error
        return None

    def _ingress(self, route: Route | None, planned: traffic.Plan, error: ApiError | None) -> Fact | None:
        """Return what is wrong with the way in from outside."""
        if route is None:
            kind = f"{HTTP_ROUTE.resource.kind} of {HTTP_ROUTE.resource.api_version}"
            return Fact(
                "False",
                NO_GATEWAY_API,
                f"the cluster has no {kind}: install the CRDs of the Gateway API; this controller looks again every "
                f"{self._settings.discovery_period:g} s",
            )
        if error is not None:
            return Fact("False", error.reason or "RouteNotWritten", error.message)
        if not route.weights:
            reason = "ParentStatusNotAvailable" if planned.weights else "Predictor ingress not created"
            return Fact("Unknown", reason, "waiting for a revision that is ready" if not planned.weights else "")
        return Fact("False", *route.trouble) if route.trouble is not None else None

    async def _tell(self, service: InferenceService, outcome: Outcome) -> bool:
        """Write the status if it differs, and emit the news; false when the service was changed meanwhile."""
        status = next_status(service, outcome, self._settings, self._now())
        try:
            await self.client.update_status(service, **status)
        except ConflictError:
            return False
        except NotFoundError:
            return True
        for item in news(service, outcome, status["conditions"]):
            self.recorder.event(service, item.type, item.reason, item.note, action=item.action)
        return True

    async def _drop(self, children: Children, kept: frozenset[str], *, drained: bool) -> bool:
        """Delete what no traffic needs any more; tell whether something has to wait for that."""
        unneeded = [record for name, record in children.records.items() if name not in kept]
        if not drained:
            return bool(unneeded)
        namespace = children.service.metadata.namespace
        for record in unneeded:
            for kind, name, live in (
                (Deployment, record.deployment, children.deployments),
                (Service, record.name, children.services),
            ):
                if name in live:
                    uid = live[name]["metadata"]["uid"]
                    await self.client.delete(kind, object_key(namespace, name), uid=uid, missing_ok=True)
            # The record of the highest number stays, so that no number is given twice: pods of the one before may
            # still be about, and the new revision's Service would find them.
            if record.number != children.newest:
                uid = record.raw["metadata"]["uid"]
                await self.client.delete(
                    ControllerRevision, object_key(namespace, record.name), uid=uid, missing_ok=True
                )
        return False


def wish_of(service: InferenceService) -> traffic.Wish:
    """Return what a spec asks for of traffic and pods."""
    predictor = service.spec.predictor
    autoscaler = service.metadata.annotations.get(names.AUTOSCALER_ANNOTATION)
    percent = predictor.canary_traffic_percent
    if percent is not None:
        percent = min(max(percent, 0), traffic.ALL)
    return traffic.Wish(percent, max(predictor.min_replicas or 1, 1), autoscaler in AUTOSCALED)


def check_percent(service: InferenceService) -> None:
    """Check a percent that was stored before the schema had bounds.

    Raises:
        InvalidPredictorError: it is none.
    """
    percent = service.spec.predictor.canary_traffic_percent
    if percent is not None and not 0 <= percent <= traffic.ALL:
        raise InvalidPredictorError(
            "InvalidPredictorSpec", f"spec.predictor.canaryTrafficPercent: must be 0 to 100, not {percent}"
        )


def check_runtime(name: str, runtime: ServingRuntimeSpec | None) -> None:
    """Check that a runtime can be used (KServe §2.1).

    Raises:
        InvalidPredictorError: it is not there, or not for use.
    """
    if runtime is None:
        raise InvalidPredictorError(
            "RuntimeNotRecognized",
            f"there is no ServingRuntime in the namespace and no ClusterServingRuntime {name!r}; waiting for one",
        )
    if runtime.disabled:
        raise InvalidPredictorError("RuntimeDisabled", f"the runtime {name!r} is disabled")
    if runtime.multi_model or runtime.worker_spec is not None:
        raise InvalidPredictorError(
            "NoSupportingRuntime", f"the runtime {name!r} is for ModelMesh or several nodes, which is not supported"
        )
