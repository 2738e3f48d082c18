"""What the audience sees: a live table of pods on a terminal, plain lines elsewhere, and checks between."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import yaml
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from pyreconcile.api import KubeObject, ObjectMeta, find_model
from pyreconcile.api.core_v1 import Namespace, Pod
from pyreconcile.client import ApiError, Client

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"
WAIT = 60.0  # seconds that any one step may take
_POLL = 0.02  # seconds

T = TypeVar("T")


class DemoFailedError(Exception):
    """Something that the demo shows is not so."""


class Stage:
    """Shows one scene after the other, each in a namespace of its own.

    Attributes:
        client: acts for the audience; it reads from the server.
        namespace: of the scene that plays.
        pods: its pods by name, as they are now.
    """

    def __init__(self, console: Console, client: Client, started: float) -> None:
        self.client = client
        self.namespace = ""
        self.pods: dict[str, Pod] = {}
        self._console = console
        self._started = started
        self._changed = anyio.Event()
        self._live: Live | None = None
        self._lines: dict[str, str] = {}

    @asynccontextmanager
    async def scene(self, namespace: str, title: str) -> AsyncIterator[None]:
        """Make a namespace and show its pods while the block runs."""
        self.namespace, self.pods, self._lines = namespace, {}, {}
        await self.client.create(Namespace(metadata=ObjectMeta(name=namespace)))
        self._console.print()
        self._console.rule(f"[bold]{title}", align="left")
        async with anyio.create_task_group() as group:
            group.start_soon(self._follow, name="pods of the scene")
            if self._console.is_terminal:
                with Live(self._table(), console=self._console, refresh_per_second=10) as live:
                    self._live = live
                    try:
                        yield
                    finally:
                        self._live = None
            else:
                yield
            group.cancel_scope.cancel()

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        self._console.print(f"[dim]{time.monotonic() - self._started:6.1f}s[/]  {text}", highlight=False)

    def show(self, table: Table) -> None:
        """Print a table."""
        self._console.print(table)

    def passed(self, what: str) -> None:
        """Print that something was seen to be so."""
        self.say(f"[green]✓[/] {escape(what)}")

    def check(self, holds: bool, what: str) -> None:
        """Print that something is so.

        Raises:
            DemoFailedError: it is not.
        """
        if not holds:
            raise DemoFailedError(f"not so: {what}")
        self.passed(what)

    async def until(self, condition: Callable[[], bool], what: str) -> float:
        """Wait until the pods satisfy ``condition``; return the seconds it took.

        Raises:
            DemoFailedError: it took longer than WAIT seconds.
        """
        start = time.monotonic()
        with anyio.move_on_after(WAIT):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()
            return time.monotonic() - start
        states = ", ".join(f"{name} {state}" for name, state in sorted(self._lines.items()))
        raise DemoFailedError(f"not so after {WAIT:.0f} s: {what}; pods: {states or 'none'}")

    async def until_found(self, probe: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Ask again and again until ``probe`` gives something true, and return that.

        Raises:
            DemoFailedError: it took longer than WAIT seconds.
        """
        with anyio.move_on_after(WAIT):
            while not (found := await probe()):
                await anyio.sleep(_POLL)
            return found
        raise DemoFailedError(f"not so after {WAIT:.0f} s: {what}")

    async def until_condition(self, kind: type[KubeObject], name: str, condition: str) -> None:
        """Wait until an object's status has a condition that is True for its present generation."""

        async def probe() -> bool:
            found: Any = await self.client.get(kind, self.key(name))
            status = found.status
            current = status is not None and status.observed_generation == found.metadata.generation
            return current and any(item.type == condition and item.status == "True" for item in status.conditions)

        await self.until_found(probe, f"{kind.__name__} {name} is {condition}")
        self.passed(f"{kind.__name__} {name} is {condition}")

    async def refused(self, attempt: Awaitable[Any], because: str) -> None:
        """Check that the server refuses something, with a message that has ``because`` in it."""
        try:
            await attempt
        except ApiError as error:
            self.check(because in str(error), f"refused: {error}")
        else:
            raise DemoFailedError(f"the server took what it should refuse: {because}")

    def key(self, name: str) -> str:
        """Return the key of an object of the scene's namespace."""
        return f"{self.namespace}/{name}"

    def running(self, count: int) -> bool:
        """Tell whether there are just ``count`` pods, and all run."""
        states = [state_of(pod) for pod in self.pods.values()]
        return len(states) == count and all(state == "Running" for state in states)

    async def _follow(self) -> None:
        async for event in self.client.watch(Pod, namespace=self.namespace):
            pod, name = event.object, event.object.metadata.name
            if event.type == "DELETED":
                self.pods.pop(name, None)
                self._show(name, "gone")
            else:
                self.pods[name] = pod
                self._show(name, state_of(pod))
            self._changed.set()

    def _show(self, name: str, state: str) -> None:
        if self._lines.get(name) == state:
            return
        self._lines[name] = state
        if self._live:
            self._live.update(self._table())
        else:
            self.say(f"[dim]pod {name:<28} {state}[/]")

    def _table(self) -> Table:
        table = Table(title="pods", title_justify="left")
        for header in ("pod", "state", "node", "image", "uid"):
            table.add_column(header)
        for name, pod in sorted(self.pods.items()):
            state = state_of(pod)
            colour = {"Running": "green", "Terminating": "red"}.get(state, "yellow")
            spec = pod.spec
            image, node = (spec.containers[0].image or "", spec.node_name or "") if spec else ("", "")
            table.add_row(name, f"[{colour}]{state}[/]", node, image.rpartition("/")[2], pod.metadata.uid[:8])
        return table


def state_of(pod: Pod) -> str:
    """Return what ``kubectl get`` would say of a pod, in one word."""
    if pod.metadata.deletion_timestamp:
        return "Terminating"
    return (pod.status and pod.status.phase) or "Pending"


def sample(name: str, namespace: str, **changes: Mapping[str, Any]) -> KubeObject:
    """Read an object of ``docs/examples`` into a namespace."""
    raw: dict[str, Any] = {**yaml.safe_load((EXAMPLES / name).read_text()), **changes}
    model = find_model(raw["apiVersion"], raw["kind"])
    if model is None:
        raise DemoFailedError(f"{name}: {raw['apiVersion']} {raw['kind']} has no model")
    made = model.from_dict(raw)
    made.metadata.namespace = namespace
    return made
