"""The fixtures, as a user's tests have them."""

from pyreconcile.api.core_v1 import ConfigMap, Namespace


async def test_te_6_client_and_namespace_are_ready_for_use(client, namespace):
    made = await client.create(
        ConfigMap.from_dict({"metadata": {"name": "a", "namespace": namespace}, "data": {"k": "v"}})
    )
    assert made.metadata.uid
    assert (await client.get(Namespace, namespace)).metadata.labels[
        "app.kubernetes.io/managed-by"
    ] == "pyreconcile-testing"
