"""What is measured: pyreconcile, and the same controller on kopf and on Go's controller-runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import click

HERE = Path(__file__).parent
WORKERS = 8
"""Reconciles at once, for each peer; kopf's is in its script."""


@dataclass(frozen=True)
class Peer:
    """One implementation of the ModelCache controller."""

    name: str
    title: str
    command: Callable[[int], list[str]]
    """Gives the command line for a port to serve metrics on."""
    prepare: Callable[[], None]
    """Builds or installs what the command needs, outside this repository and this environment."""


def cache_directory() -> Path:
    """Return where built peers are kept: beside the test control plane, in the user's cache folder."""
    base = os.environ.get("PYRECONCILE_CACHE_DIR")
    root = Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyreconcile"
    return root / "bench"


def peers() -> dict[str, Peer]:
    """Return all peers by name."""
    go, kopf = cache_directory() / "modelcache-go", _kopf_environment()

    def pyreconcile_command(port: int) -> list[str]:
        options = ["--controllers", "modelcache", "--no-leader-elect", "--max-concurrent-reconciles", str(WORKERS)]
        return [*manager_command(port), *options]

    def go_command(port: int) -> list[str]:
        return [str(go), f"--workers={WORKERS}", f"--metrics-bind-address=127.0.0.1:{port}"]

    def kopf_command(_: int) -> list[str]:
        script = str(HERE / "kopf" / "modelcache.py")
        return [str(kopf / "bin" / "kopf"), "run", "--standalone", "--all-namespaces", script]

    found = (
        Peer("pyreconcile", "pyreconcile", pyreconcile_command, lambda: None),
        Peer("kopf", "kopf 1.44.6", kopf_command, _install_kopf),
        Peer("go", "controller-runtime 0.25.2", go_command, lambda: _build_go(go)),
    )
    return {peer.name: peer for peer in found}


def manager_command(port: int) -> list[str]:
    """Return the start of ``pyreconcile run`` with its metrics on a port, and no webhooks and probes."""
    servers = ["--metrics-bind-address", f"127.0.0.1:{port}"]
    servers += ["--health-probe-bind-address", "0", "--webhook-bind-address", "0"]
    return [sys.executable, "-m", "pyreconcile", "run", *servers]


def prepare(chosen: Iterable[Peer]) -> None:
    """Make the peers ready to run.

    Raises:
        click.ClickException: a tool is missing or failed; the message says which.
    """
    cache_directory().mkdir(parents=True, exist_ok=True)
    for peer in chosen:
        try:
            peer.prepare()
        except subprocess.CalledProcessError as error:
            raise click.ClickException(f"{peer.title} could not be made ready: {error}") from None


def _build_go(program: Path) -> None:
    if shutil.which("go") is None:
        raise click.ClickException(
            "the Go peer needs Go ≥ 1.26 on the PATH; leave it out with --peers pyreconcile,kopf"
        )
    subprocess.run(
        ["go", "build", "-trimpath", "-o", program, "."],
        cwd=HERE / "go",
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )


def _kopf_environment() -> Path:
    return cache_directory() / f"kopf-{sys.version_info.major}.{sys.version_info.minor}"


def _install_kopf() -> None:
    environment = _kopf_environment()
    wanted = (HERE / "kopf" / "requirements.txt").read_text()
    stamp = environment / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    venv.create(environment, clear=True, with_pip=True)
    options = ["--quiet", "--disable-pip-version-check", "--requirement", str(HERE / "kopf" / "requirements.txt")]
    subprocess.run([environment / "bin" / "python", "-m", "pip", "install", *options], check=True)
    stamp.write_text(wanted)
