"""Random operations on the priority queue against a model that is slow and plain (upstream test 16)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyreconcile.workqueue import ItemExponentialRateLimiter, PriorityQueue

KEYS = st.sampled_from("abcde")
PRIORITIES = st.integers(-2, 2)


def build_machine(clock_type, metrics_type):
    class PriorityQueueMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.clock = clock_type()
            self.metrics = metrics_type()
            self.queue: PriorityQueue[str] = PriorityQueue(
                clock=self.clock, metrics=self.metrics, ageing=0, rate_limiter=ItemExponentialRateLimiter(1, 8)
            )
            self.ready: dict[str, tuple[int, int]] = {}  # key → (priority, order)
            self.waiting: dict[str, tuple[int, float]] = {}  # key → (priority, time)
            self.locked: set[str] = set()
            self.owed: set[str] = set()  # added, and not handed out since
            self.failures: dict[str, int] = {}
            self.order = self.adds = self.retries = 0

        def model_ready(self, key: str, priority: int) -> None:
            self.order += 1
            self.adds += 1
            self.ready[key] = (priority, self.order)

        def model_add(self, key: str, delay: float, priority: int) -> None:
            self.owed.add(key)
            if delay > 0:
                self.retries += 1
            if key in self.ready:
                if priority > self.ready[key][0]:
                    self.order += 1
                    self.ready[key] = (priority, self.order)
            elif delay <= 0:
                known = self.waiting.pop(key, None)
                self.model_ready(key, priority if known is None else max(priority, known[0]))
            else:
                at = self.clock.now + delay
                known = self.waiting.get(key)
                self.waiting[key] = (priority, at) if known is None else (max(priority, known[0]), min(at, known[1]))

        @rule(key=KEYS, priority=PRIORITIES)
        def add(self, key, priority):
            self.model_add(key, 0, priority)
            self.queue.add(key, priority=priority)

        @rule(key=KEYS, delay=st.integers(-1, 6), priority=PRIORITIES)
        def add_after(self, key, delay, priority):
            # No two entries become due at one time: their mutual order is not promised.
            while delay > 0 and any(at == self.clock.now + delay for k, (_, at) in self.waiting.items() if k != key):
                delay += 0.125
            self.model_add(key, delay, priority)
            self.queue.add_after(key, delay, priority=priority)

        @rule(key=KEYS, priority=PRIORITIES)
        def add_rate_limited(self, key, priority):
            delay = min(8.0, 2.0 ** self.failures.get(key, 0))
            while any(at == self.clock.now + delay for k, (_, at) in self.waiting.items() if k != key):
                self.clock.advance(0.015625)
                self.model_time()
            self.failures[key] = self.failures.get(key, 0) + 1
            self.model_add(key, delay, priority)
            self.queue.add_rate_limited(key, priority=priority)

        @rule(key=KEYS)
        def forget(self, key):
            self.failures.pop(key, None)
            self.queue.forget(key)

        @rule(seconds=st.sampled_from([0.25, 1.0, 3.0, 20.0]))
        def advance(self, seconds):
            self.clock.advance(seconds)
            self.model_time()

        def model_time(self) -> None:
            for key, (priority, at) in sorted(self.waiting.items(), key=lambda item: item[1][1]):
                if at <= self.clock.now:
                    del self.waiting[key]
                    self.model_ready(key, priority)

        @rule()
        def take(self):
            free = [(-priority, order, key) for key, (priority, order) in self.ready.items() if key not in self.locked]
            taken = self.queue.take()
            if not free:
                assert taken is None
                return
            priority, _, key = min(free)
            assert taken == (key, -priority)
            del self.ready[key]
            self.locked.add(key)
            self.owed.discard(key)

        @precondition(lambda self: self.locked)
        @rule(data=st.data())
        def done(self, data):
            key = data.draw(st.sampled_from(sorted(self.locked)))
            self.locked.discard(key)
            self.queue.done(key)

        @invariant()
        def counts_agree(self):
            assert len(self.queue) == len(self.ready)
            assert self.owed == self.ready.keys() | self.waiting.keys(), "no add may be lost"
            assert (self.metrics.adds, self.metrics.retries) == (self.adds, self.retries)
            for key in "abcde":
                assert self.queue.num_requeues(key) == self.failures.get(key, 0)
            depths = {p: n for p, n in self.metrics.depths.items() if n}
            expected: dict[int, int] = {}
            for priority, _ in self.ready.values():
                expected[priority] = expected.get(priority, 0) + 1
            assert depths == expected
            assert self.clock.armed <= 1

        def teardown(self):
            for key in list(self.locked):
                self.locked.discard(key)
                self.queue.done(key)
            self.clock.advance(100)
            self.model_time()
            while self.ready:
                self.take()
            assert self.queue.take() is None
            assert not self.owed

    return PriorityQueueMachine


@pytest.mark.usefixtures("clock")
def test_pq_16_random_operations_agree_with_the_model(manual_clock_type, recorded_metrics_type):
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        build_machine(manual_clock_type, recorded_metrics_type),
        settings=settings(max_examples=60, stateful_step_count=40, deadline=None),
    )
