"""Random operations on both queues against models that are slow and plain: the table of one key's life, and more.

What holds after every step: no key is in the hands of two workers, no add is lost, the earliest delay and the highest
priority count, and all counters agree.
"""

from __future__ import annotations

import asyncio
from abc import ABCMeta, abstractmethod

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pyreconcile.workqueue import ItemExponentialRateLimiter, PriorityQueue, Queue, ShutDown

KEYS = st.sampled_from("abcde")
PRIORITIES = st.integers(-2, 2)
RUN = settings(max_examples=120, stateful_step_count=50, deadline=None)


def step(coroutine):
    """Run a coroutine up to where it waits; return whether it ended, and with what exception."""
    try:
        coroutine.send(None)
    except StopIteration:
        return True, None
    except ShutDown as end:
        return True, end
    coroutine.close()
    return False, None


class AbstractMachine(ABCMeta, type(RuleBasedStateMachine)):
    """Refuses to run a machine that leaves a method of its model out."""


class Model(RuleBasedStateMachine, metaclass=AbstractMachine):
    """What both queues have in common; the order of keys is up to the two below."""

    def __init__(self, clock, metrics, queue) -> None:
        super().__init__()
        self.clock, self.metrics, self.queue = clock, metrics, queue
        self.waiting: dict[str, tuple[int, float, int]] = {}  # key → (priority, time, order)
        self.held: set[str] = set()
        self.ended: set[str] = set()  # held, though the work on it is over
        self.began: dict[str, float] = {}
        self.owed: set[str] = set()  # added, and not handed out since
        self.failures: dict[str, int] = {}
        self.adds = self.retries = self.taken = self.finished = 0
        self.closed = self.stopped = self.draining = False

    @abstractmethod
    def model_now(self, key: str, priority: int) -> None:
        """A key is added."""

    @abstractmethod
    def model_later(self, key: str, delay: float, priority: int) -> None:
        """A key is added with a delay."""

    @abstractmethod
    def model_due(self, key: str, priority: int, at: float) -> None:
        """The delay of a key has ended."""

    @abstractmethod
    def next_key(self) -> tuple[str, int] | None:
        """Return what a get hands out, with its priority."""

    @abstractmethod
    def model_take(self, key: str) -> None:
        """A key is handed out."""

    def apart(self, key: str, delay: float) -> float:
        """Make a delay end when no other ends: the classic queue does not promise which of two goes first then."""
        while delay > 0 and any(at == self.clock.now + delay for k, (_, at, _) in self.waiting.items() if k != key):
            delay += 0.015625
        return delay

    @rule(key=KEYS, priority=PRIORITIES)
    def add(self, key, priority):
        if not self.closed:
            self.owed.add(key)
            self.model_now(key, priority)
        self.queue.add(key, priority=priority)

    @rule(key=KEYS, delay=st.integers(-1, 6), priority=PRIORITIES)
    def add_after(self, key, delay, priority):
        delay = self.apart(key, delay)
        if not self.closed:
            self.owed.add(key)
            self.model_later(key, delay, priority)
        self.queue.add_after(key, delay, priority=priority)

    @rule(key=KEYS, priority=PRIORITIES, after=st.sampled_from([0, 0.75, 30.0]))
    def add_rate_limited(self, key, priority, after):
        delay = min(8.0, 2.0 ** self.failures.get(key, 0))
        if after:
            delay = min(delay, after)
        while self.apart(key, delay) != delay:
            self.advance(0.0078125)
        if not self.closed:
            self.failures[key] = self.failures.get(key, 0) + 1
            self.owed.add(key)
            self.model_later(key, delay, priority)
        self.queue.add_with(key, after=after, rate_limited=True, priority=priority)

    @rule(key=KEYS)
    def forget(self, key):
        self.failures.pop(key, None)
        self.queue.forget(key)

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.0, 20.0]))
    def advance(self, seconds):
        self.clock.advance(seconds)
        for key, (priority, at, _) in sorted(self.waiting.items(), key=lambda item: item[1][1:]):
            if at <= self.clock.now:
                del self.waiting[key]
                self.model_due(key, priority, at)

    @rule()
    def get(self):
        expected = None if self.stopped else self.next_key()
        taken = self.queue.take()
        assert taken == expected
        if expected is None:
            ended, error = step(self.queue.get())
            assert ended == (error is not None), "a get has nothing to give here"
            assert ended == self.over()
            return
        key = expected[0]
        assert key not in self.held, "one key, two workers"
        self.model_take(key)
        self.held.add(key)
        self.began[key] = self.clock.now
        self.taken += 1

    @abstractmethod
    def over(self) -> bool:
        """Tell whether a get that finds nothing ends."""

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def done(self, data):
        self.finish(data.draw(st.sampled_from(sorted(self.held))))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def work_ended(self, data):
        """The key stays with its worker: neither is it handed out, nor does it count as worked on."""
        key = data.draw(st.sampled_from(sorted(self.held)))
        if key not in self.ended:
            self.ended.add(key)
            self.finished += 1
        self.queue.work_ended(key)

    def finish(self, key: str) -> None:
        self.held.discard(key)
        if key in self.ended:
            self.ended.discard(key)
        else:
            self.finished += 1
        self.queue.done(key)
        self.queue.done(key)  # a second time changes nothing
        self.queue.work_ended(key)

    @precondition(lambda self: self.taken > 3)
    @rule()
    def shutdown(self):
        self.closed = self.stopped = True
        self.draining = False
        self.waiting.clear()
        self.queue.shutdown()

    @precondition(lambda self: not self.closed and self.taken > 3)
    @rule()
    def drain(self):
        self.closed = self.draining = True
        self.waiting.clear()
        ended, _ = step(self.queue.shutdown_with_drain())
        assert ended == self.drained()

    @abstractmethod
    def drained(self) -> bool:
        """Tell whether a drain has nothing more to wait for."""

    @invariant()
    def counts_agree(self):
        assert (self.metrics.adds, self.metrics.retries) == (self.adds, self.retries)
        assert (len(self.metrics.waits), len(self.metrics.works)) == (self.taken, self.finished)
        for key in "abcde":
            assert self.queue.num_requeues(key) == self.failures.get(key, 0)
        working = [self.clock.now - self.began[key] for key in self.held - self.ended]
        assert self.metrics.unfinished() == (pytest.approx(sum(working)), max(working, default=0))
        assert self.clock.armed <= 1, "one timer for all delays"
        if self.closed:
            assert self.clock.armed == 0

    def teardown(self):
        """Let workers take everything: an add that was accepted in time is never lost."""
        closed = self.closed
        while self.held:
            self.finish(min(self.held))
        self.advance(100)
        while not self.stopped and self.next_key() is not None:
            self.get()
            self.finish(min(self.held))
        assert self.queue.take() is None
        if not closed:
            assert not self.owed


