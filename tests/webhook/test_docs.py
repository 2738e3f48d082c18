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
