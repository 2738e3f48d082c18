"""What there is of one service in the cluster, as the cache shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyreconcile.api import RawObject
from pyreconcile.api.apps_v1 import ControllerRevision, Deployment
from pyreconcile.api.core_v1 import Pod, Service
from pyreconcile.cache import Cache
from pyreconcile_controllers.inferenceservice import names
from pyreconcile_controllers.inferenceservice.objects import (
    BY_REVISION,
    BY_SERVICE,
    Record,
    is_controlled_by,
    selector_of,
)
from pyreconcile_controllers.inferenceservice.observe import Failure, failure_of, seen_in
from pyreconcile_controllers.inferenceservice.template import Template, serving_container
from pyreconcile_controllers.inferenceservice.traffic import ALL, Seen
from pyreconcile_controllers.inferenceservice.types import InferenceService


@dataclass(frozen=True, slots=True)
class Children:
    """A service's records by revision, and its Deployments and Services by name."""

    service: InferenceService
    records: dict[str, Record]
    deployments: Mapping[str, RawObject]
    services: Mapping[str, RawObject]

    @classmethod
    async def read(cls, cache: Cache, service: InferenceService) -> Children:
        """Read what the service controls."""
        found: list[dict[str, RawObject]] = []
        for kind in (ControllerRevision, Deployment, Service):
            listed = await cache.list_raw(kind, namespace=service.metadata.namespace, index=(BY_SERVICE, service.key))
            found.append({raw["metadata"]["name"]: raw for raw in listed if is_controlled_by(raw, service)})
        records, deployments, services = found
        return cls(service, {name: Record.read(raw) for name, raw in records.items()}, deployments, services)

    @property
    def newest(self) -> int:
        """The highest number of a revision, 0 without one."""
        return max((record.number for record in self.records.values()), default=0)

    @property
    def adoptable(self) -> str:
        """Name of a Deployment that was there before the first record; empty when there is none (§1.9 item 13)."""
        name = names.predictor_name(self.service.metadata.name)
        return name if not self.records and name in self.deployments else ""

    def with_template(self, template: Template) -> Record | None:
        """Return the revision that has a template, the newest if there are several."""
        same = [record for record in self.records.values() if record.hash == template.hash]
        return max(same, key=lambda record: record.number, default=None)

    def deployment_of(self, record: Record) -> RawObject | None:
        """Return a revision's Deployment."""
        return self.deployments.get(record.deployment)

    def seen(self) -> dict[str, Seen]:
        """Return what the Deployment of each revision shows."""
        return {name: seen_in(self.deployment_of(record)) for name, record in self.records.items()}

    async def failure(self, cache: Cache, record: Record) -> Failure | None:
        """Return why a revision that does not serve has failed."""
        index = (BY_REVISION, f"{self.service.metadata.namespace}/{record.name}")
        pods = await cache.list_raw(Pod, namespace=self.service.metadata.namespace, index=index)
        return failure_of(self.deployment_of(record), pods, serving_container(record.template)["name"])

    def selector(self, record: Record) -> dict[str, str]:
        """Return what selects a revision's pods."""
        return selector_of(record, self.deployment_of(record))

    def front_weights(self) -> dict[str, int]:
        """Return where the Service in front sends everything: what takes the place of weights without a route."""
        front = self.services.get(names.predictor_name(self.service.metadata.name))
        if front is None:
            return {}
        selector = front["spec"].get("selector")
        return {name: ALL for name, record in self.records.items() if self.selector(record) == selector}
