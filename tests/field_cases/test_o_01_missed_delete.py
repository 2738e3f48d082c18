"""O-01: what was deleted while the watch was cut is noticed, once, whether or not the server still has the history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from hack.field_bench.bench import Programs, Repeat, Run, restart_api_server
from hack.field_bench.stalls import stalls
from pyreconcile.testing import ControlPlane, Match

LABELS = {"cached": "yes"}
PROMPTLY = 5.0


async def missed_delete(run: Run, script: Path, restart: Callable[[], Awaitable[None]] | None) -> None:
    judge, path = run.judge, run.config_maps

    async def create(name: str) -> None:
        owner = await judge.create(path, {"metadata": {"name": f"owner-of-{name}"}})
        reference = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": f"owner-of-{name}",
            "uid": owner["metadata"]["uid"],
        }
        metadata = {"name": name, "labels": LABELS, "ownerReferences": [reference]}
        await judge.create(path, {"metadata": metadata})

    async with judge.watching(path, {"labelSelector": "cached=yes"}) as record, stalls() as held_up:
        for name in "abc":
            await create(name)
        informer = await run.start(script, "configmaps", "cached=yes")
        for name in "abc":
            await informer.says("reconcile", name=name)
        await informer.says("synced")
        with run.proxy.cut():
            await judge.delete(f"{path}/b")
            await create("d")
            # The program has met the cut.
            await anyio.sleep(1)
            cut_over = len(informer.told)
            if restart is not None:
                await run.meeting.do(restart)
        reopened = anyio.current_time()
        told = [
            await informer.says("delete", name="b"),
            await informer.says("add", name="d"),
            await informer.says("reconcile", name="d"),
            await informer.says("reconcile owner", name="owner-of-b", count=2),
        ]
        last = max(line["time"] for line in told)
        assert last - reopened - await held_up(reopened, last) < PROMPTLY
        await anyio.sleep(2)  # nothing more may come
        live = sorted(name for name, obj in (await judge.list(path)).items() if obj["metadata"].get("labels") == LABELS)
        assert live == ["a", "c", "d"]
        assert (await informer.ask("cached"))["names"] == live

        (deletion,) = informer.said("delete")
        assert (deletion["name"], deletion["labels"], deletion["owners"]) == ("b", LABELS, ["owner-of-b"])
        assert len(informer.said("add", name="d")) == 1
        assert len(informer.said("reconcile", name="b")) == 2
        assert len(informer.said("reconcile", name="d")) == 1
        for name in ("a", "c"):
            again = [line["what"] for line in informer.told[cut_over:] if line.get("name") == name]
            allowed = [] if restart is None else ["update", "reconcile"]
            assert again in ([], allowed), again
        changes = [(seen.change, seen.name) for seen in record.changes]
        assert changes == [*(("ADDED", name) for name in "abc"), ("DELETED", "b"), ("ADDED", "d")]


async def test_o_01_4a_within_the_history(repeat: Repeat, programs: Programs):
    async def case(run: Run) -> None:
        await missed_delete(run, programs("informer"), None)
        lists = run.proxy.requests(lambda request: request.verb == "list" or request.streaming_list)
        assert len(lists) == 1, lists

    await repeat(case, at_once=5, seconds=240)


async def test_o_01_4b_after_a_restart_of_the_server(
    repeat: Repeat, programs: Programs, restartable_plane: ControlPlane
):
    async def restart() -> None:
        await restart_api_server(restartable_plane)

    async def case(run: Run) -> None:
        await missed_delete(run, programs("informer"), restart)
        assert len(run.proxy.requests(Match(resource="configmaps", verb="watch"))) >= 2

    await repeat(case, at_once=5, seconds=300, plane=restartable_plane)
