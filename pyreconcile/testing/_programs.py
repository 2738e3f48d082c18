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
DEFAULT_ASSETS = Path("/usr/local/kubebuilder/bin")  # TE-1: where envtest's own set-up puts them


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


def _installed(name: str, env: Mapping[str, str], default_assets: Path) -> Program | None:
    """TE-1: a variable for the one program, then one for the folder of all, then the folder that envtest knows."""
    variable = f"TEST_ASSET_{name.upper().replace('-', '_')}"
    if value := env.get(variable):
        if not _executable(Path(value)):
            raise ProgramNotFoundError(f"{variable}={value!r} is not an executable file")
        return Program(Path(value))
    assets = env.get("KUBEBUILDER_ASSETS")
    if assets and not Path(assets).is_dir():
        raise ProgramNotFoundError(f"KUBEBUILDER_ASSETS={assets!r} is not a folder")
    for folder in (assets, default_assets):
        if folder and _executable(Path(folder) / name):
            return Program(Path(folder) / name)
    return None


async def find_programs(
    names: Iterable[str],
    *,
    programs: Path | None = None,
    progress: Progress,
    env: Mapping[str, str] = os.environ,
    module_directory: Path = MODULE,
    default_assets: Path = DEFAULT_ASSETS,
) -> dict[str, Program]:
    """Find each program; build or fetch what is nowhere to be found.

    The order, for each program by itself: the given path; TEST_ASSET_NAME; KUBEBUILDER_ASSETS;
    /usr/local/kubebuilder/bin; the cache; a build from the Go module; official release binaries. envtest asks the
    environment before the path in the code; here what the caller wrote down wins.

    Args:
        names: Program names, such as "kube-apiserver".
        programs: A folder with the programs, or the one multi-call program. Nothing else is looked at when given.
        progress: Told about slow work.
        env: The environment.
        module_directory: The Go module to build from.
        default_assets: The folder in place of /usr/local/kubebuilder/bin.

    Raises:
        ProgramNotFoundError: A named path is wrong, or building and fetching both failed (both reasons given).
    """
    found: dict[str, Program] = {}
    names = tuple(names)
    for name in names:
        if programs is not None:
            found[name] = _explicit(name, programs)
        elif program := _installed(name, env, default_assets):
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
