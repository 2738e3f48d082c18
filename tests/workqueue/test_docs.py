"""The example of docs/workqueue.md runs as it is printed."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "workqueue.md"


@pytest.mark.looptime
async def test_example_of_the_guide_returns_what_it_says():
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    assert await names["main"]() == ["a", "low", "later"]
