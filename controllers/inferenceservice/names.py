"""Names, labels and annotations of an InferenceService's children (KServe §1.7, §3.1 and §3.2)."""

from __future__ import annotations

import hashlib
from typing import Final

NAME_LABEL: Final = "serving.kserve.io/inferenceservice"
COMPONENT_LABEL: Final = "component"
PREDICTOR: Final = "predictor"
APP_LABEL: Final = "app"
REVISION_LABEL: Final = "pyreconcile.dev/revision"
"""On pods, Deployments and Services: the name of the revision. Services and Deployments select by it."""
HASH_LABEL: Final = "pyreconcile.dev/template-hash"

MODE_ANNOTATION: Final = "serving.kserve.io/deploymentMode"
AUTOSCALER_ANNOTATION: Final = "serving.kserve.io/autoscalerClass"
FINALIZER: Final = "inferenceservice.finalizers"
"""What KServe's controller leaves on a service that it managed before."""

CONTAINER: Final = "kserve-container"
TRANSFORMER_CONTAINER: Final = "transformer-container"
STORAGE_INITIALIZER: Final = "storage-initializer"

_LONGEST = 63
_APP_PREFIX = "isvc."
# So that the label "app", with its prefix, stays a valid one.
_LONGEST_REVISION = _LONGEST - len(_APP_PREFIX)


def child_name(parent: str, suffix: str, *, longest: int = _LONGEST) -> str:
    """Return ``parent + suffix``; of a parent that is too long, its beginning and its MD5 sum (KServe §1.7)."""
    if len(parent) + len(suffix) <= longest:
        return parent + suffix
    digest = hashlib.md5(parent.encode(), usedforsecurity=False).hexdigest()
    return parent[: longest - len(digest) - len(suffix)] + digest + suffix


def predictor_name(service: str) -> str:
    """Return the name of a service's predictor: of the Service that clients in the cluster call."""
    return child_name(service, f"-{PREDICTOR}")


def revision_name(service: str, number: int) -> str:
    """Return the name of a revision, as in ``m-predictor-00001``."""
    return child_name(f"{service}-{PREDICTOR}", f"-{number:05d}", longest=_LONGEST_REVISION)


def labels(service: str) -> dict[str, str]:
    """Return the labels of all children of a service."""
    return {NAME_LABEL: service, COMPONENT_LABEL: PREDICTOR}


def pod_labels(service: str, revision: str) -> dict[str, str]:
    """Return the labels of a revision's pods."""
    return {**labels(service), APP_LABEL: f"{_APP_PREFIX}{revision}", REVISION_LABEL: revision}
