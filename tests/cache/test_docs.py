"""The example of docs/cache.md runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from pyreconcile.api.core_v1 import ConfigMap

pytestmark = pytest.mark.plane

PAGE = Path(__file__).parents[2] / "docs" / "cache.md"


async def test_example_of_the_guide_does_what_it_says(client: Any, namespace: str):
    names: dict[str, Any] = {}
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    exec(compile(code, str(PAGE), "exec"), names)
    metadata = {"name": "wall", "namespace": namespace, "labels": {"paint": "yes"}}
    await client.create(ConfigMap(metadata=metadata, data={"color": "red"}))
    seen: list[str] = []

    async def use(cached: Any, handler: Any) -> None:
        await names["paint"](cached, handler)
        with anyio.fail_after(30):
            while len(handler.seen) < 2:
                await anyio.sleep(0.01)
        seen.extend(handler.seen)

    await names["main"](client, namespace, use)
    assert seen == ["wall is red", "wall turns blue"]
