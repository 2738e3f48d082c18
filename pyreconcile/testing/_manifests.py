"""Documents of files, each with the place that it came from."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pyreconcile.api import RawObject
from pyreconcile.client import ApiError

from ._errors import ManifestError

__all__ = ["Manifest", "read_manifests"]

_SUFFIXES = (".yaml", ".yml", ".json")  # TE-5


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as Kubernetes reads it: what looks like a date is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Manifest:
    """One document of a file."""

    raw: RawObject
    source: str
    """File and number of the document, for messages."""

    @property
    def name(self) -> str:
        """The object's name."""
        name: str = self.raw["metadata"]["name"]
        return name

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Have the document named by what goes wrong in the block. Raises ManifestError."""
        try:
            yield
        except (ApiError, ValueError) as error:
            raise ManifestError(f"{self.source}: {error}") from error


def read_manifests(paths: Iterable[Path | str], *, api_version: str, kinds: Collection[str]) -> list[Manifest]:
    """Read the documents of some kinds; those of other kinds are passed over, as a folder may hold both.

    Args:
        paths: files, or folders of which each .yaml, .yml and .json file is read, by name; folders in them are not.
        api_version: what documents of these kinds must have.
        kinds: which to return.

    Raises:
        ManifestError: a path is not there or holds no such document, a file cannot be parsed, or a document is not
            whole; the message names file and document.
    """
    found = []
    for path in map(Path, paths):
        here = [manifest for file in _files(path) for manifest in _documents(file) if manifest.raw.get("kind") in kinds]
        if not here:
            raise ManifestError(f"{path} holds no document of kind {' or '.join(kinds)}; folders in it are not read")
        found += here
    for manifest in found:
        _check(manifest, api_version)
    return found


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    if not path.is_file():
        raise ManifestError(f"{path} is no file or folder; relative paths start at {Path.cwd()}")
    return [path]


def _documents(file: Path) -> Iterator[Manifest]:
    try:
        text = file.read_text(encoding="utf-8")
        documents = list(_json(text) if file.suffix == ".json" else yaml.load_all(text, _Loader))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ManifestError(f"{file} cannot be read: {error}") from error
    for number, document in enumerate(documents, 1):
        source = f"{file}, document {number}"
        if isinstance(document, dict):
            yield Manifest(document, source)
        elif document is not None:
            raise ManifestError(f"{source}: it must be an object, not {type(document).__name__}")


def _json(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        yield document
        text = text[end:]


def _check(manifest: Manifest, api_version: str) -> None:
    raw = manifest.raw
    if raw.get("apiVersion") != api_version:
        raise ManifestError(f"{manifest.source}: apiVersion must be {api_version}, not {raw.get('apiVersion')!r}")
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise ManifestError(f"{manifest.source}: metadata.name is missing")
