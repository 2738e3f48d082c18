"""Keep one ConfigMap ``<name>-cfg`` for every ModelCache: the whole controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyreconcile.api import Condition
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.controller import (
    Builder,
    Reconciler,
    Request,
    Result,
    ensure_finalizer,
    release_finalizer,
    set_condition,
)
from pyreconcile_controllers.modelcache.types import ModelCache

if TYPE_CHECKING:
    from pyreconcile.manager import Manager

FINALIZER = "labs.example.dev/cleanup"


class ModelCacheReconciler(Reconciler[ModelCache]):
    """Brings the cluster from what it is to what one ModelCache says."""

    async def reconcile(self, request: Request) -> Result | None:
        """Read the object, then make its ConfigMap and status so; doing it twice writes nothing."""
        cache = await self.client.find(ModelCache, request.key)
        if cache is None:
            return None  # Gone: the garbage collector takes the ConfigMap.
        if cache.metadata.deletion_timestamp:
            self.log.info("cleanup", model=cache.spec.model)
            await release_finalizer(self.client, cache, FINALIZER)
            return None
        cache = await ensure_finalizer(self.client, cache, FINALIZER)

        config = ConfigMap(data={"model": cache.spec.model, "replicas": str(cache.spec.replicas)})
        config.metadata.name = f"{cache.metadata.name}-cfg"
        config.metadata.namespace = cache.metadata.namespace
        await self.client.apply(config, owner=cache)

        conditions = list(cache.status.conditions) if cache.status else []
        ready = Condition(type="Ready", status="True", reason="Cached", message=f"{cache.spec.model} is cached")
        ready.observed_generation = cache.metadata.generation
        set_condition(conditions, ready)
        await self.client.update_status(
            cache, phase="Ready", conditions=conditions, observed_generation=cache.metadata.generation
        )
        return None


def setup(manager: Manager) -> None:
    """Register the controller: it wakes for ModelCaches and for the ConfigMaps they own."""
    Builder(manager).for_(ModelCache).owns(ConfigMap).complete(ModelCacheReconciler())
