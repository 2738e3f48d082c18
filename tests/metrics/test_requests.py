"""Times and sizes of requests, counted only when asked for (runtime contract §16, the rows with †)."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web
from kubernetes_asyncio.client import Configuration

from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.client import Client, connect
from pyreconcile.metrics import Metrics

TIMES = [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, float("inf")]
SIZES = [64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, float("inf")]
ROWS = (
    "request_duration_seconds",
    "rate_limiter_duration_seconds",
    "dns_resolution_duration_seconds",
    "request_size_bytes",
    "response_size_bytes",
    "request_retries_total",
)
BODY = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"ns"}}'


def bounds(metrics: Metrics, name: str) -> list[float]:
    text = metrics.render().decode()
    return [float(bound) for bound in re.findall(rf'^{name}_bucket{{.*?le="([^"]+)".*}} ', text, re.MULTILINE)]


@asynccontextmanager
async def api_server(handler: web.RequestHandler) -> AsyncIterator[int]:
    """Serve HTTP with one handler; give the port."""
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def connected(metrics: Metrics, port: int, **options) -> AsyncIterator[Client]:
    configuration = Configuration(host=f"http://localhost:{port}")
    async with connect(configuration=configuration, metrics=metrics, **options) as client:
        yield client


@pytest.mark.rules("MT-14", "MT-15", "MT-16", "MT-17", "MT-18")
async def test_details_of_requests_exist_only_when_asked_for():
    metrics = Metrics()

    async def answer(request):
        return web.Response(body=BODY)

    async with api_server(answer) as port, connected(metrics, port) as client:
        await client.get(ConfigMap, "ns/a")
        text = metrics.render().decode()
    assert "rest_client_requests_total{" in text
    assert not any(f"rest_client_{row}" in text for row in ROWS)


@pytest.mark.rules("MT-13", "MT-14", "MT-15", "MT-16", "MT-17", "MT-18")
async def test_details_of_requests_by_verb_and_host():
    metrics = Metrics()
    metrics.observe_requests()
    metrics.observe_requests()  # again: no change
    answers = [web.Response(status=503, headers={"Retry-After": "0"}), web.Response(body=BODY)]

    async def answer(request):
        await anyio.sleep(0.03)
        return answers.pop(0) if answers else web.Response(body=BODY)

    async with api_server(answer) as port, connected(metrics, port) as client:
        await client.get(ConfigMap, "ns/a")
        await client.create(ConfigMap.from_dict({"metadata": {"name": "a", "namespace": "ns"}}))
        host = f"localhost:{port}"

    def sample(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"rest_client_{name}", labels)

    get, post = {"verb": "GET", "host": host}, {"verb": "POST", "host": host}
    assert sample("requests_total", code="503", method="GET", host=host) == 1
    assert sample("requests_total", code="200", method="GET", host=host) == 1
    assert sample("request_retries_total", code="503", **get) == 1
    assert sample("request_duration_seconds_count", **get) == 2
    assert sample("request_duration_seconds_bucket", le="0.025", **get) == 0
    assert sample("request_duration_seconds_sum", **get) >= 0.06
    assert sample("rate_limiter_duration_seconds_count", **get) == 2
    assert sample("dns_resolution_duration_seconds_count", host="localhost") >= 1
    assert sample("request_size_bytes_sum", **get) == 0
    assert sample("response_size_bytes_sum", **get) == len(BODY)
    assert sample("request_size_bytes_sum", **post) > 60
    assert sample("response_size_bytes_count", **post) == 1
    for row in ("request_duration", "rate_limiter_duration"):
        assert bounds(metrics, f"rest_client_{row}_seconds")[: len(TIMES)] == TIMES
    assert bounds(metrics, "rest_client_dns_resolution_duration_seconds") == TIMES
    for row in ("request", "response"):
        assert bounds(metrics, f"rest_client_{row}_size_bytes")[: len(SIZES)] == SIZES


@pytest.mark.rules("MT-15", "MT-14")
async def test_waiting_for_a_turn_is_not_the_servers_time():
    metrics = Metrics()
    metrics.observe_requests()

    async def answer(request):
        await anyio.sleep(0.1)
        return web.Response(body=BODY)

    async with api_server(answer) as port, connected(metrics, port, max_concurrent_requests=1) as client:
        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(client.get, ConfigMap, "ns/a")
        took = time.perf_counter() - began
    labels = {"verb": "GET", "host": f"localhost:{port}"}
    waited = metrics.registry.get_sample_value("rest_client_rate_limiter_duration_seconds_sum", labels)
    served = metrics.registry.get_sample_value("rest_client_request_duration_seconds_sum", labels)
    assert waited is not None
    assert served is not None
    assert waited >= 0.28
    assert 0.3 <= served <= took


@pytest.mark.rules("MT-14")
async def test_a_request_without_an_answer_has_a_time_and_no_size():
    metrics = Metrics()
    metrics.observe_requests()
    async with connected(metrics, 1) as client:
        with pytest.raises(Exception, match="cannot connect"):
            await client.get(ConfigMap, "ns/a")
    labels = {"verb": "GET", "host": "localhost:1"}
    assert metrics.registry.get_sample_value("rest_client_request_duration_seconds_count", labels) == 1
    assert metrics.registry.get_sample_value("rest_client_response_size_bytes_count", labels) is None
