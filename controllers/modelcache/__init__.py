"""ModelCache, the tutorial's controller: one ConfigMap for every object, kept as its spec says."""

from pyreconcile_controllers.modelcache.controller import ModelCacheReconciler, setup
from pyreconcile_controllers.modelcache.types import ModelCache, ModelCacheSpec, ModelCacheStatus

__all__ = ["MODELS", "ModelCache", "ModelCacheReconciler", "ModelCacheSpec", "ModelCacheStatus", "setup"]

MODELS = (ModelCache,)
