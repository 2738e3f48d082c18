"""Options of one controller."""

from __future__ import annotations

from dataclasses import dataclass

from pyreconcile.workqueue import DEFAULT_AGEING, LOW_PRIORITY, RateLimiter


@dataclass(frozen=True, kw_only=True)
class ControllerOptions:
    """How one controller works (RC-8).

    Attributes:
        max_concurrent_reconciles: objects reconciled at once; never one object twice. None takes the manager's
            setting for the kind, then its default, then 1 (RC-9).
        cache_sync_timeout: seconds that the sources may take until their initial lists were handled; 0 is no
            limit.
        reconciliation_timeout: seconds one reconcile may take; 0 is no limit.
        recover_panic: whether an exception that is none of the expected ones is retried like any other error; if not,
            it ends the controller, and with it the manager (RC-5).
        expected_errors: further exceptions that are ordinary errors and no panics, beside `EXPECTED_ERRORS`.
        needs_leader_election: whether the controller runs on the leader only.
        enable_warmup: whether a standby watches too, so that it has its queue ready when elected (RC-15). Without
            ``needs_leader_election`` it has no effect.
        rate_limiter: backoff after errors; by default per object, 5 ms doubling to 1000 s, counting at most one
            failure per backoff window (WQ-12, WQ-18). Give each controller a limiter of its own.
        use_priority_queue: whether news goes before the initial list and resyncs (PQ-1).
        skip_name_validation: allow a name that another controller of the process has (RC-7). None takes the manager's
            setting.
        low_priority: priority of the initial list and of resyncs (PQ-13); with 0 they wait in line like all else.
        ageing: priority points that waiting work gains per second; see `PriorityQueue`.
        skip_own_writes: whether an object is left in peace when nothing but its own reconcile's writes happened
            meanwhile. Only for a reconciler that goes on from what a write returned to the end of its work: one that
            writes and returns, to go on when it hears of that, would not hear of it. Events of every other writer,
            deletes, and all that a new list brings count as before.
    """

    max_concurrent_reconciles: int | None = None
    cache_sync_timeout: float = 120.0
    reconciliation_timeout: float = 0.0
    recover_panic: bool = True
    expected_errors: tuple[type[Exception], ...] = ()
    needs_leader_election: bool = True
    enable_warmup: bool = False
    rate_limiter: RateLimiter | None = None
    use_priority_queue: bool = True
    skip_name_validation: bool | None = None
    low_priority: int = LOW_PRIORITY
    ageing: float = DEFAULT_AGEING
    skip_own_writes: bool = False

    def __post_init__(self) -> None:
        if self.max_concurrent_reconciles is not None and self.max_concurrent_reconciles < 1:
            raise ValueError(f"max_concurrent_reconciles={self.max_concurrent_reconciles}: give 1 or more")
        for name in ("cache_sync_timeout", "reconciliation_timeout"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: give seconds, 0 or more")
        for error in self.expected_errors:
            if not (isinstance(error, type) and issubclass(error, Exception)):
                raise TypeError(f"expected_errors: {error!r} is no exception class; give a tuple of classes")
