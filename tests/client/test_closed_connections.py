"""A connection that has ended is freed at once: the cache freezes live objects, so a cycle would stay for ever."""

from __future__ import annotations

import asyncio
import gc

import pytest

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.client import connect
from pyreconcile.client._http import HTTPConnection
from pyreconcile.testing import ControlPlane

pytestmark = pytest.mark.plane


def connections() -> int:
    return sum(isinstance(obj, HTTPConnection) for obj in gc.get_objects())


async def test_ended_connections_need_no_garbage_collector(control_plane: ControlPlane):
    gc.collect()
    before = connections()
    gc.disable()
    try:
        async with connect(kubeconfig=control_plane.kubeconfig) as client:
            for _ in range(3):
                async with client.transport.stream(ConfigMap.resource.path("default"), query={"watch": "true"}):
                    assert connections() > before
            await client.list(ConfigMap, namespace="default")
        for _ in range(5):
            await asyncio.sleep(0)
        assert connections() == before
    finally:
        gc.enable()
