"""Whether the API server serves PodGroups at all, and a source of their events that waits until it does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskStatus

from pyreconcile.api import KubeObject
from pyreconcile.client import ApiError, Client, ForbiddenError, NotFoundError
from pyreconcile.controller import RequestQueue, Source

log = structlog.get_logger()

_BELIEVED: Final = 60.0
"""Seconds that a good answer holds; a PodGroup that cannot be made ends it at once."""
_DOUBTED: Final = 5.0
"""Seconds that a bad answer holds."""


class Support:
    """Knows whether PodGroups of one kind can be used. Asks the server when its last answer is too old.

    Args:
        client: asks; live, and not tied to an election: the webhooks of every replica want to know.
        kind: the kind of PodGroup.
        namespace: where to ask, for managers that may only look into their own; empty for everywhere.
        advice: what to do when the kind is not served.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        kind: type[KubeObject],
        *,
        namespace: str = "",
        advice: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._kind = kind
        self._namespace = namespace
        self._advice = advice
        self._clock = clock
        self._problem: str | None = None
        self._asked = 0.0
        self._lock = anyio.Lock()

    async def problem(self) -> str:
        """Return what stands against using PodGroups, with what to do about it; empty when nothing does.

        A server that gives no answer leaves the last one standing. Cancelling loses nothing.
        """
        if not self._is_stale():
            return self._problem or ""
        async with self._lock:
            if self._is_stale():
                before = self._problem
                self._problem = await self._ask()
                self._asked = self._clock()
                if self._problem != before and (self._problem or before):
                    log.warning("pod_groups", served=not self._problem, problem=self._problem)
        return self._problem or ""

    def doubt(self) -> None:
        """Ask anew next time: something has shown that the last answer may be wrong."""
        self._problem = None

    def _is_stale(self) -> bool:
        if self._problem is None:
            return True
        return self._clock() - self._asked >= (_DOUBTED if self._problem else _BELIEVED)

    async def _ask(self) -> str:
        resource = self._kind.resource
        what = f"{resource.plural}.{resource.group} ({resource.version})"
        try:
            async for _ in self._client.list(self._kind, namespace=self._namespace, limit=1):
                break
        except NotFoundError:
            return f"this API server does not serve {what}: {self._advice}"
        except ForbiddenError as error:
            return f"{what} may not be listed, give the manager's role get, list, watch, create and patch: {error}"
        except (ApiError, OSError) as error:
            return self._problem if self._problem is not None else f"{what} could not be listed: {error}"
        return ""


class SupportedSource:
    """A source that starts once PodGroups are served; until then it counts as synced, so that nothing waits for it."""

    def __init__(self, support: Support, source: Source) -> None:
        self._support = support
        self._source = source

    @property
    def name(self) -> str:
        """Names the source in logs and errors."""
        return self._source.name

    async def run(self, queue: RequestQueue, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Feed the queue until cancelled."""
        status: Any = task_status
        while await self._support.problem():
            status.started()
            status = anyio.TASK_STATUS_IGNORED
            await anyio.sleep(_DOUBTED)
        await self._source.run(queue, task_status=status)
