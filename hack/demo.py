"""The main job, shown as it happens: ``make demo``.

A control plane comes up, a manager runs the bundled controllers on it, samples from ``docs/examples`` are applied, and
what becomes of them is shown: a live table on a terminal, plain lines elsewhere. Each act ends with a check; the first
check that fails ends the demo with exit code 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import yaml
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from pyreconcile.api import KubeObject, find_model, unstructured
from pyreconcile.api.core_v1 import ConfigMap, Pod
from pyreconcile.client import ApiError, Client, ConnectOptions, MergePatch, connect
from pyreconcile.testing import ControlPlane, ControlPlaneError, ProgramNotFoundError
from pyreconcile_controllers.leaderworkerset import LeaderWorkerSet
from pyreconcile_controllers.modelcache import ModelCache

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
GROUP = "leaderworkerset.sigs.k8s.io/group-index"
WAIT = 60.0  # seconds that any one step may take


class DemoFailedError(Exception):
    """Something that the demo shows is not so."""


class Stage:
    """What the audience sees: the pods of the namespace as they change, and lines of comment between."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.started = time.monotonic()
        self.pods: dict[str, Pod] = {}
        self.changed = anyio.Event()
        self._live: Live | None = None
        self._lines: dict[str, str] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Draw the live table while the block runs, if there is a terminal."""
        if not self.console.is_terminal:
            yield
            return
        with Live(self._table(), console=self.console, refresh_per_second=10) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        self.console.print(f"[dim]{time.monotonic() - self.started:6.1f}s[/]  {text}", highlight=False)

    def check(self, holds: bool, what: str) -> None:
        """Print a check's outcome.

        Raises:
            DemoFailedError: it does not hold.
        """
        if not holds:
            raise DemoFailedError(what)
        self.passed(what)

    def passed(self, what: str) -> None:
        """Print that something was seen to be so."""
        self.say(f"[green]✓[/] {what}")

    async def until(self, condition: Callable[[], bool], what: str) -> float:
        """Wait until the pods seen satisfy ``condition``; return the seconds it took.

        Raises:
            DemoFailedError: it took longer than WAIT seconds.
        """
        start = time.monotonic()
        with anyio.move_on_after(WAIT):
            while not condition():
                self.changed = anyio.Event()
                await self.changed.wait()
            return time.monotonic() - start
        raise DemoFailedError(f"{what}: not so after {WAIT:.0f} s; pods: {sorted(self._lines.values())}")

    async def follow(self, client: Client, namespace: str) -> None:
        """Keep the table in step with the namespace's pods, until cancelled."""
        async for event in client.watch(Pod, namespace=namespace):
            pod = event.object
            name = pod.metadata.name
            if event.type == "DELETED":
                self.pods.pop(name, None)
                self._show(name, "gone")
            else:
                self.pods[name] = pod
                self._show(name, _state(pod))
            self.changed.set()

    def _show(self, name: str, state: str) -> None:
        if self._lines.get(name) == state:
            return
        self._lines[name] = state
        if self._live:
            self._live.update(self._table())
        else:
            self.say(f"pod {name:<12} {state}")

    def _table(self) -> Table:
        table = Table(title="groups and their pods", title_justify="left")
        for header in ("group", "pod", "role", "state", "uid"):
            table.add_column(header)
        for name, pod in sorted(self.pods.items()):
            labels = pod.metadata.labels
            role = "leader" if labels.get("leaderworkerset.sigs.k8s.io/worker-index") == "0" else "worker"
            state = _state(pod)
            colour = {"Running": "green", "Terminating": "red"}.get(state, "yellow")
            table.add_row(labels.get(GROUP, ""), name, role, f"[{colour}]{state}[/]", pod.metadata.uid[:8])
        return table


def _state(pod: Pod) -> str:
    if pod.metadata.deletion_timestamp:
        return "Terminating"
    return (pod.status and pod.status.phase) or "Pending"


def _running(stage: Stage, count: int) -> bool:
    states = [_state(pod) for pod in stage.pods.values()]
    return len(states) == count and all(state == "Running" for state in states)