class PriorityQueueModel(Model):
    """A ready key's points grow with time (PQ-15); the key with the most goes first, and of those the first that came.

    Points are told here as they were, or will have been, at time 0.
    """

    AGEING = 0.0

    def __init__(self, clock, metrics) -> None:
        limiter = ItemExponentialRateLimiter(1, 8)
        queue: PriorityQueue[str] = PriorityQueue(
            clock=clock, metrics=metrics, ageing=self.AGEING, rate_limiter=limiter
        )
        super().__init__(clock, metrics, queue)
        self.ready: dict[str, tuple[int, float, int]] = {}  # key → (priority, points, order)
        self.order = 0

    def apart(self, key, delay):
        return delay

    def points(self, priority, at):
        return priority - at * self.AGEING

    def model_due(self, key, priority, at):
        self.order += 1
        self.adds += 1
        self.ready[key] = (priority, self.points(priority, at), self.order)

    def model_now(self, key, priority):
        if key in self.ready:
            old, points, _ = self.ready[key]
            if priority > old:
                self.order += 1
                self.ready[key] = (priority, max(points, self.points(priority, self.clock.now)), self.order)
            return
        known = self.waiting.pop(key, None)
        self.model_due(key, priority if known is None else max(priority, known[0]), self.clock.now)

    def model_later(self, key, delay, priority):
        if delay > 0:
            self.retries += 1
        if delay <= 0 or key in self.ready:
            self.model_now(key, priority)
            return
        at = self.clock.now + delay
        known = self.waiting.get(key)
        if known is None or priority > known[0]:
            self.order += 1
            order = self.order
        else:
            order = known[2]
        if known is not None:
            priority, at = max(priority, known[0]), min(at, known[1])
        self.waiting[key] = (priority, at, order)

    def next_key(self):
        free = [(-points, order, key) for key, (_, points, order) in self.ready.items() if key not in self.held]
        if not free:
            return None
        key = min(free)[2]
        return key, self.ready[key][0]

    def model_take(self, key):
        del self.ready[key]
        if key not in self.waiting:
            self.owed.discard(key)

    def over(self):
        return self.stopped or (self.closed and not self.ready)

    def drained(self):
        return not self.ready and not self.held

    @invariant()
    def states_agree(self):
        assert len(self.queue) == len(self.ready)
        assert repr(self.queue) == (
            f"<PriorityQueue '' ready={len(self.ready)} waiting={len(self.waiting)} locked={len(self.held)}>"
        )
        if not self.closed:
            assert self.owed == self.ready.keys() | self.waiting.keys(), "no add may be lost"
        depths = {priority: number for priority, number in self.metrics.depths.items() if number}
        expected: dict[int, int] = {}
        for priority, _, _ in self.ready.values():
            expected[priority] = expected.get(priority, 0) + 1
        assert depths == expected


