"""The command behind ``make bench``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import anyio
import click
from rich.console import Console

from hack.bench import _peers, _plots, _report
from hack.bench._driver import Options, Run, measure
from hack.bench._micro import micro
from hack.bench._peers import Peer
from hack.bench._scale import TITLES, ScaleRun, measure_scale

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "benchmarks.md"
PLOT = Path("benchmarks") / "peers.svg"


def _sizes(_: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    try:
        sizes = [int(part) for part in value.split(",") if part.strip()]
    except ValueError:
        sizes = [0]
    if any(size < 1 for size in sizes):
        raise click.BadParameter(f"give numbers of objects as in --{parameter.name} 300,1000")
    return sizes


def _names(_: click.Context, __: click.Parameter, value: str) -> list[str]:
    known = _peers.peers()
    names = [part.strip() for part in value.split(",") if part.strip()]
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"no peer {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def rounds(sizes: Sequence[int], repeats: int, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield sizes and peers in the order of the runs: peers alternate, and each round starts with another one."""
    number = 0
    for _ in range(repeats):
        for size in sizes:
            shift = number % len(names)
            number += 1
            yield from ((size, name) for name in (*names[shift:], *names[:shift]))


async def _compare(
    console: Console, peers: Mapping[str, Peer], sizes: Sequence[int], repeats: int, options: Options
) -> list[Run]:
    """Measure in turn; a run that fails is told and left out."""
    runs: list[Run] = []
    order = list(rounds(sizes, repeats, list(peers)))
    for number, (size, name) in enumerate(order, 1):
        title = f"{number}/{len(order)} {size:,} objects, {peers[name].title}"
        try:
            with console.status(title):
                run = await measure(peers[name], size, options)
        except Exception:  # hours of other runs are worth more than to end here
            console.print_exception()
            continue
        runs.append(run)
        all_ready, cpu = run.figures["all_ready"], run.figures["cpu"]
        console.print(f"{title}: all Ready in {all_ready:.2f} s, {cpu:.2f} ms CPU an object", soft_wrap=True)
    return runs


async def _scale(console: Console, sizes: Sequence[int]) -> list[ScaleRun]:
    runs = []
    for size in sizes:
        with console.status(f"{size:,} objects in one process"):
            runs.append(await measure_scale(size))
    return runs


def scale_table(runs: Sequence[ScaleRun]) -> str:
    """Return the table of the scale measurements."""
    header = ["", *(f"{run.size:,} objects" for run in runs)]
    rows = [[title, *(f"{run.figures[key]:,.1f}" for run in runs)] for key, title in TITLES.items()]
    return _report.plain_table(header, rows)


def _write(docs: Path, part: str, text: str, console: Console) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    page = docs / PAGE
    page.write_text(_report.replace_part(page.read_text(), part, f"{text}\n{_report.machine()}"))


@click.command()
@click.option("--sizes", default="300,1000,5000", show_default=True, callback=_sizes, help="Objects of the comparison.")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Runs of each size and peer.")
@click.option("--peers", "names", default="pyreconcile,kopf,go", show_default=True, callback=_names)
@click.option("--submitters", default=16, show_default=True, type=click.IntRange(1), help="Creating at once.")
@click.option("--latency-objects", default=300, show_default=True, type=click.IntRange(2), help="One after another.")
@click.option("--compare/--no-compare", default=True, show_default=True, help="Measure the peers in turn.")
@click.option("--micro/--no-micro", "with_micro", default=True, show_default=True, help="Measure queue, store, decode.")
@click.option("--scale", default="", callback=_sizes, metavar="N,N", help="Also so many objects in one process.")
@click.option(
    "--docs",
    default=DOCS,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help=f"The folder whose {PAGE} gets the tables.",
)
def main(
    *,
    sizes: list[int],
    repeats: int,
    names: list[str],
    submitters: int,
    latency_objects: int,
    compare: bool,
    with_micro: bool,
    scale: list[int],
    docs: Path,
) -> None:
    """Measure pyreconcile and its peers on control planes of their own, and write docs/benchmarks.md."""
    console = Console()
    failed = 0
    if with_micro:
        rows = anyio.run(micro)
        _write(docs, "micro", _report.plain_table(["", ""], rows), console)
    if compare:
        _plots.check_installed()
        chosen = {name: peer for name, peer in _peers.peers().items() if name in names}
        _peers.prepare(chosen.values())
        options = Options(submitters=submitters, latency_objects=latency_objects)
        runs = anyio.run(_compare, console, chosen, sizes, repeats, options)
        if not runs:
            raise click.ClickException("every run failed")
        _plots.draw(runs, chosen, docs / PLOT)
        image = f"![time and CPU against the number of objects, and latencies]({PLOT})"
        _write(docs, "comparison", f"{image}\n\n{_report.tables(runs, chosen)}", console)
        failed = len(sizes) * repeats * len(chosen) - len(runs)
    if scale:
        _write(docs, "scale", scale_table(anyio.run(_scale, console, scale)), console)
    if failed:
        raise click.ClickException(f"{failed} runs failed; the tables are of the others")


if __name__ == "__main__":
    main()
