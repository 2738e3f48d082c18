"""Figures of many runs as tables of docs/benchmarks.md."""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.bench._driver import Run
from hack.bench._peers import Peer

PYRECONCILE = "pyreconcile"


@dataclass(frozen=True)
class Figure:
    """What one figure of a run is called, and how it is written."""

    key: str
    title: str
    digits: int
    scale: float = 1.0


FIGURES = (
    Figure("first_ready", "start of the process to first Ready, s", 2),
    Figure("latency_p50", "seen to Ready, one submitter, p50, ms", 1, 1000),
    Figure("latency_p99", "seen to Ready, one submitter, p99, ms", 1, 1000),
    Figure("all_ready", "all Ready, s", 2),
    Figure("cpu", "CPU an object, ms", 2),
    Figure("writes", "write requests an object", 2),
    Figure("memory_start", "memory at the start, MiB", 0),
    Figure("memory_loaded", "memory with all objects, MiB", 0),
    Figure("idle_cpu", "CPU while idle, % of a core", 2),
    Figure("idle_writes", "write requests while idle", 0),
    Figure("child_back", "deleted child is back, s", 3),
    Figure("spec_change", "changed spec is in the child, s", 3),
    Figure("restart", "restart to catching up with a change, s", 2),
    Figure("all_deleted", "all deleted, s", 2),
)


def percentile(values: Iterable[float], part: float) -> float:
    """Return the value that this part (0 to 1) of the values does not exceed, interpolated."""
    ordered = sorted(values)
    position = part * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def figures_of(run: Run) -> dict[str, float]:
    """Return a run's figures with those that come from its latencies."""
    latencies = {f"latency_p{part}": percentile(run.latencies, part / 100) for part in (50, 99) if run.latencies}
    return run.figures | latencies


def spread(values: Sequence[float], figure: Figure) -> str:
    """Write median, min and max of one figure."""
    median, low, high = (
        f"{value * figure.scale:.{figure.digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return median if low == high else f"{median} ({low}–{high})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Write how many times as much as theirs our median is."""
    divisor = statistics.median(theirs)
    return f"{statistics.median(ours) / divisor:.2f}" if divisor else "–"


def tables(runs: Sequence[Run], peers: Mapping[str, Peer]) -> str:
    """Return a table for each size: a row a figure, a column a peer, and our ratios to the others."""
    lines: list[str] = []
    for size in sorted({run.size for run in runs}):
        here = [run for run in runs if run.size == size]
        names = [name for name in peers if any(run.peer == name for run in here)]
        others = [name for name in names if name != PYRECONCILE and PYRECONCILE in names]
        count = min(sum(run.peer == name for run in here) for name in names)
        lines += [f"### {size:,} objects", "", f"Median (min–max) of {count} {'run' if count == 1 else 'runs'}.", ""]
        header = ["", *(peers[name].title for name in names), *(f"ratio to {name}" for name in others)]
        lines += [_row(header), _row(["---", *["---:"] * (len(header) - 1)])]
        for figure in FIGURES:
            values = {
                name: [
                    figures_of(run)[figure.key] for run in here if run.peer == name and figure.key in figures_of(run)
                ]
                for name in names
            }
            if all(values.values()):
                cells = [spread(values[name], figure) for name in names]
                lines.append(
                    _row([figure.title, *cells, *(ratio(values[PYRECONCILE], values[name]) for name in others)])
                )
        lines.append("")
    return "\n".join(lines)


def plain_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are numbers."""
    return "\n".join([_row(header), _row(["---", *["---:"] * (len(header) - 1)]), *map(_row, rows), ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def machine() -> str:
    """Say what the measurements ran on."""
    names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = names[0] if names else platform.machine()
    return (
        f"{os.cpu_count()} cores ({processor}), {total:.0f} GiB, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}; control plane, driver and measured process share them."
    )


def replace_part(page: str, part: str, text: str) -> str:
    """Return the page with a new text between the marks of one part.

    Raises:
        ValueError: the page has no such part.
    """
    start, end = f"<!-- {part}: written by make bench -->", f"<!-- end of {part} -->"
    before, found, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page has no part {part!r}: it needs the lines {start!r} and {end!r}")
    return f"{before}{start}\n{text.strip()}\n{end}{after}"
