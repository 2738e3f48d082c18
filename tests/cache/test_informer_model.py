"""An informer against a model of its server, under random changes, cuts, expiries and relists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pyreconcile.api import RawObject
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import Backoff, Informer, Reflector, Scope, ServerSupport, Sink, key_of
from pyreconcile.client import TooManyRequestsError

KEYS = st.sampled_from(["n/a", "n/b", "n/c", "m/a", "m/b", "other/x"])


class Mirror:
    """A handler that rebuilds the store from what it is told and checks each call against it."""

    def __init__(self) -> None:
        self.objects: dict[str, RawObject] = {}
        self.faults: list[str] = []

    def on_add(self, obj: RawObject, *, initial: bool) -> None:
        self._expect(key_of(obj) not in self.objects, f"add of a known {key_of(obj)}")
        self.objects[key_of(obj)] = obj

    def on_update(self, old: RawObject, new: RawObject) -> None:
        self._expect(self.objects.get(key_of(new)) is old, f"update of {key_of(new)} from another object than the last")
        self.objects[key_of(new)] = new

    def on_delete(self, obj: RawObject, *, state_unknown: bool) -> None:
        last = self.objects.pop(key_of(obj), None)
        self._expect(last is not None, f"delete of an unknown {key_of(obj)}")
        if state_unknown:
            self._expect(last is obj, f"tombstone of {key_of(obj)} is not the last known object")

    def _expect(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)


class Machine(RuleBasedStateMachine):
    """Steps happen on an event loop that stands still in between."""

    fake_server: type[Any]
    scopes: tuple[Scope, ...] = (Scope(),)
    streaming = True

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.mirrors = [Mirror()]
        self.runner.run(self._start())

    async def _start(self) -> None:
        self.server = self.fake_server(streaming=self.streaming)
        support = ServerSupport(self.streaming)

        def make(scope: Scope, sink: Sink) -> Reflector:
            backoff = Backoff(start=0.0, cap=0.0)
            return Reflector(
                self.server,
                ConfigMap.resource,
                scope,
                sink,
                support=support,
                backoff=backoff,
                lists=anyio.Semaphore(2),
                clock=iter(range(10**9)).__next__,
            )

        self.informer = Informer(ConfigMap, self.scopes, make)
        self.informer.add_index("value", lambda obj: [obj["data"]["value"]])
        self.informer.add_handler(self.mirrors[0])
        self.task = asyncio.get_running_loop().create_task(self.informer.run())
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(60):
            await asyncio.sleep(0)

    def _step(self, action: Callable[[], Any], turns: int = 0) -> None:
        async def act() -> None:
            action()
            for _ in range(turns):
                await asyncio.sleep(0)

        self.runner.run(act())

    @rule(key=KEYS, value=st.sampled_from("xyz"), turns=st.integers(0, 5))
    def put(self, key: str, value: str, turns: int) -> None:
        self._step(lambda: self.server.put(key, data={"value": value}), turns)

    @precondition(lambda self: self.server.objects)
    @rule(data=st.data(), turns=st.integers(0, 5))
    def delete(self, data: st.DataObject, turns: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.server.objects)))
        self._step(lambda: self.server.delete(key), turns)

    @rule(turns=st.integers(0, 5))
    def cut(self, turns: int) -> None:
        self._step(self.server.cut, turns)

    @rule()
    def hold(self) -> None:
        self._step(self.server.hold)

    @rule(turns=st.integers(0, 5))
    def release(self, turns: int) -> None:
        self._step(self.server.release, turns)

    @rule()
    def bookmark(self) -> None:
        self._step(self.server.bookmark)

    @rule()
    def expire(self) -> None:
        def expire() -> None:
            self.server.compact()
            self.server.cut()

        self._step(expire)

    @rule(turns=st.integers(1, 5))
    def shed_load(self, turns: int) -> None:
        def fail() -> None:
            self.server.failure = TooManyRequestsError("busy")
            self.server.cut()

        self._step(fail, turns)
        self.server.failure = None

    @precondition(lambda self: len(self.mirrors) < 4)
    @rule()
    def late_handler(self) -> None:
        mirror = Mirror()
        self.mirrors.append(mirror)
        self._step(lambda: self.informer.add_handler(mirror))

    @rule()
    def settle(self) -> None:
        """In 2 and 10: once everything was delivered, store, handlers and server agree."""
        self._step(self.server.release)
        self.runner.run(self._settle())
        wanted = {
            key: obj
            for key, obj in self.server.objects.items()
            if any(scope.covers(obj["metadata"]["namespace"]) for scope in self.scopes)
        }
        assert {key: self.informer.store.get(key) for key in self.informer.store.keys()} == wanted  # noqa: SIM118
        for mirror in self.mirrors:
            assert mirror.objects == wanted

    @invariant()
    def every_call_fits_the_one_before(self) -> None:
        assert [fault for mirror in self.mirrors for fault in mirror.faults] == []

    @invariant()
    def indexes_fit_the_objects(self) -> None:
        store = self.informer.store
        found: dict[str, list[str]] = {}
        for obj in store.values():
            found.setdefault(obj["data"]["value"], []).append(key_of(obj))
        assert {value: store.index_keys("value", value) for value in store.index_values("value")} == found

    def teardown(self) -> None:
        async def stop() -> None:
            self.informer.stop()
            await self.task

        self.settle()
        self.runner.run(stop())
        self.runner.close()


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("namespaces", [("",), ("n", "m")])
@pytest.mark.rules("IN-10", "IN-17", "U-48", "U-50")
def test_in_2_no_event_is_lost_or_doubled_whatever_happens(
    fake_server: Any, streaming: bool, namespaces: tuple[str, ...]
):
    machine = type(
        "Machine",
        (Machine,),
        {"fake_server": fake_server, "streaming": streaming, "scopes": tuple(map(Scope, namespaces))},
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
