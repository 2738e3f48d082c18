"""Micro-benchmarks: the queues, the cache's store, and decoding. Each figure is the median of five rounds."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import orjson

from pyreconcile.api.core_v1 import Pod
from pyreconcile.cache import Store
from pyreconcile.workqueue import PriorityQueue, Queue

COUNT = 100_000
_ROUNDS = 5
_SMALL = 2000

AnyQueue = PriorityQueue[str] | Queue[str]


async def micro() -> list[tuple[str, str]]:
    """Measure everything; return what was measured, and the figure with its unit."""
    rows: list[tuple[str, str]] = []
    for name, make in (("PriorityQueue", _priority), ("Queue", _classic)):
        adds, gets = await _queue(make)
        rows += [(f"{name}: adds a second", f"{adds:,.0f}"), (f"{name}: gets with done a second", f"{gets:,.0f}")]
        rows.append((f"{name}: memory for {COUNT:,} delayed keys, MiB", f"{_delayed_memory(make):.1f}"))
    rows += _store()
    rows += _decode()
    return rows


def _priority() -> AnyQueue:
    return PriorityQueue[str](name="bench")


def _classic() -> AnyQueue:
    return Queue[str](name="bench")


async def _queue(make: Callable[[], AnyQueue]) -> tuple[float, float]:
    """Return adds a second and gets with done a second."""
    keys = [f"namespace/object-{number}" for number in range(COUNT)]
    adding, getting = [], []
    for _ in range(_ROUNDS):
        queue = make()
        start = time.perf_counter()
        for key in keys:
            queue.add(key)
        between = time.perf_counter()
        for _ in keys:
            queue.done(await queue.get())
        adding.append(between - start)
        getting.append(time.perf_counter() - between)
        queue.shutdown()
    return COUNT / statistics.median(adding), COUNT / statistics.median(getting)


def _delayed_memory(make: Callable[[], AnyQueue]) -> float:
    """Return MiB that a queue takes for delayed keys, without the keys themselves."""
    keys = [f"namespace/object-{number}" for number in range(COUNT)]
    gc.collect()
    tracemalloc.start()
    try:
        queue = make()
        for number, key in enumerate(keys):
            queue.add_after(key, 3600 + number)
        used = tracemalloc.get_traced_memory()[0] / 2**20
        queue.shutdown()
        return used
    finally:
        tracemalloc.stop()


def _store() -> list[tuple[str, str]]:
    keys = [f"namespace-{number % 10}/pod-{number}" for number in range(COUNT)]
    objects = [_config(*key.split("/"), version=1) for key in keys]
    changed = [_config(*key.split("/"), version=2) for key in keys]

    def put(store: Store, new: Iterable[dict[str, Any]]) -> None:
        for key, obj in zip(keys, new, strict=True):
            store.put(key, obj)

    def get(store: Store) -> None:
        for key in keys:
            store.get(key)

    def find(store: Store) -> None:
        store.by_index("app", "app-7", "namespace-7")

    inserting, updating, getting, finding = [], [], [], []
    for _ in range(_ROUNDS):
        store = Store()
        store.add_index("app", lambda obj: [obj["metadata"]["labels"]["app"]])
        inserting.append(_seconds(partial(put, store, objects)))
        updating.append(_seconds(partial(put, store, changed)))
        getting.append(_seconds(partial(get, store)))
        finding.append(_seconds(partial(find, store)))
    return [
        (f"Store: inserts a second, one index, {COUNT:,} objects", f"{COUNT / statistics.median(inserting):,.0f}"),
        ("Store: updates a second", f"{COUNT / statistics.median(updating):,.0f}"),
        ("Store: gets a second", f"{COUNT / statistics.median(getting):,.0f}"),
        ("Store: 100 of them by index and namespace, µs", f"{statistics.median(finding) * 1e6:,.0f}"),
    ]


def _decode() -> list[tuple[str, str]]:
    line = orjson.dumps({"type": "MODIFIED", "object": pod()})
    raw = pod()

    def repeat(action: Callable[[], object]) -> float:
        def many() -> None:
            for _ in range(_SMALL):
                action()

        return statistics.median(_seconds(many) for _ in range(_ROUNDS)) / _SMALL * 1e6

    model = Pod.from_dict(raw)
    size = f"{len(line):,} bytes"
    return [
        (f"decode: a watch event of a pod ({size}) to plain JSON, µs", f"{repeat(lambda: orjson.loads(line)):.1f}"),
        ("decode: plain JSON of it to a Pod, µs", f"{repeat(lambda: Pod.from_dict(raw)):.1f}"),
        ("decode: the Pod to JSON bytes, µs", f"{repeat(model.to_json):.1f}"),
    ]


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _config(namespace: str, name: str, *, version: int) -> dict[str, Any]:
    number = int(name.rpartition("-")[2])
    metadata = {"namespace": namespace, "name": name, "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": {"app": f"app-{number % 1000}"}}, "data": {"a": str(version)}}


def pod() -> dict[str, Any]:
    """Return a pod of an ordinary size, as an API server sends it."""
    fields: dict[str, Any] = {f"f:field-{number}": {".": {}, "f:value": {}} for number in range(40)}
    container = {
        "name": "server",
        "image": "registry.example/models/server:1.2.3",
        "command": ["serve", "--port", "8080", "--model", "tiny-llm"],
        "env": [{"name": f"SETTING_{number}", "value": f"value-{number}"} for number in range(12)],
        "ports": [{"containerPort": 8080, "protocol": "TCP", "name": "http"}],
        "resources": {"limits": {"cpu": "4", "memory": "16Gi"}, "requests": {"cpu": "500m", "memory": "8Gi"}},
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}, {"name": "shm", "mountPath": "/dev/shm"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10},
        "imagePullPolicy": "IfNotPresent",
    }
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-02T03:04:05Z"}
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    state = {"running": {"startedAt": "2026-01-02T03:04:05Z"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "server-0",
            "namespace": "models",
            "uid": "00000000-0000-4000-8000-000000000000",
            "resourceVersion": "123456",
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"app": "server", "model": "tiny-llm", "revision": "7c9d8f6b5"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "StatefulSet",
                    "name": "server",
                    "uid": "00000000-0000-4000-8000-000000000001",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [
                {
                    "manager": "kubelet",
                    "operation": "Update",
                    "apiVersion": "v1",
                    "time": "2026-01-02T03:04:05Z",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:status": fields},
                }
            ],
        },
        "spec": {
            "containers": [container, {**container, "name": "proxy"}],
            "volumes": [{"name": "cache", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}],
            "nodeName": "node-1",
            "restartPolicy": "Always",
            "tolerations": [{"key": "example.dev/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "podIP": "10.0.0.7",
            "podIPs": [{"ip": "10.0.0.7"}],
            "startTime": "2026-01-02T03:04:05Z",
            "containerStatuses": [
                {
                    "name": name,
                    "ready": True,
                    "restartCount": 0,
                    "image": "registry.example/a",
                    "imageID": "",
                    "state": state,
                }
                for name in ("server", "proxy")
            ],
        },
    }
