"""O-02: a version that has expired is given up at once: one list, and a watch from there."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import anyio

from hack.field_bench.bench import Case, Programs, Repeat, Run, restart_api_server
from pyreconcile.testing import ControlPlane, Match, ProxiedRequest

CREATED = 50
WINDOW = 10.0


def is_list(request: ProxiedRequest) -> bool:
    return request.resource == "configmaps" and (request.verb == "list" or request.streaming_list)


def is_watch(request: ProxiedRequest) -> bool:
    return request.resource == "configmaps" and request.watch and not request.streaming_list


def carries_a_version(request: ProxiedRequest) -> bool:
    return is_list(request) and bool(request.query.get("resourceVersion") or request.query.get("continue"))


async def expired(run: Run, script: Path, plane: ControlPlane, variant: str) -> None:
    judge, proxy = run.judge, run.proxy

    async def restart() -> None:
        await restart_api_server(plane)

    async with judge.watching(run.config_maps):
        await judge.create(run.config_maps, {"metadata": {"name": "first"}})
        informer = await run.start(script, "configmaps")
        await informer.says("add", name="first")
        await informer.says("synced")
        with ExitStack() as faults:
            cut = faults.enter_context(ExitStack())
            cut.enter_context(proxy.cut())
            for number in range(CREATED):
                await judge.create(run.config_maps, {"metadata": {"name": f"c{number:02}"}})
            await run.meeting.do(restart)
            if variant in "bc":
                faults.enter_context(proxy.answer(410, is_watch, times=1))
            if variant == "c":
                faults.enter_context(proxy.answer(410, carries_a_version, times=1))
            reopened = time.monotonic()
            cut.close()
            await anyio.sleep(WINDOW)
        requests = [request for request in proxy.requests(since=reopened) if is_list(request) or is_watch(request)]
        lists = [request for request in requests if is_list(request)]
        watches = [request for request in requests if is_watch(request)]
        tale = "\n".join(f"{one.time - reopened:6.2f} {one.verb} {one.status} {one.query}" for one in requests)
        assert requests, "no request within 10 s"
        assert is_watch(requests[0]), tale
        expired_at = requests[0].query["resourceVersion"]
        # A list may ask for a state that is not older than the version; a watch from it has no sense any more.
        assert [one.query["resourceVersion"] for one in watches].count(expired_at) == 1, tale
        assert len(lists) <= (3 if variant == "c" else 2), tale
        assert len(watches) <= 3, tale
        if variant != "a":
            assert requests[0].status == 410, tale
        if variant == "c":
            assert not lists[-1].query.get("resourceVersion"), tale
        assert lists[-1].status == 200, tale
        # A streaming list goes on as the watch.
        assert lists[-1].streaming_list or watches[-1].time > lists[-1].time, tale
        assert [one for one in requests if one.watch and one.status == 200][-1].ended is None, tale

        added = [line["name"] for line in informer.said("add", since=reopened)]
        assert sorted(added) == [f"c{number:02}" for number in range(CREATED)]
        assert not informer.said("delete")
        assert not informer.said("update")
        assert (await informer.ask("cached"))["names"] == [*sorted(added), "first"]
        await judge.create(run.config_maps, {"metadata": {"name": "later"}})
        await informer.says("add", name="later", timeout=30)
        assert not proxy.requests(Match(verb="list"), since=time.monotonic())


async def test_o_02(repeat: Repeat, programs: Programs, restartable_plane: ControlPlane):
    def variant(name: str) -> Case:
        async def case(run: Run) -> None:
            await expired(run, programs("informer"), restartable_plane, name)

        return case

    await repeat({name: variant(name) for name in "abc"}, at_once=3, seconds=300, plane=restartable_plane)
