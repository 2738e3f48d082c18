"""The processes of a plane, with small shell programs in place of components."""

from __future__ import annotations

import os
import signal

import anyio
import pytest

from pyreconcile.testing import ControlPlaneError
from pyreconcile.testing._processes import Processes

FOREVER = "while :; do sleep 0.02; done"
STUBBORN = ["sh", "-c", f"trap '' TERM; echo ready; {FOREVER}"]


@pytest.fixture
async def start(tmp_path):
    started = []

    def make(*, stop_timeout=5.0, scratch=None):
        processes = Processes(tmp_path / "lock", stop_timeout=stop_timeout, scratch=scratch)
        started.append(processes)
        return processes

    yield make
    for processes in started:
        await processes.stop()


async def test_te_2_stop_ends_the_store_last(start, tmp_path):
    processes = start()
    await processes.wait_ready()
    order = tmp_path / "order"
    for name in ("etcd", "other"):
        script = f"trap 'sleep 0.1; echo {name} >> {order}; exit 0' TERM; touch {tmp_path}/{name}; {FOREVER}"
        await processes.start(name, ["sh", "-c", script], None)
    with anyio.fail_after(5):
        while not all((tmp_path / name).exists() for name in ("etcd", "other")):
            await anyio.sleep(0.01)
    await processes.stop()
    assert order.read_text().split() == ["other", "etcd"]


async def test_te_2_sigkill_follows_sigterm(start, tmp_path, gone):
    processes = start(stop_timeout=0.2)
    await processes.wait_ready()
    log = tmp_path / "log"
    pid = await processes.start("stubborn", STUBBORN, log)
    with anyio.fail_after(5):
        while not log.read_text():
            await anyio.sleep(0.01)
    await processes.end("stubborn", signal.SIGTERM)
    assert processes.exit_code("stubborn") == -signal.SIGKILL
    assert gone(pid)


async def test_te_2_the_whole_group_is_ended(start, tmp_path, gone):
    processes = start()
    await processes.wait_ready()
    log = tmp_path / "log"
    await processes.start("family", ["sh", "-c", "sleep 60 & echo $!; wait"], log)
    with anyio.fail_after(5):
        while not log.read_text():
            await anyio.sleep(0.01)
    await processes.stop()
    assert gone(int(log.read_text()))


async def test_te_2_exit_codes_are_seen_and_output_is_kept(start, tmp_path):
    processes = start()
    await processes.wait_ready()
    await processes.start("brief", ["sh", "-c", "echo said; exit 3"], tmp_path / "log")
    with anyio.fail_after(5):
        while processes.exit_code("brief") is None:
            await anyio.sleep(0.01)
    assert processes.exit_code("brief") == 3
    assert (tmp_path / "log").read_text() == "said\n"


async def test_te_2_a_missing_program_is_an_error(start):
    processes = start()
    await processes.wait_ready()
    with pytest.raises(ControlPlaneError, match=r"ghost could not be started.*No such file"):
        await processes.start("ghost", ["/no/such/program"], None)


async def test_te_2_one_plane_a_directory(start):
    await start().wait_ready()
    second = start()
    with pytest.raises(ControlPlaneError, match="already running"):
        await second.wait_ready()


async def test_te_2_the_scratch_directory_goes_unless_kept(start, tmp_path):
    for keep in (False, True):
        scratch = tmp_path / f"scratch-{keep}"
        scratch.mkdir()
        processes = start(scratch=scratch)
        await processes.wait_ready()
        if keep:
            processes.keep_scratch()
        await processes.stop()
        assert os.path.exists(scratch) is keep  # noqa: ASYNC240


async def test_te_2_a_killed_supervisor_leaves_no_scratch_directory_or_process(start, tmp_path, gone):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    processes = start(scratch=scratch)
    await processes.wait_ready()
    pid = await processes.start("component", ["sleep", "60"], None)
    os.kill(processes.supervisor_pid, signal.SIGKILL)
    await processes.stop()
    assert gone(pid)
    assert not os.path.exists(scratch)  # noqa: ASYNC240