def _sample(name: str, namespace: str) -> KubeObject:
    raw: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text())
    model = find_model(raw["apiVersion"], raw["kind"]) or unstructured(raw["apiVersion"], raw["kind"])
    sample = model.from_dict(raw)
    sample.metadata.namespace = namespace
    return sample


async def _until_found(probe: Callable[[], Any], what: str) -> Any:
    with anyio.move_on_after(WAIT):
        while not (found := await probe()):
            await anyio.sleep(0.02)
        return found
    raise DemoFailedError(f"{what}: not so after {WAIT:.0f} s")


async def groups_form(stage: Stage, client: Client, namespace: str) -> None:
    """Two groups of three pods come up, each pod told who its leader is."""
    stage.say("[bold]Groups form[/]: LeaderWorkerSet demo, 2 groups of 3 pods")
    await client.create(_sample("leaderworkerset.yaml", namespace))
    took = await stage.until(lambda: _running(stage, 6), "six pods run")
    stage.passed(f"six pods run after {took:.2f} s")
    worker = stage.pods["demo-1-2"]
    env = {item.name: item.value for item in worker.spec.containers[0].env or []} if worker.spec else {}
    stage.check(
        env.get("LWS_LEADER_ADDRESS") == f"demo-1.demo.{namespace}",
        f"worker demo-1-2 was told its leader: {env.get('LWS_LEADER_ADDRESS')}",
    )

    async def available() -> bool:
        found = await client.get(LeaderWorkerSet, f"{namespace}/demo")
        conditions = found.status.conditions if found.status else []
        return any(c.type == "Available" and c.status == "True" for c in conditions)

    await _until_found(available, "the set is Available")
    stage.passed("the set says Available")


async def worker_is_lost(stage: Stage, client: Client, namespace: str) -> None:
    """One worker's death recreates its whole group, and no other."""
    stage.say("[bold]A worker is lost[/]: pod demo-0-1 is killed")
    before = {name: pod.metadata.uid for name, pod in stage.pods.items()}
    lost, kept = ["demo-0", "demo-0-1", "demo-0-2"], ["demo-1", "demo-1-1", "demo-1-2"]

    def renewed() -> bool:
        return all(
            name in stage.pods
            and stage.pods[name].metadata.uid != before[name]
            and _state(stage.pods[name]) == "Running"
            for name in lost
        )

    await client.delete(Pod, f"{namespace}/demo-0-1", grace_period_seconds=0)
    took = await stage.until(renewed, "group 0 runs again with new pods")
    stage.passed(f"group 0 runs again with three new pods after {took:.2f} s")
    stage.check(all(stage.pods[name].metadata.uid == before[name] for name in kept), "group 1 kept its pods")


async def scale(stage: Stage, client: Client, namespace: str) -> None:
    """Groups are added and taken away whole, the highest first."""
    stage.say("[bold]Scale[/]: to 3 groups, then to 1")
    await client.set_scale(LeaderWorkerSet, f"{namespace}/demo", 3)
    took = await stage.until(lambda: _running(stage, 9), "nine pods run")
    stage.passed(f"nine pods run after {took:.2f} s")
    await client.set_scale(LeaderWorkerSet, f"{namespace}/demo", 1)
    await stage.until(lambda: _running(stage, 3), "three pods are left")
    stage.check(sorted(stage.pods) == ["demo-0", "demo-0-1", "demo-0-2"], "group 0 is left")


async def cache_heals(stage: Stage, client: Client, namespace: str) -> None:
    """A ModelCache's ConfigMap comes back when someone deletes it."""
    stage.say("[bold]A child is deleted[/]: the ConfigMap of ModelCache tiny")
    await client.create(_sample("modelcache.yaml", namespace))
    key = f"{namespace}/tiny-cfg"
    first: ConfigMap = await _until_found(lambda: client.find(ConfigMap, key), "ConfigMap tiny-cfg is made")
    start = time.monotonic()
    await client.delete(ConfigMap, key)

    async def renewed() -> bool:
        found = await client.find(ConfigMap, key)
        return found is not None and found.metadata.uid != first.metadata.uid

    await _until_found(renewed, "ConfigMap tiny-cfg is made anew")
    stage.passed(f"it is back after {time.monotonic() - start:.3f} s")


