"""The examples of the pages on manager, election, metrics and events can be used as they are printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
import yaml

from pyreconcile import Manager, ManagerOptions
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.api.rbac_v1 import ClusterRole
from pyreconcile.client import Client, ConnectOptions
from pyreconcile.election import ElectionOptions, own_namespace
from pyreconcile.testing import ControlPlane, eventually, running

DOCS = Path(__file__).parents[2] / "docs"


def example(page: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run all Python blocks of a page as one module; return its names."""
    module = ModuleType(f"{page}_example")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    path = DOCS / f"{page}.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
    exec(compile(code, str(path), "exec"), module.__dict__)
    return module.__dict__


@pytest.mark.plane
async def test_the_manager_of_the_guide_runs(
    control_plane: ControlPlane,
    client: Client,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    page = example("manager", monkeypatch)
    # As printed, but for the ports, which another program may have.
    off = {"metrics_bind_address": "0", "health_probe_bind_address": "0"}
    monkeypatch.setitem(page, "ManagerOptions", lambda **options: ManagerOptions(**options, **off))
    await client.create(ConfigMap.from_dict({"metadata": {"name": "shown", "namespace": namespace}}))
    said: list[str] = []

    def saw() -> bool:
        said.append(capsys.readouterr().out)
        return f"saw {namespace}/shown" in "".join(said)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(page["main"])
        await eventually(saw)
        tasks.cancel_scope.cancel()


async def test_the_runnable_of_the_guide_runs(local_manager: Any, monkeypatch: pytest.MonkeyPatch):
    reported = anyio.Event()

    async def report() -> None:
        reported.set()

    async with local_manager() as manager:
        manager.add(example("manager", monkeypatch)["Reporter"](report))
        async with running(manager):
            with anyio.fail_after(5):
                await reported.wait()


@pytest.mark.plane
async def test_the_election_without_a_manager_of_the_guide_leads(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, namespace: str
):
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    page = example("election", monkeypatch)
    assert page["options"].leader_election.name == "web-controller"

    def here(**options: Any) -> ElectionOptions:
        return ElectionOptions(**{**options, "namespace": namespace})

    monkeypatch.setitem(page, "ElectionOptions", here)
    with anyio.fail_after(20):
        await page["lead_alone"]()
    assert own_namespace() == ""


async def test_the_options_and_series_of_the_guide_on_metrics(local_manager: Any, monkeypatch: pytest.MonkeyPatch):
    from kubernetes_asyncio.client import Configuration

    page = example("metrics", monkeypatch)
    assert page["options"].metrics_authorization
    options = ManagerOptions(connect=ConnectOptions(configuration=Configuration(host="http://127.0.0.1:1")))
    manager = page["observed_manager"](options)
    assert isinstance(manager, Manager)
    assert manager.metrics.request_details is not None
    page["count_models"](manager).labels("node-1").inc()
    assert b'models_loaded_total{node="node-1"} 1.0' in manager.metrics.render()


@pytest.mark.plane
async def test_the_server_takes_the_role_of_the_guide_on_metrics(client: Client):
    (block,) = re.findall(r"^```yaml\n(.*?)^```", (DOCS / "metrics.md").read_text(), re.MULTILINE | re.DOTALL)
    role = ClusterRole.from_dict(yaml.safe_load(block))
    await client.create(role, dry_run=True, field_validation="Strict")


@pytest.mark.plane
async def test_the_event_of_the_guide_is_taken(manager: Manager, client: Client, namespace: str, monkeypatch: Any):
    from pyreconcile.api.events_v1 import Event

    config = await client.create(ConfigMap.from_dict({"metadata": {"name": "web", "namespace": namespace}}))
    async with running(manager):
        example("events", monkeypatch)["tell"](manager.recorder("guide"), config)

        async def told() -> list[str | None]:
            return [event.note for event in await client.list(Event, namespace=namespace)]

        assert await eventually(told) == ["key 'port' is no number"]
