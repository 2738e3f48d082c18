"""``pyreconcile up``, ``down`` and ``status``: a control plane that stays after the command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click

if TYPE_CHECKING:
    from pyreconcile.testing import PlaneStatus

__all__ = ["down", "status", "up"]

_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".pyreconcile/plane"),
    show_default=True,
    help="Where the control plane keeps its files.",
)


def _gates(_: click.Context, __: click.Parameter, value: str) -> dict[str, bool]:
    from pyreconcile.testing._settings import parse_feature_gates

    try:
        return parse_feature_gates(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@_directory
@click.option("--nodes", type=click.IntRange(0, 1000), default=4, show_default=True, help="Number of simulated nodes.")
@click.option("--feature-gates", default="", callback=_gates, metavar="A=true,B=false", help="Kubernetes gates.")
@click.option(
    "--programs",
    type=click.Path(exists=True, path_type=Path),
    help="Folder with the programs (default: KUBEBUILDER_ASSETS, else built once).",
)
def up(directory: Path, nodes: int, feature_gates: dict[str, bool], programs: Path | None) -> None:
    """Start a control plane, leave it running, and print the path of its kubeconfig.

    Use it with: export KUBECONFIG=$(pyreconcile up)
    """
    from pyreconcile.testing import ControlPlaneError, plane_status

    found = anyio.run(plane_status, directory)
    if found.running:
        click.echo(f"a control plane is already running in {directory}; `pyreconcile status` shows it", err=True)
        click.echo(found.kubeconfig)
        return
    try:
        click.echo(anyio.run(_start, directory, nodes, feature_gates, programs))
    except ControlPlaneError as error:
        raise click.ClickException(str(error)) from error


async def _start(directory: Path, nodes: int, feature_gates: dict[str, bool], programs: Path | None) -> Path:
    from pyreconcile.testing import ControlPlane

    async with ControlPlane(
        nodes=nodes,
        controller_manager=True,
        scheduler=True,
        feature_gates=feature_gates,
        programs=programs,
        directory=directory,
        use_existing=False,
    ) as plane:
        plane.detach()
        return plane.kubeconfig


@click.command()
@_directory
def down(directory: Path) -> None:
    """Stop the control plane that `up` started. Its logs stay in the folder; its data is dropped by the next `up`."""
    from pyreconcile.testing import ControlPlaneError, stop_plane

    try:
        stopped = anyio.run(stop_plane, directory)
    except ControlPlaneError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"stopped the control plane in {directory}" if stopped else f"no control plane runs in {directory}")


@click.command()
@_directory
@click.pass_context
def status(context: click.Context, directory: Path) -> None:
    """Show the control plane that `up` started. Exit code 1 unless it runs and every component is healthy."""
    from pyreconcile.testing import plane_status

    found = anyio.run(plane_status, directory)
    click.echo(_table(found) if found.running else f"no control plane runs in {directory}")
    if not found.healthy:
        context.exit(1)


def _table(found: PlaneStatus) -> str:
    rows = [("COMPONENT", "PID", "PORT", "HEALTHY")]
    rows += [(c.name, str(c.pid), str(c.port or "-"), "yes" if c.healthy else "no") for c in found.components]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, f"kubeconfig: {found.kubeconfig}"])
