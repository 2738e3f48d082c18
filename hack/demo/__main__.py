"""The main job, shown as it happens: ``make demo``.

A control plane comes up, a manager runs the bundled controllers on it, samples from ``docs/examples`` are applied, and
what becomes of them is shown: a live table on a terminal, plain lines elsewhere. Each act ends with a check; the first
one that fails ends the demo with exit code 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import structlog
from anyio.abc import Process
from rich.console import Console
from rich.markup import escape

from hack.demo import _canary, _disaggregated, _groups
from hack.demo._stage import DemoFailedError, Stage, sample
from hack.gateway_api import GatewayApiError, StandInGateway, install_gateway_api
from hack.manager_process import ManagerEndedError, manager_process
from pyreconcile.client import ApiError, Client, ConnectOptions, connect
from pyreconcile.manager import Manager, ManagerOptions
from pyreconcile.testing import ControlPlane, ControlPlaneError, ProgramNotFoundError, running

_SAMPLES = ("leaderworkerset.yaml", "modelcache.yaml", "disaggregatedset.yaml", "inferenceservice.yaml")
_OFF = "0"


async def _play(console: Console) -> None:
    started = time.monotonic()
    console.print("Starting a Kubernetes control plane (the first time it is built, which takes some minutes) …")
    async with ControlPlane(nodes=4, controller_manager=True, scheduler=True) as plane:
        log = Path(plane.directory) / "manager.log"
        async with connect(ConnectOptions(kubeconfig=plane.kubeconfig)) as client:
            stage = Stage(console, client, started)
            stage.say(f"control plane is up: etcd, API server, controller manager, scheduler, 4 nodes ({plane.url})")
            await install_gateway_api(client)
            try:
                async with _manager(plane.kubeconfig, log), _gateway(plane.kubeconfig) as gateway:
                    await stage.until_found(lambda: _serves(client), "the manager serves")
                    stage.say("manager runs: CRDs and webhooks are installed")
                    await _acts(stage, gateway)
            except BaseException:
                console.print(f"Last lines of the manager's log:\n{_tail(log)}", markup=False, highlight=False)
                raise
            stage.say("manager stopped")
    stage.say("control plane stopped")


async def _acts(stage: Stage, gateway: StandInGateway) -> None:
    async with stage.scene("groups", "LeaderWorkerSet: groups of pods"):
        for group_act in (
            _groups.form,
            _groups.lose_a_worker,
            _groups.scale,
            _groups.roll,
            _groups.heal,
            _groups.refuse,
        ):
            await group_act(stage)
    async with stage.scene("roles", "DisaggregatedSet: prefill and decode in step"):
        for role_act in (_disaggregated.form, _disaggregated.roll):
            await role_act(stage)
    async with stage.scene("models", "InferenceService: canary and promotion"):
        for model_act in (_canary.serve, _canary.canary, _canary.broken):
            await model_act(stage, gateway)


def _manager(kubeconfig: Path, log: Path) -> AbstractAsyncContextManager[Process]:
    """Run all bundled controllers beside the demo; pods that lost their traffic go after a second."""
    quick = {"INFERENCESERVICE_PROPAGATION": "1"}
    return manager_process(kubeconfig, "--webhook-bind-address", "127.0.0.1:0", log=log, environment=quick)


@asynccontextmanager
async def _gateway(kubeconfig: Path) -> AsyncIterator[StandInGateway]:
    """Run what takes a gateway's place: it says that it took each HTTPRoute, and remembers how it splits traffic."""
    options = ManagerOptions(
        connect=ConnectOptions(kubeconfig=kubeconfig), metrics_bind_address=_OFF, health_probe_bind_address=_OFF
    )
    async with Manager(options) as manager:
        gateway = StandInGateway()
        gateway.serve(manager)
        async with running(manager):
            yield gateway


async def _serves(client: Client) -> bool:
    """Tell whether CRDs and webhooks are in place, by asking the server for a dry run of the samples."""
    try:
        for name in _SAMPLES:
            await client.create(sample(name, "default"), dry_run=True)
    except ApiError:
        return False
    return True


def _tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def main() -> int:
    """Play the demo; return the exit code: 0 when all it showed was so."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    console = Console(soft_wrap=True)
    failures: list[BaseException] = []
    try:
        anyio.run(_play, console)
    except* (DemoFailedError, ManagerEndedError, ControlPlaneError, ProgramNotFoundError, GatewayApiError) as failed:
        failures.append(_first(failed))
    for failure in failures:
        console.print(f"[red]✗ {escape(str(failure))}[/]")
    if not failures:
        console.print("[green]All that was shown is so.[/]")
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
