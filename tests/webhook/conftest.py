"""What several test files of the webhook server need."""

from __future__ import annotations

import anyio
import pytest


class Hanging:
    """A handler that does not answer; tells when it was called, and when it was cancelled."""

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.cancelled = anyio.Event()

    async def wait(self, request):
        self.started.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()


@pytest.fixture
async def hanging():
    return Hanging()
