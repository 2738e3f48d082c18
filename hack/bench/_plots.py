"""Plots of the comparison, as one small SVG."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hack.bench._driver import Run
from hack.bench._peers import Peer

_COLORS = {"pyreconcile": "#1b6ca8", "kopf": "#c8553d", "go": "#5b8c5a"}


def check_installed() -> None:
    """Raise a ClickException, before hours of measuring, unless the plots can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise click.ClickException("the plots need matplotlib: pip install 'pyreconcile[bench]', or run make bench")


def draw(runs: Sequence[Run], peers: Mapping[str, Peer], path: Path) -> None:
    """Draw time and CPU against the number of objects, and the distribution of latencies."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.hashsalt": "pyreconcile", "svg.fonttype": "none", "font.size": 9})
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    time, cpu, latency = figure.subplots(1, 3)
    names = [name for name in peers if any(run.peer == name for run in runs)]
    for name in names:
        own = [run for run in runs if run.peer == name]
        style = {"color": _COLORS.get(name), "label": peers[name].title}
        _against_size(time, own, lambda run: run.figures["all_ready"], style)
        _against_size(cpu, own, lambda run: run.figures["cpu"], style)
        values = sorted(value * 1000 for run in own for value in run.latencies)
        step = max(1, len(values) // 200)  # more points than can be told apart only make the file large
        latency.plot(values[::step], [(index + 1) / len(values) for index in range(0, len(values), step)], **style)
    time.set(title="All Ready", xlabel="objects", ylabel="seconds", xscale="log", yscale="log")
    cpu.set(title="CPU an object", xlabel="objects", ylabel="milliseconds", xscale="log", ylim=(0, None))
    latency.set(title="Seen to Ready, one submitter", xlabel="milliseconds", ylabel="share of objects", xscale="log")
    for axes in (time, cpu, latency):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (time, cpu):
        sizes = sorted({run.size for run in runs})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
    time.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})


def _against_size(axes: Any, runs: Sequence[Run], value: Callable[[Run], float], style: Mapping[str, Any]) -> None:
    """Draw the medians, with bars from least to most."""
    sizes = sorted({run.size for run in runs})
    groups = [[value(run) for run in runs if run.size == size] for size in sizes]
    medians = [statistics.median(group) for group in groups]
    below = [median - min(group) for median, group in zip(medians, groups, strict=True)]
    above = [max(group) - median for median, group in zip(medians, groups, strict=True)]
    axes.errorbar(sizes, medians, yerr=[below, above], marker="o", markersize=4, capsize=3, **style)
