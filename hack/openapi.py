"""What an API server says about its kinds: version, discovery and OpenAPI v3 documents."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient

Schema = dict[str, Any]


@dataclass
class Server:
    """What one API server says about itself."""

    version: str
    schemas: dict[str, Schema] = field(default_factory=dict)
    # (group/version, kind) → plural, namespaced
    resources: dict[tuple[str, str], tuple[str, bool]] = field(default_factory=dict)
    kinds: set[tuple[str, str]] = field(default_factory=set)


async def read_server(kubeconfig: str | None, group_versions: Iterable[str]) -> Server:
    """Read version, discovery and OpenAPI documents; without a kubeconfig where kubectl finds it."""
    api: ApiClient = await config.new_client_from_config(kubeconfig)
    async with api:
        pool = api.rest_client.pool_manager
        host = str(api.configuration.host)

        async def get(path: str) -> Any:
            async with pool.get(host + path, headers={"Accept": "application/json"}) as response:
                response.raise_for_status()
                return json.loads(await response.read())

        server = Server((await get("/version"))["gitVersion"])
        for group_version in group_versions:
            path = f"apis/{group_version}" if "/" in group_version else f"api/{group_version}"
            server.schemas |= (await get(f"/openapi/v3/{path}"))["components"]["schemas"]
            for entry in (await get(f"/{path}"))["resources"]:
                # A sub-resource may have a kind of another group: statefulsets/scale has autoscaling/v1 Scale.
                own = "/".join(part for part in (entry.get("group"), entry.get("version")) if part)
                server.kinds.add((own or group_version, entry["kind"]))
                if "/" not in entry["name"]:
                    server.resources[group_version, entry["kind"]] = (entry["name"], entry["namespaced"])
    return server