class AgeingQueueModel(PriorityQueueModel):
    AGEING = 0.25


class QueueModel(Model):
    def __init__(self, clock, metrics) -> None:
        limiter = ItemExponentialRateLimiter(1, 8)
        super().__init__(clock, metrics, Queue(clock=clock, metrics=metrics, rate_limiter=limiter))
        self.listed: list[str] = []
        self.dirty: set[str] = set()

    def model_due(self, key, priority, at):
        if key not in self.dirty:
            self.adds += 1
            self.dirty.add(key)
            if key not in self.held:
                self.listed.append(key)

    def model_now(self, key, priority):
        self.model_due(key, priority, self.clock.now)

    def model_later(self, key, delay, priority):
        self.retries += 1
        if delay <= 0:
            self.model_due(key, priority, self.clock.now)
            return
        at = self.clock.now + delay
        self.waiting[key] = (0, min(at, self.waiting[key][1]) if key in self.waiting else at, 0)

    def next_key(self):
        return (self.listed[0], 0) if self.listed else None

    def model_take(self, key):
        self.listed.remove(key)
        self.dirty.discard(key)
        if key not in self.waiting:
            self.owed.discard(key)

    def finish(self, key):
        super().finish(key)
        if key in self.dirty:
            self.listed.append(key)

    @precondition(lambda self: self.taken > 3)
    @rule()
    def shutdown(self):
        super().shutdown()
        self.stopped = False  # what is listed is still handed out

    def over(self):
        return self.closed and not (self.draining and self.dirty)

    def drained(self):
        return not self.held

    @invariant()
    def states_agree(self):
        assert len(self.queue) == len(self.listed)
        assert repr(self.queue) == (
            f"<Queue '' listed={len(self.listed)} waiting={len(self.waiting)} processing={len(self.held)}>"
        )
        if not self.closed:
            assert self.owed == self.dirty | self.waiting.keys(), "no add may be lost"
        assert self.metrics.depths[0] == len(self.listed)


def in_a_loop(model, clock_type, metrics_type):
    """Run a state machine; a get that waits asks for the running loop."""

    async def run():
        run_state_machine_as_test(lambda: model(clock_type(), metrics_type()), settings=RUN)

    asyncio.run(run())


@pytest.mark.rules(
    "U-10", "U-11", "U-12", "U-13", "U-15", "PQ-2", "PQ-4", "PQ-5", "PQ-6", "PQ-7", "PQ-8", "PQ-10", "PQ-12"
)
def test_u_16_priority_queue_agrees_with_its_model(manual_clock_type, recorded_metrics_type):
    in_a_loop(PriorityQueueModel, manual_clock_type, recorded_metrics_type)


@pytest.mark.rules("PQ-15")
def test_u_16_priority_queue_with_ageing_agrees_with_its_model(manual_clock_type, recorded_metrics_type):
    in_a_loop(AgeingQueueModel, manual_clock_type, recorded_metrics_type)


@pytest.mark.rules("WQ-1", "WQ-2", "WQ-3", "WQ-4", "WQ-6", "WQ-8", "WQ-9", "WQ-10")
def test_u_16_classic_queue_agrees_with_its_model(manual_clock_type, recorded_metrics_type):
    in_a_loop(QueueModel, manual_clock_type, recorded_metrics_type)
