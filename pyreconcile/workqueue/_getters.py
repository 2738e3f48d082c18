"""Tasks that wait for a queue to have something."""

from __future__ import annotations

import asyncio
from collections import deque


class Getters:
    """Waiting tasks in order of arrival; a wake-up that its task cannot use is passed on."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for a wake-up. When the wait ends otherwise, a wake-up that had arrived goes to the next task."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except BaseException:  # cancelled, or the coroutine was closed
            if future.done() and not future.cancelled():
                self.wake()
            elif future in self._waiting:
                self._waiting.remove(future)
            raise

    def wake(self) -> None:
        """Wake the first task that still waits."""
        waiting = self._waiting
        while waiting:
            future = waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake every task."""
        while self._waiting:
            self.wake()

    def __len__(self) -> int:
        return len(self._waiting)
