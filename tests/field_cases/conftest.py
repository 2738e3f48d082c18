"""Options of the field cases, how a case is repeated, and the table at the end; docs/field-cases.md has the cases."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hack.field_bench.bench import Case, FailedRunsError, Outcome, Programs, Repeat, run_batch
from hack.field_bench.judge import Judge
from hack.field_bench.table import Row, table, write_rows
from pyreconcile.testing import ControlPlane

HERE = Path(__file__).parent
RESULTS = pytest.StashKey[list[Outcome]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("field cases")
    group.addoption("--runs", type=int, default=1, metavar="N", help="run each field case so often (default 1)")
    group.addoption("--results", metavar="FILE", help="keep the outcome of each run in a file")
    group.addoption("--long", action="store_true", help="also the field cases that take minutes")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: a field case that takes minutes; left out unless --long is given")
    config.stash[RESULTS] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if HERE in item.path.parents]
    left_out = (
        [] if config.getoption("long", default=False) else [item for item in here if item.get_closest_marker("long")]
    )
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in here:
        item.add_marker(pytest.mark.plane)
        item.add_marker(pytest.mark.timeout(0))  # each run has a limit of its own


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = [Row(outcome.case, outcome.seconds, outcome.error is None) for outcome in config.stash[RESULTS]]
    if rows:
        terminalreporter.section("field cases")
        for line in table(rows):
            terminalreporter.line(line)
    if path := config.getoption("results", default=None):
        write_rows(Path(path), rows)


@pytest.fixture
def runs(request: pytest.FixtureRequest) -> int:
    """How often each case is to run."""
    return int(request.config.getoption("runs", default=1))


@pytest.fixture
def programs() -> Programs:
    """Gives the file of a program under test."""
    return lambda name: HERE / "programs" / f"{name}.py"


@pytest.fixture
def repeat(request: pytest.FixtureRequest, runs: int) -> Repeat:
    """Runs a case as often as asked for, in batches; fails if one run does."""

    async def repeat(
        case: Case | Mapping[str, Case], /, *, at_once: int, seconds: float, plane: ControlPlane | None = None
    ) -> None:
        name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_")).strip("-")
        variants = case if isinstance(case, Mapping) else {"": case}
        kubeconfig = (plane or request.getfixturevalue("control_plane")).kubeconfig
        outcomes: list[Outcome] = []
        for first in range(1, runs + 1, at_once):
            numbers = range(first, min(first + at_once, runs + 1))
            batch = [
                (f"{name}-{variant}".strip("-"), number, one) for number in numbers for variant, one in variants.items()
            ]
            outcomes += await run_batch(batch, kubeconfig, seconds=seconds)
        request.config.stash[RESULTS] += outcomes
        bad = [outcome for outcome in outcomes if outcome.error is not None]
        if bad:
            which = "\n".join(f"{outcome.case}, run {outcome.number}: {_told(outcome.error)}" for outcome in bad)
            raise FailedRunsError(f"{len(bad)} of {len(outcomes)} runs went wrong\n{which}")

    return repeat


def _told(error: BaseException | None) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_told(one) for one in error.exceptions)
    return f"{type(error).__name__}: {error}"


@pytest.fixture
async def restartable_plane() -> AsyncIterator[ControlPlane]:
    """A control plane that no other test uses, to restart its API server."""
    async with ControlPlane(use_existing=False) as plane:
        yield plane


@pytest.fixture
async def widgets(control_plane: ControlPlane) -> None:
    """The kind Widget of the group field.example.dev."""
    async with Judge(control_plane.kubeconfig) as judge:
        await judge.create_crd("field.example.dev", "Widget")


@pytest.fixture
async def leaderworkersets(control_plane: ControlPlane) -> None:
    """The kind LeaderWorkerSet."""
    await control_plane.install_crds(HERE.parents[1] / "crds" / "leaderworkersets.leaderworkerset.x-k8s.io.yaml")
