"""Says again and again that something has not come yet."""

from __future__ import annotations

import asyncio
from types import TracebackType

import structlog


class Reminder:
    """Logs a warning each ``period`` seconds inside its block, or until `stop`; it can be entered again after that.

    Args:
        log: where to.
        event: name of the log event; ``seconds`` tells since when.
        period: seconds between two warnings.
    """

    def __init__(self, log: structlog.typing.FilteringBoundLogger, event: str, period: float) -> None:
        self._log = log
        self._event = event
        self._period = period
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._wait(loop, loop.time())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Be quiet; what was waited for is there, or not any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, loop: asyncio.AbstractEventLoop, since: float) -> None:
        self._timer = loop.call_later(self._period, self._remind, loop, since)

    def _remind(self, loop: asyncio.AbstractEventLoop, since: float) -> None:
        self._log.warning(self._event, seconds=round(loop.time() - since))
        self._wait(loop, since)
