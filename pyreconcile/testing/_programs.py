"""Finding the programs of the control plane."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ._build import MODULE, Module, build, cache_dir, cached_program
from ._download import download, release_path
from ._errors import BuildError, DownloadError, ProgramNotFoundError
from ._progress import Progress

__all__ = ["COMPONENTS", "KUBECTL", "Program", "find_programs"]

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
KUBECTL = "kubectl"


@dataclass(frozen=True)
class Program:
    """How to call one program."""

    path: Path
    multi_call: bool = False
    """The file is every program at once and takes its part's name as the first argument."""

    def argv(self, name: str) -> list[str]:
        """The start of the command line."""
        return [str(self.path), name] if self.multi_call else [str(self.path)]


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _explicit(name: str, path: Path) -> Program:
    """The program in the place the caller named. Nothing else will do, so a mistake there is an error."""
    if _executable(path):
        return Program(path, multi_call=True)
    if _executable(path / name):
        return Program(path / name)
    if _executable(path / "controlplane"):
        return Program(path / "controlplane", multi_call=True)
    raise ProgramNotFoundError(f"programs={str(path)!r} holds no executable file {name} or controlplane")


def _from_environment(name: str, env: Mapping[str, str]) -> Program | None:
    """TE-1: a variable for the one program, then the folder of all."""
    variable = f"TEST_ASSET_{name.upper().replace('-', '_')}"
    if value := env.get(variable):
        if not _executable(Path(value)):
            raise ProgramNotFoundError(f"{variable}={value!r} is not an executable file")
        return Program(Path(value))
    if (assets := env.get("KUBEBUILDER_ASSETS")) and _executable(Path(assets) / name):
        return Program(Path(assets) / name)
    return None


async def find_programs(
    names: Iterable[str],
    *,
    programs: Path | None = None,
    progress: Progress,
    env: Mapping[str, str] = os.environ,
    module_directory: Path = MODULE,
) -> dict[str, Program]:
    """Find each program; build or fetch what is nowhere to be found.

    The order, for each program by itself: the given path; TEST_ASSET_NAME; KUBEBUILDER_ASSETS; the cache; a build from
    the Go module; official release binaries.

    Args:
        names: Program names, such as "kube-apiserver".
        programs: A folder with the programs, or the one multi-call program. Nothing else is looked at when given.
        progress: Told about slow work.
        env: The environment.
        module_directory: The Go module to build from.

    Raises:
        ProgramNotFoundError: A named path is wrong, or building and fetching both failed (both reasons given).
    """
    found: dict[str, Program] = {}
    names = tuple(names)
    for name in names:
        if programs is not None:
            found[name] = _explicit(name, programs)
        elif program := _from_environment(name, env):
            found[name] = program
    missing = [name for name in names if name not in found]
    if missing:
        module = Module.read(module_directory)
        found |= await _from_cache(missing, module, cache_dir(env), progress, env)
    return found


async def _from_cache(
    names: list[str], module: Module, cache: Path, progress: Progress, env: Mapping[str, str]
) -> dict[str, Program]:
    if built := cached_program(module, cache):
        return {name: Program(built, multi_call=True) for name in names}
    fetched = {name: release_path(name, module, cache, env) for name in names}
    if all(_executable(path) for path in fetched.values()):
        return {name: Program(path) for name, path in fetched.items()}
    try:
        program = await build(module, cache, progress, env=env)
    except BuildError as build_error:
        try:
            return {name: Program(await download(name, module, cache, progress, env=env)) for name in names}
        except DownloadError as download_error:
            raise ProgramNotFoundError(
                f"the control plane's programs ({', '.join(names)}) are not installed, could not be built and could not"
                f" be fetched.\nBuild: {build_error}\nFetch: {download_error}"
            ) from build_error
    return {name: Program(program, multi_call=True) for name in names}
