"""The examples of docs/webhooks.md run as they are printed."""

import re
import sys
from pathlib import Path
from types import ModuleType

import anyio
import pytest

from pyreconcile.webhook import WebhookOptions, webhook_configurations

PAGE = Path(__file__).parents[2] / "docs" / "webhooks.md"


@pytest.fixture
def example(monkeypatch):
    module = ModuleType("webhooks_example")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # pydantic looks names up there
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    return module.__dict__


async def test_examples_of_the_guide_do_what_it_says(example):
    await example["try_it"]()


async def test_webhooks_of_the_guide_can_be_registered(example):
    server = example["WebhookServer"](WebhookOptions(bind_address="127.0.0.1:0"))
    example["register"](server)
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run, stop)
        configurations = webhook_configurations(server, example["WEBHOOKS"], mutating_name="m", validating_name="v")
        stop.set()
    assert [len(configuration["webhooks"]) for configuration in configurations] == [1, 1]


async def test_conversions_and_policies_of_the_guide_do_what_it_says(example):
    server = example["WebhookServer"](WebhookOptions(bind_address="127.0.0.1:0"))
    example["register_conversions"](server)
    old = {
        "apiVersion": "labs.example.dev/v1beta1",
        "kind": "Pool",
        "metadata": {"name": "a"},
        "spec": {"address": "h:1"},
    }
    request = {"uid": "1", "desiredAPIVersion": "labs.example.dev/v1", "objects": [old]}
    review = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request}
    answer = await server.call("/convert", review)
    assert answer["response"]["convertedObjects"][0]["spec"] == {"host": "h", "port": 1}
    policy, binding = example["NO_LATEST"].objects()
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
