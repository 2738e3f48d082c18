"""O-04: a quiet kind's watch resumes where its bookmarks have come to, also where nothing older is known."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import Process

from hack.field_bench.bench import Programs, Repeat, Run
from hack.field_bench.judge import Judge
from hack.field_bench.program import until
from hack.raw_server import RefusedError
from pyreconcile.testing import ControlPlane, FaultProxy, Match, ProxiedRequest

QUIET = 10
OTHERS = 500
WATCHES = Match(resource="deployments", verb="watch")
NOTIFY = "--watch-progress-notify-interval=5s"


def is_list(request: ProxiedRequest) -> bool:
    return request.resource == "deployments" and (request.verb == "list" or request.streaming_list)


class SecondServer:
    """Another kube-apiserver on the plane's etcd. An async context manager; nothing runs before `start`."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._process: Process | None = None
        self.url = ""
        self.began_at = 0

    async def __aenter__(self) -> SecondServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None

    async def start(self) -> None:
        """Start it, or start it anew: its history then begins where etcd is."""
        await self.stop()
        line = await anyio.Path(f"/proc/{self._plane.pid('kube-apiserver')}/cmdline").read_bytes()
        command = line.decode().split("\0")[:-1]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [f"--secure-port={port}" if part.startswith("--secure-port=") else part for part in command]
        self.url = f"https://127.0.0.1:{port}"
        log = os.open(self._plane.directory / "logs" / "second.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            self._process = await anyio.open_process(command, stdout=log, stderr=log)
        finally:
            os.close(log)
        async with Judge(self._plane.kubeconfig, url=self.url) as judge:
            with anyio.fail_after(60):
                while True:
                    try:
                        answer = await judge.request("GET", "/apis/apps/v1/deployments")
                        break
                    except (OSError, RefusedError):
                        await anyio.sleep(0.2)
        self.began_at = int(answer["metadata"]["resourceVersion"])


@asynccontextmanager
async def writing(run: Run) -> AsyncIterator[None]:
    """Keep writing objects of another kind."""

    async def write() -> None:
        number = OTHERS
        while True:
            number += 1
            await run.judge.create(run.config_maps, {"metadata": {"name": f"other-{number}"}})
            await anyio.sleep(0.5)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        yield
        tasks.cancel_scope.cancel()


async def create_deployment(run: Run, name: str) -> None:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    path = f"/apis/apps/v1/namespaces/{run.namespace}/deployments"
    await run.judge.create(path, {"metadata": {"name": name}, "spec": spec})


@pytest.mark.long
async def test_o_04(repeat: Repeat, programs: Programs):
    async def case(run: Run) -> None:
        judge = run.judge
        for number in range(QUIET):
            await create_deployment(run, f"quiet-{number}")
        control_proxy = await run.another_proxy()
        with control_proxy.drop_bookmarks():
            script = programs("informer")
            informer = await run.start(script, "deployments")
            control = await run.start(script, "deployments", proxy=control_proxy)
            for one in (informer, control):
                await one.says("synced")
                await one.says("reconcile", count=QUIET)
            for number in range(OTHERS):
                await judge.create(run.config_maps, {"metadata": {"name": f"other-{number}"}})
            await run.meeting.do(second.start)
            async with writing(run):
                (watch,) = run.proxy.requests(WATCHES)
                with anyio.fail_after(180):
                    while not (watch.bookmarks and int(watch.bookmarks[-1]) > second.began_at):
                        await anyio.sleep(0.2)
                before = watch.bookmarks[-1]
                resumed = await move(run.proxy)
                assert resumed.query["resourceVersion"] in (before, watch.bookmarks[-1])
                await until(lambda: resumed.status, timeout=10, what="the watch is answered")
                assert resumed.status == 200
                assert resumed.ended is None
                assert len(run.proxy.requests(is_list)) == 1  # the first one
                since = time.monotonic()
                await move(control_proxy)
                # Both watches deliver: a new object comes.
                await create_deployment(run, "later")
                await informer.says("add", name="later", timeout=10)
                await control.says("add", name="later", timeout=10)
                assert len(run.proxy.requests(is_list)) == 1
                relists = control_proxy.requests(is_list, since=since)
                tale = [(one.status, one.query.get("resourceVersion")) for one in control_proxy.requests(WATCHES)]
                assert len(relists) == 1, (second.began_at, tale)
        for one in (informer, control):
            names = [f"quiet-{number}" for number in range(QUIET)]
            told = [line for line in one.told if line["what"] in ("add", "update", "delete", "reconcile")]
            quiet = [line for line in told if line["name"].startswith("quiet-")]
            assert sorted(line["name"] for line in quiet if line["what"] == "add") == names
            assert len(quiet) == 2 * QUIET, quiet  # one add and one reconcile each, at the start
            cached = (await one.ask("cached"))["names"]
            assert [name for name in cached if name.startswith("quiet-")] == names

    async def move(proxy: FaultProxy) -> ProxiedRequest:
        """Point the proxy at the second server and cut once; return the first watch after that."""
        since = time.monotonic()
        proxy.retarget(second.url)
        assert proxy.drop_connections(WATCHES) == 1
        return (await proxy.wait_for(WATCHES, since=since, timeout=10))[0]

    plane = ControlPlane(use_existing=False, extra_args={"etcd": [NOTIFY]})
    async with plane, SecondServer(plane) as second:
        await repeat(case, at_once=10, seconds=900, plane=plane)