async def refusals(stage: Stage, client: Client, namespace: str) -> None:
    """Objects that make no sense are refused, with a message that says why."""
    stage.say("[bold]Refused[/]: objects that make no sense")
    cache = ModelCache.from_dict({"metadata": {"name": "no-model", "namespace": namespace}, "spec": {"model": ""}})
    await _refused(stage, client.create(cache), "model must not be empty")
    bounds = {"maxUnavailable": 0, "maxSurge": 0}
    patch = MergePatch({"spec": {"rolloutStrategy": {"rollingUpdateConfiguration": bounds}}})
    await _refused(stage, client.patch(LeaderWorkerSet, f"{namespace}/demo", patch), "must not be 0 when")


async def _refused(stage: Stage, attempt: Any, because: str) -> None:
    try:
        await attempt
    except ApiError as error:
        stage.check(because in str(error), f"refused: {error}")
    else:
        raise DemoFailedError(f"an object was taken that should be refused: {because}")


ACTS = (groups_form, worker_is_lost, scale, cache_heals, refusals)


@asynccontextmanager
async def _manager(kubeconfig: Path, log: Path) -> AsyncIterator[None]:
    """Run ``pyreconcile run --install`` beside the demo; stop it by SIGTERM."""
    command = [sys.executable, "-m", "pyreconcile", "run", "--install", "--no-leader-elect"]
    command += ["--kubeconfig", str(kubeconfig), "--metrics-bind-address", "0"]
    command += ["--health-probe-bind-address", "0", "--webhook-bind-address", "127.0.0.1:0"]
    with log.open("wb") as output:
        async with await anyio.open_process(command, stdout=output, stderr=output) as process:
            try:
                yield
                if process.returncode is not None:
                    raise DemoFailedError(f"the manager ended with code {process.returncode}")
            finally:
                with anyio.CancelScope(shield=True):
                    if process.returncode is None:
                        process.terminate()
                    with anyio.move_on_after(15):
                        await process.wait()
                    if process.returncode is None:
                        process.kill()


async def _play(console: Console) -> None:
    stage = Stage(console)
    namespace = "demo"
    console.print("Starting a Kubernetes control plane (the first time it is built, which takes some minutes) …")
    async with ControlPlane(nodes=4, controller_manager=True, scheduler=True) as plane:
        stage.say(f"control plane is up: etcd, API server, controller manager, scheduler, 4 nodes ({plane.url})")
        log = Path(plane.directory) / "manager.log"
        async with _manager(plane.kubeconfig, log), connect(ConnectOptions(kubeconfig=plane.kubeconfig)) as client:
            try:
                await client.create(unstructured("v1", "Namespace", namespaced=False)(metadata={"name": namespace}))
                await _until_found(lambda: _ready(client, namespace), "the manager serves")
                stage.say("manager runs: CRDs and webhooks are installed")
                async with anyio.create_task_group() as group, stage.open():
                    group.start_soon(stage.follow, client, namespace, name="pods of the demo")
                    for act in ACTS:
                        await act(stage, client, namespace)
                    group.cancel_scope.cancel()
            except BaseException:
                console.print(f"Last lines of the manager's log:\n{_tail(log)}", markup=False, highlight=False)
                raise
        stage.say("manager stopped")
    stage.say("control plane stopped")


async def _ready(client: Client, namespace: str) -> bool:
    """Tell whether CRDs and webhooks are in place, by asking the server for a dry run of the samples."""
    try:
        for sample in ("leaderworkerset.yaml", "modelcache.yaml"):
            made = await client.create(_sample(sample, namespace), dry_run=True)
    except ApiError:
        return False
    return bool(made)


def _tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def main() -> int:
    """Play the demo; return the exit code: 0 when all it showed was so."""
    console = Console(soft_wrap=True)
    failures: list[BaseException] = []
    try:
        anyio.run(_play, console)
    except* (DemoFailedError, ControlPlaneError, ProgramNotFoundError) as failed:
        failures.append(_first(failed))
    for failure in failures:
        console.print(f"[red]✗ {escape(str(failure))}[/]")
    if not failures:
        console.print("[green]All that was shown is so.[/]")
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
