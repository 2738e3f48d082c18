"""Keeping a key from the workers until the watch has shown what its reconcile wrote.

A reconcile that writes causes events for its own key. Taken up at once, the key would be reconciled while those events
still come in, wait in its first read for them (RY-7), and be reconciled once more for the last of them: four or five
times for one change. Kept until they are all in, it is reconciled once more, and sees everything. No event is lost:
what arrives meanwhile marks the key, as it does while a worker has it (WQ-4, PQ-8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, MutableSequence
from typing import TYPE_CHECKING

from pyreconcile.controller._own_events import OwnEvents
from pyreconcile.controller._types import Request
from pyreconcile.workqueue import PriorityQueue, Queue

if TYPE_CHECKING:
    from pyreconcile.cache import PendingWrite

HOLD_LIMIT = 1.0
"""Seconds after which a key is let go although the watch has not shown its writes; reads then wait for them."""


class Hold:
    """Calls ``done`` for a key once all of its writes were seen, or after `HOLD_LIMIT`.

    Args:
        queue: has the key in the hands of a worker.
        key: what was reconciled.
        writes: what the watch has yet to show.
        done: frees the key.
    """

    __slots__ = ("_done", "_key", "_left", "_loop", "_timer")

    def __init__(
        self,
        queue: PriorityQueue[Request] | Queue[Request],
        key: Request,
        writes: Collection[PendingWrite],
        done: Callable[[Request], None],
    ) -> None:
        self._done = done
        self._key = key
        self._left = len(writes)
        self._loop = loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = loop.call_later(HOLD_LIMIT, self._release)
        queue.work_ended(key)
        for write in writes:
            write.then(self._seen)

    def _seen(self) -> None:
        self._left -= 1
        if self._left == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            # The handlers of the event come first in the loop's order, so the key is marked by the time it is free.
            self._loop.call_soon(self._done, self._key)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer = None
            self._done(self._key)


def release(
    queue: PriorityQueue[Request] | Queue[Request],
    key: Request,
    writes: MutableSequence[PendingWrite],
    own: OwnEvents | None = None,
) -> None:
    """Free a key after its reconcile, at once or when its writes were seen; empties ``writes``."""
    pending = [write for write in writes if not write.seen]
    done = queue.done if own is None else own.ending(writes)
    writes.clear()
    if pending:
        Hold(queue, key, pending, done)
    else:
        done(key)
