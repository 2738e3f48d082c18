"""Keep one ConfigMap ``<name>-cfg`` for every ModelCache: the whole controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyreconcile.api import Condition, ObjectMeta
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.controller import (
    Builder,
    ControllerOptions,
    Reconciler,
    Request,
    Result,
    create_or_update,
    ensure_finalizer,
    release_finalizer,
    set_condition,
    set_controller_reference,
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

        config = ConfigMap(metadata=ObjectMeta(name=f"{cache.metadata.name}-cfg", namespace=cache.metadata.namespace))
        await create_or_update(self.client, config, lambda config: fill(config, cache))

        conditions = list(cache.status.conditions) if cache.status else []
        ready = Condition(type="Ready", status="True", reason="Cached", message=f"{cache.spec.model} is cached")
        ready.observed_generation = cache.metadata.generation
        set_condition(conditions, ready)
        await self.client.update_status(
            cache, phase="Ready", conditions=conditions, observed_generation=cache.metadata.generation
        )
        return None


def fill(config: ConfigMap, cache: ModelCache) -> None:
    """Make a ConfigMap say what its ModelCache says; what others put there stays."""
    config.data = {**(config.data or {}), "model": cache.spec.model, "replicas": str(cache.spec.replicas)}
    set_controller_reference(config, cache)


def setup(manager: Manager) -> None:
    """Register the controller: it wakes for ModelCaches and for the ConfigMaps they own."""
    # One pass does it all and reads nothing back, so what it wrote itself is no news.
    options = ControllerOptions(skip_own_writes=True)
    Builder(manager).for_(ModelCache).owns(ConfigMap).with_options(options).complete(ModelCacheReconciler())
