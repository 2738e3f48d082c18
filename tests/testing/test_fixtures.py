"""The fixtures, as a user's tests have them."""

import anyio

from pyreconcile.api.core_v1 import ConfigMap, Namespace


async def test_te_6_client_and_namespace_are_ready_for_use(client, namespace):
    made = await client.create(
        ConfigMap.from_dict({"metadata": {"name": "a", "namespace": namespace}, "data": {"k": "v"}})
    )
    assert made.metadata.uid
    assert (await client.get(Namespace, namespace)).metadata.labels[
        "app.kubernetes.io/managed-by"
    ] == "pyreconcile-testing"


async def test_te_4_the_client_has_no_rate_limit(client, namespace):
    # client-go's 5 requests a second, 10 at once, would take 38 s.
    with anyio.fail_after(15):
        async with anyio.create_task_group() as tasks:
            for _ in range(200):
                tasks.start_soon(client.find, ConfigMap, f"{namespace}/none")
