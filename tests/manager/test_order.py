"""Start and stop order, errors and grace, on virtual time (rules MG-1 to MG-6, LE-8, LE-10)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import TaskStatus

from pyreconcile.client import ConnectionLostError, connect
from pyreconcile.election import ElectionOptions, LeadershipLostError, NotLeaderError
from pyreconcile.manager import GracefulTimeoutError

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


class FakeElector:
    """Is elected after a while; may lose later."""

    def __init__(self, log: list[str], *, after: float = 1, loses_at: float | None = None) -> None:
        self.options = ElectionOptions(name="lock", namespace="ns", identity="a")
        self.elected = anyio.Event()
        self._log = log
        self._after = after
        self._loses_at = loses_at

    def still_leader(self) -> bool:
        return self.elected.is_set()

    def check(self) -> None:
        if not self.still_leader():
            raise NotLeaderError("not leading")

    def check_health(self) -> None:
        pass

    def observe(self, **callbacks: Any) -> None:
        pass

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        self._log.append("election begins")
        try:
            with anyio.move_on_after(self._after):
                await stop.wait()
                return
            self._log.append("elected")
            self.elected.set()
            with anyio.move_on_after(float("inf") if self._loses_at is None else self._loses_at):
                await stop.wait()
                return
            raise LeadershipLostError("lost")
        finally:
            self._log.append("election ended")


def fill(manager: Any, recorder: Any, **stop_takes: float) -> None:
    for group in ("http", "webhooks", "caches", "others", "warmup", "leader_only"):
        for number in (1, 2):
            runnable = recorder.runnable(f"{group}{number}", up_after=1, stop_takes=stop_takes.get(group, 1))
            getattr(manager._lifecycle, group).add(runnable)


def first(log: list[str], text: str) -> int:
    return next(index for index, line in enumerate(log) if text in line)


def last(log: list[str], text: str) -> int:
    return max(index for index, line in enumerate(log) if text in line)


@pytest.mark.rules("MG-1", "MG-2", "U-61", "U-62", "LE-8")
async def test_mg_1_and_mg_2_start_order_and_stop_order(local_manager: Callable[..., Any], recorder: Any):
    log = recorder.log
    async with local_manager(elector=FakeElector(log)) as manager:
        fill(manager, recorder)
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            await tasks.start(manager.run, stop)
            assert now() == 3  # http, webhooks and caches are up, one after the other
            await manager.elected.wait()
            await anyio.sleep(2)
            stop.set()
    starts = ["http", "webhooks", "caches", "others", "warmup", "election", "leader_only"]
    ends = ["others", "leader_only", "caches", "webhooks", "http", "election"]
    for early, late in itertools.pairwise(starts):
        begins = ("1 begins", "2 begins") if late != "election" else (" begins",)
        assert all(last(log, f"{early}") >= 0 and first(log, early) < first(log, f"{late}{begin}") for begin in begins)
    for early, late in itertools.pairwise(ends):
        stopping = f"{late}1 stopping" if late != "election" else "election ended"
        assert last(log, f"{early}1 ended") < first(log, stopping)
        assert last(log, f"{early}2 ended") < first(log, stopping)
    # What was warm ends beside the others, and before the caches that feed it.
    assert first(log, "warmup1 stopping") < last(log, "others2 ended")
    assert last(log, "warmup2 ended") < first(log, "caches1 stopping")


@pytest.mark.rules("MG-2")
async def test_the_event_recorder_ends_last(local_manager: Callable[..., Any], recorder: Any):
    log = recorder.log
    async with local_manager(elector=FakeElector(log)) as manager:
        fill(manager, recorder)
        record = manager._broadcaster.run

        async def write_events(stop: anyio.Event) -> None:
            await record(stop)
            log.append("events ended")

        manager._broadcaster.run = write_events
        await run_and_stop(manager, anyio.Event(), 10)
    assert log[-2:] == ["election ended", "events ended"]


class Warm:
    """Is warm from before the election, and works after it."""

    name = "warm"
    needs_warmup = True

    def __init__(self, log: list[str], *, leader_only: bool = True) -> None:
        self.needs_leader_election = leader_only
        self._log = log

    async def warm_up(self, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
        self._log.append("warming up")
        task_status.started()
        await stop.wait()
        self._log.append("cold")

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
        self._log.append("working")
        task_status.started()
        await stop.wait()


@pytest.mark.rules("MG-3", "U-29")
async def test_mg_3_what_needs_warmup_is_in_both_groups(local_manager: Callable[..., Any], recorder: Any):
    log = recorder.log
    async with local_manager(elector=FakeElector(log, after=5)) as manager:
        manager.add(Warm(log))
        manager.add(Warm(log, leader_only=False))  # runs at once: nothing to be warmed up for
        await run_and_stop(manager, anyio.Event(), 10)
    assert log == ["working", "warming up", "election begins", "elected", "working", "cold", "election ended"]


async def test_mg_1_the_next_group_waits_until_this_one_is_up(local_manager: Callable[..., Any], recorder: Any):
    async with local_manager() as manager:
        manager._lifecycle.webhooks.add(recorder.runnable("webhook", up_after=50))
        manager.add(recorder.runnable("other", leader=False))
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.run, stop)
            await anyio.sleep(49)
            assert recorder.log == ["webhook begins"]
            await anyio.sleep(2)
            assert "other begins" in recorder.log
            stop.set()


async def test_mg_3_a_runnable_that_says_nothing_is_leader_only(local_manager: Callable[..., Any], recorder: Any):
    async with local_manager(elector=FakeElector(recorder.log, after=10)) as manager:
        manager.add(recorder.runnable("silent"))
        manager.add(recorder.runnable("leader", leader=True))
        manager.add(recorder.runnable("everywhere", leader=False))
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.run, stop)
            await anyio.sleep(9)
            assert "everywhere begins" in recorder.log
            assert "silent begins" not in recorder.log
            assert not manager.elected.is_set()
            await anyio.sleep(2)
            assert {"silent begins", "leader begins"} <= set(recorder.log)
            stop.set()


@pytest.mark.rules("U-62")
async def test_mg_4_added_while_running_starts_at_once_and_while_stopping_is_an_error(
    local_manager: Callable[..., Any], recorder: Any
):
    async with local_manager() as manager:
        manager.add(recorder.runnable("early", stop_takes=5))
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            await tasks.start(manager.run, stop)
            await manager.elected.wait()
            manager.add(recorder.runnable("late"))
            manager.add(recorder.runnable("late other", leader=False))
            await anyio.sleep(1)
            assert {"early begins", "late begins", "late other begins"} <= set(recorder.log)
            stop.set()
            await anyio.sleep(1)
            with pytest.raises(RuntimeError, match=r"'later'.*stopping"):
                manager.add(recorder.runnable("later"))
        with pytest.raises(RuntimeError, match="stopping"):
            manager.add(recorder.runnable("later"))


async def test_mg_4_a_leader_only_runnable_added_before_election_waits_for_it(
    local_manager: Callable[..., Any], recorder: Any
):
    async with local_manager(elector=FakeElector(recorder.log, after=5)) as manager:
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            await tasks.start(manager.run, stop)
            manager.add(recorder.runnable("late"))
            await anyio.sleep(4)
            assert "late begins" not in recorder.log
            await anyio.sleep(2)
            assert "late begins" in recorder.log
            stop.set()


async def test_mg_4_running_twice_is_an_error(local_manager: Callable[..., Any]):
    async with local_manager() as manager:
        stop = anyio.Event()
        stop.set()
        await manager.run(stop)
        with pytest.raises(RuntimeError, match="already"):
            await manager.run(stop)


async def test_mg_5_runs_out_of_grace_with_an_error_that_names_the_time(
    local_manager: Callable[..., Any], recorder: Any
):
    async with local_manager(graceful_shutdown_timeout=7) as manager:
        manager.add(recorder.runnable("slow", stop_takes=100))
        manager.add(recorder.runnable("quick", stop_takes=1))
        stop = anyio.Event()
        stop_at = 2.0
        with pytest.raises(GracefulTimeoutError, match=r"7 s .*'slow'") as raised:
            await run_and_stop(manager, stop, stop_at)
        assert "quick" not in str(raised.value)
        assert now() == stop_at + 7
    assert recorder.log[-2:] == ["slow cancelled", "slow ended"]


async def run_and_stop(manager: Any, stop: anyio.Event, stop_at: float) -> None:
    """Run, setting ``stop`` after a while; what run raises comes bare."""

    async def later() -> None:
        await anyio.sleep(stop_at)
        stop.set()

    task = asyncio.ensure_future(later())
    try:
        await manager.run(stop)
    finally:
        await task


@pytest.mark.rules("U-62")
async def test_mg_5_grace_zero_does_not_wait_and_is_no_error(local_manager: Callable[..., Any], recorder: Any):
    async with local_manager(graceful_shutdown_timeout=0) as manager:
        fill(manager, recorder, leader_only=100)
        await run_and_stop(manager, anyio.Event(), 10)
        assert now() == 10
    assert "leader_only1 cancelled" in recorder.log


@pytest.mark.rules("U-62")
async def test_mg_5_negative_grace_waits_for_ever(local_manager: Callable[..., Any], recorder: Any):
    async with local_manager(graceful_shutdown_timeout=-1) as manager:
        manager.add(recorder.runnable("slow", stop_takes=100_000))
        await run_and_stop(manager, anyio.Event(), 1)
        assert now() == 100_001


@pytest.mark.rules("U-63")
async def test_mg_5_a_runnables_error_and_a_stop_error_come_back_together(
    local_manager: Callable[..., Any], recorder: Any
):
    async with local_manager(graceful_shutdown_timeout=3) as manager:
        manager.add(recorder.runnable("broken", fail_at=2))
        manager.add(recorder.runnable("slow", stop_takes=100))
        with pytest.raises(ExceptionGroup) as raised:
            await manager.run()
    assert [str(error) for error in raised.value.exceptions] == [
        "broken failed",
        "graceful_shutdown_timeout: 3 s were not enough to stop 'slow'",
    ]


async def test_mg_5_errors_after_stop_began_are_only_logged(local_manager: Callable[..., Any], recorder: Any):
    async with local_manager() as manager:
        manager.add(recorder.runnable("sore loser", fail_in_stop=RuntimeError("while stopping")))
        await run_and_stop(manager, anyio.Event(), 1)
    assert "sore loser fails" in recorder.log


class AwaitsCancelled:
    """Awaits a task that something else has cancelled."""

    name = "victim"

    def __init__(self, *, while_stopping: bool) -> None:
        self._while_stopping = while_stopping

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
        if self._while_stopping:
            await stop.wait()
        task = asyncio.ensure_future(asyncio.sleep(10))
        task.cancel()
        await task


async def test_mg_5_a_cancellation_error_while_stopping_is_not_reported(
    local_manager: Callable[..., Any], recorder: Any, capsys: pytest.CaptureFixture[str]
):
    async with local_manager() as manager:
        manager.add(AwaitsCancelled(while_stopping=True))
        manager.add(recorder.runnable("worker", stop_takes=5))
        await run_and_stop(manager, anyio.Event(), 1)
        assert now() == 6
    assert "failed" not in capsys.readouterr().out


async def test_mg_6_a_cancellation_error_that_nobody_asked_for_is_an_error(
    local_manager: Callable[..., Any], recorder: Any
):
    async with local_manager() as manager:
        manager.add(recorder.runnable("worker", stop_takes=5))
        manager.add(AwaitsCancelled(while_stopping=False))
        with pytest.raises(RuntimeError, match="'victim': a task that it awaited was cancelled"):
            await manager.run()
    assert recorder.log[-2:] == ["worker stopping", "worker ended"]


@pytest.mark.parametrize("group", ["http", "webhooks", "caches", "others", "leader_only"])
async def test_mg_6_the_first_error_stops_all_and_comes_bare(
    local_manager: Callable[..., Any], recorder: Any, group: str
):
    async with local_manager() as manager:
        fill(manager, recorder)
        error = OSError("no such port")
        getattr(manager._lifecycle, group).add(recorder.runnable("broken", fail_at=2, error=error))
        with pytest.raises(OSError, match="no such port") as raised:
            await manager.run()
        assert raised.value is error
    begun = {line.removesuffix(" begins") for line in recorder.log if line.endswith(" begins")}
    ended = {line.removesuffix(" ended") for line in recorder.log if line.endswith(" ended")}
    assert begun == ended
    assert len(asyncio.all_tasks()) == 1


async def test_mg_6_a_group_does_not_start_after_an_earlier_one_failed(
    local_manager: Callable[..., Any], recorder: Any
):
    class Broken:
        name = "broken"

        async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
            raise OSError("cannot listen")

    async with local_manager() as manager:
        fill(manager, recorder)
        manager._lifecycle.webhooks.add(Broken())
        with pytest.raises(OSError, match="cannot listen"):
            await manager.run()
    assert not any(line.startswith(("caches", "others", "leader_only")) for line in recorder.log)


async def test_mg_6_no_task_is_left_though_a_runnable_ends_late(local_manager: Callable[..., Any], recorder: Any):
    class Stubborn:
        name = "stubborn"

        async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(50)
                recorder.log.append("stubborn ended")

    async with local_manager(graceful_shutdown_timeout=1) as manager:
        manager.add(Stubborn())
        with pytest.raises(GracefulTimeoutError):
            await run_and_stop(manager, anyio.Event(), 1)
    assert recorder.log == ["stubborn ended"]
    assert len(asyncio.all_tasks()) == 1


async def test_mg_6_elected_is_set_without_an_election(local_manager: Callable[..., Any]):
    async with local_manager() as manager:
        assert manager.still_leader()
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            await tasks.start(manager.run, stop)
            await manager.elected.wait()
            stop.set()


async def test_a_runnable_that_returns_early_is_no_error(local_manager: Callable[..., Any]):
    class Brief:
        name = "brief"
        needs_leader_election = False

        async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
            return

    async with local_manager() as manager:
        manager.add(Brief())
        manager._lifecycle.webhooks.add(Brief())
        await run_and_stop(manager, anyio.Event(), 5)
        assert now() == 5


async def test_cancelling_run_stops_at_once_but_ends_the_election_last(
    local_manager: Callable[..., Any], recorder: Any
):
    async with local_manager(elector=FakeElector(recorder.log)) as manager:
        fill(manager, recorder, leader_only=1000)
        with anyio.move_on_after(20):
            await manager.run()
        assert now() == 20
    assert recorder.log[-1] == "election ended"
    assert "leader_only1 cancelled" in recorder.log


@pytest.mark.rules("U-61")
async def test_le_8_losing_leadership_ends_all_without_grace(local_manager: Callable[..., Any], recorder: Any):
    async with local_manager(elector=FakeElector(recorder.log, loses_at=30)) as manager:
        fill(manager, recorder, leader_only=1000, caches=1000)
        with pytest.raises(LeadershipLostError):
            await manager.run()
        assert now() == 34
    assert "leader_only1 cancelled" in recorder.log


async def test_le_8_losing_leadership_during_an_ordered_stop_ends_the_grace(
    local_manager: Callable[..., Any], recorder: Any
):
    async with local_manager(
        elector=FakeElector(recorder.log, loses_at=30), graceful_shutdown_timeout=10_000
    ) as manager:
        manager.add(recorder.runnable("slow", stop_takes=5_000))
        with pytest.raises(LeadershipLostError):
            await run_and_stop(manager, anyio.Event(), 20)
        assert now() == 31
    assert "slow cancelled" in recorder.log


@pytest.mark.rules("U-61")
async def test_le_8_the_lease_is_held_until_all_workers_ended(local_manager: Callable[..., Any], recorder: Any):
    async with local_manager(elector=FakeElector(recorder.log)) as manager:
        manager.add(recorder.runnable("slow", stop_takes=20))
        await run_and_stop(manager, anyio.Event(), 10)
        assert now() == 30
    assert recorder.log[-2:] == ["slow ended", "election ended"]


@pytest.mark.rules("LE-8")
@pytest.mark.parametrize("stops_first", [False, True])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_le_8_an_election_that_ends_by_itself_is_a_loss(
    local_manager: Callable[..., Any], recorder: Any, stops_first: bool, is_cancelled: bool
):
    class Resigns(FakeElector):
        async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
            self.elected.set()
            await anyio.sleep(30)
            recorder.log.append("resigned")
            if is_cancelled:
                task = asyncio.ensure_future(asyncio.sleep(10))
                task.cancel()
                await task

    async with local_manager(elector=Resigns(recorder.log), graceful_shutdown_timeout=10_000) as manager:
        manager.add(recorder.runnable("slow", stop_takes=5_000))
        with pytest.raises(LeadershipLostError, match="the election ended"):
            await run_and_stop(manager, anyio.Event(), 20 if stops_first else 40)
    assert recorder.log.index("resigned") < recorder.log.index("slow cancelled")


class Stuck:
    """Does not end when it is cancelled, as one that waits for a thread."""

    name = "stuck"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(self._seconds)


@pytest.mark.rules("LE-8")
@pytest.mark.parametrize("grace", [5, -1])
async def test_le_8_a_runnable_that_does_not_end_after_the_loss_ends_the_process(
    local_manager: Callable[..., Any], recorder: Any, grace: float, capsys: pytest.CaptureFixture[str]
):
    exits: list[tuple[int, float]] = []
    async with local_manager(
        elector=FakeElector(recorder.log, loses_at=30),
        graceful_shutdown_timeout=grace,
        exit_process=lambda code: exits.append((code, now())),
    ) as manager:
        manager.add(recorder.runnable("quick"))
        manager.add(Stuck(500))
        with pytest.raises(LeadershipLostError):
            await manager.run()
    assert exits == [(1, 31 + 10)]
    logged = next(line for line in capsys.readouterr().out.splitlines() if "runnables_do_not_end" in line)
    assert "'stuck'" in logged
    assert "quick" not in logged


@pytest.mark.rules("MG-5")
@pytest.mark.parametrize("owns_process", [False, True])
async def test_mg_5_a_runnable_that_never_ends_ends_the_process_that_the_manager_owns(
    local_manager: Callable[..., Any], owns_process: bool, capsys: pytest.CaptureFixture[str]
):
    exits: list[tuple[int, float]] = []
    async with local_manager(
        graceful_shutdown_timeout=5,
        handle_signals=owns_process,
        exit_process=lambda code: exits.append((code, now())),
    ) as manager:
        manager.add(Stuck(500))
        with pytest.raises(GracefulTimeoutError, match="'stuck'"):
            await run_and_stop(manager, anyio.Event(), 20)
    assert exits == ([(1, 20 + 5 + 10)] if owns_process else [])
    assert "runnables_do_not_end" in capsys.readouterr().out


async def test_le_10_a_stop_while_waiting_for_election_never_leads(local_manager: Callable[..., Any], recorder: Any):
    async with local_manager(elector=FakeElector(recorder.log, after=15)) as manager:
        manager.add(recorder.runnable("leader"))
        manager.add(recorder.runnable("slow other", leader=False, stop_takes=20))
        await run_and_stop(manager, anyio.Event(), 10)
        assert now() == 30
    assert "elected" not in recorder.log
    assert "leader begins" not in recorder.log
    assert recorder.log.index("election ended") < recorder.log.index("slow other ended")


@pytest.mark.looptime(False)  # noqa: FBT003 - a connection is tried, which takes real time
async def test_le_11_writes_are_refused_while_not_leading(local_manager: Callable[..., Any], recorder: Any):
    from pyreconcile.api.core_v1 import ConfigMap

    config_map = ConfigMap.from_dict({"metadata": {"name": "x", "namespace": "ns"}})
    async with local_manager(elector=FakeElector(recorder.log)) as manager:
        for client in (manager.client, manager.live_client):
            with pytest.raises(NotLeaderError):
                await client.create(config_map)
        with pytest.raises(ConnectionLostError):  # not refused: tried, with nobody there
            await manager.unfenced_client.create(config_map)


async def test_before_leading_runs_between_election_and_leader_only(local_manager: Callable[..., Any], recorder: Any):
    async def prepare() -> None:
        recorder.log.append("prepare begins")
        await anyio.sleep(3)
        recorder.log.append("prepare ended")

    async with local_manager(elector=FakeElector(recorder.log)) as manager:
        manager.add(recorder.runnable("leader"))
        manager.before_leading(prepare)
        await run_and_stop(manager, anyio.Event(), 10)
        with pytest.raises(RuntimeError, match="before_leading"):
            manager.before_leading(prepare)
    assert recorder.log[:5] == ["election begins", "elected", "prepare begins", "prepare ended", "leader begins"]


async def test_before_leading_a_failure_stops_the_manager(local_manager: Callable[..., Any], recorder: Any):
    async def fail() -> None:
        raise ValueError("no permission")

    async with local_manager() as manager:
        manager.add(recorder.runnable("leader"))
        manager.before_leading(fail)
        with pytest.raises(ValueError, match="no permission"):
            await manager.run()
    assert recorder.log == []


@pytest.mark.rules("MG-6")
async def test_before_leading_a_cancellation_that_nobody_asked_for_is_an_error(
    local_manager: Callable[..., Any], recorder: Any
):
    async def await_cancelled() -> None:
        task = asyncio.ensure_future(asyncio.sleep(10))
        task.cancel()
        await task

    async with local_manager() as manager:
        manager.add(recorder.runnable("leader"))
        manager.before_leading(await_cancelled)
        with pytest.raises(RuntimeError, match="before_leading: a task that a hook awaited was cancelled"):
            await manager.run()
    assert recorder.log == []


async def test_used_outside_its_context_the_manager_says_so():
    from pyreconcile.manager import Manager

    manager = Manager()
    for use in (lambda: manager.client, lambda: manager.cache, lambda: manager.recorder("x")):
        with pytest.raises(RuntimeError, match="async with"):
            use()
    with pytest.raises(RuntimeError, match="async with"):
        await manager.run()


async def test_a_manager_that_cannot_be_entered_leaves_no_client_open(
    local_manager: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    closed = []

    @asynccontextmanager
    async def noted(*args: Any, **options: Any) -> AsyncIterator[Any]:
        async with connect(*args, **options) as client:
            try:
                yield client
            finally:
                closed.append(client)

    def fail(*args: Any) -> None:
        raise ValueError("no host name")

    monkeypatch.setattr("pyreconcile.manager._manager.connect", noted)
    monkeypatch.setattr("pyreconcile.manager._manager.EventBroadcaster", fail)
    with pytest.raises(ValueError, match="no host name"):
        async with local_manager():
            pass
    assert len(closed) == 1


async def test_idle_managers_do_not_wake_up(local_manager: Callable[..., Any], recorder: Any):
    """With virtual time, every timer of the loop is a step: an idle manager must take none."""
    async with local_manager() as manager:
        manager.add(recorder.runnable("idle"))
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            await tasks.start(manager.run, stop)
            await anyio.sleep(1)
            timers = [handle for handle in asyncio.get_running_loop()._scheduled if not handle._cancelled]  # type: ignore[attr-defined]
            assert timers == []
            stop.set()
