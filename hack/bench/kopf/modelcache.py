"""The ModelCache controller on kopf, a peer that pyreconcile is measured against.

Like the others it makes three writes for each object: a finalizer (kopf adds it because there is a delete handler), a
ConfigMap, and the status. kopf does not watch what an object owns, so a timer repairs it, as its documentation tells.
"""

import datetime
from typing import Any

import kopf
from kubernetes import client

KIND = ("labs.example.dev", "v1", "modelcaches")


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.execution.max_workers = 8  # as the other peers
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage()  # the CRD has no room in its status


@kopf.on.resume(*KIND)
@kopf.on.create(*KIND)
@kopf.on.update(*KIND)
@kopf.timer(*KIND, interval=30, idle=10)
def reconcile(
    body: kopf.Body, spec: kopf.Spec, status: kopf.Status, meta: kopf.Meta, patch: kopf.Patch, **_: Any
) -> None:
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{meta['name']}-cfg", "namespace": meta["namespace"]},
        "data": {"model": spec["model"], "replicas": str(spec["replicas"])},
    }
    kopf.adopt(config, owner=body)
    core = client.CoreV1Api()
    try:
        core.create_namespaced_config_map(meta["namespace"], config)
    except client.ApiException as error:
        if error.status != 409:
            raise
        core.patch_namespaced_config_map(config["metadata"]["name"], meta["namespace"], config)
    if status.get("phase") == "Ready" and status.get("observedGeneration") == meta["generation"]:
        return
    since = (status.get("conditions") or [{}])[0].get("lastTransitionTime")
    patch.status["phase"] = "Ready"
    patch.status["observedGeneration"] = meta["generation"]
    patch.status["conditions"] = [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Cached",
            "message": f"{spec['model']} is cached",
            "lastTransitionTime": since or f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}",
            "observedGeneration": meta["generation"],
        }
    ]


@kopf.on.delete(*KIND)
def cleanup(spec: kopf.Spec, logger: kopf.Logger, **_: Any) -> None:
    logger.info("cleanup of %s", spec["model"])
