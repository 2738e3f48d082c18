"""Fetching official release binaries, checked against the published SHA-256 sums."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from ._build import Module, locked, platform_name
from ._errors import DownloadError
from ._progress import Progress

__all__ = ["download", "release_path"]

# Where each project publishes, and the variable that puts a mirror in its place.
_BASE_URLS = {
    "kubernetes": ("PYRECONCILE_KUBERNETES_URL", "https://dl.k8s.io"),
    "etcd": ("PYRECONCILE_ETCD_URL", "https://github.com/etcd-io/etcd/releases/download"),
    "kwok": ("PYRECONCILE_KWOK_URL", "https://github.com/kubernetes-sigs/kwok/releases/download"),
}
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=15, sock_read=30)


def _source(name: str, module: Module, env: Mapping[str, str]) -> tuple[str, str, str]:
    """The file's URL, the URL of its sums, and the version."""
    system, machine = platform_name()
    project = name if name in _BASE_URLS else "kubernetes"
    variable, default = _BASE_URLS[project]
    base = env.get(variable, default).rstrip("/")
    if project == "etcd":
        version = module.requires["go.etcd.io/etcd/server/v3"]
        return f"{base}/{version}/etcd-{version}-{system}-{machine}.tar.gz", f"{base}/{version}/SHA256SUMS", version
    if project == "kwok":
        version = module.requires["sigs.k8s.io/kwok"]
        url = f"{base}/{version}/kwok-{system}-{machine}"
    else:
        version = module.kubernetes_version
        url = f"{base}/{version}/bin/{system}/{machine}/{name}"
    return url, f"{url}.sha256", version


def release_path(name: str, module: Module, cache: Path, env: Mapping[str, str] = os.environ) -> Path:
    """Where a fetched program is kept."""
    _, _, version = _source(name, module, env)
    return cache / "release" / "-".join(platform_name()) / version / name


async def download(
    name: str, module: Module, cache: Path, progress: Progress, *, env: Mapping[str, str] = os.environ
) -> Path:
    """Fetch one program into the cache.

    The file is written beside its place and renamed once its sum is right, so nothing half written or unchecked is
    ever found under its name; cancellation leaves nothing behind.

    Raises:
        DownloadError: The server cannot be reached, has no such file or no sum for it, or the sum differs.
    """
    url, sums_url, _ = _source(name, module, env)
    target = release_path(name, module, cache, env)
    async with locked(target.with_suffix(".lock"), progress, f"to finish fetching {name}"):
        if os.access(target, os.X_OK):
            return target
        async with aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=True) as session:
            wanted = _wanted_sum((await _fetch(session, sums_url)).decode(errors="replace"), url, sums_url)
            body = await _fetch(session, url, progress)
        found = hashlib.sha256(body).hexdigest()
        if found != wanted:
            raise DownloadError(f"{url} has SHA-256 {found}, but {sums_url} says {wanted}: not used")
        _write(target, _unpacked(body, name, url) if url.endswith(".tar.gz") else body)
    return target


def _wanted_sum(text: str, url: str, sums_url: str) -> str:
    """Find the file's sum in a document that is either one bare sum, or lines of sum and file name."""
    file = url.rsplit("/", 1)[-1]
    for line in text.splitlines():
        match = re.fullmatch(r"([0-9a-fA-F]{64})(?:\s+\*?(\S+))?", line.strip())
        if match and (match.group(2) is None or match.group(2).rsplit("/", 1)[-1] == file):
            return match.group(1).lower()
    raise DownloadError(f"{sums_url} has no SHA-256 sum of {file}")


async def _fetch(session: aiohttp.ClientSession, url: str, progress: Progress | None = None) -> bytes:
    body = bytearray()
    try:
        async with session.get(url) as response:
            if response.status != 200:
                raise DownloadError(f"{url} answered {response.status} {response.reason}")
            async for chunk in response.content.iter_chunked(1 << 20):
                body += chunk
                if progress is not None:
                    progress.update(f"fetching {url}: {len(body) / 1e6:.0f} MB")
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise DownloadError(f"fetching {url} failed: {error or type(error).__name__}") from error
    return bytes(body)


def _unpacked(body: bytes, name: str, url: str) -> bytes:
    """The one program inside an archive."""
    try:
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:gz") as archive:
            for member in archive:
                if member.isfile() and member.name.rsplit("/", 1)[-1] == name:
                    file = archive.extractfile(member)
                    assert file is not None
                    return file.read()
    except tarfile.TarError as error:
        raise DownloadError(f"{url} is not a readable archive: {error}") from error
    raise DownloadError(f"{url} holds no file named {name}")


def _write(target: Path, content: bytes) -> None:
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o755)
        Path(scratch).rename(target)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
