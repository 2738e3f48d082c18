"""The examples of docs/client.md run as they are printed."""

import re
from pathlib import Path

import pytest

from pyreconcile.api.core_v1 import ConfigMap, ServiceAccount
from pyreconcile.client import retry_on_conflict

pytestmark = pytest.mark.plane

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


@pytest.fixture
def example():
    names = {}
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)), str(PAGE), "exec"), names)
    return names


async def test_the_tour_of_the_guide(example, control_plane, namespace, capsys):
    await example["tour"](namespace, control_plane.kubeconfig)
    assert capsys.readouterr().out == 'NotFound 404 configmaps "tour" not found\n'


async def test_the_other_examples_of_the_guide(example, client, namespace):
    config = await client.create(ConfigMap(metadata={"name": "a", "namespace": namespace}, data={"n": "1"}))
    assert await example["count"](client, namespace) == 1
    deployment = await example["ensure"](client, config, 0)
    assert deployment.metadata.owner_references[0].controller
    assert (await example["add_one"](client, config.key)).data == {"n": "2"}

    async def observe():
        return await example["observe"](client, await client.get(type(deployment), deployment.key))

    account = await client.create(ServiceAccount(metadata={"name": "robot", "namespace": namespace}))
    assert (await example["token_of"](client, account.key)).count(".") == 2
    observed = await retry_on_conflict(observe, tries=20)
    assert observed.status.collision_count == 1
