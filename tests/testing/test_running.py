"""Running a manager in the background of a test."""

from __future__ import annotations

import anyio
import pytest

from pyreconcile.testing import running


class FakeManager:
    """Only what `running` asks of a manager."""

    def __init__(self, *, fails_after=None, never_starts=False):
        self.fails_after = fails_after
        self.never_starts = never_starts
        self.ended = ""

    async def run(self, stop, *, task_status):
        try:
            if self.never_starts:
                await anyio.sleep_forever()
            task_status.started()
            if self.fails_after is not None:
                await anyio.sleep(self.fails_after)
                raise RuntimeError("the manager broke")
            await stop.wait()
            self.ended = "in order"
        finally:
            self.ended = self.ended or "cut short"


async def test_mg_1_the_block_runs_between_start_and_orderly_stop():
    manager = FakeManager()
    async with running(manager):
        assert manager.ended == ""
    assert manager.ended == "in order"


async def test_mg_1_a_failing_block_raises_its_own_error_after_an_orderly_stop():
    manager = FakeManager()
    with pytest.raises(AssertionError, match=r"^mine$"):
        async with running(manager):
            raise AssertionError("mine")
    assert manager.ended == "in order"


async def test_mg_1_pytest_outcomes_pass_through():
    with pytest.raises(pytest.fail.Exception, match="said so"):
        async with running(FakeManager()):
            pytest.fail("said so")


async def test_mg_1_a_failing_manager_ends_the_block_with_its_error():
    with pytest.raises(RuntimeError, match="the manager broke"):
        async with running(FakeManager(fails_after=0.01)):
            await anyio.sleep(10)


async def test_mg_1_cancellation_passes_through():
    manager = FakeManager()
    with anyio.move_on_after(0.05) as scope:
        async with running(manager):
            await anyio.sleep(10)
    assert scope.cancelled_caught
    assert manager.ended == "cut short"


async def test_mg_1_a_start_that_takes_too_long_is_an_error():
    with pytest.raises(TimeoutError):
        async with running(FakeManager(never_starts=True), timeout=0.05):
            pass


async def test_mg_1_a_manager_that_fails_while_starting_raises_its_error():
    class Broken(FakeManager):
        async def run(self, stop, *, task_status):
            raise RuntimeError("no start")

    with pytest.raises(RuntimeError, match="no start"):
        async with running(Broken()):
            pytest.fail("the block must not run")


@pytest.fixture
async def in_background():
    manager = FakeManager()
    async with running(manager):
        yield manager
    assert manager.ended == "in order"


async def test_mg_1_it_can_be_used_in_a_fixture(in_background):
    assert in_background.ended == ""
