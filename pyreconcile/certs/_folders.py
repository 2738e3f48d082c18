"""Waiting for changes in folders: by inotify where the system has it, else by nothing but time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import anyio

# linux/inotify.h: a name was written, moved here, created, moved away or deleted; the folder itself went away.
_MASK: Final = 0x8 | 0x80 | 0x100 | 0x40 | 0x200 | 0x400 | 0x800
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC


class FolderWatch(Protocol):
    """Tells of changes in folders."""

    def watch(self, folders: Iterable[Path]) -> None:
        """Say which folders are watched now; one that is not there, or was replaced, is taken up at the next call."""

    async def changed(self) -> None:
        """Wait for a change."""


class _Never:
    """For systems without inotify: whoever waits here looks again after a time."""

    def watch(self, folders: Iterable[Path]) -> None:
        pass

    async def changed(self) -> None:
        await anyio.sleep_forever()


class _Inotify:
    def __init__(self, library: Any, descriptor: int) -> None:
        self._library = library
        self._descriptor = descriptor
        self._watches: set[int] = set()

    def watch(self, folders: Iterable[Path]) -> None:
        # The kernel gives a folder that is watched already the same number, and one that was replaced a new one.
        numbers = {
            self._library.inotify_add_watch(self._descriptor, os.fsencode(folder), _MASK) for folder in folders
        } - {-1}
        for number in self._watches - numbers:
            self._library.inotify_rm_watch(self._descriptor, number)
        self._watches = numbers

    async def changed(self) -> None:
        await anyio.wait_readable(self._descriptor)
        with suppress(BlockingIOError):
            while os.read(self._descriptor, 65536):
                pass


@contextmanager
def watch_folders() -> Iterator[FolderWatch]:
    """Open a watch of folders, on the running loop; nothing is watched yet."""
    import ctypes  # costs 5 ms, which only servers with certificates are to pay

    library: Any = ctypes.CDLL(None, use_errno=True)
    descriptor = library.inotify_init1(_FLAGS) if hasattr(library, "inotify_init1") else -1
    if descriptor < 0:  # another system, or as many watches as the user may have
        yield _Never()
        return
    try:
        yield _Inotify(library, descriptor)
    finally:
        os.close(descriptor)
