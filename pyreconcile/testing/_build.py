"""Building the control-plane program from its Go module, once per content."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from ._errors import BuildError
from ._progress import Progress

__all__ = ["MODULE", "Module", "build", "cache_dir", "cached_program", "locked", "platform_name"]

MODULE = Path(__file__).with_name("_gomodule")
_PROGRAM = "controlplane"
_HASHED = ("go.mod", "go.sum", "main.go")
_LAST_LINES = 20
_LOCK_POLL_SECONDS = 0.2


def cache_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Where built and fetched programs are kept: $PYRECONCILE_CACHE_DIR, or pyreconcile in the user's cache folder."""
    if explicit := env.get("PYRECONCILE_CACHE_DIR"):
        return Path(explicit)
    base = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME") or Path.home()) / ".cache")
    return Path(base) / "pyreconcile"


def platform_name() -> tuple[str, str]:
    """Operating system and architecture as Go spells them, such as ("linux", "amd64")."""
    machine = platform.machine().lower()
    return sys.platform, {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


@dataclass(frozen=True)
class Module:
    """What a Go module says about itself in go.mod."""

    directory: Path
    go: tuple[int, ...]
    requires: Mapping[str, str]

    @classmethod
    def read(cls, directory: Path = MODULE) -> Module:
        """Read go.mod. Raises BuildError when the directory holds none."""
        try:
            text = (directory / "go.mod").read_text()
        except OSError as error:
            raise BuildError(f"no Go module of the control plane in {directory}: {error}") from error
        go = re.search(r"^go (\d+(?:\.\d+)*)$", text, re.MULTILINE)
        requires = dict(re.findall(r"^(?:require)?\s+(\S+/\S+) (v\S+)(?: // indirect)?$", text, re.MULTILINE))
        version = tuple(int(part) for part in go.group(1).split(".")) if go else ()
        return cls(directory=directory, go=version, requires=requires)

    @property
    def kubernetes_version(self) -> str:
        """The version of Kubernetes that is built, such as "v1.37.2"."""
        return self.requires.get("k8s.io/kubernetes", "v0.0.0")

    def ldflags(self) -> str:
        """Linker flags: no symbols, and the version, which the server would not know otherwise."""
        version = self.kubernetes_version
        major, minor = [*version.removeprefix("v").split("."), "0"][:2]
        values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
        packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        return " ".join(["-s -w", *(f"-X {p}.{name}={value}" for p in packages for name, value in values.items())])

    def content_hash(self) -> str:
        """Changes whenever the built program would."""
        digest = hashlib.sha256()
        for name in _HASHED:
            path = self.directory / name
            digest.update(f"{name}\0".encode() + (path.read_bytes() if path.exists() else b"") + b"\0")
        digest.update("\0".join([self.ldflags(), *platform_name()]).encode())
        return digest.hexdigest()[:20]


def cached_program(module: Module, cache: Path) -> Path | None:
    """The program already built from this very module, if there is one."""
    path = cache / _PROGRAM / module.content_hash() / _PROGRAM
    return path if os.access(path, os.X_OK) else None


@asynccontextmanager
async def locked(path: Path, progress: Progress, waiting_for: str) -> AsyncIterator[None]:
    """Hold a file lock, waiting for other processes with it. Cancellation while waiting is safe."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        begun = time.monotonic()
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                progress.update(f"waiting for another process {waiting_for} ({_elapsed(begun)})")
                await anyio.sleep(_LOCK_POLL_SECONDS)
        yield


def _elapsed(since: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - since), 60)
    return f"{minutes}:{seconds:02d}"


async def _check_go(module: Module, env: Mapping[str, str]) -> str:
    """Find a Go that is new enough. Raises BuildError that says what is wrong with it."""
    needed = ".".join(str(part) for part in module.go[:2])
    go = shutil.which("go", path=env.get("PATH"))
    if go is None:
        raise BuildError(
            f"Go {needed} or newer is needed to build the test control plane, and no `go` program is on PATH."
            " Install it from https://go.dev/dl, or set KUBEBUILDER_ASSETS to a folder with the programs."
        )
    # Run inside the module: Go may switch to a newer toolchain by itself there, if the user lets it.
    answer = await anyio.run_process([go, "version"], cwd=module.directory, env=env, check=False)
    said = (answer.stdout + answer.stderr).decode(errors="replace").strip()
    found = re.search(r"go version go(\d+(?:\.\d+)*)", said)
    version = tuple(int(part) for part in found.group(1).split(".")) if found else ()
    if answer.returncode != 0 or version < module.go[:2]:
        raise BuildError(
            f"Go {needed} or newer is needed to build the test control plane; {go} says: {said}."
            " Install a newer Go from https://go.dev/dl, or set KUBEBUILDER_ASSETS to a folder with the programs."
        )
    return go


async def build(module: Module, cache: Path, progress: Progress, *, env: Mapping[str, str] = os.environ) -> Path:
    """Build the program and put it in the cache; a build by another process is waited for and used.

    A cold build takes several minutes on two cores. The file appears in the cache whole or not at all; cancellation
    ends the compiler and leaves nothing behind.

    Returns:
        The path of the program.

    Raises:
        BuildError: Go is missing or too old, or the build failed; the message ends with what the compiler said.
    """
    go = await _check_go(module, env)
    home = cache / _PROGRAM
    key = module.content_hash()
    async with locked(home / f"{key}.lock", progress, "to finish building the control plane"):
        if built := cached_program(module, cache):
            return built
        with tempfile.TemporaryDirectory(dir=home, prefix=f"{key}.") as scratch:
            target = Path(scratch) / _PROGRAM
            command = [go, "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", module.ldflags()]
            await _compile([*command, "-o", str(target), "."], module, progress, env)
            final = home / key
            final.mkdir(exist_ok=True)
            return target.rename(final / _PROGRAM)


async def _compile(command: list[str], module: Module, progress: Progress, env: Mapping[str, str]) -> None:
    begun = time.monotonic()
    packages = 0
    last: list[str] = []

    def show() -> None:
        progress.update(
            f"building the control plane, Kubernetes {module.kubernetes_version} (once; minutes on the first run):"
            f" {packages} packages compiled, {_elapsed(begun)}"
        )

    async def tick() -> None:
        while True:
            show()
            await anyio.sleep(1)

    process = await anyio.open_process(
        command,
        cwd=module.directory,
        env={**env, "CGO_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    async with _ended(process), anyio.create_task_group() as group:
        group.start_soon(tick)
        assert process.stderr is not None
        rest = ""
        async for text in TextReceiveStream(process.stderr, errors="replace"):
            *lines, rest = (rest + text).split("\n")
            packages += sum(1 for line in lines if re.fullmatch(r"[\w./~-]+", line))
            last = [*last, *lines][-_LAST_LINES:]
        code = await process.wait()
        group.cancel_scope.cancel()
    if code != 0:
        said = "\n".join([*last, rest]).strip()
        raise BuildError(f"building the control plane failed (go build, exit code {code}):\n{said}")


@asynccontextmanager
async def _ended(process: Process) -> AsyncIterator[None]:
    """On the way out make sure that the compiler and its children have ended."""
    try:
        yield
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.aclose()
