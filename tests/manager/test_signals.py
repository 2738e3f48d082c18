"""SIGTERM and SIGINT (rule MG-7)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_mg_7_one_signal_stops_in_good_order(local_manager: Callable[..., Any], recorder: Any, number: int):
    before = signal.getsignal(number)
    exits: list[int] = []
    with anyio.fail_after(10):
        async with local_manager(handle_signals=True, exit_process=exits.append) as manager:
            manager.add(recorder.runnable("worker", stop_takes=0.05))
            async with anyio.create_task_group() as tasks:
                await tasks.start(manager.run)
                while not recorder.log:
                    await anyio.sleep(0.01)
                os.kill(os.getpid(), number)
    assert recorder.log == ["worker begins", "worker stopping", "worker ended"]
    assert exits == []
    assert signal.getsignal(number) is before


async def test_mg_7_a_second_signal_exits_with_1_even_when_the_loop_is_blocked(
    local_manager: Callable[..., Any], recorder: Any
):
    exits: list[int] = []
    with anyio.fail_after(10):
        opened = local_manager(handle_signals=True, exit_process=exits.append)
        async with opened as manager, anyio.create_task_group() as tasks:
            await tasks.start(manager.run)
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
            for _ in range(200):
                time.sleep(0.01)  # noqa: ASYNC251 - the loop is blocked on purpose
                if exits:
                    break
            assert exits == [1]


async def test_mg_7_off_the_main_thread_signals_are_refused(local_manager: Callable[..., Any]):
    async def run_there() -> None:
        async with local_manager(handle_signals=True) as manager:
            with pytest.raises(RuntimeError, match="handle_signals"):
                await manager.run()

    await anyio.to_thread.run_sync(lambda: anyio.run(run_there))
