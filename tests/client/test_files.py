"""Keys and certificates that a kubeconfig holds itself, for a library that reads files only."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from pyreconcile._files import HeldFile
from pyreconcile.client import _settings


def test_content_is_in_memory_and_gone_once_closed(monkeypatch: pytest.MonkeyPatch):
    def refuse(*args: object, **options: object) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with HeldFile(b"secret") as held:
        assert Path(held.path).read_bytes() == b"secret"
        assert Path(held.path).read_bytes() == b"secret"  # from its beginning each time
        path = held.path
    held.close()
    assert not os.path.exists(path)


def test_without_such_memory_it_is_a_temporary_file_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with HeldFile(b"secret") as held:
        assert Path(held.path).read_bytes() == b"secret"
        assert stat.S_IMODE(os.stat(held.path).st_mode) == 0o600
        assert list(tmp_path.iterdir()) == [Path(held.path)]
    assert list(tmp_path.iterdir()) == []


def test_two_threads_share_the_file_of_one_key(monkeypatch: pytest.MonkeyPatch):
    held: dict[bytes, HeldFile] = {}
    monkeypatch.setattr(_settings, "_HELD", held)
    monkeypatch.setattr("atexit.register", lambda function: None)
    barrier, paths = threading.Barrier(8), []

    def read() -> None:
        barrier.wait()
        paths.append(_settings._held(b"key"))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1
    _settings._release_held()
    assert held == {}
